# SPDX-License-Identifier: Apache-2.0
"""The order in which the dims of a buffer are stored."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType, NoneAttr, StridedLayoutAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, element_bytes, memref_of, scope_of, static_strides
from penstock.dialects.schedule_memory import LayoutOp
from penstock.passes.analysis.memory.storage import in_scope, uses_through
from penstock.passes.analysis.strides import contiguous_strides
from penstock.passes.schedule.primitives.tensorize import match_named
from penstock.passes.schedule.retype import require_any_layout, retype
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def layout(buffer: BufferOp | memref.AllocOp, order: Sequence[int], target: TargetOp | None = None) -> None:
    """
    Store a buffer in another order of its dims, the one whose neighbours are farthest apart first.

    Legal for a buffer that the kernel makes and that has no place yet, where all that uses it takes any strides. Raises
    UserError, with the op, for one that is handed on; for an intrinsic that would not find its operand as it needs it,
    with the index that says so; and for a copy of single elements in a scope whose granule holds several.

    Before:
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<6xf32>) {
      %b = memref.alloc() : memref<4x6xf32>
      mem.copy %x to %b : memref<4x6xf32> to memref<4x6xf32>
      %row = memref.subview %b[2, 0] [1, 6] [1, 1] : memref<4x6xf32> to memref<6xf32, strided<[1], offset: 12>>
      mem.copy %row to %y : memref<6xf32, strided<[1], offset: 12>> to memref<6xf32>
      func.return
    }
    ```
    After (`schedule.layout %b order [1, 0]`):
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<6xf32>) {
      %b = memref.alloc() : memref<4x6xf32, strided<[1, 4]>>
      mem.copy %x to %b : memref<4x6xf32> to memref<4x6xf32, strided<[1, 4]>>
      %row = memref.subview %b[2, 0] [1, 6] [1, 1]
          : memref<4x6xf32, strided<[1, 4]>> to memref<6xf32, strided<[4], offset: 2>>
      mem.copy %row to %y : memref<6xf32, strided<[4], offset: 2>> to memref<6xf32>
      func.return
    }
    ```
    """
    type = memref_of(buffer.memref)
    if not type.has_static_shape() or sorted(order) != list(range(type.get_num_dims())):
        raise UserError(f"{list(order)} is no order of the dims of {type}", loc=location_of(buffer))
    stored = _stored(type, order, target)
    require_any_layout(buffer, stored, target)
    retype(buffer.memref, stored)
    for use in uses_through(buffer.memref, (memref.SubviewOp,)):
        user = use.operation
        if target is not None and isinstance(user, CopyOp):
            _require_rows(user, target)
        elif target is not None and isinstance(user, GenericOp) and user.library_call is not None:
            match_named(user, user.library_call.data, target)


@PRIMITIVES.register(LayoutOp)
def apply_layout(state: TransformState, op: LayoutOp) -> Sequence[Payload]:
    """`schedule.layout`."""
    buffer = state.one(op.buffer)
    if not isinstance(buffer, BufferOp | memref.AllocOp):
        raise UserError(f"a layout is that of a memref.alloc or a mem.buffer, not of {buffer.name}")
    # Whether an intrinsic finds its operands is asked where they are then.
    with state.undone_on_error():
        layout(buffer, op.order.get_values(), state.target)
    return ()


def _stored(type: MemRefType[Attribute], order: Sequence[int], target: TargetOp | None) -> MemRefType[Attribute]:
    """The type of a buffer whose dims are stored in this order, with the rows that its scope wants."""
    shape = [type.get_shape()[dim] for dim in order]
    rows: MemRefType[Attribute] = MemRefType(type.element_type, shape)
    if target is not None and (scope := scope_of(type)) is not None:
        rows = in_scope(rows, target, scope)
    by_dim = dict(zip(order, static_strides(rows), strict=True))
    strides = [by_dim[dim] for dim in range(len(order))]
    packed = tuple(strides) == contiguous_strides(type.get_shape())
    return MemRefType(
        type.element_type, type.shape, NoneAttr() if packed else StridedLayoutAttr(strides), type.memory_space
    )


def _require_rows(copy: CopyOp, target: TargetOp) -> None:
    """Raise UserError for a copy whose rows are not adjacent on both sides, in a scope whose granule holds several."""
    sides = [memref_of(side) for side in (copy.source, copy.dest)]
    strides = [static_strides(side) for side in sides]
    inner = [{dim for dim, size in enumerate(copy.box) if size > 1 and each[dim] == 1} for each in strides]
    if inner[0] & inner[1] or all(size == 1 for size in copy.box):
        return
    for name in {scope_of(side) or DRAM: None for side in sides}:
        if name != DRAM and (granule := target.scope(name).granule_bytes) > element_bytes(sides[0]):
            raise UserError(
                f'this copy would move single elements, and a granule of "{name}" is {granule} bytes',
                loc=location_of(copy),
                notes=["no dim of it has neighbours beside each other on both sides"],
            )
