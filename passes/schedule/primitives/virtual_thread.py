# SPDX-License-Identifier: Apache-2.0
"""Iterations of a loop that are interleaved on the units, each with its own buffers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf

from penstock.dialects.schedule_accel import VirtualThreadOp
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState
from penstock.passes.schedule.virtual_threads import interleave_iterations


@PRIMITIVES.register(VirtualThreadOp)
def virtual_thread(state: TransformState, op: VirtualThreadOp) -> Sequence[Payload]:
    """
    Interleave iterations. Raises UserError for iterations that depend on each other, with the commands that do, for a
    number of them that is not known, for copies of buffers that do not fit, and for a kernel in queue form
    or with commands in branches.

    Before:
    ```mlir
    func.func private @k(%x: memref<64x16xi8>, %y: memref<64x16xi8>) attributes {device = @gemmini} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %end = arith.constant 5 : index
      %free = accel.ready
      %done = scf.for %i = %zero to %end step %one iter_args(%before = %free) -> (!accel.token) {
        %a = mem.buffer at 0 : memref<1x16xi8, "spad">
        %t = accel.dma %x[%i, 0] to %a on "mvin" after (%before) : memref<64x16xi8> to memref<1x16xi8, "spad">
        %u = accel.dma %a to %y[%i, 0] on "mvout" after (%t) : memref<1x16xi8, "spad"> to memref<64x16xi8>
        scf.yield %u : !accel.token
      }
      accel.barrier
      func.return
    }
    ```
    After (`schedule.virtual_thread %i threads 2` or `accel-virtual-threads` on `gemmini`):
    ```mlir
    func.func private @k(%x: memref<64x16xi8>, %y: memref<64x16xi8>) attributes {device = @gemmini} {
      %0 = accel.ready
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %end = arith.constant 5 : index
      %1 = arith.constant 4 : index
      %2 = arith.constant 2 : index
      %3, %4 = scf.for %i = %zero to %1 step %2 iter_args(%5 = %0, %6 = %0) -> (!accel.token, !accel.token) {
        %7 = arith.constant 1 : index
        %i_1 = arith.addi %i, %7 : index
        %a = mem.buffer at 0 : memref<1x16xi8, "spad">
        %a_1 = mem.buffer at 16 : memref<1x16xi8, "spad">
        %t = accel.dma %x[%i, 0] to %a on "mvin" after(%5) : memref<64x16xi8> to memref<1x16xi8, "spad">
        %t_1 = accel.dma %x[%i_1, 0] to %a_1 on "mvin" after(%6) : memref<64x16xi8> to memref<1x16xi8, "spad">
        %u = accel.dma %a to %y[%i, 0] on "mvout" after(%t) : memref<1x16xi8, "spad"> to memref<64x16xi8>
        %u_1 = accel.dma %a_1 to %y[%i_1, 0] on "mvout" after(%t_1) : memref<1x16xi8, "spad"> to memref<64x16xi8>
        scf.yield %u, %u_1 : !accel.token, !accel.token
      }
      %8 = arith.constant 4 : index
      %a_2 = mem.buffer at 0 : memref<1x16xi8, "spad">
      %t_2 = accel.dma %x[%8, 0] to %a_2 on "mvin" after(%3) : memref<64x16xi8> to memref<1x16xi8, "spad">
      %u_2 = accel.dma %a_2 to %y[%8, 0] on "mvout" after(%t_2) : memref<1x16xi8, "spad"> to memref<64x16xi8>
      accel.barrier
      func.return
    }
    ```
    """
    interleave_iterations(state, state.one(op.loop, scf.ForOp), op.threads.value.data)
    return ()
