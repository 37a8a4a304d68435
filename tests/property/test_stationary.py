# SPDX-License-Identifier: Apache-2.0
"""Operands that stay in a unit, and cycles that depend on extents: every application is looked at, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.cycles import Cycles, Timing, loops_of
from penstock.lowering.from_machine_toml import read_machine
from penstock.passes.analysis.commands.program import Kind, Program
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.runtime.simulator import longest_path, simulate

CONTEXT = make_context()
INTERVALS: dict[str, Callable[[int, int, int], int]] = {
    "3": lambda m, n, k: 3,
    "max(m, 4)": lambda m, n, k: max(m, 4),
    "m + n + k - 2": lambda m, n, k: m + n + k - 2,
    "2 * ceildiv(m * n, 3) + min(k, 2)": lambda m, n, k: 2 * -(-m * n // 3) + min(k, 2),
}
LOADS: dict[str, Callable[[int, int], int]] = {
    "0": lambda n, k: 0,
    "7": lambda n, k: 7,
    "k": lambda n, k: k,
    "n * k + 1": lambda n, k: n * k + 1,
}
Block = tuple[tuple[int, ...], ...]
"""What a unit holds: where the elements of a matrix lie."""
BLOCK = 4
DEPTH = 12


@cache
def machine(interval: str, load: str) -> str:
    interval, load = (text if text.isdigit() else f'"{text}"' for text in (interval, load))
    file = f"""
[machine]
extends = "gemmini-fp32"
name = "stays"
[[intrinsic]]
name = "gemm"
ii = {{ value = {interval}, assumed = true }}
stationary = "b"
load = {{ value = {load}, assumed = true }}
"""
    target, faults = read_machine("stays.toml", file)
    assert not faults
    return str(target)


@dataclass(frozen=True)
class Exec:
    """A product of matrices, summed over h too: `order` has the dims of its domain."""

    extents: dict[str, int]
    order: tuple[str, ...]
    through_b: bool
    """Whether h moves through b, which is at `at`."""
    at: int

    @property
    def b(self) -> tuple[str, ...]:
        return ("h", "k", "n") if self.through_b else ("k", "n")

    def text(self, number: int) -> str:
        operands = [("a", ("h", "m", "k"), "spad", 0), ("b", self.b, "spad", self.at), ("c", ("m", "n"), "acc", 0)]
        shapes = ["x".join(str(self.extents[dim]) for dim in dims) for _, dims, _, _ in operands]
        types = [f'memref<{shape}xf32, "{each[2]}">' for shape, each in zip(shapes, operands, strict=True)]
        lines = [
            f"%{name}{number} = mem.buffer at {at} : {type}"
            for (name, _, _, at), type in zip(operands, types, strict=True)
        ]
        maps = [f"affine_map<({', '.join(self.order)}) -> ({', '.join(dims)})>" for _, dims, _, _ in operands]
        names = ", ".join(f"%{name}{number}" for name, *_ in operands)
        lines.append(
            f"%t{number} = accel.exec @gemm extents {[self.extents[dim] for dim in self.order]} maps"
            f" [{', '.join(maps)}] ({names}) after (%t{number - 1}) : {', '.join(types)}"
        )
        return "\n".join(lines)

    def applications(self) -> Iterator[tuple[dict[str, int], Block]]:
        """Yield the extents of every application, and the block of b that it reads, in order."""
        outside = [dim for dim in self.order if dim in self.b or dim not in ("m", "n")]
        inside = [dim for dim in self.order if dim not in outside]
        steps = {dim: 1 if dim == "h" else BLOCK for dim in self.order}
        for places in product(*(range(0, self.extents[dim], steps[dim]) for dim in (*outside, *inside))):
            at = dict(zip((*outside, *inside), places, strict=True))
            sizes = {dim: min(steps[dim], self.extents[dim] - at[dim]) for dim in self.order}
            sizes = {"h": 1, "m": 1} | sizes
            strides = {"n": 1, "k": self.extents["n"], "h": self.extents["n"] * self.extents["k"]}
            start = self.at + 4 * sum(at[dim] * strides[dim] for dim in self.b)
            rows = range(start, start + 4 * strides["k"] * sizes["k"], 4 * strides["k"])
            yield sizes, tuple(tuple(range(row, row + 4 * sizes["n"], 4)) for row in rows)


@dataclass(frozen=True)
class Overwrite:
    """A transfer over what the blocks at `at` begin with."""

    at: int

    def text(self, number: int) -> str:
        return (
            f'%w{number} = mem.buffer at {self.at} : memref<1x4xf32, "spad">\n'
            f'%t{number} = accel.dma %x[0, 0] to %w{number} on "mvin" after (%t{number - 1})'
            f' : memref<8x8xf32> to memref<1x4xf32, "spad">'
        )


def commands(random: Random) -> list[Exec | Overwrite]:
    places = (65536, 65536 + 4096)
    found: list[Exec | Overwrite] = []
    for _ in range(random.randint(1, 6)):
        if found and random.random() < 0.2:
            found.append(Overwrite(random.choice(places)))
        elif found and isinstance(found[-1], Exec) and random.random() < 0.4:
            found.append(found[-1])
        else:
            order = random.sample("hmnk", 4)
            small = random.random() < 0.5
            # Where m and k are 1, h is what the intrinsic may sum over instead of k.
            extents = {dim: random.randint(1 + (dim == "m"), 4 if small and dim in "nk" else 9) for dim in order}
            found.append(Exec(extents, tuple(order), random.random() < 0.5, random.choice(places)))
    return found


def traced(target: str, given: list[Exec | Overwrite]) -> Program:
    body = "\n".join(each.text(number) for number, each in enumerate(given, start=1))
    module = Parser(
        CONTEXT,
        f"""{target}
        func.func private @k(%x: memref<8x8xf32>) attributes {{device = @stays}} {{
          %t0 = accel.ready
          {body}
          accel.barrier
          func.return
        }}""",
    ).parse_module()
    module.verify()
    found, (kernel,) = machine_kernels(module)
    assert found is not None
    return trace(kernel, found)


def drawn(seed: int) -> tuple[str, str, list[Exec | Overwrite]]:
    random = Random(seed)
    return random.choice([*INTERVALS]), random.choice([*LOADS]), commands(random)


def check(interval: str, load: str, given: list[Exec | Overwrite]) -> tuple[int, int]:
    """One program: the loads that it makes, and those that the unit is spared as it holds the block already."""
    program = traced(machine(interval, load), given)
    held: Block | None = None
    total = spared = 0
    for each, command in zip(given, program.commands, strict=True):
        if isinstance(each, Overwrite):
            assert command.kind is Kind.TRANSFER
            held = None if {*chain(*held or ())} & {*range(each.at, each.at + 16, 4)} else held
            continue
        cycles, loads, before = DEPTH, 0, held
        for sizes, block in each.applications():
            cycles += INTERVALS[interval](sizes["m"], sizes["n"], sizes["k"])
            if block != held:
                loads += 1
                cycles += LOADS[load](sizes["n"], sizes["k"])
            held = block
        assert (command.cycles, command.loads) == (cycles, loads), f"{interval}, {load}, {each} of {given}"
        spared += before is not None and next(each.applications())[1] == before
        total += loads
    times = longest_path(program)
    assert times is not None
    assert simulate(program).cycles == times.cycles
    return total, spared


@given(st.integers(0, 1 << 32))
@examples(60)
def test_every_load_and_every_application_is_counted_and_both_clocks_agree(seed: int) -> None:
    check(*drawn(seed))


def test_some_commands_find_their_block_and_some_do_not() -> None:
    found = [check(*drawn(seed)) for seed in range(20)]
    assert any(spared for _, spared in found)
    assert any(loads > 1 for loads, _ in found)


def test_a_block_is_held_whatever_it_is_a_part_of() -> None:
    one = Exec({"h": 2, "m": 3, "k": 3, "n": 3}, ("h", "m", "k", "n"), through_b=False, at=65536)
    assert check("3", "7", [one, replace(one, through_b=True)]) == (2, 1), "the first of two matrices"
    row = replace(one, extents={"h": 1, "m": 3, "k": 1, "n": 4})
    assert check("3", "7", [row, replace(row, extents=row.extents | {"n": 5})]) == (2, 1), "a part of a longer row"


@given(st.data())
@examples(40)
def test_tiles_in_arrays_cost_what_each_costs_alone(data: st.DataObject) -> None:
    timing = Timing(
        Cycles(data.draw(st.sampled_from([*INTERVALS])), ("m", "n", "k")),
        Cycles(data.draw(st.sampled_from([*LOADS])), ("m", "n", "k")),
    )
    flags = st.lists(st.booleans(), min_size=4, max_size=4)
    through, result = data.draw(flags), data.draw(flags)
    covered = [(None, 1), (0, 4), (1, 3), (2, 5)]
    tiles = np.array(data.draw(st.lists(st.tuples(*[st.integers(1, 12)] * 4), min_size=1, max_size=5)))
    together = timing.cycles(loops_of(list(tiles.T), covered, through, result))
    alone = [timing.cycles(loops_of([int(size) for size in tile], covered, through, result)) for tile in tiles]
    np.testing.assert_array_equal(np.broadcast_to(together, len(tiles)), alone)


@pytest.mark.slow
def test_many_programs_with_operands_that_stay() -> None:
    for seed in range(3000):
        check(*drawn(seed))
