# SPDX-License-Identifier: Apache-2.0
"""Splitting a loop into two nested ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_loops import SplitOp
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
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


class SplitLoops(NamedTuple):
    """What a loop has become."""

    outer: scf.ForOp
    """The loop over the pieces."""
    inner: scf.ForOp
    """The loop within a piece."""
    tail: scf.ForOp | None
    """The iterations that the factor leaves over; None if it divides."""


def split(loop: scf.ForOp, factor: int) -> SplitLoops:
    """
    Make of a loop one over strips of `factor` iterations, and in it one over the iterations of a strip.

    Iterations that are left over become a loop of their own after it, so that all bounds are constant. The order of
    the iterations is what it was: every split is legal. Raises UserError for bounds that are not constant, and for a
    factor that is not from 1 to the number of iterations.

    Before:
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c10 = arith.constant 10 : index
      scf.for %i = %c0 to %c10 step %c1 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
      }
      func.return
    }
    ```
    After (`%outer, %inner, %tail = schedule.split %i by 4`):
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c10 = arith.constant 10 : index
      %0 = arith.constant 8 : index
      %1 = arith.constant 4 : index
      scf.for %i = %c0 to %0 step %1 {
        %2 = arith.constant 4 : index
        scf.for %i_1 = %c0 to %2 step %c1 {
          %i_2 = arith.addi %i, %i_1 : index
          %v = memref.load %x[%i_2] : memref<10xf32>
          memref.store %v, %y[%i_2] : memref<10xf32>
        }
      }
      %3 = arith.constant 8 : index
      scf.for %i_3 = %3 to %c10 step %c1 {
        %v_1 = memref.load %x[%i_3] : memref<10xf32>
        memref.store %v_1, %y[%i_3] : memref<10xf32>
      }
      func.return
    }
    ```
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


@PRIMITIVES.register(SplitOp)
def apply_split(state: TransformState, op: SplitOp) -> Sequence[Payload]:
    """`schedule.split`."""
    given = op.parameter
    factor = state.parameter(given) if given is not None else op.factor.value.data if op.factor is not None else 0
    outer, inner, tail = split(state.one(op.loop, scf.ForOp), factor)
    return (outer,), (inner,), () if tail is None else (tail,)
