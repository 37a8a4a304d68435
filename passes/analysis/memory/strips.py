# SPDX-License-Identifier: Apache-2.0
"""
The buffers of a function, cut where they are written and read in parts.

A strip is a run of bytes of a root: what lies between two indices of its first dim of more than one element. A root is
cut where views and the windows of copies that certainly are boxes of it begin or end, such as the parts of a
concatenation, or the rows of an image that patches write. Liveness is a data flow over strips, each as if it were a
buffer. What is not known to be a box, or moves with a loop along that dim, is all strips of its root.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.mem import RingOp, element_bytes, scope_of, span_in_bytes, static_strides
from penstock.passes.analysis.memory.aliases import Aliases, IndexBox, RootBox, bits

_MOST_STRIPS = 256
"""A root that is cut in more is left whole."""


@dataclass(frozen=True)
class Strip:
    """Some bytes of a root."""

    root: int
    dim: int | None
    """The dim along which it is cut; None of a root that is not, whose box and bytes are all there are."""
    low: int = 0
    high: int = 0
    """The first index in that dim, and the one after the last."""
    bytes: tuple[int, int] = (0, 0)
    """Half-open, from the start of the root."""

    @property
    def size(self) -> int:
        """Bytes of one that is cut; 0 of one that is not, whose root knows."""
        return self.bytes[1] - self.bytes[0]

    def box(self, shape: Sequence[int]) -> IndexBox:
        """Its elements, in a root of that shape."""
        return tuple((self.low, self.high) if dim == self.dim else (0, size) for dim, size in enumerate(shape))


class Strips:
    """Sets of strips, as `Aliases` has sets of roots: an integer, one bit a strip. Uncut, they have the same bits."""

    def __init__(self, aliases: Aliases, cuts: Mapping[int, Sequence[int]] | None = None):
        """`cuts` says, by the number of a root, at which indices of its first dim of more than one it is cut."""
        cuts = cuts or {}
        self.roots = aliases
        self.strips: list[Strip] = []
        self.certain = aliases.certain
        self._of_root: list[int] = []
        self._lows: dict[int, list[int]] = {}
        self._known: dict[SSAValue, int] = {}
        for number, root in enumerate(aliases.roots):
            first = len(self.strips)
            self.strips += _strips_of(number, root, cuts[number]) if number in cuts else [Strip(number, None)]
            self._of_root.append(((1 << (len(self.strips) - first)) - 1) << first)
            if number in cuts:
                self._lows[number] = [strip.low for strip in self.strips[first:]]
        self._cut = sum(1 << number for number in cuts)

    @property
    def is_cut(self) -> bool:
        """Whether any root is."""
        return bool(self._cut)

    def numbers(self, root: int) -> Iterator[int]:
        """The numbers of the strips of a root, in the order of their bytes."""
        return bits(self._of_root[root])

    def of_roots(self, roots: int) -> int:
        """All strips of a set of roots."""
        if not self._cut:
            return roots
        found = 0
        for number in bits(roots):
            found |= self._of_root[number]
        return found

    def of(self, value: SSAValue) -> int:
        """The strips that a value may be a view of."""
        roots = self.roots.of(value)
        if not roots & self._cut:
            return self.of_roots(roots)
        if value not in self._known:
            part = self.roots.part(value)
            self._known[value] = self.of_roots(roots) if part is None else self.touched(part)
        return self._known[value]

    def of_all(self, values: Iterable[SSAValue]) -> int:
        """The strips that any of several values may be a view of."""
        found = 0
        for value in values:
            found |= self.of(value)
        return found

    def part(self, value: SSAValue) -> RootBox | None:
        """The box of a root that a value certainly is."""
        return self.roots.part(value)

    def touched(self, part: RootBox) -> int:
        """The strips that a box may have elements of."""
        strips = self._of_root[part.root]
        if part.root not in self._lows:
            return strips
        first = (strips & -strips).bit_length() - 1
        dim = self.strips[first].dim
        assert dim is not None
        if (low := part.offsets[dim].constant) is None:
            return strips
        lows = self._lows[part.root]
        begin = max(bisect_right(lows, low) - 1, 0)
        end = bisect_right(lows, max(low + part.sizes[dim], 0) - 1)
        return ((1 << max(end - begin, 0)) - 1) << (first + begin)


def _strips_of(number: int, root: SSAValue, cuts: Sequence[int]) -> Iterator[Strip]:
    type = root.type
    assert isa(type, MemRefType)
    dim = _first_dim(type)
    assert dim is not None
    pitch = static_strides(type)[dim] * element_bytes(type)
    ends = [*cuts, type.get_shape()[dim]]
    for low, high in zip([0, *cuts], ends, strict=True):
        end = high * pitch if high < ends[-1] else span_in_bytes(type)
        yield Strip(number, dim, low, high, (low * pitch, end))


def bytes_of(part: RootBox, type: MemRefType[Attribute]) -> tuple[int, int] | None:
    """Where the bytes of a box of a root of that type begin and end in it; None where a loop moves it."""
    corner = [at.constant for at in part.offsets]
    if None in corner or 0 in part.sizes:
        return None
    strides, width = static_strides(type), element_bytes(type)
    low = sum(at * stride for at, stride in zip(corner, strides, strict=True) if at is not None)
    last = sum((size - 1) * stride for size, stride in zip(part.sizes, strides, strict=True))
    return low * width, (low + last + 1) * width


def _first_dim(type: MemRefType[Attribute]) -> int | None:
    """The first dim of more than one element, along which the bytes of a root are cut; None where they cannot be."""
    if not type.has_static_shape() or 0 in type.get_shape():
        return None
    try:
        strides = static_strides(type)
    except ValueError:
        return None
    dims = [dim for dim, size in enumerate(type.get_shape()) if size > 1]
    inner = [(type.get_shape()[dim] - 1) * strides[dim] for dim in dims[1:]]
    return dims[0] if dims and min(strides) >= 0 and sum(inner) < strides[dims[0]] else None


def cut(aliases: Aliases, boxes: Iterable[RootBox], whole: int) -> Strips:
    """The strips between the ends of boxes that are certainly accessed; the roots in `whole` are not cut."""
    found: dict[int, set[int]] = {}
    dims: dict[int, int | None] = {}
    for part in boxes:
        number = part.root
        if number not in dims:
            dims[number] = None if whole >> number & 1 else _cut_dim(aliases.roots[number])
        dim = dims[number]
        if dim is None or (low := part.offsets[dim].constant) is None:
            continue
        found.setdefault(number, set()).update(at for at in (low, low + part.sizes[dim]) if 0 < at < part.shape[dim])
    return Strips(aliases, {number: sorted(at) for number, at in found.items() if 0 < len(at) < _MOST_STRIPS})


def _cut_dim(root: SSAValue) -> int | None:
    """The dim that a root is cut along: of a buffer off chip, for in scopes whole buffers are planned."""
    op = root.owner
    type = root.type
    if not isinstance(op, Operation) or isinstance(op, RingOp) or not isa(type, MemRefType):
        return None
    try:
        return _first_dim(type) if scope_of(type) is None else None
    except ValueError:
        return None
