# SPDX-License-Identifier: Apache-2.0
"""A kernel as the list of its commands: what they are, what they cost, and what they come after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import pytest
from random_kernels import MACHINES as TOYS
from random_kernels import SAME, closure, parsed
from sampling import sweep
from xdsl.dialects import scf
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.analysis.commands.program import Command, Kind, Program, View
from penstock.passes.analysis.commands.recorder import Join, Recorder
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.commands.trace import Iterations, trace
from penstock.passes.analysis.kernels import machine_kernels

ROOT = Path(__file__).parents[3]
CONTEXT = make_context()
MACHINES = {name: str(load_machine(name)) for name in ("gemmini-fp32", "vta-pynq")}


def traced(
    body: str,
    machine: str = "gemmini-fp32",
    *,
    end: str = "accel.barrier",
    limit: int = 1000,
    iterations: Iterations | None = None,
    arguments: Sequence[View | None] | None = None,
) -> Program:
    """The trace of a kernel with some constants and buffers at hand."""
    element, wide = ("f32", "f32") if machine == "gemmini-fp32" else ("i8", "i32")
    near = "spad" if machine == "gemmini-fp32" else "inp"
    text = f"""
      {MACHINES[machine]}
      func.func private @k(%x: memref<10x16x{element}>, %y: memref<10x16x{wide}>)
          attributes {{device = @{machine.replace("-", "_")}}} {{
        %0 = arith.constant 0 : index
        %1 = arith.constant 1 : index
        %2 = arith.constant 2 : index
        %3 = arith.constant 3 : index
        %7 = arith.constant 7 : index
        %pad = arith.constant 0{".0" if element == "f32" else ""} : {element}
        %a = mem.buffer at 256 : memref<4x16x{element}, "{near}">
        %b = mem.buffer at 1024 : memref<4x16x{element}, "{near}">
        %c = mem.buffer at 512 : memref<4x16x{wide}, "acc">
        {body}
        {end}
        func.return
      }}"""
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    target, (kernel,) = machine_kernels(module)
    assert target is not None
    return trace(kernel, target, limit=limit, iterations=iterations, arguments=arguments)


def load(at: str = "0, 0", to: str = "%a", after: str = "", how: str = "") -> str:
    tokens = f"after ({after})" if after else ""
    return f'accel.dma %x[{at}] to {to} {how} on "mvin" {tokens} : memref<10x16xf32> to memref<4x16xf32, "spad">'


def store(after: str = "") -> str:
    tokens = f"after ({after})" if after else ""
    return f'accel.dma %c to %y[0, 0] on "mvout" {tokens} : memref<4x16xf32, "acc"> to memref<10x16xf32>'


# commands


def test_a_transfer_says_what_moves_and_what_that_costs() -> None:
    (command,) = traced(f"%t = {load('3, 0')}").commands
    assert (command.unit, command.kind, command.name, command.engine) == ("load", Kind.TRANSFER, "mvin", "mvin")
    assert command.reads == (Region("dram", 1, 3 * 64, 256),)
    assert command.writes == (Region("spad", 0, 256, 256),)
    assert command.moved == (("dram", "spad", 256),)
    assert command.operands == (
        View("dram", 1, 3 * 64, (4, 16), (64, 4), 4),
        View("spad", 0, 256, (4, 16), (64, 4), 4),
    )
    assert command.cycles == 256 // 16 + 1
    assert command.padding == ()


def test_a_padded_transfer_reads_what_is_inside_and_writes_all() -> None:
    text = 'accel.dma %x[-1, 0] to %a else %pad on "load_inp" : memref<10x16xi8> to memref<4x16xi8, "inp">'
    (command,) = traced(f"%t = {text}", "vta-pynq").commands
    assert command.reads == (Region("dram", 1, 0, 48),)
    assert command.writes == (Region("inp", 0, 256, 64),)
    assert command.padding == ((1, 0), (0, 0))
    assert command.operands[1] == View("inp", 0, 256 + 16, (3, 16), (16, 1), 1)
    assert command.moved == (("dram", "inp", 48),)
    assert command.cycles == 48 // 8 + 1


def test_a_clipped_transfer_leaves_what_it_lacks() -> None:
    (command,) = traced(f"%t = {load('8, 4', how='clipped')}").commands
    assert command.reads == (Region("dram", 1, 8 * 64 + 16, 48, ((2, 64),)),)
    assert command.writes == (Region("spad", 0, 256, 48, ((2, 64),)),)
    assert command.cycles == 2 * (48 // 16 + 1)


def test_a_window_wholly_outside_touches_nothing() -> None:
    (command,) = traced(f"%t = {load('10, 0', how='clipped')}").commands
    assert (command.reads, command.writes, command.cycles) == ((), (), 0)
    assert command.moved == (("dram", "spad", 0),)


def test_an_exec_counts_its_applications() -> None:
    maps = "[affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]"
    views = """
      %p = memref.subview %b[0, 0] [4, 6] [1, 1] : memref<4x16xf32, "spad"> to memref<4x6xf32, strided<[16, 1]>, "spad">
      %q = memref.subview %c[0, 4] [4, 6] [1, 1]
        : memref<4x16xf32, "acc"> to memref<4x6xf32, strided<[16, 1], offset: 4>, "acc">
      %s = memref.subview %a[0, 0] [4, 4] [1, 1] : memref<4x16xf32, "spad"> to memref<4x4xf32, strided<[16, 1]>, "spad">
      %t = accel.exec @gemm extents [4, 6, 4] maps MAPS (%s, %p, %q) : memref<4x4xf32, strided<[16, 1]>, "spad">,
        memref<4x6xf32, strided<[16, 1]>, "spad">, memref<4x6xf32, strided<[16, 1], offset: 4>, "acc">
    """
    (command,) = traced(views.replace("MAPS", maps)).commands
    assert (command.unit, command.kind, command.engine) == ("execute", Kind.EXEC, None)
    assert command.iterations == 2
    assert command.cycles == 12 + 4 * 2
    assert command.macs == 4 * 6 * 4
    written = Region("acc", 0, 512 + 16, 24, ((4, 64),))
    assert command.reads == (Region("spad", 0, 256, 16, ((4, 64),)), Region("spad", 0, 1024, 24, ((4, 64),)), written)
    assert command.writes == (written,)
    assert command.operands[2] == View("acc", 0, 512 + 16, (4, 6), (64, 4), 4)


def test_what_an_engine_does_on_the_way_is_a_transfer_of_it() -> None:
    same = "affine_map<(i, j) -> (i, j)>"
    text = f"""
      %out = memref.subview %y[2, 0] [4, 16] [1, 1]
        : memref<10x16xf32> to memref<4x16xf32, strided<[16, 1], offset: 32>>
      %z = accel.exec @zero_acc extents [4, 16] maps [{same}] (%c) : memref<4x16xf32, "acc">
      %t = accel.exec @mvout_relu extents [4, 16] maps [{same}, {same}] (%c, %out) after (%z)
        : memref<4x16xf32, "acc">, memref<4x16xf32, strided<[16, 1], offset: 32>>
    """
    zero, out = traced(text).commands
    assert (zero.unit, zero.kind, zero.name, zero.engine) == ("load", Kind.TRANSFER, "zero_acc", "mvin")
    assert (zero.reads, zero.moved, zero.cycles) == ((), (), 1)
    assert (out.unit, out.name, out.engine) == ("store", "mvout_relu", "mvout")
    assert out.reads == (Region("acc", 0, 512, 256),)
    assert out.writes == (Region("dram", 2, 128, 256),)
    assert (out.moved, out.cycles, out.after) == ((("acc", "dram", 256),), 256 // 16 + 1, (0,))


def test_the_slots_of_a_ring_take_turns_and_counters_tell_the_round() -> None:
    text = f"""
      %r = mem.ring 2 pitch 512 at 2048 : !mem.ring<memref<4x16xf32, "spad">>
      scf.for %i = %1 to %7 step %2 {{
        scf.for %j = %0 to %2 step %1 {{
          %n = arith.addi %i, %j : index
          %s = mem.slot %r[%n] : !mem.ring<memref<4x16xf32, "spad">>
          %t = {load("%i, 0", "%s", how="clipped")}
        }}
      }}
    """
    commands = traced(text).commands
    assert [command.counters for command in commands] == [(i, j) for i in range(3) for j in range(2)]
    assert [command.writes[0].start for command in commands] == [2048 + 512, 2048] * 3
    assert [command.reads[0].start for command in commands] == [64 * i for i in (1, 1, 3, 3, 5, 5)]


def test_arguments_lie_where_they_are_said_to() -> None:
    far = View("dram", 7, 4096, (10, 16), (64, 4), 4)
    loaded, stored = traced(f"%t = {load('1, 0')}\n%u = {store()}", arguments=[far, None]).commands
    assert loaded.reads == (Region("dram", 7, 4096 + 64, 256),)
    assert stored.writes == (Region("dram", 2, 0, 256),)


# tokens


def afters(program: Program) -> list[tuple[int, ...]]:
    return [command.after for command in program.commands]


def test_tokens_are_the_commands_behind_them() -> None:
    text = f"""
      %r = accel.ready
      %t = {load()}
      %u = {load(to="%b")}
      %v = accel.ready after (%t, %r, %u)
      %w = {store("%v")}
      %s = {store("%t")}
    """
    assert afters(traced(text)) == [(), (), (0, 1), (0,)]


def test_loops_carry_tokens() -> None:
    text = f"""
      %r = accel.ready
      %p, %q = scf.for %i = %0 to %3 step %1 iter_args(%v = %r, %w = %r) -> (!accel.token, !accel.token) {{
        %t = {load(after="%w")}
        %u = {store("%v, %t")}
        scf.yield %w, %u : !accel.token, !accel.token
      }}
      %u = {load(after="%p, %q")}
    """
    assert afters(traced(text)) == [(), (0,), (1,), (2,), (3,), (1, 4), (3, 5)]


def test_what_the_order_of_a_unit_says_is_not_listed() -> None:
    same = "affine_map<(i, j) -> (i, j)>"
    reset = f'accel.exec @gemm_reset extents [4, 16] maps [{same}] (%c) after (%t) : memref<4x16xi32, "acc">'
    text = f"""
      %t = accel.ready
      %u = {reset}
      %v = {reset.replace("%t", "%u")}
      %w = accel.exec @alu_max_imm imm [0 : i32] extents [4, 16] maps [{same}] (%c) after (%u)
        : memref<4x16xi32, "acc">
      %x0 = accel.dma %x[0, 0] to %a on "load_inp" after (%u, %v, %w) : memref<10x16xi8> to memref<4x16xi8, "inp">
    """
    # Of the three that the last one comes after, the third implies the others.
    assert afters(traced(text, "vta-pynq")) == [(), (), (), (2,)]


def test_transfers_in_flight_are_not_ordered_by_their_unit() -> None:
    text = f"""
      %t = {load()}
      %u = {load(after="%t")}
      %v = {load(after="%t, %u")}
    """
    assert afters(traced(text)) == [(), (0,), (0, 1)]


def test_the_host_waits_for_tokens_and_for_all() -> None:
    text = f"""
      %t = {load()}
      accel.wait %t
      %u = {load(to="%b")}
      %v = {store()}
      accel.barrier
      %w = {store("%t, %v")}
    """
    program = traced(text)
    assert afters(program) == [(), (0,), (0,), ()]
    assert program.barriers == (3,)


@pytest.mark.parametrize("machine", sorted(TOYS))
@pytest.mark.parametrize("seed", sweep(range(8), range(3)))
def test_leaving_out_what_is_implied_changes_no_order(machine: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, kernel, target = parsed(TOYS[machine] + random_tokens(Random(seed)))
    short = trace(kernel, target)

    def all_of(recorder: Recorder, tokens: Iterable[int | Join], command: Command) -> tuple[int, ...]:
        pending, found = list(tokens), set[int]()
        while pending:
            token = pending.pop()
            if isinstance(token, int):
                found.add(token)
            else:
                pending.extend(token.parts)
        return tuple(sorted(found))

    monkeypatch.setattr(Recorder, "_after", all_of)
    long = trace(kernel, target)
    assert closure(short) == closure(long)
    assert all(set(a.after) <= set(b.after) for a, b in zip(short.commands, long.commands, strict=True))
    assert sum(len(command.after) for command in short.commands) < sum(len(command.after) for command in long.commands)


def random_tokens(random: Random) -> str:
    """Commands that come after any that there are."""
    tokens: list[str] = []
    lines: list[str] = []
    type = 'memref<4xi32, "spad">'
    for number in range(40):
        after = random.sample(tokens, min(len(tokens), random.randint(0, 4)))
        order = f"after ({', '.join(after)})" if after else ""
        kinds = [
            f'accel.dma %x[0] to %a on "mvin" {order} : memref<64xi32> to {type}',
            f'accel.dma %a to %y[0] on "mvout" {order} : {type} to memref<64xi32>',
            f"accel.exec @move extents [4] maps [{SAME}, {SAME}] (%a, %a) {order} : {type}, {type}",
            f"accel.ready {order}",
        ]
        tokens.append(f"%t{number}")
        lines.append(f"%t{number} = {random.choice(kinds)}")
        if random.random() < 0.05 and after:
            lines.append(f"accel.wait {', '.join(after)}")
    body = "\n".join(lines)
    return f"""func.func private @k(%x: memref<64xi32>, %y: memref<64xi32>) attributes {{device = @toy}} {{
      %a = mem.buffer at 0 : {type}
      {body}
      accel.barrier
      func.return
    }}"""


# queues


def test_pops_go_to_the_next_command_and_pushes_to_the_one_before() -> None:
    text = f"""
      accel.pop "load" from "store"
      %t = {load()}
      accel.push "load" to "execute"
      accel.push "load" to "store"
      accel.pop "store" from "load"
      %u = {store()}
      accel.push "store" to "load"
    """
    one, two = traced(text).commands
    assert (one.pops, one.pushes) == ((("store", "load"),), (("load", "execute"), ("load", "store")))
    assert (two.pops, two.pushes) == ((("load", "store"),), (("store", "load"),))


def test_what_no_command_can_hold_is_carried_by_an_empty_one() -> None:
    text = f"""
      accel.push "store" to "load"
      accel.pop "load" from "store"
      accel.pop "load" from "store"
      %t = {load()}
      accel.pop "load" from "execute"
      accel.push "load" to "execute"
      accel.pop "store" from "load"
    """
    found = [(command.unit, command.kind, command.pops, command.pushes) for command in traced(text).commands]
    assert found == [
        ("store", Kind.CARRIER, (), (("store", "load"),)),
        ("load", Kind.CARRIER, (("store", "load"),), ()),
        ("load", Kind.TRANSFER, (("store", "load"),), ()),
        ("load", Kind.CARRIER, (("execute", "load"),), (("load", "execute"),)),
        ("store", Kind.CARRIER, (("load", "store"),), ()),
    ]


# limits of tracing


def test_some_iterations_of_a_loop_can_be_left_out() -> None:
    text = f"""
      scf.for %i = %1 to %7 step %2 {{
        scf.for %j = %0 to %3 step %1 {{
          %t = {load("%i, %j", how="clipped")}
        }}
      }}
    """

    def iterations(loop: scf.ForOp, trips: int) -> Iterable[int]:
        return (0, trips - 1)

    commands = traced(text, iterations=iterations).commands
    assert [command.counters for command in commands] == [(0, 0), (0, 2), (2, 0), (2, 2)]
    assert [command.reads[0].start for command in commands] == [64, 72, 5 * 64, 5 * 64 + 8]


def test_more_commands_than_the_limit_are_refused_and_located() -> None:
    text = f"""scf.for %i = %0 to %7 step %1 {{
      %t = {load()} loc("kernel.py":7:3)
    }}"""
    assert len(traced(text, limit=7).commands) == 7
    with pytest.raises(UserError, match="more than 6 commands") as caught:
        traced(text, limit=6)
    assert caught.value.loc == "kernel.py:7:3"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"%i = arith.subi %0, %1 : index\n%t = {load('%i, 0')}", "accel.dma reads elements -1 to 3 in dim 0"),
        (
            "%i = arith.addi %7, %3 : index\n%v = memref.subview %x[%i, 0] [1, 16] [1, 1]"
            " : memref<10x16xf32> to memref<1x16xf32, strided<[16, 1], offset: ?>>",
            "memref.subview takes elements 10 to 11 of dim 0, which has 10",
        ),
        ('%v = mem.buffer : memref<4xf32, "spad">', 'this buffer in "spad" has no offset'),
        ("%v = memref.load %x[%0, %0] : memref<10x16xf32>", "memref.load is nothing that a kernel of the machine does"),
    ],
)
def test_what_cannot_be_followed_is_refused_and_located(body: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        traced(body + ' loc("kernel.py":7:3)')
    assert caught.value.loc == "kernel.py:7:3"
