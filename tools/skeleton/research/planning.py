"""A planner and a tiler: plain data in, plain data out."""

from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.one_pass import place_in_order
from penstock.passes.planning.problem import Limits, Outcome, Problem
from penstock.passes.planning.tile_problem import TileProblem, tile_sizes
from penstock.passes.planning.tiling import TilePlan, equal_depths, footprint, loops_of, overflow


def longest_first(problem: Problem, limits: Limits) -> Outcome:
    """Place the buffers that live longest first, each at the lowest offset that is free."""
    conflicts, buffers = Conflicts(problem), problem.buffers
    order = sorted(range(len(buffers)), key=lambda number: -buffers[number].duration)
    offsets = place_in_order(conflicts, order)
    return Outcome(None if offsets is None else conflicts.plan(offsets))


def square(problem: TileProblem) -> TilePlan:
    """Cut parallel dims alike, as little as it takes for two slots in every scope; sums are kept whole."""
    choices = [tile_sizes(dim, number) for number, dim in enumerate(problem.dims)]
    for most in sorted({1, *(size for sizes in choices for size in sizes)}, reverse=True):
        tile = tuple(
            max((size for size in sizes if size <= most), default=sizes[0]) if dim.parallel else sizes[-1]
            for dim, sizes in zip(problem.dims, choices, strict=True)
        )
        order = loops_of(problem, tile)
        depths = equal_depths(problem, order, slots=2)
        used = footprint(problem, tile, order, depths)
        if all(used[scope] <= capacity for scope, capacity in problem.capacity.items()):
            return TilePlan(problem, tile, order, depths)
    raise overflow(problem, tile, depths)
