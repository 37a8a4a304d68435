# SPDX-License-Identifier: Apache-2.0
"""Iterations of a kernel's commands overlap."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func, scf
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, ScopedAllocation
from penstock.dialects.schedule_accel import PipelineOp
from penstock.passes.analysis.kernels import PIPELINING, add_remark
from penstock.passes.schedule.pipelining import pipeline_commands
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(PipelineOp)
def pipeline(state: TransformState, op: PipelineOp) -> Sequence[Payload]:
    """
    Make rings and skew loops, and say so in the kernel's attribute `pipelining`.

    Required: the accel level with SSA tokens, buffers in scopes placed. Raises UserError for a buffer that an
    iteration does not fill before it reads, a loop whose iterations depend on each other in the way, scopes that are
    too small, with the slots that fit, and a kernel in queue form or with
    commands in branches.

    Before:
    ```mlir
    func.func private @k(%x: memref<64x4xf32>, %y: memref<64x4xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %tile = arith.constant 4 : index
      %end = arith.constant 64 : index
      scf.for %i = %zero to %end step %tile {
        %c = mem.buffer at 0 : memref<4x4xf32, "acc">
        %0 = accel.dma %x[%i, 0] to %c on "mvin" : memref<64x4xf32> to memref<4x4xf32, "acc">
        %1 = accel.dma %c to %y[%i, 0] on "mvout" after(%0) : memref<4x4xf32, "acc"> to memref<64x4xf32>
      }
      accel.barrier
      func.return
    }
    ```
    After (`schedule.pipeline %kernel slots(%c = 2) {remark = "modelled 1,685 cycles, 3,360 before, limit latency"}`
    or `accel-pipeline{depth=2}` on `gemmini-fp32`):
    ```mlir
    func.func private @k(%x: memref<64x4xf32>, %y: memref<64x4xf32>) attributes {device = @gemmini_fp32,
        pipelining = "c in acc: 2 slots; modelled 1,685 cycles, 3,360 before, limit latency"} {
      %0 = accel.ready
      %zero = arith.constant 0 : index
      %tile = arith.constant 4 : index
      %end = arith.constant 64 : index
      %c_ring = mem.ring 2 at 0 : !mem.ring<memref<4x4xf32, "acc">>
      %1, %2 = scf.for %i = %zero to %end step %tile iter_args(%3 = %0, %4 = %0) -> (!accel.token, !accel.token) {
        %iteration = arith.divui %i, %tile : index
        %c = mem.slot %c_ring[%iteration] : !mem.ring<memref<4x4xf32, "acc">>
        %5 = accel.dma %x[%i, 0] to %c on "mvin" after(%3) : memref<64x4xf32> to memref<4x4xf32, "acc">
        %6 = accel.dma %c to %y[%i, 0] on "mvout" after(%5) : memref<4x4xf32, "acc"> to memref<64x4xf32>
        scf.yield %4, %6 : !accel.token, !accel.token
      }
      accel.barrier
      func.return
    }
    ```
    """
    if state.one(op.target, func.FuncOp) is not state.kernel:
        raise UserError("the handle is that of another kernel")
    if above := next((each for each in state.kernel.walk() if isinstance(each, GenericOp | CopyOp)), None):
        raise UserError(
            f"the kernel has no commands yet, but {above.name}",
            loc=location_of(above),
            notes=['schedule.pipeline goes into the section after "loop-to-accel"'],
        )
    buffers = [state.one(handle, BufferOp) for handle in op.buffers]
    loops = [state.one(handle, scf.ForOp) for handle in op.skewed]
    for twice in {each for each in (*buffers, *loops) if (*buffers, *loops).count(each) > 1}:
        raise UserError(f"one {twice.name} is named twice")
    kept = [each for each in state.kernel.walk() if isinstance(each, RingOp)]
    facts = [_slots(ring, ring.slot_count, ring.slot_count) for ring in kept]
    for buffer, count, wanted in zip(buffers, op.slot_counts, op.wanted_slots, strict=True):
        if max(count, wanted) > 1:
            facts.append(_slots(buffer, count, wanted))
    _, skewed = pipeline_commands(
        state,
        list(zip(buffers, op.slot_counts, strict=True)),
        loops,
        where_possible=op.where_possible is not None,
        fixed_offsets=op.fixed_offsets is not None,
    )
    op.keep_skewed(skewed)
    if skewed:
        facts.append(f"{len(skewed)} loop{'s' * (len(skewed) > 1)} skewed")
    state.kernel.attributes.pop(PIPELINING, None)
    if op.fixed_offsets is not None:
        facts = []
    add_remark(state.kernel, PIPELINING, [*facts, *([op.remark.data] if op.remark is not None else [])])
    return ()


def _slots(op: ScopedAllocation, count: int, wanted: int) -> str:
    """How many slots a buffer has got, in words."""
    name = (op.results[0].name_hint or "a buffer").removesuffix("_ring" if isinstance(op, RingOp) else "")
    number = f"{count} slots" if count >= wanted else f"{count} of {wanted} slots, the scope is too small"
    return f"{name} in {op.scope}: {number}"
