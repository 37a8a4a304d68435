# SPDX-License-Identifier: Apache-2.0
"""
Tilers by name, through the entry point group `penstock.tilers`: ours and those of installed packages alike.

A tiler is a function from a `TileProblem` to a `TilePlan`: the sizes of a tile, the order of the loops, and the slots
of each scope. It takes and returns plain data, and for equal problems it returns equal plans, which are kept. Whatever
it returns is checked (`tile_validation`), and what it costs is computed from these three alone (`TilePlan`). A tiler
that has no plan raises `DoesNotFit` (`tiling.overflow` makes one) or `NoTile` with the reason.

```toml
[project.entry-points."penstock.tilers"]
my-tiler = "my_package.tilers:tile"
```
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from penstock.passes.planning.registry import entries, load_entry
from penstock.passes.planning.tile_problem import TileDim, TileOp, TileOperand, TileProblem
from penstock.passes.planning.tile_validation import TilePlanError, checked_plan
from penstock.passes.planning.tiling import TilePlan

Tiler = Callable[[TileProblem], TilePlan]
"""For equal problems equal plans."""

GROUP = "penstock.tilers"
"""The entry point group of tilers."""

DEFAULT_TILER = "pipelined"
"""The tiler where none is named."""


def tiler_names() -> tuple[str, ...]:
    """All names that `tiler` knows, in alphabetical order."""
    return tuple(entries(GROUP))


def tiler(name: str) -> Tiler:
    """The tiler `name`; raises UserError, with the nearest name, if there is none."""
    return load_entry(GROUP, name, "tiler")


def plan_tile(problem: TileProblem, name: str = DEFAULT_TILER) -> TilePlan:
    """
    The plan of the tiler `name`, checked.

    Raises UserError for an unknown tiler, TilePlanError for one whose plan is not valid, DoesNotFit or NoTile where it
    has none, and NoEnergy where it asks for energy of which nothing is known.
    """
    plain = (problem.dims, problem.operands, tuple(problem.capacity.items()), problem.works, problem.depth)
    try:
        return _planned(tiler(name), *plain, problem.leakage)
    except TilePlanError as fault:
        raise TilePlanError(f'the tiler "{name}" returned a plan that is not valid: {fault}') from None


@lru_cache(maxsize=1024)
def _planned(
    tiler: Tiler,
    dims: tuple[TileDim, ...],
    operands: tuple[TileOperand, ...],
    capacity: tuple[tuple[str, int], ...],
    works: tuple[TileOp, ...],
    depth: int | None,
    leakage: float | None,
) -> TilePlan:
    """The plan is asked for when a kernel gets its device and again when it is tiled."""
    # The plan is checked against a problem that the tiler has not had in its hands.
    asked, own = (TileProblem(dims, operands, dict(capacity), works, depth, leakage) for _ in range(2))
    return checked_plan(own, tiler(asked))
