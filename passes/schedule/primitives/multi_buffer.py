# SPDX-License-Identifier: Apache-2.0
"""A ring in the place of a buffer: each of several iterations gets a buffer of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from xdsl.ir import SSAValue

from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp, RingOp
from penstock.dialects.schedule_accel import MultiBufferOp
from penstock.dialects.schedule_memory import InScopeOp
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.analysis.memory.storage import uses_through
from penstock.passes.schedule.pipelining import pipeline_commands
from penstock.passes.schedule.rings import Candidate, loops_of_ring, require_room, require_turns, rotate, why_no_ring
from penstock.passes.schedule.scope_offsets import ScopeOffsets
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
    After (`schedule.multi_buffer %a slots 3` or `multi-buffer{depth=3}` on `gemmini-fp32`):
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
    return (tuple(put_ring(state, buffer, slots)),)


@contextmanager
def rings_after(state: TransformState, op: InScopeOp) -> Generator[list[SSAValue]]:
    """
    Give the buffers that the body of `with` makes, and lists, the slots that `op` says. Where one cannot have them
    what the body did is undone, and UserError raised.

    Before:
    ```mlir
    func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %tile = arith.constant 16 : index
      %end = arith.constant 64 : index
      scf.for %i = %zero to %end step %tile {
        %a = memref.subview %x[%i] [16] [1] : memref<64xf32> to memref<16xf32, strided<[1], offset: ?>>
        %b = memref.subview %y[%i] [16] [1] : memref<64xf32> to memref<16xf32, strided<[1], offset: ?>>
        mem.copy %a to %b : memref<16xf32, strided<[1], offset: ?>> to memref<16xf32, strided<[1], offset: ?>>
      }
      func.return
    }
    ```
    After (`%fill = schedule.stage_in %copy[0] in "spad" slots 2` on `gemmini-fp32`):
    ```mlir
    func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %tile = arith.constant 16 : index
      %end = arith.constant 64 : index
      %a_ring = mem.ring 2 : !mem.ring<memref<16xf32, "spad">>
      scf.for %i = %zero to %end step %tile {
        %iteration = arith.divui %i, %tile : index
        %b = memref.subview %y[%i] [16] [1] : memref<64xf32> to memref<16xf32, strided<[1], offset: ?>>
        %a = mem.slot %a_ring[%iteration] : !mem.ring<memref<16xf32, "spad">>
        mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "spad">
        mem.copy %a to %b : memref<16xf32, "spad"> to memref<16xf32, strided<[1], offset: ?>>
      }
      func.return
    }
    ```
    """
    made, slots = list[SSAValue](), op.slots.value.data
    if slots == 1:
        yield made
        return
    with state.undone_on_error():
        yield made
        for owner in [value.owner for value in made]:
            assert isinstance(owner, BufferOp)
            for ring in put_ring(state, owner, slots):
                state.replace(owner, ring)


def put_ring(state: TransformState, buffer: BufferOp, slots: int) -> Iterable[RingOp]:
    """Put a ring of so many slots in the place of a buffer; raises UserError as `schedule.multi_buffer` does."""
    target = state.target
    if target is None:
        raise UserError("the kernel is one of the host, where no units run beside each other")
    uses = list(uses_through(buffer.memref))
    if any(isinstance(use.operation, CommandOp) for use in uses):
        rings, _ = pipeline_commands(state, [(buffer, slots)])
        return rings
    loops, scope = loops_of_ring(buffer), buffer.scope or ""
    require_turns(buffer, loops, slots, why_no_ring(buffer, loops, uses))
    rings = rotate([Candidate(buffer, loops, slots)], target, state.turns)
    offsets = ScopeOffsets(state.kernel, target, state.kept)
    require_room(rings, lambda: None if offsets.has_room(scope) else scope)
    return rings
