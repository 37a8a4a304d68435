# SPDX-License-Identifier: Apache-2.0
"""The largest tile that fits, with one slot everywhere: what is done where nothing is modelled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.passes.planning.tile_problem import TileProblem, thinned, tile_sizes
from penstock.passes.planning.tiling import TilePlan, equal_depths, loops_of, tiles_that_fit

MAX_TILES = 24_000
"""How many tiles are compared: the sizes of the dims with the most are thinned out until there are no more."""


def largest(problem: TileProblem) -> TilePlan:
    """
    The tile with the most iterations that fits, of those the one that takes the most bytes of the scopes.

    Loops are in the order of their dims, parallel ones outside. Raises DoesNotFit and NoTile.
    """
    return largest_of(problem, [tile_sizes(dim, number) for number, dim in enumerate(problem.dims)])


def largest_within(problem: TileProblem, sizes: Sequence[int]) -> TilePlan:
    """The largest tile that fits and is nowhere larger than `sizes`; raises DoesNotFit and NoTile."""
    choices = [tile_sizes(dim, number) for number, dim in enumerate(problem.dims)]
    return largest_of(
        problem,
        [[each for each in found if each <= size] or found[:1] for found, size in zip(choices, sizes, strict=True)],
    )


def largest_of(problem: TileProblem, choices: Sequence[list[int]]) -> TilePlan:
    """The largest tile, as above, with one of the `choices`, which ascend, in each dim."""
    tiles = tiles_that_fit(problem, thinned(choices, MAX_TILES))
    held = sum((tiles.held[n] for n, o in enumerate(problem.operands) if o.scope is not None), tiles.ones * 0)
    # Extents may be so long that their product has no place in 64 bits; its logarithm does.
    iterations = sum((np.log2(size) for size in tiles.tile), tiles.ones * 0.0).round(9)
    best = int(np.lexsort((-held, -iterations))[0])
    tile = tuple(int(size[best]) for size in tiles.tile)
    order = loops_of(problem, tile)
    return TilePlan(problem, tile, order, equal_depths(problem, order))
