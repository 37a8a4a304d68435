"""Windows of transfers: which elements of source and destination a `mem.copy` or an `accel.dma` touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.ir import Operation

from penstock.dialects import accel
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.weights import Array
from penstock.dialects.window import WindowedTransfer
from penstock.runtime.interpreter.domain import Box
from penstock.runtime.interpreter.slices import filled


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
class Transfer:
    """A `mem.copy` or `accel.dma`: where its operands stand, and its window."""

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
    def of(op: WindowedTransfer) -> Transfer:
        """What is known of a transfer before it runs."""
        place = {value: number for number, value in enumerate(op.operands)}
        windows = (*op.source_offsets, *op.dest_offsets)
        static = (*op.static_source_offsets.get_values(), *op.static_dest_offsets.get_values())
        is_dma = isinstance(op, accel.DmaOp)
        return Transfer(
            op,
            place[op.source],
            place[op.dest],
            tuple(place[value] for value in windows),
            place[op.padding] if op.padding is not None else None,
            tuple(place[value] for value in op.dependencies) if is_dma else (),
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
                    raise self._hangs_over(dim, offset, size, bound)
            outer.append(slice(first, last))
            inner.append(slice(first - offset, last - offset) if last > first else slice(0, 0))
        outside, inside = tuple(outer), tuple(inner)
        return Overlap(outside, inside, whole) if from_source else Overlap(inside, outside, whole)

    def _hangs_over(self, dim: int, offset: int, size: int, bound: int) -> UserError:
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
