"""Reordering the loops of a nest."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.loop_dependences import ROUNDING_COMBINERS, LoopDependence, NestMemory, name_of
from penstock.passes.schedule.loop_nests import (
    builder_in,
    iterations_of,
    move_body,
    new_loop,
    perfect_nest,
    sink_pure_ops,
)


def reorder(loops: Sequence[scf.ForOp], *, reassociate: bool = False) -> tuple[scf.ForOp, ...]:
    """
    Give the loops of a perfect nest another order: `loops` are those that change places, the outermost first.

    Loops of the nest that are not listed stay where they are. Legal where no dependence is reversed: the direction
    vectors, permuted, stay lexicographically positive. Of a reduction the order in which each element is added to is
    kept, unless its ops give the same bits in any order (as those of integers do), or sums of floats may be rounded
    otherwise (`reassociate`). Returns the loops in the order in which they were listed.

    Raises UserError, which names the dependence, where the order is not legal, where the nest is not perfect, and
    where bounds are not constant.
    """
    nest = _nest_of(loops)
    order = _permuted(nest, loops)
    iterations = {loop: iterations_of(loop) for loop in nest}
    _check(nest, order, reassociate)
    sink_pure_ops(nest)
    builder = Builder(InsertPoint.before(nest[0]))
    built: dict[scf.ForOp, scf.ForOp] = {}
    for loop in order:
        built[loop] = new_loop(builder, iterations[loop], loop)
        builder = builder_in(built[loop])
    for loop in nest[:-1]:
        loop.body.block.args[0].replace_all_uses_with(built[loop].body.block.args[0])
    move_body(nest[-1], built[order[-1]], built[nest[-1]].body.block.args[0])
    for loop in order[:-1]:
        builder_in(built[loop]).insert(scf.YieldOp())
    Rewriter.erase_op(nest[0])
    return tuple(built[loop] for loop in loops)


def _nest_of(loops: Sequence[scf.ForOp]) -> tuple[scf.ForOp, ...]:
    """The nest from the outermost of some loops to the innermost of them."""
    if len(set(loops)) < 2 or len(set(loops)) != len(loops):
        raise UserError(
            "two loops or more are reordered, each listed once", loc=location_of(loops[0]) if loops else None
        )

    def depth(loop: scf.ForOp) -> int:
        count, parent = 0, loop.parent_op()
        while parent is not None:
            count, parent = count + 1, parent.parent_op()
        return count

    by_depth = sorted(loops, key=depth)
    nest = perfect_nest(by_depth[0], by_depth[-1])
    for loop in loops:
        if loop not in nest:
            raise UserError(f"{name_of(loop)} is not in the nest of {name_of(nest[-1])}", loc=location_of(loop))
    return nest


def _permuted(nest: Sequence[scf.ForOp], loops: Sequence[scf.ForOp]) -> list[scf.ForOp]:
    """The nest with the listed loops in the order of the list, in the places that they have."""
    listed = iter(loops)
    return [next(listed) if loop in loops else loop for loop in nest]


def _check(nest: Sequence[scf.ForOp], order: Sequence[scf.ForOp], reassociate: bool) -> None:
    places = [nest.index(loop) for loop in order]
    for dependence in NestMemory.around(nest[0]).dependences(nest):
        if not dependence.is_fixed(reassociate=reassociate):
            continue
        first = next(dependence.directions[place] for place in places if dependence.directions[place])
        if first < 0:
            raise _reversed(order, dependence)


def _reversed(order: Sequence[scf.ForOp], dependence: LoopDependence) -> UserError:
    names = ", ".join(map(name_of, order))
    notes = [str(dependence)]
    if dependence.combiner in ROUNDING_COMBINERS:
        notes.append("the sums would be rounded in another order: `reassociate` permits that")
    return UserError(f"the order {names} reverses a dependence", loc=location_of(dependence.source.op), notes=notes)
