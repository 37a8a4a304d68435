"""Splitting a loop into two nested ones."""

from __future__ import annotations

from typing import NamedTuple

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.loop_dependences import name_of
from penstock.passes.index_builder import add, materialize
from penstock.passes.schedule.loop_nests import (
    Iterations,
    builder_in,
    carries_nothing,
    clone_body,
    iterations_of,
    move_body,
    new_loop,
)


class SplitLoops(NamedTuple):
    """What a loop has become."""

    outer: scf.ForOp
    inner: scf.ForOp
    tail: scf.ForOp | None
    """The iterations that the factor leaves over; None if it divides."""


def split(loop: scf.ForOp, factor: int) -> SplitLoops:
    """
    Make of a loop one over strips of `factor` iterations, and in it one over the iterations of a strip.

    Iterations that are left over become a loop of their own after it, so that all bounds are constant. The order of
    the iterations is what it was: every split is legal. Raises UserError for bounds that are not constant, and for a
    factor that is not from 1 to the number of iterations.
    """
    carries_nothing(loop)
    whole = iterations_of(loop)
    if not 1 <= factor <= whole.trips:
        raise UserError(
            f"{name_of(loop)} has {whole.trips} iterations: strips of {factor} cannot be made of them",
            loc=location_of(loop),
            notes=[f"a factor is from 1 to {whole.trips}"] if whole.trips else [],
        )
    strips, left = divmod(whole.trips, factor)
    builder = Builder(InsertPoint.before(loop))
    outer = new_loop(builder, Iterations(whole.lower, whole.step * factor, strips), loop)
    within = builder_in(outer)
    inner = new_loop(within, Iterations(0, whole.step, factor), loop)
    within.insert(scf.YieldOp())
    tail = new_loop(builder, whole.after(strips * factor), loop) if left else None
    if tail is not None:
        clone_body(builder_in(tail), loop, tail.body.block.args[0], ())
        builder_in(tail).insert(scf.YieldOp())
    at = builder_in(inner)
    counter = materialize(at, add(at, outer.body.block.args[0], inner.body.block.args[0]))
    counter.name_hint = loop.body.block.args[0].name_hint
    move_body(loop, inner, counter)
    Rewriter.erase_op(loop)
    return SplitLoops(outer, inner, tail)
