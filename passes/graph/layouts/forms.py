# SPDX-License-Identifier: Apache-2.0
"""
Forms: the values of a graph, each stored with its dimensions in an order of its own, perhaps in blocks.

The layout pass rebuilds a block op by op. Every value of the old block has a *native* form in the new one, a
tensor and the order in which it stores the original dimensions. Other forms of it are made when an op asks for
them, once each: by a change of layout, a transpose, or a reshape where only dimensions of size 1 move.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import LocationAttr, TensorType
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import NCHW, NHWC, GraphOp, LayoutTransformOp, ReshapeOp, Tensor, TransposeOp, tensor_of
from penstock.dialects.graph.layout import Layout, LayoutPart, steps_between
from penstock.dialects.locations import location_of_value
from penstock.passes.graph.values import derived
from penstock.passes.shapes import shape_of

Permutation = tuple[int, ...]
"""Dimension i of the stored tensor is dimension `perm[i]` of the original value."""

_LETTERS = {1: "C", 2: "NC", 3: "NCW", 4: "NCHW", 5: "NCDHW"}
"""How the dimensions of images of a rank are called."""


class Order(NamedTuple):
    """How a value is stored: its dimensions in the order `perm`, then blocks `(dimension, size)` of some of them."""

    perm: Permutation
    """The dimensions in the order in which they are stored."""
    blocks: tuple[tuple[int, int], ...] = ()
    """Dimensions of which blocks of so many elements are stored as dimensions of their own, behind all others."""
    units: int = 0
    """Dimensions of size 1 before all others, so that rows of a matrix are stored as an image of one row."""

    @property
    def is_plain(self) -> bool:
        """Whether the value is stored as the original."""
        return self == plain(len(self.perm))

    @property
    def without_units(self) -> Order:
        """The order with no dimension before the others."""
        return self._replace(units=0)

    @property
    def has_name(self) -> bool:
        """Whether images or filters have a name for it."""
        rank = len(self.perm)
        return 3 <= rank <= 5 and self.perm in (identity(rank), channels_last(rank), filters_last(rank))

    def block(self, dim: int) -> int:
        """The size of the blocks of a dimension; 1 if it has none."""
        return next((size for each, size in self.blocks if each == dim), 1)

    def places(self, dim: int) -> list[int]:
        """Where a dimension is stored: its place, and that of its blocks."""
        stored = [*self.perm, *(each for each, _ in self.blocks)]
        return [place for place, each in enumerate(stored, start=self.units) if each == dim]

    def layout(self, letters: str) -> Layout:
        """The layout, without units, with these names for the original dimensions."""
        outer = [LayoutPart(letters[dim]) for dim in self.perm]
        return Layout((*outer, *(LayoutPart(letters[dim], size) for dim, size in self.blocks)))

    def shape(self, sizes: Sequence[int]) -> list[int]:
        """The shape of what is stored of a value of the shape `sizes`."""
        outer = [-(-sizes[dim] // self.block(dim)) for dim in self.perm]
        return [1] * self.units + outer + [size for _, size in self.blocks]

    def without_repeated(self, sizes: Sequence[int]) -> Order:
        """The order, without units, of what is broadcast to one in this order: without blocks where its size is 1."""
        return Order(self.perm, tuple(each for each in self.blocks if sizes[each[0]] != 1))

    def is_padded(self, sizes: Sequence[int]) -> bool:
        """Whether blocks of a value of the shape `sizes` are padded."""
        return any(sizes[dim] % size for dim, size in self.blocks)

    def relabelled(self, names: Sequence[int]) -> Order:
        """The order with another number for each dimension."""
        perm, blocks = (names[dim] for dim in self.perm), ((names[dim], size) for dim, size in self.blocks)
        return Order(tuple(perm), tuple(blocks), self.units)


def identity(rank: int) -> Permutation:
    """The form of the original."""
    return tuple(range(rank))


def channels_last(rank: int) -> Permutation:
    """The form with dimension 1 innermost: NHWC from NCHW."""
    return (0, *range(2, rank), 1)


def filters_last(rank: int) -> Permutation:
    """The form of filters for channels-last data: HWIO from OIHW."""
    return (*range(2, rank), 1, 0)


def rank_of(value: SSAValue) -> int:
    """The rank of a tensor; 0 for what is none."""
    return len(shape_of(value)) if isinstance(value.type, TensorType) else 0


def plain(rank: int) -> Order:
    """The order of the original."""
    return Order(identity(rank))


def order_of(layout: Layout, letters: str) -> Order:
    """The order of a layout whose blocks are innermost, with these names for the original dimensions."""
    perm = tuple(letters.index(part.dim) for part in layout.parts if part.block is None)
    return Order(perm, tuple((letters.index(dim), block) for dim, block in layout.parts if block is not None))


def image_name(order: Order) -> str | None:
    """The name of the layout of images that are stored so; None if dimension 1 is in no place that has a name."""
    rank = len(order.perm)
    if not 3 <= rank <= 5 or order.units or any(dim != 1 for dim, _ in order.blocks):
        return None
    base = {identity(rank): NCHW, channels_last(rank): NHWC}.get(order.perm)
    return None if base is None else base + "".join(f"{size}c" for _, size in order.blocks)


def bytes_of(value: SSAValue, shape: Sequence[int] | None = None) -> int:
    """The bytes of a tensor, or of one with its elements and another shape."""
    tensor = tensor_of(value)
    return prod(tensor.get_shape() if shape is None else shape) * numpy_dtype(tensor.element_type).itemsize


def moves_units_only(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether permuting a tensor of `shape` moves no element: all dimensions that move have size 1."""
    kept = [dim for dim in order if shape[dim] != 1]
    return kept == sorted(kept)


def letters_of(rank: int, orders: Sequence[Order]) -> str:
    """How the dimensions of a value are called that is stored in these orders: as those of images, if it can be one."""
    if rank in _LETTERS and all(dim == 1 for order in orders for dim, _ in order.blocks):
        return _LETTERS[rank]
    return "ABCDEFGH"[:rank]


def change_of(value: SSAValue, sizes: Sequence[int], held: Order, wanted: Order, letters: str = "") -> GraphOp:
    """
    The op that brings `value`, which holds an original of the shape `sizes`, from one order into another; `letters`
    name the dimensions of what is no image. Neither order has units.
    """
    shape, result = held.shape(sizes), wanted.shape(sizes)
    if not held.blocks and not wanted.blocks:
        order = [held.perm.index(dim) for dim in wanted.perm]
        if moves_units_only(shape, order):
            return ReshapeOp(value, result)
        if not (held.has_name and wanted.has_name):
            return TransposeOp(value, perm=order)
    letters = letters or letters_of(len(sizes), (held, wanted))
    words = [str(order.layout(letters)) for order in (held, wanted)]
    type = Tensor(tensor_of(value).element_type, result)
    return LayoutTransformOp(value, source=words[0], target=words[1], result_type=type)


def is_free(sizes: Sequence[int], held: Order, wanted: Order) -> bool:
    """Whether a value of the shape `sizes` is brought from one order into another without moving an element."""
    held, wanted = held.without_units, wanted.without_units
    if held == wanted:
        return True
    shape = held.shape(sizes)
    if not held.blocks and not wanted.blocks:
        return moves_units_only(shape, [held.perm.index(dim) for dim in wanted.perm])
    letters = letters_of(len(sizes), (held, wanted))
    result = wanted.shape(sizes)
    return steps_between(held.layout(letters), wanted.layout(letters), shape, result).is_view(shape, result)


class Form(NamedTuple):
    """A stored tensor, and how it stores the original."""

    value: SSAValue
    order: Order


class Forms:
    """The forms of all values so far, and the block in which they are made."""

    def __init__(self, block: Block):
        self.block = block
        self._native: dict[SSAValue, Form] = {}
        self._made: dict[tuple[SSAValue, Order], SSAValue] = {}

    def define(self, old: SSAValue, value: SSAValue, order: Order) -> None:
        """Say that `value` holds the old value in this order."""
        self._native[old] = Form(value, order)
        self._made[old, order] = value

    def get(self, old: SSAValue, order: Order | None = None, letters: str = "") -> SSAValue:
        """The old value in an order, or as it was, which is made if it does not exist."""
        order = plain(rank_of(old)) if order is None else order
        if (made := self._made.get((old, order))) is not None:
            return made
        value, native = self._native[old]
        part = (None if letters else image_name(order)) or "permuted"
        location, hint = derived(location_of_value(old), part), f"{old.name_hint or 'value'}_{part}"
        made = self._changed(value, shape_of(old), (native, order), letters, location, hint)
        self._made[old, order] = made
        return made

    def _changed(
        self,
        value: SSAValue,
        sizes: Sequence[int],
        orders: tuple[Order, Order],
        letters: str,
        location: LocationAttr,
        hint: str,
    ) -> SSAValue:
        held, wanted = orders
        if is_free(sizes, held, wanted) and shape_of(value) == tuple(wanted.shape(sizes)):
            return value
        inner, result = held.without_units, wanted.without_units
        if held.units:
            value = self.emit(ReshapeOp(value, inner.shape(sizes)), location, hint)
        if inner != result:
            value = self.emit(change_of(value, sizes, inner, result, letters), location, hint)
        return self.emit(ReshapeOp(value, wanted.shape(sizes)), location, hint) if wanted.units else value

    def broadcast(self, old: SSAValue, order: Order, sizes: Sequence[int]) -> SSAValue:
        """The old value in a shape that broadcasts to a value of the shape `sizes`, stored so, as it did before."""
        rank = len(sizes)
        shape = shape_of(old)
        if len(shape) == rank and all(shape[dim] == sizes[dim] for dim, _ in order.blocks):
            return self.get(old, order)
        extended = [1] * (rank - len(shape)) + list(shape)
        own = order.without_repeated(extended)
        location, hint = derived(location_of_value(old), "broadcast"), f"{old.name_hint or 'value'}_broadcast"
        if len(shape) == rank:
            value = self.get(old, own)
        else:
            value = self.get(old)
            if shape in ((1,), ()):
                return value
            if own.blocks or not moves_units_only(extended, own.perm):
                value = self.emit(ReshapeOp(value, extended), location, hint)
                value = self._changed(value, extended, (plain(rank), own), "", location, hint)
        stored = own.without_units.shape(extended)[:rank]
        # A block of a dimension that is repeated has one element.
        stored += [1 if extended[dim] == 1 else size for dim, size in order.blocks]
        while stored and stored[0] == 1 and len(shape) < rank:
            del stored[0]
        return value if shape_of(value) == tuple(stored) else self.emit(ReshapeOp(value, stored), location, hint)

    def emit(self, op: Operation, location: LocationAttr, hint: str | None = None) -> SSAValue:
        """Append `op` and return its result."""
        op.location = location
        op.results[0].name_hint = hint
        self.block.add_op(op)
        return op.results[0]
