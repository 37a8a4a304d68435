"""
Places: which elements of which buffer a tensor value would occupy if it were bufferized in place.

A place is compared by what it denotes, root buffer, linear offset and strides, and not by the SSA values that
lead to it: a slice of a slice is where the equal slice of the whole is. Everything is in elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue

from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.strides import contiguous_strides, reshaped_strides

# places


@dataclass(frozen=True)
class OutArgument:
    """The buffer that the caller hands over for result number `index`."""

    index: int


Root = SSAValue | OutArgument
"""What stands for a buffer: the tensor value that brings it into being, or an out argument."""


@dataclass(frozen=True)
class Frame:
    """A coordinate system: `shape` elements laid out by `strides` from `offset` in a root."""

    root: Root
    offset: AffineIndex
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Place:
    """Strided elements of a root, and a box in the coordinates of a frame that holds them all."""

    frame: Frame
    offset: AffineIndex
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[tuple[AffineIndex, int], ...]
    """First index and number of indices, for each dim of the frame."""
    axes: tuple[int, ...] | None
    """The dim of the frame along which each dim runs; None where `box` holds more than the place."""
    parent: Place | None = None
    """The place that this one was cut from: it holds all of it."""

    @property
    def root(self) -> Root:
        return self.frame.root

    @property
    def size(self) -> int:
        return prod(self.shape)

    def with_ancestors(self) -> Iterator[Place]:
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent


def _framed(frame: Frame, parent: Place | None) -> Place:
    box = tuple((AffineIndex(), size) for size in frame.shape)
    return Place(frame, frame.offset, frame.shape, frame.strides, box, tuple(range(len(box))), parent)


def whole(root: Root, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Place:
    """All of a buffer, contiguous unless `strides` say otherwise."""
    return _framed(Frame(root, AffineIndex(), shape, strides or contiguous_strides(shape)), None)


def slice_of(
    place: Place,
    offsets: Sequence[AffineIndex],
    sizes: Sequence[int],
    steps: Sequence[int],
    kept: Sequence[int],
) -> Place:
    """The slice of a place; `kept` are the dims that its result has, the others are of size 1."""
    offset = place.offset
    for at, stride in zip(offsets, place.strides, strict=True):
        offset = offset + at * stride
    box = list(place.box)
    exact = place.axes is not None and all(step == 1 for step in steps)
    if place.axes is not None:
        for axis, at, size, step in zip(place.axes, offsets, sizes, steps, strict=True):
            box[axis] = (box[axis][0] + at, (size - 1) * step + 1 if size else 0)
    return Place(
        place.frame,
        offset,
        tuple(sizes[dim] for dim in kept),
        tuple(place.strides[dim] * steps[dim] for dim in kept),
        tuple(box),
        tuple(place.axes[dim] for dim in kept) if exact and place.axes is not None else None,
        place,
    )


def reshaped(place: Place, shape: tuple[int, ...]) -> Place | None:
    """The same elements, in the same order, in another shape; None where strides cannot express that."""
    strides = reshaped_strides(place.shape, place.strides, shape)
    if strides is None:
        return None
    return _framed(Frame(place.root, place.offset, shape, strides), place)


def same(left: Place, right: Place) -> bool:
    """Whether two places of as many elements are the same elements in the same order, as far as can be told."""
    return (
        left.root == right.root
        and left.offset == right.offset
        and _moving(left.shape, left.strides) == _moving(right.shape, right.strides)
    )


def _moving(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]


def disjoint(left: Place, right: Place, *, across: bool = False) -> bool:
    """
    Whether two places certainly have no element in common.

    With `across` the two are taken in different iterations of a loop, so that a value which both offsets name
    need not be the same: only what is constant counts.
    """
    if left.root != right.root or 0 in (left.size, right.size):
        return True
    apart = _distance(left.offset, right.offset, across)
    if apart is not None and not -_extent(right) < apart < _extent(left):
        return True
    return any(
        _boxes_apart(ours, theirs, across) for ours in left.with_ancestors() for theirs in right.with_ancestors()
    )


def _distance(start: AffineIndex, end: AffineIndex, across: bool) -> int | None:
    """What `end` is more than `start`, if that is known."""
    if across and (start.terms or end.terms):
        return None
    distance = end - start
    return distance.constant


def _extent(place: Place) -> int:
    return sum((size - 1) * stride for size, stride in zip(place.shape, place.strides, strict=True)) + 1


def _boxes_apart(left: Place, right: Place, across: bool) -> bool:
    if left.frame != right.frame or (across and left.frame.offset.terms):
        return False
    for (ours, our_size), (theirs, their_size) in zip(left.box, right.box, strict=True):
        apart = _distance(ours, theirs, across)
        if apart is not None and not -their_size < apart < our_size:
            return True
    return False


def contains(outer: Place, inner: Place, *, across: bool = False) -> bool:
    """Whether every element of `inner` is certainly one of `outer`; `across` is as for `disjoint`."""
    if across and outer.offset.terms:
        return False
    return any(same(outer, place) or _box_holds(outer, place) for place in inner.with_ancestors())


def _box_holds(outer: Place, inner: Place) -> bool:
    if outer.axes is None or outer.frame != inner.frame:
        return False
    for (start, size), (at, inner_size) in zip(outer.box, inner.box, strict=True):
        into = _distance(start, at, False)
        if into is None or into < 0 or into + inner_size > size:
            return False
    return True


# reshapes
