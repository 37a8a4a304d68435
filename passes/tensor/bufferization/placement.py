"""
Where every tensor value of a function would live, if every op that overwrites did so in place.

A value is a *view* of another one (a slice, a reshape), is *tied* to the destination that its op overwrites
(the `outs` of a structured op, the destination of an insertion, the initial value of a loop), or is *fresh*:
the root of a buffer of its own. A fresh value that ends up, whole, as a result of the function or as a part of
a larger value is *assigned* there at once, so that its producer writes where it is wanted: destination-passing
style. Whether all this is sound is for `conflicts` to say; nothing here changes the IR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, func, linalg, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.hints import isa

from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.kernels import HOST, device_of
from penstock.passes.tensor.bufferization.places import (
    OutArgument,
    Place,
    reshaped,
    same,
    slice_of,
    whole,
)

StructuredOp = linalg.abstract_ops.LinalgStructuredOperation


@dataclass(frozen=True)
class Tie:
    """Operand number `index` of `op`: the destination that a value is written over."""

    op: Operation
    index: int

    @property
    def dest(self) -> SSAValue:
        return self.op.operands[self.index]


@dataclass(frozen=True)
class Layouts:
    """The strides of the buffers that a caller hands over, in elements; None for one that is contiguous."""

    arguments: tuple[tuple[int, ...] | None, ...]
    results: tuple[tuple[int, ...] | None, ...]

    @staticmethod
    def contiguous(function: func.FuncOp) -> Layouts:
        type = function.function_type
        return Layouts((None,) * len(type.inputs), (None,) * len(type.outputs))


@dataclass(frozen=True)
class Part:
    """The slice of `dest` that `insertion` writes."""

    insertion: tensor.InsertSliceOp
    anchor: SSAValue
    """The value in whose buffer `dest` lives and which is there when the buffer is needed."""


class NotPlaced(Exception):
    """A value that has no place: a reshape that strides cannot express, or a destination within itself."""

    def __init__(self, value: SSAValue):
        super().__init__()
        self.value = value


# the structure of values


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a tensor value."""
    assert isa(value.type, TensorType)
    return value.type.get_shape()


def is_tensor(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType)


def result_number(value: SSAValue) -> int:
    """The number of a result among those of its op."""
    assert isinstance(value, OpResult)
    return value.index


def tie_of(value: SSAValue) -> Tie | None:
    """The destination that `value` is written over; None for a view and for a fresh value."""
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return Tie(loop, 2 + value.index) if isinstance(loop, scf.ForOp) and value.index else None
    match value.owner:
        case StructuredOp() as op:
            return Tie(op, len(op.inputs) + result_number(value))
        case tensor.InsertSliceOp() | tensor.InsertOp() as op:
            return Tie(op, 1)
        case scf.ForOp() as op:
            return Tie(op, 3 + result_number(value))
        case _:
            return None


def viewed(value: SSAValue) -> SSAValue | None:
    """The value that `value` is a view of; None if it is none. A slice of a window pad is fresh: see `window_of`."""
    match value.owner:
        case tensor.ExtractSliceOp(source=source):
            return None if window_of(value) is not None else source
        case tensor.ExpandShapeOp(src=source) | tensor.CollapseShapeOp(src=source):
            return source
        case tensor.ReshapeOp(source=source) | tensor.CastOp(source=source):
            return source
        case _:
            return None


def is_window_pad(value: SSAValue) -> bool:
    """Whether `value` is a pad of which only boxes are taken: then only the boxes are ever materialised."""
    return isinstance(value.owner, tensor.PadOp) and all(
        isinstance(use.operation, tensor.ExtractSliceOp)
        and all(step == 1 for step in use.operation.static_strides.get_values())
        for use in value.uses
    )


def window_of(value: SSAValue) -> tensor.PadOp | None:
    """The pad of which `value` is a box, where the box is a window on the padded source."""
    if isinstance(value.owner, tensor.ExtractSliceOp) and is_window_pad(value.owner.source):
        pad = value.owner.source.owner
        assert isinstance(pad, tensor.PadOp)
        return pad
    return None


def base_of(value: SSAValue) -> SSAValue:
    """The value of which `value` is a view, or `value` itself."""
    while (source := viewed(value)) is not None:
        value = source
    return value


def upwards(value: SSAValue) -> Iterator[tuple[SSAValue, Tie | None]]:
    """`value` and all it is made from in place, each with the tie that was last passed on the way up."""
    tie: Tie | None = None
    while True:
        yield value, tie
        if (source := viewed(value)) is not None:
            value = source
        elif (above := tie_of(value)) is not None:
            value, tie = above.dest, above
        else:
            return


def origin_of(value: SSAValue) -> SSAValue:
    """The fresh value or function argument that `value` is made from in place."""
    for value, _ in upwards(value):
        pass
    return value


def mixed_slice(
    op: tensor.ExtractSliceOp | tensor.InsertSliceOp,
) -> tuple[list[int | SSAValue], list[int], list[int]]:
    """Offsets, sizes and steps of a slice whose sizes and steps are static."""
    offsets = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
    return offsets, list(op.static_sizes.get_values()), list(op.static_strides.get_values())


def kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dims of a slice of `sizes` that a value of `shape` has; those that it lacks are of size 1."""
    kept: list[int] = []
    for dim, size in enumerate(sizes):
        if len(kept) < len(shape) and size == shape[len(kept)]:
            kept.append(dim)
    return kept


# places


class Placement:
    """
    The places of all tensor values of one function.

    `undone` are fresh values that are not to be assigned to a destination.
    """

    def __init__(self, function: func.FuncOp, layouts: Layouts, undone: set[SSAValue]):
        self.function = function
        self.layouts = layouts
        self.assigned: dict[SSAValue, OutArgument | Part] = {}
        self._places: dict[SSAValue, Place] = {}
        self._placing: set[SSAValue] = set()
        self._assign(undone)

    def place(self, value: SSAValue) -> Place:
        """Where `value` lives; raises NotPlaced."""
        if (known := self._places.get(value)) is not None:
            return known
        # walk down from the nearest value whose place is known, so that long chains need no deep recursion
        chain: list[SSAValue] = []
        current: SSAValue | None = value
        while current is not None and current not in self._places:
            chain.append(current)
            tie = tie_of(current)
            current = tie.dest if tie is not None else viewed(current)
        for step in reversed(chain):
            self._places[step] = self._place_of_one(step)
        return self._places[value]

    def part(self, insertion: tensor.InsertSliceOp, dest: SSAValue) -> Place:
        """The part that `insertion` overwrites, in the place of `dest`, in the shape of its source."""
        offsets, sizes, steps = mixed_slice(insertion)
        kept = kept_dims(sizes, shape_of(insertion.source))
        return slice_of(self.place(dest), [AffineIndex.of(at) for at in offsets], sizes, steps, kept)

    def is_in_place(self, insertion: tensor.InsertSliceOp) -> bool:
        """Whether the source already is where the insertion would put it."""
        return same(self.place(insertion.source), self.part(insertion, insertion.dest))

    def _place_of_one(self, value: SSAValue) -> Place:
        if (tie := tie_of(value)) is not None:
            return self._places[tie.dest]
        source = viewed(value)
        if source is None:
            return self._fresh(value)
        place, op = self._places[source], value.owner
        if isinstance(op, tensor.ExtractSliceOp):
            offsets, sizes, steps = mixed_slice(op)
            return slice_of(
                place, [AffineIndex.of(at) for at in offsets], sizes, steps, kept_dims(sizes, shape_of(value))
            )
        return self._reshaped(place, value)

    def result(self, index: int) -> Place:
        """All of the buffer for result number `index`."""
        type = self.function.function_type.outputs.data[index]
        assert isa(type, TensorType)
        return whole(OutArgument(index), type.get_shape(), self.layouts.results[index])

    def _fresh(self, value: SSAValue) -> Place:
        match self.assigned.get(value):
            case None:
                argument = isinstance(value, BlockArgument)
                return whole(value, shape_of(value), self.layouts.arguments[value.index] if argument else None)
            case OutArgument(index=index):
                return self._reshaped(self.result(index), value)
            case Part(insertion=insertion, anchor=anchor):
                if value in self._placing:
                    raise NotPlaced(value)
                self._placing.add(value)
                place = self._reshaped(self.part(insertion, anchor), value)
                self._placing.discard(value)
                return place

    def _reshaped(self, place: Place, value: SSAValue) -> Place:
        if place.shape == shape_of(value):
            return place
        if (view := reshaped(place, shape_of(value))) is None:
            raise NotPlaced(value)
        return view

    # destinations of fresh values

    def _assign(self, undone: set[SSAValue]) -> None:
        for block in self.function.body.blocks:
            terminator = block.last_op
            if isinstance(terminator, func.ReturnOp):
                for index, value in enumerate(terminator.arguments):
                    root = _whole_origin(value) if is_tensor(value) else None
                    if root is not None and root not in undone:
                        self.assigned.setdefault(root, OutArgument(index))
        if device_of(self.function) not in (None, HOST):
            # there a tile is computed in a scope and then stored: its buffer is not the destination
            return
        for op in self.function.walk():
            if not isinstance(op, tensor.InsertSliceOp):
                continue
            root = _whole_origin(op.source)
            if root is None or root in undone or root in self.assigned:
                continue
            if (anchor := _anchor(op, root)) is not None:
                self.assigned[root] = Part(op, anchor)


def _whole_origin(value: SSAValue) -> SSAValue | None:
    """The fresh value all of which `value` is made from in place; None if that is an argument or a constant."""
    for current, _ in upwards(value):
        if isinstance(current.owner, tensor.ExtractSliceOp) and window_of(current) is None:
            return None
        value = current
    if isinstance(value, BlockArgument) or isinstance(value.owner, arith.ConstantOp):
        return None
    return value


def _anchor(insertion: tensor.InsertSliceOp, root: SSAValue) -> SSAValue | None:
    """
    A value whose buffer is the destination of `insertion` and can be had at the start of its block.

    None where there is none, or where the slice or `root` belong elsewhere.
    """
    block = insertion.parent
    if not _belongs_to(root, block) or any(_belongs_to(offset, block) for offset in insertion.offsets):
        return None
    value = insertion.dest
    while _belongs_to(value, block):
        if (tie := tie_of(value)) is None:
            movable = isinstance(value.owner, tensor.EmptyOp) and value is not root
            return value if movable else None
        value = tie.dest
    return value


def _belongs_to(value: SSAValue, block: Block | None) -> bool:
    """Whether an op of `block` itself defines `value`."""
    return isinstance(value.owner, Operation) and value.owner.parent is block
