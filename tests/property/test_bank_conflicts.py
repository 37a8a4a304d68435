# SPDX-License-Identifier: Apache-2.0
"""Banks that cost cycles where operands share one: every byte is looked at, and both clocks agree."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import checked
from sampling import examples
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.lowering.from_machine_toml import read_machine
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.memory.memory_problems import memory_problems
from penstock.passes.loop.mem_plan import find_plan
from penstock.passes.planning.banks import conflict_cost
from penstock.passes.planning.problem import Limits, Plan, height
from penstock.passes.planning.registry import DEFAULT_PLANNER
from penstock.runtime.simulator import longest_path, simulate

CONTEXT = make_context()
SIZE, BANKS = 262144, 4


@cache
def machine(conflict: int, interleave: int | None) -> str:
    more = "" if interleave is None else f"interleave = {{ value = {interleave}, assumed = true }}\n"
    scope = f'[[scope]]\nname = "spad"\nconflict = {{ value = {conflict}, assumed = true }}\n{more}'
    target, faults = read_machine(
        "banked.toml",
        '[machine]\nextends = "gemmini-fp32"\nname = "banked"\n' + (scope if conflict else ""),
    )
    assert not faults
    return str(target)


def text_of(target: str, places: list[tuple[int, int, int, int, int]]) -> str:
    lines: list[str] = []
    for number, (a, b, m, n, k) in enumerate(places, start=1):
        types = f'memref<{m}x{k}xf32, "spad">, memref<{k}x{n}xf32, "spad">, memref<{m}x{n}xf32, "acc">'
        lines += [
            f'%a{number} = mem.buffer at {a} : memref<{m}x{k}xf32, "spad">',
            f'%b{number} = mem.buffer at {b} : memref<{k}x{n}xf32, "spad">',
            f'%c{number} = mem.buffer at 0 : memref<{m}x{n}xf32, "acc">',
            f"%t{number} = accel.exec @gemm extents [{m}, {n}, {k}] maps [affine_map<(m, n, k) -> (m, k)>,"
            f" affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>] (%a{number}, %b{number}, %c{number})"
            f" after (%t{number - 1}) : {types}",
        ]
    body = "\n".join(lines)
    return (
        f"{target}\nfunc.func private @k() attributes {{device = @banked}} {{\n%t0 = accel.ready\n{body}\n"
        "accel.barrier\nfunc.return\n}"
    )


def banks(start: int, size: int, interleave: int | None) -> set[int]:
    width = SIZE // BANKS if interleave is None else interleave
    return {at // width % BANKS for at in range(start, start + size, 4)}


@examples(60)
@given(st.integers(0, 2**32 - 1))
def test_each_application_costs_what_its_operands_have_in_common(seed: int) -> None:
    random = Random(seed)
    conflict, interleave = random.randint(1, 5), random.choice([None, 16, 64, 4096])
    places: list[tuple[int, int, int, int, int]] = []
    for _ in range(random.randint(1, 4)):
        m, n, k = (4 * random.randint(1, 4) for _ in "mnk")
        near = random.choice([0, 65536 - 64, 65536, 131072])
        places.append((near, near + 1024 * random.choice([1, 3, 60, 70]), m, n, k))
    plain, banked = (
        trace(kernel, target)
        for text in (text_of(machine(0, None), places), text_of(machine(conflict, interleave), places))
        for target, (kernel,) in [machine_kernels(Parser(CONTEXT, text).parse_module())]
        if target is not None
    )
    for (a, b, m, n, k), without, command in zip(places, plain.commands, banked.commands, strict=True):
        shared = bool(banks(a, 4 * m * k, interleave) & banks(b, 4 * k * n, interleave))
        assert command.conflicts == shared * command.iterations
        assert command.cycles == without.cycles + conflict * shared * command.iterations
    times = longest_path(banked)
    assert times is not None
    assert simulate(banked).cycles == times.cycles


def test_the_pairs_of_a_kernel_are_planned_into_different_banks() -> None:
    """Without a conflict the problem is as it was."""
    kernel = """
    func.func private @k(%x: memref<16x16xf32>) attributes {device = @banked} {
      %a = mem.buffer : memref<16x16xf32, "spad">
      %b = mem.buffer : memref<16x16xf32, "spad">
      %c = mem.buffer : memref<16x16xf32, "acc">
      %s = accel.dma %x to %a on "mvin" : memref<16x16xf32> to memref<16x16xf32, "spad">
      %t = accel.dma %x to %b on "mvin" : memref<16x16xf32> to memref<16x16xf32, "spad">
      %u = accel.exec @gemm extents [16, 16, 16] maps [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>,
        affine_map<(m, n, k) -> (m, n)>] (%a, %b, %c) after (%s, %t)
        : memref<16x16xf32, "spad">, memref<16x16xf32, "spad">, memref<16x16xf32, "acc">
      accel.barrier
      func.return
    }
    """
    spad, _ = memory_problems(checked(machine(2, None) + kernel))[:2]
    assert [(pair.first, pair.second) for pair in spad.problem.pairs] == [("%a", "%b")]
    found = find_plan(spad, DEFAULT_PLANNER, Limits()).plan
    assert found is not None
    assert conflict_cost(spad.problem, found) == 0
    assert conflict_cost(spad.problem, Plan({"%a": 0, "%b": 1024})) == 2 * 16**3
    assert height(spad.problem, found) > 2048
    assert spad.height_by(DEFAULT_PLANNER, Limits()) == 2048
    plain, _ = memory_problems(checked(machine(0, None) + kernel))[:2]
    assert plain.problem.pairs == ()
    assert plain.problem.bank_size is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("banks = 3", "size 262144 is not 3 banks"),
        ("interleave = 48", "no multiple of 4 banks times interleave, 48"),
        ("banks = 1\nconflict = 1", "conflict is of banks: the scope has one"),
    ],
)
def test_banks_that_make_no_sense_are_refused(changed: str, message: str) -> None:
    _, faults = read_machine(
        "odd.toml",
        f'[machine]\nextends = "gemmini-fp32"\nname = "odd"\n[[scope]]\nname = "spad"\nsource = "cfg"\n{changed}\n',
    )
    assert any(message in fault.message for fault in faults), [fault.message for fault in faults]
