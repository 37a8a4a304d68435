# SPDX-License-Identifier: Apache-2.0
"""The scope of an allocation."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import memref
from xdsl.dialects.builtin import NoneAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.dialects.schedule_memory import SetScopeOp
from penstock.passes.schedule.primitives.multi_buffer import rings_after
from penstock.passes.schedule.retype import retype
from penstock.passes.schedule.staging import place_of, require_machine, require_path, require_room
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(SetScopeOp)
def set_scope(state: TransformState, op: SetScopeOp) -> Sequence[Payload]:
    """
    Let an allocation live in a scope; see `schedule.set_scope`.

    Raises UserError for a scope that the machine lacks, that is too small, or that no engines copy to and from as the
    kernel does, for what is no allocation, and where one is handed on.

    Before:
    ```mlir
    func.func private @k(%x: memref<8x3xf32>) attributes {device = @gemmini_fp32} {
      %t = memref.alloc() : memref<8x3xf32>
      mem.copy %x to %t : memref<8x3xf32> to memref<8x3xf32>
      func.return
    }
    ```
    After (`schedule.set_scope %t "spad"` on `gemmini-fp32`):
    ```mlir
    func.func private @k(%x: memref<8x3xf32>) attributes {device = @gemmini_fp32} {
      %t = mem.buffer : memref<8x3xf32, strided<[4, 1]>, "spad">
      mem.copy %x to %t : memref<8x3xf32> to memref<8x3xf32, strided<[4, 1]>, "spad">
      func.return
    }
    ```
    """
    allocation = state.one(op.allocation)
    if not isinstance(allocation, memref.AllocOp | BufferOp):
        raise UserError(f"an allocation is a memref.alloc or a mem.buffer, not {allocation.name}")
    scope = op.scope.data
    target, value = require_machine(state), allocation.memref
    if isinstance(allocation, BufferOp) and allocation.byte_offset is not None:
        raise UserError(f'the buffer has a place in "{place_of(value)}" already', loc=location_of(allocation))
    type = require_room(value, target, op)
    _require_retypable(value, target, scope, is_dense=isinstance(type.layout, NoneAttr))
    with rings_after(state, op) as made:
        retype(value, type)
        buffer = BufferOp(type)
        buffer.location = allocation.location
        Rewriter.replace_op(allocation, buffer)
        state.replace(allocation, buffer)
        made.append(buffer.memref)
    return ()


def _require_retypable(value: SSAValue, target: TargetOp, scope: str, *, is_dense: bool) -> None:
    """Raise UserError where a user of a memref could not have it in a scope, there without gaps or not."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, memref.SubviewOp):
            _require_retypable(user.result, target, scope, is_dense=False)
        elif isinstance(user, memref.ExpandShapeOp) and is_dense:
            _require_retypable(user.result, target, scope, is_dense=True)
        elif isinstance(user, CopyOp):
            start = scope if user.source is value else place_of(user.source)
            end = scope if user.dest is value else place_of(user.dest)
            if start != end:
                require_path(target, start, end, user)
        elif not isinstance(user, GenericOp):
            raise UserError(f"{user.name} uses it where it is, and hands it on or frees it", loc=location_of(user))
