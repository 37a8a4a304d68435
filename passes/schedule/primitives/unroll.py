# SPDX-License-Identifier: Apache-2.0
"""Unrolling a loop."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.transform_loops import LoopUnrollOp
from penstock.passes.analysis.loop_dependences import name_of
from penstock.passes.index_builder import add, materialize
from penstock.passes.schedule.loop_nests import Iterations, builder_in, clone_body, iterations_of, new_loop
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState

MAX_COPIES = 4096
"""The most copies of a body."""


def unroll(loop: scf.ForOp, factor: int | None = None) -> tuple[scf.ForOp, ...]:
    """
    Repeat the body of a loop `factor` times in each iteration; without a factor, once for each and no loop is left.

    Iterations that are left over become a loop of their own after it. The order of the iterations is what it was:
    every unrolling is legal. Returns the loops that are left. Raises UserError for bounds that are not constant, and
    for a factor that is not from 1 to the number of iterations.

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
    After (`transform.loop.unroll %i {factor = 2} : !transform.any_op`):
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c10 = arith.constant 10 : index
      %0 = arith.constant 2 : index
      scf.for %i = %c0 to %c10 step %0 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
        %1 = arith.constant 1 : index
        %2 = arith.addi %i, %1 : index
        %v_1 = memref.load %x[%2] : memref<10xf32>
        memref.store %v_1, %y[%2] : memref<10xf32>
      }
      func.return
    }
    ```
    """
    whole = iterations_of(loop)
    copies = whole.trips if factor is None else factor
    if copies > MAX_COPIES:
        raise UserError(
            f"{copies} copies of a body are too many", loc=location_of(loop), notes=[f"at most {MAX_COPIES}"]
        )
    if factor is not None and not 1 <= factor <= whole.trips:
        raise UserError(
            f"{name_of(loop)} has {whole.trips} iterations: it cannot be unrolled by {factor}", loc=location_of(loop)
        )
    builder = Builder(InsertPoint.before(loop))
    values, left = list(loop.iter_args), list[scf.ForOp]()
    if factor is None:
        for number in range(copies):
            counter = materialize(builder, whole.lower + number * whole.step)
            counter.name_hint = loop.body.block.args[0].name_hint
            values = clone_body(builder, loop, counter, values)
    else:
        strips = whole.trips // copies
        main = Iterations(whole.lower, whole.step * copies, strips)
        for iterations, count in ((main, copies), (whole.after(strips * copies), 1)):
            if iterations.trips:
                new = new_loop(builder, iterations, loop, values)
                _fill(new, loop, count, whole.step)
                values = list(new.results)
                left.append(new)
    for result, value in zip(loop.results, values, strict=True):
        result.replace_all_uses_with(value)
    Rewriter.erase_op(loop)
    return tuple(left)


def _fill(new: scf.ForOp, loop: scf.ForOp, copies: int, step: int) -> None:
    """Copy the body of `loop` into another, for `copies` iterations."""
    builder = builder_in(new)
    counter, *values = new.body.block.args
    for number in range(copies):
        shifted = materialize(builder, add(builder, counter, number * step))
        values = clone_body(builder, loop, shifted, values)
    builder.insert(scf.YieldOp(*values))


@PRIMITIVES.register(LoopUnrollOp)
def apply_unroll(state: TransformState, op: LoopUnrollOp) -> Sequence[Payload]:
    """
    Unroll a loop, as upstream does: by as many iterations as it has, or more, no loop is left.

    See https://mlir.llvm.org/docs/Dialects/Transform/#transformloopunroll
    """
    loop, factor = state.one(op.target, scf.ForOp), op.factor.value.data
    unroll(loop, None if factor >= iterations_of(loop).trips else factor)
    return ()
