# SPDX-License-Identifier: Apache-2.0
"""Fusing two nested loops into one."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_loops import FuseLoopsOp
from penstock.dialects.upstream.transform_loops import LoopCoalesceOp
from penstock.passes.analysis.loop_dependences import name_of
from penstock.passes.index_builder import materialize
from penstock.passes.schedule.loop_nests import (
    Iterations,
    body_of,
    builder_in,
    counter_value,
    is_perfect,
    iterations_of,
    move_body,
    new_loop,
    perfect_nest,
    sink_pure_ops,
)
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def fuse(outer: scf.ForOp, inner: scf.ForOp) -> scf.ForOp:
    """
    Make one loop of two, of which nothing but `inner` is in `outer`; their counters are a quotient and a remainder.

    The order of the iterations is what it was: every fusion of a perfect nest is legal. Raises UserError where the nest
    is not perfect, or bounds are not constant.

    Before:
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<6x4xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %c6 = arith.constant 6 : index
      scf.for %i = %c0 to %c4 step %c1 {
        scf.for %j = %c0 to %c6 step %c1 {
          %v = memref.load %x[%i, %j] : memref<4x6xf32>
          memref.store %v, %y[%j, %i] : memref<6x4xf32>
        }
      }
      func.return
    }
    ```
    After (`%both = schedule.fuse %i, %j`):
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<6x4xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %c6 = arith.constant 6 : index
      %0 = arith.constant 24 : index
      scf.for %i = %c0 to %0 step %c1 {
        %1 = arith.constant 6 : index
        %i_1 = arith.divui %i, %1 : index
        %j = arith.remui %i, %1 : index
        %v = memref.load %x[%i_1, %j] : memref<4x6xf32>
        memref.store %v, %y[%j, %i_1] : memref<6x4xf32>
      }
      func.return
    }
    ```
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


@PRIMITIVES.register(FuseLoopsOp)
def apply_fuse(state: TransformState, op: FuseLoopsOp) -> Sequence[Payload]:
    """`schedule.fuse`."""
    return ((fuse(state.one(op.outer, scf.ForOp), state.one(op.inner, scf.ForOp)),),)


@PRIMITIVES.register(LoopCoalesceOp)
def coalesce(state: TransformState, op: LoopCoalesceOp) -> Sequence[Payload]:
    """
    Fuse the loops of the perfect nest that begins with a loop.

    See https://mlir.llvm.org/docs/Dialects/Transform/#transformloopcoalesce
    """
    loop = state.one(op.target, scf.ForOp)
    nest = [loop]
    while (inner := _only_loop(nest[-1])) is not None:
        nest.append(inner)
    for each in perfect_nest(loop, nest[-1]) if len(nest) > 1 else ():
        iterations_of(each)
    while (inner := _only_loop(loop)) is not None:
        loop = fuse(loop, inner)
    return ((loop,),)


def _only_loop(loop: scf.ForOp) -> scf.ForOp | None:
    """The one loop in a loop around which there are only pure ops."""
    loops = [op for op in body_of(loop) if isinstance(op, scf.ForOp)]
    return loops[0] if len(loops) == 1 and is_perfect(loop, loops[0]) else None
