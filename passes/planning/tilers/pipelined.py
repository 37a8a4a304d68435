# SPDX-License-Identifier: Apache-2.0
"""
Sizes, order and slots chosen together, for little modelled time and few bytes: the tiler that is used by default.

The search enumerates all sizes of a list for every dim, all orders of the parallel loops, and one or two slots in
each scope. What does not fit is discarded; an estimate (the busiest unit or bus, what no slot hides, the first fetch
and the last store) ranks the rest, and the best of them are timed as pipelines by the recurrences of
`passes/planning/pipelining`. Among those within TIE of the best time, the fewest bytes over the edge of the chip win.
More slots than two, or fewer, are then tried for the winner. All of it is deterministic.

`least_energy` and `least_edp` rank by the energy, and by its product with the time, where the machine says what it
takes, and `least_traffic` by the bytes over the edge of the chip; the rest of the search is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

import numpy as np

from penstock.passes.planning.pipelining import NestTime
from penstock.passes.planning.tile_cost import Estimates, Tiles, time_of_tile
from penstock.passes.planning.tile_problem import Ints, NoEnergy, TileProblem, given_size, thinned, tile_sizes
from penstock.passes.planning.tiling import TIE, TilePlan, footprint, refilled_scopes, tiles_that_fit

NEAR = 0.06
"""How far an estimate may be from the best one for a tile to be timed because it moves few bytes."""
MAX_TILES = 24_000
"""How many tiles are compared: the sizes of the dims with the most are thinned out until there are no more."""
TIMED = 10
"""How many of the best estimates are timed."""
MAX_SLOTS = 4
"""The most slots that are tried."""
BYTES_A_CYCLE = 1e-9
"""What a cycle counts where bytes are to be least: so little that it decides between equal ones alone."""


Objective = Callable[[Any, Any, Any], Any]
"""From picojoules, cycles and bytes, of one plan or of many, to what is to be least."""


def pipelined(problem: TileProblem) -> TilePlan:
    """
    The plan with the least modelled time found; of those within 3 % of it the one that moves the fewest bytes.

    Raises DoesNotFit, and NoTile where a dim is not cut into the blocks of the machine.
    """
    return _Search(_candidates(problem)).run()


def least_energy(problem: TileProblem) -> TilePlan:
    """
    The plan with the least modelled energy found; of equal ones the fastest.

    Raises DoesNotFit and NoTile as `pipelined` does, and NoEnergy where nothing is known of energy.
    """
    return _least(problem, lambda energy, cycles, moved: energy)


def least_edp(problem: TileProblem) -> TilePlan:
    """The plan with the least product of modelled energy and time found; raises as `least_energy` does."""
    return _least(problem, lambda energy, cycles, moved: energy * cycles)


def least_traffic(problem: TileProblem) -> TilePlan:
    """The plan that moves the fewest bytes off and on chip; of equal ones the fastest. Raises as `pipelined`."""
    return _Search(_candidates(problem), lambda energy, cycles, moved: moved + BYTES_A_CYCLE * cycles).run()


def _least(problem: TileProblem, objective: Objective) -> TilePlan:
    if problem.leakage is None:
        raise NoEnergy("nothing is known of the energy that the machine takes")
    return _Search(_candidates(problem), objective).run()


def _candidates(problem: TileProblem) -> Tiles:
    choices = thinned([tile_sizes(dim, number) for number, dim in enumerate(problem.dims)], MAX_TILES)
    return tiles_that_fit(problem, choices)


def with_sizes(problem: TileProblem, given: Sequence[int]) -> TilePlan:
    """
    The best order of loops, and the best slots, for a tile of the sizes `given`, one for each dim.

    Raises DoesNotFit, and ValueError for given sizes that are no tile.
    """
    dims = problem.dims
    if len(given) != len(dims):
        raise ValueError(f"{len(given)} tile sizes for {len(dims)} dims")
    choices = [[given_size(dim, size, n)] for n, (size, dim) in enumerate(zip(given, dims, strict=True))]
    return _Search(tiles_that_fit(problem, choices)).run()


@dataclass(frozen=True)
class _Point:
    """One candidate: a tile of the grid, an order of loops, and slots."""

    estimate: float
    moved: float
    index: int
    loops: tuple[int, ...]
    depths: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Timed:
    """A candidate and its time; None where it is not known what computes."""

    plan: TilePlan
    index: int
    bytes_moved: int
    time: NestTime | None
    cost: float
    """What is to be least."""

    @property
    def cycles(self) -> int:
        return self.time.cycles if self.time is not None else 0

    @property
    def work(self) -> int:
        return sum(self.time.busy.values()) if self.time is not None else 0


@dataclass
class _Search:
    tiles: Tiles
    objective: Objective | None = None
    """What is to be least; None: the time."""

    @property
    def problem(self) -> TileProblem:
        return self.tiles.problem

    def run(self) -> TilePlan:
        """The best plan among the tiles."""
        timed = [self._timed(point) for point in self._promising()]
        best = self._best(timed)
        others = [each for each in timed if each.plan.tile != best.plan.tile]
        runner_up = self._best(others).plan if others else None
        plan = self._with_other_slots(best)
        return replace(plan, runner_up=runner_up).timed(plan.time)

    def _best(self, found: Sequence[_Timed]) -> _Timed:
        """The one of least cost; of time the one with the fewest bytes among the least, as far as can be told."""
        if self.objective is not None:
            return min(found, key=lambda each: (each.cost, each.cycles, each.bytes_moved, each.work))
        least = min(each.cycles for each in found)
        close = [each for each in found if each.cycles <= least * (1 + TIE)]
        return min(close, key=lambda each: (each.bytes_moved, each.cycles, each.work, sum(each.plan.depths.values())))

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
        dims, tiles = self.problem.dims, self.tiles
        cut = [number for number in range(len(dims)) if np.any(tiles.trips[number] > 1)]
        parallel = [number for number in cut if dims[number].parallel]
        reductions = [number for number in cut if not dims[number].parallel]
        best = np.inf
        seen: set[tuple[object, ...]] = set()
        for order in permutations(parallel):
            estimates = Estimates(tiles, (*order, *reductions))
            for depths in self._depths(estimates.loops):
                cost = np.where(estimates.fits(depths), self._estimate(estimates, depths), np.inf)
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

    def _estimate(self, estimates: Estimates, depths: Mapping[str, int]) -> Ints:
        cycles = estimates.cycles(depths)
        if self.objective is None:
            return cycles
        picojoules = estimates.picojoules + (self.problem.leakage or 0) * cycles
        return self.objective(picojoules, cycles, estimates.moved)

    def _depths(self, loops: Sequence[int]) -> Iterator[dict[str, int]]:
        """The slots that are tried in each scope where some loop refills something."""
        scopes = refilled_scopes(self.problem, loops)
        options = (1, 2, MAX_SLOTS) if len(scopes) <= 2 else (1, 2)
        options = options if self.problem.depth is None and self.problem.works else (self.problem.depth or 1,)
        for counts in product(options, repeat=len(scopes)):
            yield dict(zip(scopes, counts, strict=True))

    def _used(self, loops: Sequence[int], depths: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        return tuple((scope, depths[scope]) for scope in refilled_scopes(self.problem, loops))

    def _timed(self, point: _Point) -> _Timed:
        tile, depths = tuple(int(size[point.index]) for size in self.tiles.tile), dict(point.depths)
        time = time_of_tile(self.tiles, point.index, point.loops, depths) if self.problem.works else None
        plan = TilePlan(self.problem, tile, point.loops, depths).timed(time)
        cycles = 0 if time is None else time.cycles
        cost = cycles if self.objective is None else self.objective(plan.picojoules or 0.0, cycles, point.moved)
        return _Timed(plan, point.index, round(point.moved), time, cost)

    def _with_other_slots(self, best: _Timed) -> TilePlan:
        """The plan with more slots where that pays, and fewer where it costs nothing."""
        plan, time = best.plan, best.time
        if self.problem.depth is not None or time is None:
            return plan
        for scope in plan.depths:
            for count in range(1, MAX_SLOTS + 1):
                depths = {**plan.depths, scope: count}
                used = footprint(self.problem, plan.tile, plan.order, depths)
                if count == plan.depths[scope] or used[scope] > self.problem.capacity[scope]:
                    continue
                other = time_of_tile(self.tiles, best.index, plan.order, depths)
                most = time.cycles * (1 - TIE / 2) if count > plan.depths[scope] else time.cycles + 1
                if other.cycles < most:
                    plan, time = replace(plan, depths=depths).timed(other), other
        return plan
