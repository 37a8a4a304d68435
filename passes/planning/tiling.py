"""
Choosing a tile, the order of the loops, and how many slots each scope has for what is refilled: plain data in and out.

A tile nest computes a box of an iteration domain at a time. Every operand moves through some of the dims; the part of
it that one box touches is held in a scope, and is fetched again whenever a loop that it depends on advances. With B
slots in a scope its transfers run up to B iterations ahead of the ops, and what is refilled takes B times its bytes, so
the depth of the pipeline and the size of the tiles are one question.

The search goes through all sizes of a list for every dim, all orders of the parallel loops, and one or two slots in
each scope. What does not fit is discarded; an estimate (the busiest unit or bus, what no slot hides, the first fetch
and the last store) ranks the rest, and the best of them are timed as pipelines by the recurrences of
`passes/planning/pipelining`. Among those within TIE of the best time, the fewest bytes over the edge of the chip win.
More slots than two, or fewer, are then tried for the winner. All of it is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import permutations, product

import numpy as np

from penstock.passes.planning.pipelining import NestTime
from penstock.passes.planning.tile_cost import (
    Estimates,
    TileDim,
    TileOp,
    TileOperand,
    TileProblem,
    Tiles,
    given_size,
    held_bytes,
    is_refilled,
    slots_of,
    thinned,
    tile_sizes,
    time_of_tile,
)

TIE = 0.03
"""Times that differ by no more than this share are the same, as far as the model can tell."""
NEAR = 0.06
"""How far an estimate may be from the best one for a tile to be timed because it moves few bytes."""
MAX_TILES = 24_000
"""How many tiles are compared: the sizes of the dims with the most are thinned out until there are no more."""
TIMED = 10
"""How many of the best estimates are timed."""
MAX_SLOTS = 4
"""The most slots that are tried."""


@dataclass(frozen=True)
class TilePlan:
    """
    A tile for every dim, the order of the loops, the slots of each scope, and what it is modelled to cost.

    `order` lists the dims that become loops, outermost first: parallel ones, then reductions. `edges` says what
    happens where a tile does not divide its dim: "divides", "whole", "overlap" (the last tile is shifted inwards and
    computes some elements again), "zeros" (the last tile of a reduction reads zeros after the end) or "padded" (the
    one tile is longer than the dim, and what is after the end is computed for nothing).
    """

    dims: tuple[TileDim, ...]
    tile: tuple[int, ...]
    order: tuple[int, ...]
    edges: tuple[str, ...]
    bytes_moved: int
    """Over the edge of the chip; what is out of the bounds of tensors is not moved."""
    footprint: Mapping[str, int]
    """The bytes of every scope, slots included."""
    depths: Mapping[str, int] = field(default_factory=dict[str, int])
    """The slots for what a loop refills, in every scope where there is something."""
    time: NestTime | None = None
    """None where it is not known what computes."""
    runner_up: TilePlan | None = None
    """The best plan with another tile."""

    @property
    def is_cut(self) -> bool:
        """Whether there is anything to do: a tile that is not the whole domain."""
        return self.tile != tuple(dim.extent for dim in self.dims)

    def describe(self) -> str:
        """The plan for people: how each dim that is cut is cut, outermost first, the work that is wasted, and why."""
        return "; ".join([*cut_text(self.dims, self.tile, self.order, self.edges), *self.reasons])

    @property
    def reasons(self) -> list[str]:
        """Why this tile, for people: its slots, what it is modelled to take, and the next best one."""
        if self.time is None:
            return []
        slots = [f'{count} slots in "{scope}"' for scope, count in self.depths.items() if count > 1]
        reasons = [", ".join(slots)] if slots else []
        reasons.append(f"modelled {self.time.cycles:,} cycles and {self.bytes_moved:,} bytes, limit {self.time.limit}")
        other = self.runner_up
        if other is not None and other.time is not None:
            tile = "x".join(map(str, other.tile))
            reasons.append(f"next best {tile}: {other.time.cycles:,} cycles and {other.bytes_moved:,} bytes")
        return reasons


def cut_text(dims: Sequence[TileDim], tile: Sequence[int], order: Sequence[int], edges: Sequence[str]) -> list[str]:
    """How each dim that is padded or cut is, for people, and the work that is wasted; outermost loop first."""
    parts: list[str] = []
    for number, dim in enumerate(dims):
        if tile[number] > dim.extent:
            how = "padded" if dim.parallel else "filled with zeros"
            parts.append(
                f"d{number} of {dim.extent} is {how} to {tile[number]}, {tile[number] / dim.extent - 1:.1%} extra work"
            )
    for number in order:
        extent, size = dims[number].extent, tile[number]
        pieces, kind = -(-extent // size), "parallel" if dims[number].parallel else "reduction"
        text = f"d{number} {kind}, {pieces} tiles of {size} in {extent}"
        if edges[number] == "overlap":
            text += f", the last overlaps, {pieces * size / extent - 1:.1%} is done twice"
        if edges[number] == "zeros":
            text += f", the last reads zeros, {pieces * size / extent - 1:.1%} extra work"
        parts.append(text)
    return parts


class DoesNotFit(Exception):
    """No tile fits: `scope` overflows even with the smallest one, which needs `needed` bytes."""

    def __init__(self, scope: str, needed: int, capacity: int, parts: Sequence[tuple[str, int]]):
        super().__init__(f'the smallest tile needs {needed} bytes of "{scope}", which has {capacity}')
        self.scope = scope
        self.needed = needed
        self.capacity = capacity
        self.parts = tuple(parts)
        """The operands held in the scope and the bytes that each needs."""


def plan_tile(problem: TileProblem, *, given: Sequence[int] | None = None, depth: int | None = None) -> TilePlan:
    """
    The best plan found, or that with the sizes `given` (one for each dim); with `depth` slots in every scope if given.

    Raises DoesNotFit, NoTile where a dim is not cut into the blocks of the machine, and ValueError for given sizes
    that are no tile.
    """
    dims = problem.dims
    if given is None:
        return _best_plan(dims, problem.operands, tuple(problem.capacity.items()), problem.works, depth)
    if len(given) != len(dims):
        raise ValueError(f"{len(given)} tile sizes for {len(dims)} dims")
    choices = [[given_size(dim, size, n)] for n, (size, dim) in enumerate(zip(given, dims, strict=True))]
    return _plan(problem, choices, depth)


@lru_cache(maxsize=1024)
def _best_plan(
    dims: tuple[TileDim, ...],
    operands: tuple[TileOperand, ...],
    capacity: tuple[tuple[str, int], ...],
    works: tuple[TileOp, ...],
    depth: int | None,
) -> TilePlan:
    """The plan is asked for when a kernel gets its device and again when it is tiled."""
    choices = thinned([tile_sizes(dim, number) for number, dim in enumerate(dims)], MAX_TILES)
    return _plan(TileProblem(dims, operands, dict(capacity), works), choices, depth)


def _plan(problem: TileProblem, choices: Sequence[Sequence[int]], depth: int | None) -> TilePlan:
    """The best plan whose tile has one of the `choices` in each dim."""
    grid = np.array(list(product(*choices)), dtype=np.int64).T
    fits = np.ones(grid.shape[1], dtype=bool)
    for scope, capacity in problem.capacity.items():
        held = sum(held_bytes(operand, list(grid)) for operand in problem.operands if operand.scope == scope)
        fits &= held <= capacity
    if not fits.any():
        raise _overflow(problem, [min(sizes) for sizes in choices])
    grid = grid[:, fits]
    tiles = Tiles(problem, list(grid), np.ones(int(grid.shape[1]), dtype=np.int64))
    return _Search(tiles, depth).run()


def _overflow(problem: TileProblem, smallest: list[int]) -> DoesNotFit:
    for scope, capacity in problem.capacity.items():
        parts = [(o.name, int(held_bytes(o, smallest))) for o in problem.operands if o.scope == scope]
        needed = sum(size for _, size in parts)
        if needed > capacity:
            return DoesNotFit(scope, needed, capacity, parts)
    raise AssertionError("the smallest tile fits every scope, so some tile does")


@dataclass(frozen=True)
class _Point:
    """One candidate: a tile of the grid, an order of loops, and slots."""

    estimate: float
    moved: float
    index: int
    loops: tuple[int, ...]
    depths: tuple[tuple[str, int], ...]


@dataclass
class _Search:
    tiles: Tiles
    depth: int | None

    def run(self) -> TilePlan:
        """The best plan among the tiles."""
        timed = [self._timed(point) for point in self._promising()]
        best = self._best(timed)
        others = [plan for plan in timed if plan.tile != best.tile]
        best = self._with_other_slots(best)
        return replace(best, runner_up=self._best(others) if others else None)

    def _best(self, plans: Sequence[TilePlan]) -> TilePlan:
        """The one with the fewest bytes among those that take the least time, as far as can be told."""
        least = min(_cycles(plan) for plan in plans)
        close = [plan for plan in plans if _cycles(plan) <= least * (1 + TIE)]
        return min(close, key=lambda plan: (plan.bytes_moved, _cycles(plan), _work(plan), sum(plan.depths.values())))

    def _promising(self) -> list[_Point]:
        """The candidates with the best estimates, and those near them that move the fewest bytes for their time."""
        points = sorted(self._points(), key=lambda point: (point.estimate, point.moved, point.index))
        sparing: list[_Point] = []
        for point in points:
            if point.estimate <= points[0].estimate * (1 + NEAR) and (not sparing or point.moved < sparing[-1].moved):
                sparing.append(point)
        return list(dict.fromkeys([*points[:TIMED], *sparing[-TIMED:]]))

    def _points(self) -> Iterator[_Point]:
        """The most promising candidates of every order and depth."""
        dims, tiles = self.tiles.problem.dims, self.tiles
        cut = [number for number in range(len(dims)) if np.any(tiles.trips[number] > 1)]
        parallel = [number for number in cut if dims[number].parallel]
        reductions = [number for number in cut if not dims[number].parallel]
        best = np.inf
        seen: set[tuple[object, ...]] = set()
        for order in permutations(parallel):
            estimates = Estimates(tiles, (*order, *reductions))
            for depths in self._depths(estimates.loops):
                cost = np.where(estimates.fits(depths), estimates.cycles(depths), np.inf)
                least = float(cost.min())
                if not np.isfinite(least):
                    continue
                best = min(best, least)
                # Fewer bytes decide between equal times, and how good the estimate is is not known yet.
                near = np.flatnonzero(cost <= best * (1 + NEAR))
                chosen = [*np.argsort(cost, kind="stable")[:TIMED], *near[np.argsort(estimates.moved[near])[:TIMED]]]
                for index in map(int, chosen):
                    if not np.isfinite(cost[index]):
                        continue
                    loops = tuple(number for number in estimates.loops if tiles.trips[number][index] > 1)
                    used = self._used(loops, depths)
                    if (index, loops, used) not in seen:
                        seen.add((index, loops, used))
                        yield _Point(float(cost[index]), float(estimates.moved[index]), index, loops, used)

    def _depths(self, loops: Sequence[int]) -> Iterator[dict[str, int]]:
        """The slots that are tried in each scope where some loop refills something."""
        scopes = self._refilled(loops)
        options = (1, 2, MAX_SLOTS) if len(scopes) <= 2 else (1, 2)
        options = options if self.depth is None and self.tiles.problem.works else (self.depth or 1,)
        for counts in product(options, repeat=len(scopes)):
            yield dict(zip(scopes, counts, strict=True))

    def _refilled(self, loops: Sequence[int]) -> list[str]:
        operands = self.tiles.problem.operands
        return list(dict.fromkeys(o.scope for o in operands if o.scope is not None and is_refilled(o, loops)))

    def _used(self, loops: Sequence[int], depths: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        return tuple((scope, depths[scope]) for scope in self._refilled(loops))

    def _footprint(self, index: int, loops: Sequence[int], depths: Mapping[str, int]) -> dict[str, int]:
        problem = self.tiles.problem
        used = dict.fromkeys(problem.capacity, 0)
        for operand, held in zip(problem.operands, self.tiles.held, strict=True):
            if operand.scope is not None:
                used[operand.scope] += int(held[index]) * (
                    slots_of(operand, depths) if is_refilled(operand, loops) else 1
                )
        return used

    def _timed(self, point: _Point) -> TilePlan:
        tiles, index = self.tiles, point.index
        tile, dims = tuple(int(size[index]) for size in tiles.tile), tiles.problem.dims
        depths = dict(point.depths)
        return TilePlan(
            dims=dims,
            tile=tile,
            order=tuple(number for number in point.loops if tile[number] < dims[number].extent),
            edges=tuple(_edge(dim, size) for dim, size in zip(dims, tile, strict=True)),
            bytes_moved=round(point.moved),
            footprint=self._footprint(index, point.loops, depths),
            depths=depths,
            time=time_of_tile(tiles, index, point.loops, depths) if tiles.problem.works else None,
        )

    def _with_other_slots(self, plan: TilePlan) -> TilePlan:
        """The plan with more slots where that pays, and fewer where it costs nothing."""
        if self.depth is not None or plan.time is None:
            return plan
        same = np.all([sizes == size for sizes, size in zip(self.tiles.tile, plan.tile, strict=True)], axis=0)
        index, capacity = int(np.flatnonzero(same)[0]), self.tiles.problem.capacity
        for scope in plan.depths:
            for count in range(1, MAX_SLOTS + 1):
                depths = {**plan.depths, scope: count}
                used = self._footprint(index, plan.order, depths)
                if count == plan.depths[scope] or used[scope] > capacity[scope]:
                    continue
                time = time_of_tile(self.tiles, index, plan.order, depths)
                now = plan.time.cycles if plan.time is not None else 0
                pays = time.cycles < now * (1 - TIE / 2) if count > plan.depths[scope] else time.cycles <= now
                if pays:
                    plan = replace(plan, depths=depths, footprint=used, time=time)
        return plan


def _work(plan: TilePlan) -> int:
    return sum(plan.time.busy.values()) if plan.time is not None else 0


def _cycles(plan: TilePlan) -> int:
    return plan.time.cycles if plan.time is not None else 0


def _edge(dim: TileDim, size: int) -> str:
    if size == dim.extent:
        return "whole"
    if size > dim.extent:
        return "padded" if dim.parallel else "zeros"
    if dim.extent % size == 0:
        return "divides"
    return "overlap" if dim.parallel else "zeros"
