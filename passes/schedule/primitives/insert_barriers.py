# SPDX-License-Identifier: Apache-2.0
"""Barriers among iterations that run at once."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import gpu
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_parallel import InsertBarriersOp
from penstock.dialects.upstream.gpu import BlockMappingAttr
from penstock.dialects.upstream.scf import ForallOp, forall_around
from penstock.passes.analysis.barriers import needed_barriers
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def insert_barriers(forall: ForallOp) -> None:
    """
    Put the barriers into a `scf.forall` that its iterations need, and take out those that they do not.

    A barrier is put before the first op that reads what another iteration has written, or writes what another one has
    accessed, since the last barrier (see `analysis.barriers`). Barriers are in the body, and in those loops of it that
    all iterations run alike. Raises UserError where iterations race whatever barriers there are, and for iterations
    that are mapped to blocks, which cannot wait for each other, but must.

    Before:
    ```mlir
    func.func @k(%x: memref<4xf32>, %y: memref<4xf32>) {
      %b = mem.buffer : memref<4xf32, "spad">
      %three = arith.constant 3 : index
      scf.forall (%i) in (4) {
        %v = memref.load %x[%i] : memref<4xf32>
        gpu.barrier
        memref.store %v, %b[%i] : memref<4xf32, "spad">
        %j = arith.subi %three, %i : index
        %w = memref.load %b[%j] : memref<4xf32, "spad">
        memref.store %w, %y[%i] : memref<4xf32>
      } {mapping = [#gpu.thread<x>]}
      func.return
    }
    ```
    After (`schedule.insert_barriers %forall` or `insert-barriers`):
    ```mlir
    func.func @k(%x: memref<4xf32>, %y: memref<4xf32>) {
      %b = mem.buffer : memref<4xf32, "spad">
      %three = arith.constant 3 : index
      scf.forall (%i) in (4) {
        %v = memref.load %x[%i] : memref<4xf32>
        memref.store %v, %b[%i] : memref<4xf32, "spad">
        %j = arith.subi %three, %i : index
        gpu.barrier
        %w = memref.load %b[%j] : memref<4xf32, "spad">
        memref.store %w, %y[%i] : memref<4xf32>
      } {mapping = [#gpu.thread<x>]}
      func.return
    }
    ```
    """
    needed = needed_barriers(forall)
    if needed and forall.mapping is not None and isinstance(forall.mapping.data[0], BlockMappingAttr):
        raise UserError(
            f"iterations that are mapped to blocks cannot wait for each other, and {needed[0].name} has to",
            loc=location_of(needed[0]),
            notes=["map them to threads, as in `mapping = [#gpu.thread<x>]`"],
        )
    for op in [op for op in forall.walk() if isinstance(op, gpu.BarrierOp) and forall_around(op) is forall]:
        Rewriter.erase_op(op)
    for op in needed:
        barrier = gpu.BarrierOp()
        barrier.location = op.location
        Rewriter.insert_op(barrier, InsertPoint.before(op))


@PRIMITIVES.register(InsertBarriersOp)
def _apply(state: TransformState, op: InsertBarriersOp) -> Sequence[Payload]:
    insert_barriers(state.one(op.forall, ForallOp))
    return ()
