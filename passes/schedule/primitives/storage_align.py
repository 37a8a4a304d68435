# SPDX-License-Identifier: Apache-2.0
"""The row pitch of a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType, NoneAttr, StridedLayoutAttr
from xdsl.ir import Attribute

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, element_bytes, memref_of, scope_of, static_strides
from penstock.dialects.schedule_loops import StorageAlignOp
from penstock.passes.analysis.strides import contiguous_strides
from penstock.passes.schedule.retype import require_any_layout, retype
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def storage_align(
    buffer: BufferOp | memref.AllocOp, dim: int, factor: int, offset: int = 0, target: TargetOp | None = None
) -> None:
    """
    Make the stride of `dim` of a buffer a multiple of `factor` elements plus `offset`; outer strides grow with it.

    Legal before the buffer has an offset in its scope, where all that accesses it takes any strides. Raises UserError
    where that is not so, and where the scope of a `target` is too small or needs whole granules.

    Before:
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<4x6xf32>) {
      %b = mem.buffer : memref<4x6xf32>
      mem.copy %x to %b : memref<4x6xf32> to memref<4x6xf32>
      mem.copy %b to %y : memref<4x6xf32> to memref<4x6xf32>
      func.return
    }
    ```
    After (`schedule.storage_align %b dim 0 to 8`):
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<4x6xf32>) {
      %b = mem.buffer : memref<4x6xf32, strided<[8, 1]>>
      mem.copy %x to %b : memref<4x6xf32> to memref<4x6xf32, strided<[8, 1]>>
      mem.copy %b to %y : memref<4x6xf32, strided<[8, 1]>> to memref<4x6xf32>
      func.return
    }
    ```
    """
    type = memref_of(buffer.memref)
    rank = type.get_num_dims()
    if not 0 <= dim < rank - 1:
        outer = f"from 0 to {rank - 2}" if rank > 1 else "which it does not have"
        raise UserError(f"{type} has no rows along dim {dim}: an outer dim is meant, {outer}", loc=location_of(buffer))
    if any(outer < inner for outer, inner in pairwise(static_strides(type))):
        raise UserError(
            f"the dims of {type} are stored in another order", loc=location_of(buffer), notes=["align it in its own"]
        )
    if factor < 1 or not 0 <= offset < factor:
        raise UserError(f"rows at a multiple of {factor} elements plus {offset}: at least 1, and an offset below it")
    aligned = _aligned(type, dim, factor, offset)
    require_any_layout(buffer, aligned, target)
    if target is not None:
        _check_pitch(buffer, aligned, dim, target)
    retype(buffer.memref, aligned)


def _aligned(type: MemRefType[Attribute], dim: int, factor: int, offset: int) -> MemRefType[Attribute]:
    shape, strides = type.get_shape(), list(static_strides(type))
    inner = strides[dim]
    strides[dim] = inner + (offset - inner) % factor
    for outer in reversed(range(dim)):
        # Rows of rows keep their distance, in rows.
        rows = strides[outer] // inner if strides[outer] % inner == 0 else None
        least = strides[outer + 1] * shape[outer + 1]
        strides[outer] = max(least, rows * strides[dim]) if rows is not None else least
    packed = tuple(strides) == contiguous_strides(shape)
    return MemRefType(type.element_type, shape, NoneAttr() if packed else StridedLayoutAttr(strides), type.memory_space)


def _check_pitch(buffer: BufferOp | memref.AllocOp, type: MemRefType[Attribute], dim: int, target: TargetOp) -> None:
    if (name := scope_of(type)) is None:
        return
    scope = target.scope(name)
    pitch = static_strides(type)[dim] * element_bytes(type)
    if pitch % scope.granule_bytes:
        raise UserError(
            f'rows {pitch} bytes apart do not begin at granules of "{name}", of {scope.granule_bytes} bytes',
            loc=location_of(buffer),
        )


@PRIMITIVES.register(StorageAlignOp)
def apply_storage_align(state: TransformState, op: StorageAlignOp) -> Sequence[Payload]:
    """`schedule.storage_align`."""
    buffer = state.one(op.buffer)
    if not isinstance(buffer, BufferOp | memref.AllocOp):
        raise UserError(f"rows are those of a memref.alloc or a mem.buffer, not of {buffer.name}")
    offset = op.offset.value.data
    storage_align(buffer, op.dim.value.data, op.factor.value.data, offset, state.target)
    return ()
