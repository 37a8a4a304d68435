"""
Choosing a tile: plain data in, plain data out.

A tile nest computes a box of an iteration domain at a time. Every operand moves through some of the dims; the
part of it that one box touches is held in a scope, and is fetched again whenever a loop that it depends on
advances. The search enumerates tile sizes and loop orders, discards what does not fit, and takes the least
estimated time, bytes over the bus plus issues on the unit, nothing overlapped (depth 1).

The enumeration is exhaustive over a list of sizes per dim, as in the mapping searches of Timeloop and VTA's
schedules; it is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.tile_sizes import Dim, given_size, tile_sizes

Ints = NDArray[Any]


@dataclass(frozen=True)
class Operand:
    """An operand of the nest: where its part is held, and how the dims index it."""

    name: str
    scope: str | None
    """The scope that holds the part of one tile; None if it is streamed past (a DMA that computes on the way)."""
    element_bytes: int
    indices: tuple[tuple[int, ...], ...]
    """For each of its own dims, the coefficient of each dim of the domain."""
    granule: int = 1
    """Bytes that a row in the scope is a multiple of."""
    adjoining: int = 1
    """How many of its last dims are one row, without gaps."""
    reads: bool = True
    writes: bool = False
    bounds: tuple[int, ...] | None = None
    """Its shape, where a part cannot be larger than the whole."""

    def part(self, tile: Sequence[int | Ints]) -> list[int | Ints]:
        """The extent of each of its dims that one tile touches."""
        return [1 + sum(c * (t - 1) for c, t in zip(row, tile, strict=True) if c) for row in self.indices]

    def depends_on(self, dim: int) -> bool:
        return any(row[dim] for row in self.indices)


@dataclass(frozen=True)
class Costs:
    """The machine's numbers: what one byte, one transfer and one issue cost, in cycles."""

    cycles_per_byte: float = 1.0
    cycles_per_transfer: float = 0.0
    cycles_per_issue: float = 1.0


@dataclass(frozen=True)
class TileProblem:
    """A domain, its operands, and the bytes of each scope."""

    dims: tuple[Dim, ...]
    operands: tuple[Operand, ...]
    capacity: Mapping[str, int]
    costs: Costs = Costs()


@dataclass(frozen=True)
class TilePlan:
    """
    A tile for every dim, the order of the loops, and what it is estimated to cost.

    `order` lists the dims that become loops, outermost first: parallel ones, then reductions. `edges` says what
    happens where a tile does not divide its dim: "divides", "whole", "overlap" (the last tile is shifted inwards and
    computes some elements again), "zeros" (the last tile of a reduction reads zeros behind the end) or "padded" (the
    one tile is longer than the dim, and what lies behind the end is computed in vain).
    """

    dims: tuple[Dim, ...]
    tile: tuple[int, ...]
    order: tuple[int, ...]
    edges: tuple[str, ...]
    bytes_moved: int
    issues: int
    footprint: Mapping[str, int]

    @property
    def is_cut(self) -> bool:
        """Whether there is anything to do: a tile that is not the whole domain."""
        return self.tile != tuple(dim.extent for dim in self.dims)

    def describe(self) -> str:
        """The plan for people: how each dim that is cut is cut, outermost first, and the work done in vain."""
        parts: list[str] = []
        for number, dim in enumerate(self.dims):
            if self.tile[number] > dim.extent:
                how = "padded" if dim.parallel else "filled with zeros"
                wasted = self.tile[number] / dim.extent - 1
                parts.append(f"d{number} of {dim.extent} is {how} to {self.tile[number]}, {wasted:.1%} is done in vain")
        for number in self.order:
            extent, size = self.dims[number].extent, self.tile[number]
            pieces, kind = -(-extent // size), "parallel" if self.dims[number].parallel else "reduction"
            text = f"d{number} {kind}, {pieces} tiles of {size} in {extent}"
            if self.edges[number] == "overlap":
                text += f", the last overlaps, {pieces * size / extent - 1:.1%} is done twice"
            if self.edges[number] == "zeros":
                text += f", the last reads zeros, {pieces * size / extent - 1:.1%} is added in vain"
            parts.append(text)
        return "; ".join(parts)


class DoesNotFit(Exception):
    """No tile fits: `scope` overflows even with the smallest one, which needs `needed` bytes."""

    def __init__(self, scope: str, needed: int, capacity: int, parts: Sequence[tuple[str, int]]):
        super().__init__(f'the smallest tile needs {needed} bytes of "{scope}", which has {capacity}')
        self.scope = scope
        self.needed = needed
        self.capacity = capacity
        self.parts = tuple(parts)
        """The operands held in the scope and the bytes that each needs."""


def held_bytes(operand: Operand, tile: Sequence[int | Ints]) -> int | Ints:
    """The bytes of its scope that the part of one tile takes, row pitch included."""
    part = operand.part(tile)
    if not part:
        return max(operand.element_bytes, operand.granule)
    row = -(-(prod(part[-operand.adjoining :]) * operand.element_bytes) // operand.granule) * operand.granule
    return row * prod(part[: -operand.adjoining])


def plan_tile(problem: TileProblem, *, given: Sequence[int] | None = None) -> TilePlan:
    """
    The best plan found, or the plan with the sizes `given` (one for each dim) and the best order.

    Raises DoesNotFit, NoTile where a dim is not cut into the blocks of the machine, and ValueError for given sizes
    that are no tile.
    """
    dims = problem.dims
    if given is None:
        return _best_plan(dims, problem.operands, tuple(problem.capacity.items()), problem.costs)
    if len(given) != len(dims):
        raise ValueError(f"{len(given)} tile sizes for {len(dims)} dims")
    return _plan(problem, [[given_size(dim, size, n)] for n, (size, dim) in enumerate(zip(given, dims, strict=True))])


@lru_cache(maxsize=1024)
def _best_plan(
    dims: tuple[Dim, ...], operands: tuple[Operand, ...], capacity: tuple[tuple[str, int], ...], costs: Costs
) -> TilePlan:
    """The plan is asked for when a kernel gets its device and again when it is tiled."""
    problem = TileProblem(dims, operands, dict(capacity), costs)
    return _plan(problem, [tile_sizes(dim, number) for number, dim in enumerate(dims)])


def _plan(problem: TileProblem, choices: Sequence[Sequence[int]]) -> TilePlan:
    """The best plan whose tile has one of the `choices` in each dim."""
    grid = np.array(list(product(*choices)), dtype=np.int64).T
    fits = np.ones(grid.shape[1], dtype=bool)
    for scope, capacity in problem.capacity.items():
        held = _held_in(problem, scope, list(grid))
        fits &= held <= capacity
    if not fits.any():
        raise _overflow(problem, [min(sizes) for sizes in choices])
    grid = grid[:, fits]
    return _cheapest(problem, grid)


def _held_in(problem: TileProblem, scope: str, tile: Sequence[int | Ints]) -> int | Ints:
    return sum(held_bytes(operand, tile) for operand in problem.operands if operand.scope == scope)


def _overflow(problem: TileProblem, smallest: list[int]) -> DoesNotFit:
    for scope, capacity in problem.capacity.items():
        needed = int(_held_in(problem, scope, smallest))
        if needed > capacity:
            parts = [(o.name, int(held_bytes(o, smallest))) for o in problem.operands if o.scope == scope]
            return DoesNotFit(scope, needed, capacity, parts)
    raise AssertionError("the smallest tile fits every scope, so some tile does")


def _cheapest(problem: TileProblem, grid: Ints) -> TilePlan:
    dims, costs = problem.dims, problem.costs
    tile = list(grid)
    trips = [-(-dim.extent // size) for dim, size in zip(dims, tile, strict=True)]
    cut = [number for number, dim in enumerate(dims) if not dim.whole and np.any(trips[number] > 1)]
    parallel = [number for number in cut if dims[number].parallel]
    reductions = [number for number in cut if not dims[number].parallel]
    # A kernel of scalars has no dims, and still one tile.
    ones = np.ones(grid.shape[1], dtype=np.int64)
    issues: Ints = ones * prod(t * -(-size // dim.step) for t, size, dim in zip(trips, tile, dims, strict=True))
    best: tuple[float, tuple[int, ...], int, int, int] | None = None
    for order in permutations(parallel):
        loops = (*order, *reductions)
        moved, transfers = _traffic(problem, tile, trips, loops, ones)
        time = moved * costs.cycles_per_byte + transfers * costs.cycles_per_transfer + issues * costs.cycles_per_issue
        winner = int(np.argmin(time))
        if best is None or time[winner] < best[0]:
            best = (float(time[winner]), loops, winner, int(moved[winner]), int(issues[winner]))
    assert best is not None
    _, loops, winner, moved, issued = best
    chosen = tuple(int(size) for size in grid[:, winner])
    return TilePlan(
        dims=dims,
        tile=chosen,
        order=tuple(number for number in loops if chosen[number] < dims[number].extent),
        edges=tuple(_edge(dim, size) for dim, size in zip(dims, chosen, strict=True)),
        bytes_moved=moved,
        issues=issued,
        footprint={scope: int(_held_in(problem, scope, chosen)) for scope in problem.capacity},
    )


def _traffic(
    problem: TileProblem, tile: list[Ints], trips: list[Ints], loops: Sequence[int], ones: Ints
) -> tuple[Ints, Ints]:
    """Bytes over the bus and the number of transfers, for each tile of the grid, under one loop order."""
    moved = np.zeros_like(ones)
    transfers = np.zeros_like(ones)
    for operand in problem.operands:
        # A written part stays in its scope while reductions advance; every part stays while loops inside the
        # innermost one that it depends on do. A loop of one trip does not count.
        count, running = ones, ones
        for loop in loops:
            running = running * trips[loop]
            if operand.depends_on(loop):
                count = np.where(trips[loop] > 1, running, count)
        part = operand.part(tile)
        if operand.bounds is not None:
            part = [np.minimum(extent, bound) for extent, bound in zip(part, operand.bounds, strict=True)]
        size = prod(part) * operand.element_bytes
        passes = int(operand.reads) + int(operand.writes)
        if passes == 0:
            continue
        moved = moved + count * size * passes
        # A part that may hang over the end is filled with zeros before each transfer.
        fills = np.zeros_like(count)
        for number, dim in enumerate(problem.dims):
            if not operand.depends_on(number):
                continue
            fills = np.maximum(fills, tile[number] > dim.extent)
            if dim.runs_past_end:
                fills = np.maximum(fills, dim.extent % tile[number] != 0)
        transfers = transfers + count * (passes + fills)
    return moved, transfers


def _edge(dim: Dim, size: int) -> str:
    if size == dim.extent:
        return "whole"
    if size > dim.extent:
        return "padded" if dim.parallel else "zeros"
    if dim.extent % size == 0:
        return "divides"
    return "overlap" if dim.parallel else "zeros"
