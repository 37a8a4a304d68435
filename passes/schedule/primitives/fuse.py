"""Fusing two nested loops into one."""

from __future__ import annotations

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.loop_dependences import name_of
from penstock.passes.index_builder import materialize
from penstock.passes.schedule.loop_nests import (
    Iterations,
    builder_in,
    counter_value,
    iterations_of,
    move_body,
    new_loop,
    perfect_nest,
    sink_pure_ops,
)


def fuse(outer: scf.ForOp, inner: scf.ForOp) -> scf.ForOp:
    """
    Make one loop of two, of which nothing but `inner` is in `outer`; their counters are a quotient and a remainder.

    The order of the iterations is what it was: every fusion of a perfect nest is legal. Raises UserError where the nest
    is not perfect, or bounds are not constant.
    """
    nest = perfect_nest(outer, inner)
    if len(nest) != 2:
        raise UserError(f"{name_of(inner)} is not directly in {name_of(outer)}", loc=location_of(inner))
    rows, columns = iterations_of(outer), iterations_of(inner)
    sink_pure_ops(nest)
    builder = Builder(InsertPoint.before(outer))
    fused = new_loop(builder, Iterations(0, 1, rows.trips * columns.trips), outer)
    number = fused.body.block.args[0]
    at = builder_in(fused)
    width = materialize(at, columns.trips)
    for loop, iterations, digit in (
        (outer, rows, arith.DivUIOp(number, width)),
        (inner, columns, arith.RemUIOp(number, width)),
    ):
        old = loop.body.block.args[0]
        new = materialize(at, counter_value(at, iterations, at.insert(digit).result))
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    move_body(inner, fused, inner.body.block.args[0])
    Rewriter.erase_op(outer)
    return fused
