"""Offsets, sizes and strides, part static and part dynamic, as NumPy slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import memref, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX

from penstock.dialects.diagnostics import UserError, location_of
from penstock.runtime.interpreter.domain import Box

SlicingOp = tensor.ExtractSliceOp | tensor.InsertSliceOp | memref.SubviewOp


def filled(static: Sequence[int], dynamic: Sequence[int]) -> list[int]:
    """Static sizes or offsets with their marks replaced by the dynamic values, in order."""
    if not dynamic:
        return list(static)
    values = iter(dynamic)
    return [next(values) if size == DYNAMIC_INDEX else size for size in static]


@dataclass(frozen=True)
class SliceSpec:
    """The offsets, sizes and strides of a slice or subview, those that are dynamic marked."""

    op: SlicingOp
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dynamic_offsets: int
    """How many of them are dynamic."""
    dynamic_sizes: int

    @staticmethod
    def of(op: SlicingOp) -> SliceSpec:
        """What `op` says."""
        return SliceSpec(
            op,
            op.static_offsets.get_values(),
            op.static_sizes.get_values(),
            op.static_strides.get_values(),
            len(op.offsets),
            len(op.sizes),
        )

    def box(self, shape: Sequence[int], dynamic: Sequence[Any]) -> Box:
        """
        The box that is taken of an array of that shape; `dynamic` are the dynamic operands.

        Raises UserError if it leaves the array.
        """
        sizes_at = self.dynamic_offsets
        strides_at = sizes_at + self.dynamic_sizes
        offsets = filled(self.offsets, dynamic[:sizes_at])
        sizes = filled(self.sizes, dynamic[sizes_at:strides_at])
        strides = filled(self.strides, dynamic[strides_at:])
        box: list[slice] = []
        for offset, size, stride, bound in zip(offsets, sizes, strides, shape, strict=True):
            last = offset + (size - 1) * stride
            if size < 0 or stride < 1 or offset < 0 or (size > 0 and last >= bound):
                raise self._outside(len(box), offset, size, stride, bound)
            box.append(slice(offset, last + 1, stride) if size else slice(0, 0))
        return tuple(box)

    def _outside(self, dim: int, offset: int, size: int, stride: int, bound: int) -> UserError:
        return UserError(
            f"{self.op.name} takes {size} elements from {offset} on, {stride} apart, in dim {dim}, which has {bound}",
            loc=location_of(self.op),
        )
