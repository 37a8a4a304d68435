# SPDX-License-Identifier: Apache-2.0
"""
The check that every tile plan passes, whatever tiler made it.

It is a second opinion on purpose: written from the rules, plan by plan, it shares no code with the tilers or the costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import index

from penstock.passes.planning.tile_problem import TileDim, TileOperand, TileProblem
from penstock.passes.planning.tiling import TilePlan


class TilePlanError(ValueError):
    """A plan that breaks a rule of its problem, or is no plan."""


def checked_plan(problem: TileProblem, plan: object) -> TilePlan:
    """
    A plan for `problem` with the tile, the order and the slots of `plan`, as a tiler returned it.

    Raises TilePlanError, which says what is wrong, where

    - a size is not legal for its dim: not cut into the blocks of the machine, past the end where nothing fills what is
      there, a part of a dim that stays whole, or a part of a reduction that does not divide it;
    - the order does not hold each dim that is cut once, and no other, parallel dims first;
    - there are slots for a scope that is none, fewer than one, or other than the problem asks for;
    - the parts of one tile, slots included, take more bytes of a scope than it has.
    """
    if not isinstance(plan, TilePlan):
        raise TilePlanError(f"it is a {type(plan).__name__}, not a TilePlan")
    try:
        tile, order = tuple(map(index, plan.tile)), tuple(map(index, plan.order))
        depths = {scope: index(count) for scope, count in plan.depths.items()}
    except (TypeError, AttributeError):
        raise TilePlanError("sizes, dims of the order, and slots are integers") from None
    if len(tile) != len(problem.dims):
        raise TilePlanError(f"it has {len(tile)} sizes for {len(problem.dims)} dims")
    for number, (dim, size) in enumerate(zip(problem.dims, tile, strict=True)):
        if (fault := _fault_of_size(dim, size)) is not None:
            raise TilePlanError(f"size {size} of d{number}, which has {dim.extent}, {fault}")
    _check_order(problem, tile, order)
    _check_depths(problem, order, depths)
    for scope, capacity in problem.capacity.items():
        parts = [(o.name, _bytes_of(o, tile, order, depths)) for o in problem.operands if o.scope == scope]
        taken = sum(size for _, size in parts)
        if taken > capacity:
            held = ", ".join(f"%{name} {size:,}" for name, size in parts)
            raise TilePlanError(f'it takes {taken:,} bytes of scope "{scope}", which has {capacity:,} ({held})')
    second = None if plan.runner_up is None else checked_plan(problem, plan.runner_up)
    checked = TilePlan(problem, tile, order, depths, second)
    # What is already known of it need not be computed again.
    return plan if type(plan) is TilePlan and plan == checked and plan.runner_up is second else checked


def _fault_of_size(dim: TileDim, size: int) -> str | None:
    if size < 1:
        return "is not positive"
    for least, most in dim.blocks:
        # Blocks of the largest extent, and what is left.
        if size % most and size % most < least:
            return f"is not cut into blocks of {least if least == most else f'{least} to {most}'}"
    if size < dim.extent:
        if dim.whole:
            return "cuts a dim that stays whole"
        if not dim.parallel and not dim.runs_past_end and dim.extent % size:
            return "does not divide a reduction that may not read past its end"
    if size > dim.extent:
        if not dim.parallel and not dim.runs_past_end:
            return "is past the end of a reduction, where elements would count"
        if any(
            _fault_of_size(TileDim(dim.extent, True, blocks=dim.blocks), each) is None
            for each in range(dim.extent, size)
        ):
            return "is larger than the blocks of the machine need"
    return None


def _check_order(problem: TileProblem, tile: Sequence[int], order: Sequence[int]) -> None:
    cut = [number for number, dim in enumerate(problem.dims) if tile[number] < dim.extent]
    names = ", ".join(f"d{number}" for number in order)
    for number in order:
        if number not in cut:
            what = "is not cut" if 0 <= number < len(tile) else "is no dim"
            raise TilePlanError(f"the order {names} has d{number}, which {what}")
        if list(order).count(number) > 1:
            raise TilePlanError(f"the order {names} has d{number} twice")
    if missing := [number for number in cut if number not in order]:
        raise TilePlanError(f"the order {names or 'of no dim'} lacks d{missing[0]}, which is cut")
    for outer, inner in pairwise(order):
        if problem.dims[inner].parallel and not problem.dims[outer].parallel:
            raise TilePlanError(f"the order {names} has the reduction d{outer} outside of d{inner}, which is parallel")


def _check_depths(problem: TileProblem, order: Sequence[int], depths: Mapping[str, int]) -> None:
    for scope, count in depths.items():
        if scope not in problem.capacity:
            raise TilePlanError(
                f'it has slots in "{scope}", and the scopes are {", ".join(problem.capacity) or "none"}'
            )
        if count < 1:
            raise TilePlanError(f'it has {count} slots in "{scope}"')
    for operand in problem.operands:
        count = depths.get(operand.scope or "", 1)
        if operand.scope is not None and problem.depth not in (None, count) and _is_refilled(operand, order):
            raise TilePlanError(f'it has {count} slots in "{operand.scope}", and {problem.depth} are asked for')


def _is_refilled(operand: TileOperand, order: Sequence[int]) -> bool:
    return any(row[number] for row in operand.indices for number in order)


def _bytes_of(operand: TileOperand, tile: Sequence[int], order: Sequence[int], depths: Mapping[str, int]) -> int:
    """The bytes of its scope that an operand takes."""
    part: list[int] = []
    for row in operand.indices:
        first_to_last = sum(coefficient * (size - 1) for coefficient, size in zip(row, tile, strict=True))
        part.append(first_to_last + 1)
    row_bytes = operand.element_bytes
    rows = 1
    for number, extent in enumerate(part):
        if number < len(part) - operand.adjoining:
            rows *= extent
        else:
            row_bytes *= extent
    row_bytes += -row_bytes % operand.granule
    slots = depths.get(operand.scope or "", 1) if _is_refilled(operand, order) else 1
    if not operand.fetch and (operand.writes or not operand.reads):
        # What is computed there is emptied while the next one fills, and needs no third place.
        slots = min(slots, 2)
    return rows * row_bytes * slots
