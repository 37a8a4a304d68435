# SPDX-License-Identifier: Apache-2.0
"""Queues between units: what is pushed and popped, ways round, capacities, and the pass on kernels with loops."""

from __future__ import annotations

import re

import numpy as np
import pytest
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import DmaOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.accel.accel_assign_queues import AccelAssignQueuesPass
from penstock.passes.accel.queues import assign_queues, keeps_order, least_time
from penstock.passes.analysis.commands.happens_before import waited_for
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.hazards.network import deadlocks
from penstock.passes.analysis.commands.program import Command, Engine, Kind, MachineModel, Program, Queue, QueueName
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.runtime.interpreter import run_function
from penstock.runtime.machines import attach_machine

VTA = (("load", "compute"), ("compute", "load"), ("compute", "store"), ("store", "compute"))


def model(
    pairs: tuple[QueueName, ...] = VTA,
    *,
    capacity: int = 255,
    blocks: bool = False,
    outstanding: int = 1,
    buses: tuple[str | None, ...] = ("bus",),
    initial: int = 0,
) -> MachineModel:
    engines = {
        f"{unit}{number}": Engine(f"{unit}{number}", unit, bus, 8, 1, outstanding)
        for unit in ("load", "store")
        for number, bus in enumerate(buses)
    }
    queues = tuple(Queue(*pair, capacity, blocks, initial) for pair in pairs)
    return MachineModel("toy", ("load", "compute", "store"), {"bus": (8, 1)}, engines, queues)


def program(machine: MachineModel, *commands: tuple[str, list[int]], barriers: tuple[int, ...] = ()) -> Program:
    """Commands as the first letter of their unit, and for a transfer the number of its engine."""
    made: list[Command] = []
    for name, after in commands:
        unit = {"l": "load", "c": "compute", "s": "store"}[name[0]]
        engine = None if unit == "compute" else f"{unit}{name[1:] or 0}"
        kind = Kind.EXEC if engine is None else Kind.TRANSFER
        made.append(Command(unit, kind, name, engine, cycles=10, after=tuple(after)))
    return Program(machine, made, barriers)


def tokens(assigned: Program) -> list[str]:
    """Each command with what it pops and pushes, as `c <load >store`."""
    found: list[str] = []
    for command in assigned.commands:
        words = [command.name or f"[{command.unit}]"]
        words += [f"<{source}" for source, _ in command.pops] + [f">{dest}" for _, dest in command.pushes]
        found.append(" ".join(words))
    return found


# which tokens


def test_only_the_latest_command_of_a_unit_is_waited_for_and_only_once() -> None:
    given = program(model(), ("l", []), ("l", []), ("c", [0, 1]), ("c", [0]), ("l", []), ("c", [1, 4]))
    assert tokens(assign_queues(given)) == ["l", "l >compute", "c <load", "c", "l >compute", "c <load"]


def test_what_a_third_unit_has_seen_to_needs_no_token() -> None:
    every = (*VTA, ("load", "store"), ("store", "load"))
    given = program(model(every), ("l", []), ("c", [0]), ("s", [0, 1]))
    assert tokens(assign_queues(given)) == ["l >compute", "c <load >store", "s <compute"]


def test_what_a_barrier_orders_needs_no_token() -> None:
    given = program(model(), ("l", []), ("c", [0]), ("c", [0]), barriers=(1,))
    assert tokens(assign_queues(given)) == ["l", "c", "c"]


def test_transfers_in_flight_on_one_unit_keep_their_token() -> None:
    given = program(model(outstanding=4), ("l", []), ("l", [0]), ("c", [1]))
    assigned = assign_queues(given)
    assert tokens(assigned) == ["l", "l >compute", "c <load"]
    assert [command.after for command in assigned.commands] == [(), (0,), ()]


def test_a_push_tells_of_all_transfers_before_it() -> None:
    given = program(model(outstanding=4), ("l", []), ("l", []), ("c", [1]), ("c", [0]))
    assert tokens(assign_queues(given)) == ["l", "l >compute", "c <load", "c"]


def test_transfers_that_may_overtake_each_other_leave_their_pushes_to_a_carrier() -> None:
    given = program(model(outstanding=4, buses=("bus", None)), ("l0", []), ("l1", []), ("c", [1]))
    assert tokens(assign_queues(given)) == ["l0", "l1", "[load] >compute", "c <load"]


# ways


def test_units_without_a_queue_meet_through_a_carrier() -> None:
    given = program(model(), ("s", []), ("l", [0]))
    assert tokens(assign_queues(given)) == ["s >compute", "[compute] <store >load", "l <compute"]


def test_a_carrier_stands_behind_what_the_waiting_command_waits_for_anyway() -> None:
    given = program(model(), ("s", []), ("c", []), ("c", []), ("l", [0, 1]))
    assert tokens(assign_queues(given)) == ["s >compute", "c", "[compute] <store >load", "c", "l <compute"]


def test_one_carrier_serves_all_that_wait_for_the_same() -> None:
    given = program(model(), ("s", []), ("l", [0]), ("l", [0]))
    assert tokens(assign_queues(given)) == ["s >compute", "[compute] <store >load", "l <compute", "l"]


def test_units_that_no_way_leads_between_are_named() -> None:
    given = program(model(VTA[:3]), ("s", []), ("l", [0]))
    with pytest.raises(UserError, match='toy has no queue from "store" to "load", nor a way through other units'):
        assign_queues(given)


# capacities


def test_a_push_that_could_overflow_waits_for_the_pop_that_makes_room() -> None:
    pairs: list[tuple[str, list[int]]] = [("l", []), ("c", [0]), ("l", []), ("c", [2]), ("l", []), ("c", [4])]
    roomy, tight = (assign_queues(program(model(capacity=size), *pairs)) for size in (3, 2))
    assert not any("<compute" in each for each in tokens(roomy))
    assert tokens(tight)[4] == "l <compute >compute"
    assert not check(tight)


def test_tokens_become_one_where_room_is_made_too_late_in_the_program() -> None:
    given = program(model(capacity=2), *[("l", list[int]())] * 4, ("c", [0]), ("c", [1]), ("c", [2]), ("c", [3]))
    assigned = assign_queues(given)
    assert tokens(assigned)[2:] == ["l >compute", "l >compute", "c <load", "c", "c", "c <load"]
    assert keeps_order(assigned, waited_for(given))


def test_a_queue_that_blocks_is_left_alone_where_nobody_waits_for_ever() -> None:
    given = program(
        model(capacity=2, blocks=True), *[("l", list[int]())] * 4, *(("c", [number]) for number in range(4))
    )
    assigned = assign_queues(given)
    assert sum(len(command.pops) for command in assigned.commands) == 4
    assert not deadlocks(assigned)


def test_tokens_become_fewer_where_a_blocking_queue_would_stop_the_machine() -> None:
    # The first exec waits for the third load, behind the first load's token and the second's.
    machine = model((*VTA, ("load", "store"), ("store", "load")), capacity=1, blocks=True)
    given = program(machine, ("l", []), ("l", []), ("l", []), ("s", [2]), ("c", [0, 3]), ("c", [1]), ("c", [2]))
    stuck = Program(
        machine,
        [
            Command("load", Kind.TRANSFER, "l", "load0", pushes=(("load", "compute"),)),
            Command("load", Kind.TRANSFER, "l", "load0", pushes=(("load", "compute"),)),
            Command("load", Kind.TRANSFER, "l", "load0", pushes=(("load", "store"),)),
            Command("store", Kind.TRANSFER, "s", "store0", pops=(("load", "store"),), pushes=(("store", "compute"),)),
            Command("compute", Kind.EXEC, "c", pops=(("store", "compute"), ("load", "compute"))),
            Command("compute", Kind.EXEC, "c", pops=(("load", "compute"),)),
        ],
    )
    assert deadlocks(stuck)
    assigned = assign_queues(given)
    assert not deadlocks(assigned)
    assert keeps_order(assigned, waited_for(given))


def test_a_queue_that_holds_tokens_at_the_beginning_is_refused() -> None:
    with pytest.raises(UserError, match="holds 2 tokens at the beginning: only empty ones can be assigned"):
        assign_queues(program(model(initial=2), ("l", []), ("c", [0])))


def test_more_pops_than_pushes_are_refused() -> None:
    given = program(model(), ("l", []), ("c", []))
    given.commands[1].pops = (("load", "compute"),)
    with pytest.raises(UserError, match='pops token 1 of the queue from "load" to "compute", into which 0 are pushed'):
        assign_queues(given)


def test_programs_in_queue_form_are_assigned_anew() -> None:
    given = program(model(), ("l", []), ("c", [0]), ("l", []), ("c", [0, 2]))
    once = assign_queues(given)
    assert tokens(assign_queues(once)) == tokens(once)


# order and time


def test_order_is_kept_only_with_every_token() -> None:
    given = program(model(), ("l", []), ("c", [0]), ("s", [1]))
    assigned = assign_queues(given)
    assert keeps_order(assigned, waited_for(given))
    assigned.commands[0].pushes = ()
    assigned.commands[1].pops = ()
    assert not keeps_order(assigned, waited_for(given))


def test_the_least_time_overlaps_what_no_token_orders() -> None:
    apart = program(model(), ("l", []), ("c", []))
    behind = program(model(), ("l", []), ("c", [0]))
    assert (least_time(apart), least_time(behind)) == (18, 28)
    in_flight = program(model(outstanding=2), ("l", []), ("l", []))
    assert least_time(in_flight) == 28  # the latency of the second is hidden, as they share the unit's way out


# kernels

RING = """
func.func private @k(%x: memref<9x1x16xi8>, %y: memref<9x1x16xi8>) attributes {device = @gemmini} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %end = arith.constant 9 : index
  %ring = mem.ring 2 at 0 : !mem.ring<memref<1x1x16xi8, "spad">>
  %free = accel.ready
  %d0, %d1 = scf.for %i = %zero to %end step %one iter_args(%two_ago = %free, %before = %free)
      -> (!accel.token, !accel.token) {
    %a = mem.slot %ring[%i] : !mem.ring<memref<1x1x16xi8, "spad">>
    %t = accel.dma %x[%i, 0, 0] to %a on "mvin" after (%two_ago) : memref<9x1x16xi8> to memref<1x1x16xi8, "spad">
    %u = accel.dma %a to %y[%i, 0, 0] on "mvout" after (%t) : memref<1x1x16xi8, "spad"> to memref<9x1x16xi8>
    scf.yield %before, %u : !accel.token, !accel.token
  }
  accel.barrier
  func.return
}
"""


def module_of(text: str, machine: str = "gemmini") -> ModuleOp:
    module = parse_text(make_context(), SourceText("kernel.mlir", text)).module
    attach_machine(module, machine)
    return module


def kernel_of(module: ModuleOp) -> func.FuncOp:
    return machine_kernels(module)[1][0]


def assign(module: ModuleOp, **options: int) -> func.FuncOp:
    AccelAssignQueuesPass(**options).apply(make_context(), module)
    module.verify()
    return kernel_of(module)


def traced(module: ModuleOp) -> Program:
    target, (kernel, *_) = machine_kernels(module)
    assert target is not None
    return trace(kernel, target)


def run(module: ModuleOp) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (9, 1, 16)).astype(np.int8)
    for interleaving in ("program", "asap", "alap", 0, 1, 2):
        y = np.zeros_like(x)
        run_function(module, "k", [x, y], interleaving=interleaving)
        assert np.array_equal(x, y), interleaving


def test_a_loop_over_a_ring_is_primed_with_a_push_for_each_slot_and_drained() -> None:
    module = module_of(RING)
    text = str(assign(module))
    before, inside = text[: text.index("scf.for")], text[text.index("scf.for") : text.index("accel.barrier")]
    assert before.count('accel.push "store" to "load"') == 2
    assert inside.count('accel.push "store" to "load"') == 1
    assert inside.count('accel.pop "load" from "store"') == 3  # one in the loop, two behind it
    assert "accel.token" not in text
    run(module)


def test_a_loop_of_fewer_rounds_than_slots_needs_no_priming() -> None:
    module = module_of(RING.replace("constant 9", "constant 2"))
    text = str(assign(module))
    assert 'accel.push "store" to "load"' not in text
    assert not check(traced(module))


TWICE = RING.replace(
    "    %u =",
    """    %again = accel.dma %x[%i, 0, 0] to %a on "mvin" after (%t) : memref<9x1x16xi8> to memref<1x1x16xi8, "spad">
    %u =""",
).replace("after (%t) : memref<1x1x16xi8", "after (%again) : memref<1x1x16xi8")
"""Two transfers in flight on one unit, in an order that no queue can keep."""


def test_a_kernel_without_a_pattern_is_unrolled() -> None:
    module = module_of(TWICE)
    kernel = assign(module)
    assert not any(isinstance(op, scf.ForOp) for op in kernel.walk())
    assert sum(isinstance(op, DmaOp) and bool(op.dependencies) for op in kernel.walk()) == 9
    run(module)


def test_more_commands_than_may_be_unrolled_are_refused_where_they_stand() -> None:
    with pytest.raises(UserError, match="keep the order of @k in its loops, and its 27 commands are more") as caught:
        assign(module_of(TWICE), unroll=26)
    assert caught.value.loc == "kernel.mlir:2:1"


def test_what_the_pass_orders_is_what_the_tokens_ordered() -> None:
    module = module_of(RING)
    before = traced(module)
    assign(module)
    after = traced(module)
    assert keeps_order(after, waited_for(before))
    assert least_time(after) == least_time(before)
    assert check(after) == []


def test_a_kernel_in_queue_form_is_left_as_it_is() -> None:
    module = module_of(RING)
    text = str(assign(module))
    assert str(assign(module)) == text


def test_queues_and_tokens_together_are_refused() -> None:
    mixed = RING.replace(
        "  accel.barrier", '  accel.push "load" to "store"\n  accel.pop "store" from "load"\n  accel.barrier'
    )
    with pytest.raises(UserError, match="@k is ordered by queues and by tokens"):
        assign(module_of(mixed))


def test_a_pop_by_a_unit_without_such_a_queue_is_refused() -> None:
    text = re.sub(r"accel.barrier", 'accel.pop "store" from "load"\n  accel.barrier', RING)
    with pytest.raises(UserError, match='@vta_pynq has no queue from "load" to "store"'):
        parse_and_verify(text, "vta-pynq")


def parse_and_verify(text: str, machine: str) -> None:
    from penstock.runtime.pass_manager import verify

    kernel = "\n".join(line for line in text.splitlines() if "accel.dma" not in line)
    kernel = kernel.replace("scf.yield %before, %u", "scf.yield %before, %before")
    module = module_of(kernel, machine)
    verify(module)
