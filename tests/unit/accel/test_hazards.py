# SPDX-License-Identifier: Apache-2.0
"""What the static check of hazards says: of queues, of accesses, and of loops with a million rounds."""

from __future__ import annotations

import pytest
from loop_nests import TILE, kernel_of
from redundancy import redundant_operands

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.commands.hazards import Hazard, HazardKind, check, check_kernel
from penstock.passes.analysis.commands.hazards.induction import UndecidedError, decide
from penstock.passes.analysis.commands.program import Command, Engine, Kind, MachineModel, Program, Queue
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.commands.trace import trace

UNITS = ("load", "execute", "store")
AB, BA = ("load", "execute"), ("execute", "load")


def model(*queues: Queue, outstanding: int = 1) -> MachineModel:
    engines = {unit: Engine(unit, unit, None, 0, 0, outstanding) for unit in UNITS}
    return MachineModel("toy", UNITS, {}, engines, queues)


def load(**more: object) -> Command:
    return Command("load", Kind.TRANSFER, "load", "load", **more)  # pyright: ignore[reportArgumentType]


def execute(**more: object) -> Command:
    return Command("execute", Kind.EXEC, "gemm", **more)  # pyright: ignore[reportArgumentType]


def only(hazards: list[Hazard]) -> Hazard:
    assert len(hazards) == 1, hazards
    return hazards[0]


# queues


def test_a_deadlock_names_what_each_unit_waits_for() -> None:
    machine = model(Queue(*AB, 2, True), Queue(*BA, 2, True))
    program = Program(machine, [load(pops=(BA,), pushes=(AB,)), execute(pops=(AB,), pushes=(BA,))])
    found = only(check(program))
    assert found.fault is HazardKind.DEADLOCK
    assert found.message == "deadlock: the units wait for each other"
    assert found.notes == (
        'load is at transfer "load" on load, which waits for a token of the queue from "execute" to "load"',
        'execute is at exec "gemm" on execute, which waits for a token of the queue from "load" to "execute"',
    )


def test_tokens_at_the_beginning_let_a_ring_of_units_go_round() -> None:
    machine = model(Queue(*AB, 2, True), Queue(*BA, 2, True, 1))
    program = Program(machine, [load(pops=(BA,), pushes=(AB,)), execute(pops=(AB,), pushes=(BA,))] * 3)
    assert check(Program(machine, list(program.commands))) == []


def test_a_token_that_nobody_pushes_is_named() -> None:
    machine = model(Queue(*AB, 2, True))
    found = only(check(Program(machine, [load(pushes=(AB,)), execute(pops=(AB,)), execute(pops=(AB,))])))
    assert found.fault is HazardKind.DEADLOCK
    assert found.message == "deadlock: token is never signalled"
    assert found.notes[0].endswith('the queue from "load" to "execute", which is popped 2 times and pushed 1')


def test_a_token_of_a_command_that_there_is_not_never_comes() -> None:
    found = only(check(Program(model(), [execute(after=(7,))])))
    assert found.message == "deadlock: token is never signalled"


def test_a_token_that_is_left_over_is_a_leak() -> None:
    found = only(check(Program(model(Queue(*AB, 2, True)), [load(pushes=(AB, AB)), execute(pops=(AB,))])))
    assert found.fault is HazardKind.LEAK
    assert "ends with 1 tokens and began with 0" in found.message


def test_a_push_waits_for_room_only_where_the_queue_says_so() -> None:
    commands = [load(pushes=(AB,)), load(pushes=(AB,)), execute(pops=(AB,)), execute(pops=(AB,))]
    assert check(Program(model(Queue(*AB, 1, True)), list(commands))) == []
    found = only(check(Program(model(Queue(*AB, 1, False)), list(commands))))
    assert found.fault is HazardKind.OVERFLOW
    ordered = [
        load(pushes=(AB,)),
        execute(pops=(AB,), pushes=(BA,)),
        load(pops=(BA,), pushes=(AB,)),
        execute(pops=(AB,)),
    ]
    assert check(Program(model(Queue(*AB, 1, False), Queue(*BA, 1, False)), ordered)) == []


def test_pushes_that_wait_for_room_can_deadlock() -> None:
    machine = model(Queue(*AB, 1, True), Queue("load", "store", 4, True))
    store = Command("store", Kind.CARRIER, pops=(("load", "store"),))
    commands = [load(pushes=(AB,)), load(pushes=(AB, ("load", "store"))), execute(after=(3,), pops=(AB, AB)), store]
    found = only(check(Program(machine, commands)))
    assert found.fault is HazardKind.DEADLOCK
    assert 'which waits for room in the queue from "load" to "execute"' in found.notes[0]


def test_a_queue_belongs_to_two_units() -> None:
    machine = model(Queue(*AB, 2, True))
    found = check(Program(machine, [execute(pushes=(AB,)), load(pops=(AB,)), execute(pops=(BA,))]))
    assert [hazard.fault for hazard in found] == [HazardKind.WRONG_UNIT] * 3
    assert 'but only "load" may do that' in found[0].message
    assert 'but only "execute" may do that' in found[1].message
    assert "toy has no such queue" in found[2].message


# accesses

TILE_AT = Region("spad", 0, 0, 64)


def test_transfers_in_flight_are_ordered_by_their_starts_only() -> None:
    commands = [load(writes=(TILE_AT,)), load(reads=(TILE_AT,))]
    assert check(Program(model(outstanding=1), list(commands))) == []
    assert only(check(Program(model(outstanding=2), list(commands)))).fault is HazardKind.RACE
    assert check(Program(model(outstanding=2), [commands[0], load(reads=(TILE_AT,), after=(0,))])) == []


def test_what_one_unit_knows_another_learns_with_its_token() -> None:
    commands = [load(writes=(TILE_AT,)), execute(after=(0,)), Command("store", Kind.EXEC, reads=(TILE_AT,), after=(1,))]
    assert check(Program(model(outstanding=4), commands)) == []


def test_a_barrier_orders_everything() -> None:
    commands = [load(writes=(TILE_AT,)), execute(reads=(TILE_AT,))]
    assert only(check(Program(model(), commands))).fault is HazardKind.RACE
    assert check(Program(model(), commands, barriers=(1,))) == []


def test_rows_between_rows_do_not_overlap() -> None:
    even, odd = (Region("dram", 1, start, 8, ((4, 16),)) for start in (0, 8))
    assert check(Program(model(), [load(writes=(even,)), execute(writes=(odd,))])) == []
    wider = Region("dram", 1, 8, 9, ((4, 16),))
    assert only(check(Program(model(), [load(writes=(even,)), execute(writes=(wider,))]))).fault is HazardKind.RACE


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_commands_are_checked(count: int) -> None:
    commands: list[Command] = []
    for number in range(count // 3):
        slot = Region("spad", 0, number % 2 * 64, 64)
        free = (3 * number - 5,) if number >= 2 else ()
        commands.append(load(reads=(Region("dram", 1, 64 * number, 64),), writes=(slot,), after=free))
        commands.append(execute(reads=(slot,), after=(3 * number,)))
        out = Region("dram", 2, 64 * number, 64)
        commands.append(Command("store", Kind.TRANSFER, "store", "store", writes=(out,), after=(3 * number + 1,)))
    assert check(Program(model(outstanding=8), commands)) == []


# loops

MILLION = 1_000_000
LOOP = f"""
func.func @kernel(%x: memref<8100000xf32>, %y: memref<8100000xf32>) attributes {{device = @toy}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %back = arith.constant BACK : index
  %last = arith.constant LAST : index
  %n = arith.constant {MILLION} : index
  %ring = mem.ring SLOTS at 0 : !mem.ring<{TILE}>
  %again = mem.ring 2 at 1024 : !mem.ring<{TILE}>
  %none = accel.ready
  %r:3 = scf.for %i = %c0 to %n step %c1 iter_args(%p = %none, %q = %none, %s = %none)
      -> (!accel.token, !accel.token, !accel.token) {{
    %bent = arith.minsi %i, %last : index
    %slot = mem.slot %ring[%bent] : !mem.ring<{TILE}>
    %at = arith.muli %i, %c4 : index
    %load = accel.dma %x[%at] to %slot on "mvin" after (%p) : memref<8100000xf32> to {TILE}
    %to = arith.addi %at, %back : index
    %store = accel.dma %slot to %y[%to] on "mvout" after (%load) : {TILE} to memref<8100000xf32>
    RELOAD
    scf.yield %q, %s, %store : !accel.token, !accel.token, !accel.token
  }}
  accel.barrier
  func.return
}}
"""
RELOAD = f"""%other = mem.slot %again[%i] : !mem.ring<{TILE}>
    %reload = accel.dma %y[%at] to %other on "mvin" after (AFTER) : memref<8100000xf32> to {TILE}
    %use = accel.exec @relu extents [4] maps [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>] (%other, %other)
             after (%reload) : {TILE}, {TILE}
    accel.wait %use"""


def decided(text: str = LOOP, *, slots: int = 3, back: int = 0, last: int = MILLION, reload: str = "") -> list[Hazard]:
    """The hazards of the loop, found in a few of its iterations."""
    for name, value in {"SLOTS": slots, "BACK": 4 * back, "LAST": last, "RELOAD": reload}.items():
        text = text.replace(name, str(value))
    kernel, target = kernel_of(text)
    found, part = decide(kernel, target)
    assert len(part.commands) < 1000
    return found


def test_a_loop_of_a_million_rounds_with_as_many_slots_as_tokens_is_free_of_hazards() -> None:
    assert decided() == []
    # Who waits for the round three before has waited, a round ago, for the one four before.
    assert decided(slots=4) == []


def test_a_slot_that_is_used_again_too_early_is_found() -> None:
    found = decided(slots=2)
    assert {hazard.fault for hazard in found} == {HazardKind.RACE}
    assert 'of "spad"' in found[0].message


def test_a_bug_in_the_last_round_alone_is_found() -> None:
    assert decided(last=MILLION - 1) == []
    assert only(decided(last=MILLION - 2)[:1]).fault is HazardKind.RACE


def test_what_is_stored_and_loaded_again_rounds_later_must_be_ordered() -> None:
    assert decided(back=3, reload=RELOAD.replace("AFTER", "%p")) == []
    assert decided(back=5, reload=RELOAD.replace("AFTER", "%p")) == []
    found = only(decided(back=2, reload=RELOAD.replace("AFTER", "%p")))
    assert "reads" in found.message
    assert "of %y" in found.message
    assert "no happens-before between the two" in found.message


def test_a_reload_far_from_its_store_must_be_ordered_too() -> None:
    # Nothing waits for the stores here.
    text = "\n".join(line for line in LOOP.splitlines() if "%load =" not in line).replace(" after (%load)", "")
    for back in (5, 90_000, MILLION - 1):
        assert decided(text, back=back, reload=RELOAD.replace("AFTER", "%p")) == []
        found = decided(text, back=back, reload=RELOAD.replace(" after (AFTER)", ""))
        assert "reads" in only(found).message
        assert "of %y" in only(found).message
    assert decided(text, back=MILLION, reload=RELOAD.replace(" after (AFTER)", "")) == []


def test_what_is_loaded_behind_a_loop_must_wait_for_the_round_that_stored_it() -> None:
    behind = f"""  %tile = mem.buffer at 4096 : {TILE}
  %final = accel.dma %y[{4 * (MILLION - 1)}] to %tile on "mvin" AFTER : memref<8100000xf32> to {TILE}
  accel.barrier"""
    text = LOOP.replace("  accel.barrier", behind)
    assert decided(text.replace("AFTER", "after (%r#2)")) == []
    assert decided(text.replace("AFTER", "after (%r#1)")) != []
    # What was stored long before the end has been waited for by the round that took its slot.
    early = text.replace(f"%y[{4 * (MILLION - 1)}]", "%y[4000]")
    assert decided(early.replace("AFTER", "after (%r#0)")) == []


def test_a_loop_that_is_not_alike_from_round_to_round_is_refused() -> None:
    text = LOOP.replace("%at = arith.muli %i, %c4", "%at = arith.muli %i, %i").replace("RELOAD", "")
    kernel, target = kernel_of(text.replace("SLOTS", "3").replace("BACK", "0").replace("LAST", "9"))
    with pytest.raises(UndecidedError):
        decide(kernel, target)
    with pytest.raises(UserError, match="whether @kernel is free of hazards cannot be decided: it has 2,000,00"):
        check_kernel(kernel, target)


def test_a_loop_with_a_computed_bound_that_is_too_long_is_left_undecided_by_induction() -> None:
    kernel, target = kernel_of(f"""
func.func @kernel(%x: memref<4096xf32>) attributes {{device = @toy}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %many = arith.constant 600 : index
  %computed = arith.muli %many, %c1 : index
  %one = mem.buffer at 0 : {TILE}
  scf.for %i = %c0 to %many step %c1 {{
    %a = accel.dma %x[0] to %one on "mvin" : memref<4096xf32> to {TILE}
    accel.barrier
  }}
  scf.for %i = %c0 to %computed step %c1 {{
    %a = accel.dma %x[0] to %one on "mvin" : memref<4096xf32> to {TILE}
    accel.barrier
  }}
  accel.barrier
  func.return
}}
""")
    with pytest.raises(UndecidedError):
        decide(kernel, target, limit=100)
    assert check_kernel(kernel, target)[0] == []


# tokens that say nothing


def test_a_token_that_a_later_one_implies_is_redundant() -> None:
    kernel, target = kernel_of(f"""
func.func @kernel(%x: memref<4096xf32>, %y: memref<4096xf32>) attributes {{device = @toy}} {{
  %one = mem.buffer at 0 : {TILE}
  %a = accel.dma %x[0] to %one on "mvin" : memref<4096xf32> to {TILE}
  %b = accel.exec @relu extents [4] maps [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>] (%one, %one) after (%a)
         : {TILE}, {TILE}
  %c = accel.dma %one to %y[0] on "mvout" after (%a, %b) : {TILE} to memref<4096xf32>
  %d = accel.dma %one to %y[8] on "mvout" after (%b, %b) : {TILE} to memref<4096xf32>
  accel.barrier
  func.return
}}
""")
    assert check(trace(kernel, target)) == []
    ops = {op.results[0].name_hint: op for op in kernel.walk() if op.name.startswith("accel.") and op.results}
    found = redundant_operands(kernel, target)
    # Both of %d's say what its unit knew when %c started.
    assert found == [(ops["c"], 0), (ops["d"], 0), (ops["d"], 1)]
