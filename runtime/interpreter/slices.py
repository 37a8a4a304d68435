# SPDX-License-Identifier: Apache-2.0
"""Slices of arrays and windows of transfers: offsets and sizes, part static and part dynamic, as NumPy slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import memref, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation

from penstock.dialects import accel
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.tensor import ParallelInsertSliceOp
from penstock.dialects.weights import Array
from penstock.dialects.window import WindowedTransfer
from penstock.runtime.interpreter.domain import Box

SlicingOp = tensor.ExtractSliceOp | tensor.InsertSliceOp | ParallelInsertSliceOp | memref.SubviewOp


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


@dataclass(frozen=True)
class Overlap:
    """The part of a box that lies inside the side that is a window."""

    source: Box
    """The elements that are read."""
    dest: Box
    """Where they go."""
    whole: bool
    """Whether nothing of the box lies outside."""

    @property
    def elements(self) -> int:
        """How many elements are moved."""
        return prod(part.stop - part.start for part in self.source)


@dataclass(frozen=True)
class WindowMove:
    """A `mem.copy` or `accel.dma`: the numbers of its operands, and its window."""

    op: WindowedTransfer
    source: int
    dest: int
    offsets: tuple[int, ...]
    """The operands that are dynamic offsets of the window."""
    padding: int | None
    dependencies: tuple[int, ...]
    side: str | None
    static: tuple[int, ...]
    """The offsets of the window, dynamic ones marked."""
    clipped: bool
    """Whether what the window of the source lacks is left out."""

    @staticmethod
    def of(op: WindowedTransfer) -> WindowMove:
        """What is known of a transfer before it runs."""
        number_of = {value: number for number, value in enumerate(op.operands)}
        windows = (*op.source_offsets, *op.dest_offsets)
        static = (*op.static_source_offsets.get_values(), *op.static_dest_offsets.get_values())
        is_dma = isinstance(op, accel.DmaOp)
        return WindowMove(
            op,
            number_of[op.source],
            number_of[op.dest],
            tuple(number_of[value] for value in windows),
            number_of[op.padding] if op.padding is not None else None,
            tuple(number_of[value] for value in op.dependencies) if is_dma else (),
            op.window_side,
            static,
            is_dma and op.clipped is not None,
        )

    def padding_of(self, args: Sequence[Any]) -> Any | None:
        """The scalar that is read outside the source."""
        return None if self.padding is None else args[self.padding]

    def overlap(self, args: Sequence[Any]) -> Overlap:
        """
        What is moved between the memrefs in `args`, the values of the op's operands.

        Raises UserError if the window of the source leaves it, and the op does not say what happens then.
        """
        source, dest = args[self.source].shape, args[self.dest].shape
        if self.side is None:
            everything = tuple(slice(0, size) for size in source)
            return Overlap(everything, everything, True)
        at = filled(self.static, [args[number] for number in self.offsets])
        from_source = self.side == "source"
        box, bounds = (dest, source) if from_source else (source, dest)
        outer: list[slice] = []
        inner: list[slice] = []
        whole = True
        for dim, (offset, size, bound) in enumerate(zip(at, box, bounds, strict=True)):
            first = min(max(offset, 0), bound)
            last = max(min(offset + size, bound), first)
            if last - first != size:
                whole = False
                if from_source and self.padding is None and not self.clipped:
                    raise self._out_of_bounds(dim, offset, size, bound)
            outer.append(slice(first, last))
            inner.append(slice(first - offset, last - offset) if last > first else slice(0, 0))
        outside, inside = tuple(outer), tuple(inner)
        return Overlap(outside, inside, whole) if from_source else Overlap(inside, outside, whole)

    def _out_of_bounds(self, dim: int, offset: int, size: int, bound: int) -> UserError:
        return UserError(
            f"{self.op.name} reads elements {offset} to {offset + size} in dim {dim} of its source, which has {bound}",
            loc=location_of(self.op),
            notes=["`else` names what is read outside"],
        )


def move(source: Array, dest: Array, overlap: Overlap, padding: Any | None) -> None:
    """Move the elements; what the source lacks becomes `padding`, or stays as it is without one."""
    if padding is not None and not overlap.whole:
        dest[...] = padding
    dest[overlap.dest] = source[overlap.source]


def check_apart(op: Operation, source: Array, dest: Array, overlap: Overlap) -> None:
    """Raises UserError if the elements read and those written overlap."""
    if np.may_share_memory(source, dest):
        if np.shares_memory(source[overlap.source], dest[overlap.dest]):
            raise UserError(f"the source and the destination of {op.name} overlap", loc=location_of(op))
