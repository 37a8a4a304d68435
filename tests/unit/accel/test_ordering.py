# SPDX-License-Identifier: Apache-2.0
"""Tokens as `order` derives them: which command waits for which."""

from __future__ import annotations

import pytest
from random_kernels import FETCHING, MACHINES, closure, parsed, token_operands, traced, unordered
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.memory.memory_problems import checked_problems
from penstock.passes.schedule.ordering import order
from penstock.passes.schedule.ordering.tokens import set_dependencies

TILE = 'memref<4xi32, "spad">'
WINDOW = "memref<64xi32>"
SAME = "affine_map<(i) -> (i)>"


def kernel(body: str, machine: str = MACHINES["in order"]) -> tuple[func.FuncOp, list[tuple[int, ...]]]:
    """A kernel in order, and for each command the numbers of those that it comes after."""
    text = f"""func.func private @k(%x: {WINDOW}, %y: {WINDOW}) attributes {{device = @toy}} {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %five = arith.constant 5 : index
      %four = arith.constant 4 : index
      {body}
      accel.barrier
      func.return
    }}"""
    module, function, target = parsed(machine + text)
    order(function, target)
    module.verify()
    program = traced(function, target)
    assert unordered(program) == []
    return function, [command.after for command in program.commands]


def load(to: str, at: str = "0") -> str:
    return f'%l{to[1:]} = accel.dma %x[{at}] to {to} on "mvin" : {WINDOW} to {TILE}\n'


def store(of: str, at: str = "0") -> str:
    return f'%s{of[1:]} = accel.dma {of} to %y[{at}] on "mvout" : {TILE} to {WINDOW}\n'


def run(name: str, a: str, c: str) -> str:
    return f"%r{a[1:]}{c[1:]} = accel.exec @{name} extents [4] maps [{SAME}, {SAME}] ({a}, {c}) : {TILE}, {TILE}\n"


def buffers(*places: int) -> str:
    names = "abcdef"
    return "".join(f"%{name} = mem.buffer at {place} : {TILE}\n" for name, place in zip(names, places, strict=False))


def test_a_command_waits_for_the_last_of_an_in_order_unit_only() -> None:
    _, after = kernel(buffers(0, 16, 32) + load("%a") + load("%b") + run("move", "%a", "%c") + run("mix", "%b", "%c"))
    assert after == [(), (), (0,), (1,)]
    _, after = kernel(buffers(0, 16) + load("%a") + load("%b") + run("mix", "%a", "%b"))
    assert after == [(), (), (1,)]


def test_transfers_in_flight_are_waited_for_one_by_one() -> None:
    _, after = kernel(buffers(0, 16) + load("%a") + load("%b") + run("mix", "%a", "%b"), MACHINES["in flight"])
    assert after == [(), (), (0, 1)]


def test_bytes_that_a_dead_buffer_had_are_written_after_its_last_use() -> None:
    _, after = kernel(buffers(0, 16, 0) + load("%a") + run("move", "%a", "%b") + load("%c") + run("mix", "%c", "%b"))
    assert after == [(), (0,), (1,), (2,)]


def test_what_only_reads_needs_no_order() -> None:
    function, _ = kernel(buffers(0, 16) + load("%a") + load("%b", "1"))
    assert token_operands(function) == []


def test_a_ring_waits_for_the_round_that_had_the_slot() -> None:
    body = f"""%r = mem.ring 2 at 0 : !mem.ring<{TILE}>
    %c = mem.buffer at 64 : {TILE}
    scf.for %i = %zero to %five step %one {{
      %a = mem.slot %r[%i] : !mem.ring<{TILE}>
      {load("%a", "%i")} {run("move", "%a", "%c")}
    }}"""
    _, after = kernel(body)
    assert after[::2] == [(), (), (1,), (3,), (5,)]
    assert after[1::2] == [(0,), (2,), (4,), (6,), (8,)]


def test_a_ring_that_is_entered_again_at_slot_0_has_its_tokens_turned() -> None:
    body = f"""%r = mem.ring 2 at 0 : !mem.ring<{TILE}>
    %c = mem.buffer at 64 : {TILE}
    %three = arith.constant 3 : index
    scf.for %o = %zero to %four step %one {{
      scf.for %i = %zero to %three step %one {{
        %a = mem.slot %r[%i] : !mem.ring<{TILE}>
        {load("%a", "%i")} {run("move", "%a", "%c")}
      }}
    }}"""
    _, after = kernel(body)
    loads = after[::2]
    # Slots 0 1 0 | 0 1 0 | ...: the first of an entry follows the last of the one before, and so does the next.
    assert loads[:6] == [(), (), (1,), (5,), (), (7,)]


def test_a_ring_whose_number_is_not_understood_is_one_storage() -> None:
    body = f"""%r = mem.ring 2 at 0 : !mem.ring<{TILE}>
    %c = mem.buffer at 64 : {TILE}
    scf.for %i = %zero to %five step %one {{
      %n = arith.minsi %i, %one : index
      %a = mem.slot %r[%n] : !mem.ring<{TILE}>
      {load("%a", "%i")} {run("move", "%a", "%c")}
    }}"""
    _, after = kernel(body)
    assert after[::2] == [(), (1,), (3,), (5,), (7,)]


def test_what_shares_bytes_with_a_ring_waits_for_no_more_than_the_iterations_make_necessary() -> None:
    body = f"""%r = mem.ring 2 at 0 : !mem.ring<{TILE}>
    %c = mem.buffer at 64 : {TILE}
    %two = arith.constant 2 : index
    scf.for %o = %zero to %four step %one {{
      %first = arith.muli %o, %two : index
      scf.for %i = %zero to %two step %one {{
        %n = arith.addi %first, %i : index
        %a = mem.slot %r[%n] : !mem.ring<{TILE}>
        %at = arith.muli %n, %four : index
        {run("move", "%c", "%a")} {store("%a", "%at")}
      }}
    }}
    %b = mem.buffer at 0 : {TILE}
    {load("%b")}"""
    function, after = kernel(body, MACHINES["in flight"])
    assert after[-1] == (13, 15)
    module = function.parent_op()
    assert isinstance(module, ModuleOp)
    # The data flow does not know that the inner loop has two iterations, the commands do.
    assert len(checked_problems(module)) == 1
    set_dependencies([op for op in function.walk() if isinstance(op, DmaOp)][-1], [])
    with pytest.raises(UserError, match="share bytes"):
        checked_problems(module)


def test_a_window_that_only_the_last_iteration_stored_waits_for_that_alone() -> None:
    body = f"""%a = mem.buffer at 0 : {TILE}
    %b = mem.buffer at 16 : {TILE}
    scf.for %i = %zero to %five step %one {{
      %n = arith.muli %i, %four : index
      {store("%a", "%n")}
    }}
    %last = arith.constant 18 : index
    {store("%b", "%last")}"""
    _, after = kernel(body, MACHINES["in flight"])
    assert after == [(), (), (), (), (), (4,)]


def test_pieces_of_one_transfer_are_in_flight_together() -> None:
    half = 'memref<2xi32, strided<[1], offset: ?>, "spad">'
    body = f"""%a = mem.buffer at 0 : {TILE}
    %b = mem.buffer at 16 : {TILE}
    %two = arith.constant 2 : index
    scf.for %o = %zero to %five step %one {{
      scf.for %i = %zero to %four step %two {{
        %p = memref.subview %a[%i] [2] [1] : {TILE} to {half}
        %t = accel.dma %x[%i] to %p on "mvin" : {WINDOW} to {half}
      }}
      {run("move", "%a", "%b")}
    }}"""
    _, after = kernel(body, MACHINES["in flight"])
    assert after[:6] == [(), (), (0, 1), (2,), (2,), (3, 4)]


def test_pieces_in_a_slot_that_stays_the_same_are_in_flight_together() -> None:
    half = 'memref<2xi32, strided<[1], offset: ?>, "spad">'
    body = f"""%r = mem.ring 2 at 0 : !mem.ring<{TILE}>
    %two = arith.constant 2 : index
    %a = mem.slot %r[%zero] : !mem.ring<{TILE}>
    scf.for %i = %zero to %four step %two {{
      %p = memref.subview %a[%i] [2] [1] : {TILE} to {half}
      %t = accel.dma %x[%i] to %p on "mvin" : {WINDOW} to {half}
    }}
    %b = mem.slot %r[%one] : !mem.ring<{TILE}>
    {load("%b")} {run("move", "%a", "%b")}"""
    _, after = kernel(body, MACHINES["in flight"])
    assert after == [(), (), (), (0, 1, 2)]


def test_many_pieces_are_in_flight_together() -> None:
    whole, piece = 'memref<289xi32, "spad">', 'memref<1xi32, strided<[1], offset: ?>, "spad">'
    body = f"""%r = mem.ring 2 at 0 : !mem.ring<{whole}>
    %two = arith.constant 2 : index
    %side = arith.constant 17 : index
    scf.for %o = %zero to %two step %one {{
      %a = mem.slot %r[%o] : !mem.ring<{whole}>
      scf.for %i = %zero to %side step %one {{
        scf.for %j = %zero to %side step %one {{
          %row = arith.muli %i, %side : index
          %n = arith.addi %row, %j : index
          %p = memref.subview %a[%n] [1] [1] : {whole} to {piece}
          %t = accel.dma %x[0] to %p on "mvin" : {WINDOW} to {piece}
        }}
      }}
    }}"""
    function, _ = kernel(body, MACHINES["in flight"])
    assert token_operands(function) == []


def test_every_token_is_needed_and_without_it_there_is_a_race() -> None:
    body = buffers(0, 16) + "scf.for %i = %zero to %five step %one {\n"
    body += load("%a", "%i") + run("move", "%a", "%b") + store("%b", "%i") + "}"
    function, _ = kernel(body)
    module = function.parent_op()
    target = next(op for op in module.walk() if op.name == "machine.target") if module is not None else None
    full = closure(traced(function, target))  # pyright: ignore[reportArgumentType]
    operands = token_operands(function)
    assert len(operands) == 4
    for op, position in operands:
        assert isinstance(op, DmaOp | ExecOp)
        kept = list(op.dependencies)
        set_dependencies(op, [*kept[:position], *kept[position + 1 :]])
        program = traced(function, target)  # pyright: ignore[reportArgumentType]
        assert closure(program) != full
        assert unordered(program)
        set_dependencies(op, kept)


FETCH_BEHIND_AN_OP = f"""%r = mem.ring 2 at 0 : !mem.ring<{TILE}>
    %b = mem.buffer at 64 : {TILE}
    %c = mem.buffer at 80 : {TILE}
    scf.for %i = %zero to %five step %one {{
      %a = mem.slot %r[%i] : !mem.ring<{TILE}>
      {load("%a", "%i")}{run("move", "%a", "%c")}
      %f = accel.dma %x[%i] to %b on "fetch" : {WINDOW} to {TILE}
      {run("mix", "%b", "%c")}
    }}"""
"""In each iteration a load to the ring, an op that reads it, a load by the unit of the op, and another op."""


def test_a_prefetch_waits_for_the_transfer_that_the_computing_unit_needs_first() -> None:
    _, after = kernel(FETCH_BEHIND_AN_OP, FETCHING)
    # The load of the third iteration takes the slot of the first, which its first op has read before the fetch.
    assert after[8] == (2,)


def test_a_prefetch_on_another_bus_waits_for_the_op_alone() -> None:
    apart = FETCHING.replace("to [@spad] bus @in", "to [@spad] bus @out", 1)
    _, after = kernel(FETCH_BEHIND_AN_OP, apart)
    assert after[8] == (1,)


def test_a_kernel_in_queue_form_is_refused() -> None:
    queues = MACHINES["in order"].replace(
        "machine.dma @mvin", 'machine.queue from @load to @execute capacity 2 on_full "error"\nmachine.dma @mvin'
    )
    text = """func.func private @k() attributes {device = @toy} {
      accel.push "load" to "execute"
      accel.pop "execute" from "load"
      accel.barrier
      func.return
    }"""
    _, function, target = parsed(queues + text)
    with pytest.raises(UserError, match="ordered by queues"):
        order(function, target)
