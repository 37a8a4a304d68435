# SPDX-License-Identifier: Apache-2.0
"""Barriers in place of tokens, for machines whose commands nothing else orders."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp
from penstock.dialects.functions import body_block
from penstock.passes.accel.accel_check_hazards import check_hazards
from penstock.passes.accel.waiting import Waiting
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.schedule.ordering.tokens import strip


@dataclass(frozen=True)
class AccelTokensToBarriersPass(ModulePass):
    """
    Order the commands of a machine by barriers, in place of tokens.

    Requires the accel level. Guaranteed: no tokens; between a command and one that waited for it the processor waits
    until all are complete. Barriers are few: one comes as late as it can, and so does for all that was issued until
    then; one that a loop would repeat for what was issued before it comes before the loop. The kernels are checked for
    hazards as they are then. Raises UserError for one.

    Before:
    ```mlir
    func.func private @k(%x: memref<4x4xf32>, %y: memref<4x4xf32>) attributes {device = @gemmini_fp32} {
      %a = mem.buffer at 0 : memref<4x4xf32, "spad">
      %b = mem.buffer at 64 : memref<4x4xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      %u = accel.dma %x to %b on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      %v = accel.dma %a to %y on "mvout" after (%t) : memref<4x4xf32, "spad"> to memref<4x4xf32>
      %w = accel.dma %b to %y on "mvout" after (%u, %v) : memref<4x4xf32, "spad"> to memref<4x4xf32>
      accel.barrier
      func.return
    }
    ```
    After (`accel-tokens-to-barriers` on `gemmini-fp32`):
    ```mlir
    func.func private @k(%x: memref<4x4xf32>, %y: memref<4x4xf32>) attributes {device = @gemmini_fp32} {
      %a = mem.buffer at 0 : memref<4x4xf32, "spad">
      %b = mem.buffer at 64 : memref<4x4xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      %u = accel.dma %x to %b on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      accel.barrier
      %v = accel.dma %a to %y on "mvout" : memref<4x4xf32, "spad"> to memref<4x4xf32>
      accel.barrier
      %w = accel.dma %b to %y on "mvout" : memref<4x4xf32, "spad"> to memref<4x4xf32>
      accel.barrier
      func.return
    }
    ```
    """

    name = "accel-tokens-to-barriers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _, functions = machine_kernels(op)
        for function in functions:
            self._kernel(function)
        check_hazards(op)

    def _kernel(self, function: func.FuncOp) -> None:
        barriers = Waiting(lambda token, pending: tuple(pending), early=True)
        barriers.block(body_block(function, "ordered by barriers"), frozenset())
        for op in barriers.before:
            barrier = BarrierOp()
            barrier.location = op.location
            Rewriter.insert_op(barrier, InsertPoint.before(op))
        strip(function)
