# SPDX-License-Identifier: Apache-2.0
"""
Every size, order and number of slots, timed: the best that the model knows, where there are few enough to find it.

As in Timeloop (Parashar et al., ISPASS 2019) the whole space of mappings is enumerated, and what cannot be better
than the best one so far is left out: no nest is faster than its busiest unit or bus, nor than the ops that reduce with
the first fetch before and the last store after them (`Estimates.bound`). The space has all sizes of `tile_sizes` in
each dim, all orders of the parallel loops and of the reductions, and one to MAX_SLOTS slots in each scope.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod

import numpy as np

from penstock.passes.planning.tile_cost import Estimates, Tiles, time_of_tile
from penstock.passes.planning.tile_problem import NoTile, TileProblem, tile_sizes
from penstock.passes.planning.tiling import TilePlan, footprint, refilled_scopes, tiles_that_fit

MAX_SLOTS = 3
"""The most slots that are tried in a scope."""
MAX_TILES = 100_000
"""The most combinations of sizes that are looked at."""
MAX_ORDERS = 24
"""The most orders of loops that are looked at."""
MAX_TIMED = 30_000
"""The most plans that are timed."""


def exhaustive(problem: TileProblem) -> TilePlan:
    """
    The fastest plan of all; of those the one that moves the fewest bytes, and has the fewest slots.

    Raises DoesNotFit; NoTile also where there are more combinations of sizes than MAX_TILES, more orders than
    MAX_ORDERS, or more plans than MAX_TIMED that might be the best; and where nothing says what computes.
    """
    if not problem.works:
        raise NoTile("nothing is known of what computes, so that no time can be the least")
    choices = [tile_sizes(dim, number) for number, dim in enumerate(problem.dims)]
    if (count := prod(map(len, choices))) > MAX_TILES:
        raise NoTile(f"there are {count:,} combinations of sizes, and an exhaustive search stops at {MAX_TILES:,}")
    return _Space(tiles_that_fit(problem, choices)).best()


@dataclass(frozen=True, order=True)
class _Nest:
    """A tile and an order, and what it takes at least."""

    bound: float
    moved: float
    index: int
    loops: tuple[int, ...]


@dataclass
class _Space:
    tiles: Tiles

    @property
    def problem(self) -> TileProblem:
        return self.tiles.problem

    def best(self) -> TilePlan:
        found: tuple[int, int, int] | None = None
        plan: TilePlan | None = None
        timed = 0
        for nest in sorted(self._nests()):
            if found is not None and nest.bound > found[0]:
                break
            for depths in self._depths(nest):
                timed += 1
                if timed > MAX_TIMED:
                    raise NoTile(f"more than {MAX_TIMED:,} plans might be the best, where an exhaustive search stops")
                cycles = time_of_tile(self.tiles, nest.index, nest.loops, depths).cycles
                cost = (cycles, round(nest.moved), sum(depths.values()))
                if found is None or cost < found:
                    tile = tuple(int(size[nest.index]) for size in self.tiles.tile)
                    found, plan = cost, TilePlan(self.problem, tile, nest.loops, depths)
        assert plan is not None, "what fits at all fits with the slots that the problem asks for, or one"
        return plan

    def _nests(self) -> Iterator[_Nest]:
        """Every tile in every order of its loops."""
        dims, trips = self.problem.dims, self.tiles.trips
        cut = [number for number in range(len(dims)) if np.any(trips[number] > 1)]
        parallel = [number for number in cut if dims[number].parallel]
        reductions = [number for number in cut if not dims[number].parallel]
        if (orders := factorial(len(parallel)) * factorial(len(reductions))) > MAX_ORDERS:
            raise NoTile(f"there are {orders:,} orders of loops, and an exhaustive search stops at {MAX_ORDERS}")
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for outer, inner in product(permutations(parallel), permutations(reductions)):
            estimates = Estimates(self.tiles, (*outer, *inner))
            bounds = estimates.bound()
            for index in range(len(self.tiles.ones)):
                loops = tuple(number for number in estimates.loops if trips[number][index] > 1)
                if (index, loops) not in seen:
                    seen.add((index, loops))
                    yield _Nest(float(bounds[index]), float(estimates.moved[index]), index, loops)

    def _depths(self, nest: _Nest) -> Iterator[dict[str, int]]:
        """The slots that fit, the most first."""
        scopes = refilled_scopes(self.problem, nest.loops)
        asked = self.problem.depth
        options = range(MAX_SLOTS, 0, -1) if asked is None else (asked,)
        tile = [int(size[nest.index]) for size in self.tiles.tile]
        for counts in product(options, repeat=len(scopes)):
            depths = dict(zip(scopes, counts, strict=True))
            used = footprint(self.problem, tile, nest.loops, depths)
            if all(used[scope] <= capacity for scope, capacity in self.problem.capacity.items()):
                yield depths
