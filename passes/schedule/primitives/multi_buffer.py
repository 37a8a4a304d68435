"""A ring in the place of a buffer: each of several iterations gets a buffer of its own."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, i64

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp
from penstock.dialects.schedule_accel import MultiBufferOp
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.analysis.loops import iterations
from penstock.passes.analysis.memory.storage import uses_through
from penstock.passes.schedule.pipelining import pipeline_commands
from penstock.passes.schedule.rings import Candidate, loops_of_ring, restore, rotate, why_no_ring
from penstock.passes.schedule.scope_offsets import NoRoom, ScopeOffsets
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(MultiBufferOp)
def multi_buffer(state: TransformState, op: MultiBufferOp) -> Sequence[Payload]:
    """
    Put a ring in the place of a buffer. Raises UserError where an iteration needs what another one has left in it,
    where it is in no loop that is counted, where it has an offset, and where its scope has no room for so many slots.

    Before:
    ```mlir
    func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %tile = arith.constant 16 : index
      %end = arith.constant 64 : index
      scf.for %i = %zero to %end step %tile {
        %a = mem.buffer : memref<16xf32, "spad">
        mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "spad">
        mem.copy %a to %y[%i] : memref<16xf32, "spad"> to memref<64xf32>
      }
      func.return
    }
    ```
    After (`schedule.multi_buffer %a slots 3` on `gemmini-fp32`):
    ```mlir
    func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %tile = arith.constant 16 : index
      %end = arith.constant 64 : index
      %a_ring = mem.ring 3 : !mem.ring<memref<16xf32, "spad">>
      scf.for %i = %zero to %end step %tile {
        %iteration = arith.divui %i, %tile : index
        %a = mem.slot %a_ring[%iteration] : !mem.ring<memref<16xf32, "spad">>
        mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "spad">
        mem.copy %a to %y[%i] : memref<16xf32, "spad"> to memref<64xf32>
      }
      func.return
    }
    ```
    """
    buffer, slots = state.one(op.target, BufferOp), op.slots.value.data
    target, name = state.target, f"%{buffer.memref.name_hint or 'buffer'}"
    if target is None:
        raise UserError(f"{name} is in a kernel of the host, where no units run beside each other")
    uses = list(uses_through(buffer.memref))
    if any(isinstance(use.operation, CommandOp) for use in uses):
        rings, _ = pipeline_commands(state, [(buffer, slots)])
        return (tuple(rings),)
    loops = loops_of_ring(buffer)
    reason = why_no_ring(buffer, loops, uses)
    if reason is not None:
        raise UserError(f"{name} cannot be a ring: {reason}", loc=location_of(buffer))
    count = iterations(loops)
    if count is not None and slots > count:
        raise UserError(f"{name} has {count} iterations: no more slots are used", loc=location_of(buffer))
    (ring,) = rotate([Candidate(buffer, loops, slots)], target, state.turns)
    scope, offsets = ring.scope or "", ScopeOffsets(state.kernel, target, state.kept)
    while not offsets.has_room(scope):
        ring.depth = IntegerAttr(ring.slot_count - 1, i64)
        if ring.slot_count == 1:
            break
    if ring.slot_count < slots:
        fitting = ring.slot_count
        restore(ring, buffer)
        raise NoRoom(
            f'the scope "{scope}" has no room for {slots} slots of {name}, {buffer.size_in_bytes:,} bytes each',
            fitting=(fitting,),
            loc=location_of(buffer),
            notes=[f"it has room for {fitting}" if fitting > 1 else "it has room for the buffer alone"],
        )
    return ((ring,),)
