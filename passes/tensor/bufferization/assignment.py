# SPDX-License-Identifier: Apache-2.0
"""
Which slice of which buffer every tensor value of a function is, if every op that overwrites did so in place.

A value is a *view* of another one (a slice, a reshape), is *tied* to the destination that its op overwrites (the `outs`
of a structured op, the destination of an insertion, the initial value of a loop), or is *fresh*: the root of a buffer
of its own. A fresh value that becomes a result of the function, or a part of a larger value, as a whole is *assigned*
there at once, so that its producer writes into it: destination-passing style. An insertion that is explicit copies
instead: its source has a buffer of its own. Slices are compared by root buffer,
linear offset and strides, in elements, and not by the SSA values that lead to them. `destinations` finds the conflicts;
nothing here changes the IR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith, func, linalg, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.upstream.tensor import Insertion
from penstock.passes.analysis.index import AffineIndex, is_index_arithmetic
from penstock.passes.analysis.kernels import HOST, device_of
from penstock.passes.analysis.memory.stated_scopes import is_explicit
from penstock.passes.analysis.strides import contiguous_strides, kept_dims, reshaped_strides
from penstock.passes.shapes import shape_of

# slices of buffers


@dataclass(frozen=True)
class OutArgument:
    """The buffer that the caller hands over for result number `index`."""

    index: int


Root = SSAValue | OutArgument
"""A buffer: the tensor value that brings it into being, or an out argument."""


@dataclass(frozen=True)
class Frame:
    """A coordinate system: `shape` elements laid out by `strides` from `offset` in a root."""

    root: Root
    offset: AffineIndex
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class BufferSlice:
    """Strided elements of a root, and a box in the coordinates of a frame that holds them all."""

    frame: Frame
    offset: AffineIndex
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[tuple[AffineIndex, int], ...]
    """First index and number of indices, for each dim of the frame."""
    axes: tuple[int, ...] | None
    """The dim of the frame along which each dim runs; None where `box` holds more than the slice."""
    parent: BufferSlice | None = None
    """The slice that this one was cut from: it holds all of it."""

    @property
    def root(self) -> Root:
        return self.frame.root

    @property
    def size(self) -> int:
        return prod(self.shape)

    def with_ancestors(self) -> Iterator[BufferSlice]:
        piece: BufferSlice | None = self
        while piece is not None:
            yield piece
            piece = piece.parent


def _framed(frame: Frame, parent: BufferSlice | None) -> BufferSlice:
    box = tuple((AffineIndex(), size) for size in frame.shape)
    return BufferSlice(frame, frame.offset, frame.shape, frame.strides, box, tuple(range(len(box))), parent)


def whole(root: Root, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> BufferSlice:
    """All of a buffer, contiguous unless `strides` say otherwise."""
    return _framed(Frame(root, AffineIndex(), shape, strides or contiguous_strides(shape)), None)


def slice_of(
    piece: BufferSlice,
    offsets: Sequence[AffineIndex],
    sizes: Sequence[int],
    steps: Sequence[int],
    kept: Sequence[int],
) -> BufferSlice:
    """The slice of a slice; `kept` are the dims that its result has, the others are of size 1."""
    offset = piece.offset
    for at, stride in zip(offsets, piece.strides, strict=True):
        offset = offset + at * stride
    box = list(piece.box)
    exact = piece.axes is not None and all(step == 1 for step in steps)
    if piece.axes is not None:
        for axis, at, size, step in zip(piece.axes, offsets, sizes, steps, strict=True):
            box[axis] = (box[axis][0] + at, (size - 1) * step + 1 if size else 0)
    return BufferSlice(
        piece.frame,
        offset,
        tuple(sizes[dim] for dim in kept),
        tuple(piece.strides[dim] * steps[dim] for dim in kept),
        tuple(box),
        tuple(piece.axes[dim] for dim in kept) if exact and piece.axes is not None else None,
        piece,
    )


def reshaped(piece: BufferSlice, shape: tuple[int, ...]) -> BufferSlice | None:
    """The same elements, in the same order, in another shape; None where strides cannot express that."""
    strides = reshaped_strides(piece.shape, piece.strides, shape)
    if strides is None:
        return None
    return _framed(Frame(piece.root, piece.offset, shape, strides), piece)


def same(left: BufferSlice, right: BufferSlice) -> bool:
    """Whether two slices of as many elements are the same elements in the same order, as far as can be told."""
    return (
        left.root == right.root
        and left.offset == right.offset
        and _moving(left.shape, left.strides) == _moving(right.shape, right.strides)
    )


def _moving(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]


def disjoint(left: BufferSlice, right: BufferSlice, *, across: bool = False) -> bool:
    """
    Whether two slices certainly have no element in common.

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


def _extent(piece: BufferSlice) -> int:
    return sum((size - 1) * stride for size, stride in zip(piece.shape, piece.strides, strict=True)) + 1


def _boxes_apart(left: BufferSlice, right: BufferSlice, across: bool) -> bool:
    if left.frame != right.frame or (across and left.frame.offset.terms):
        return False
    for (ours, our_size), (theirs, their_size) in zip(left.box, right.box, strict=True):
        apart = _distance(ours, theirs, across)
        if apart is not None and not -their_size < apart < our_size:
            return True
    return False


def contains(outer: BufferSlice, inner: BufferSlice, *, across: bool = False) -> bool:
    """Whether every element of `inner` is certainly one of `outer`; `across` is as for `disjoint`."""
    if across and outer.offset.terms:
        return False
    return any(same(outer, piece) or _box_holds(outer, piece) for piece in inner.with_ancestors())


def _box_holds(outer: BufferSlice, inner: BufferSlice) -> bool:
    if outer.axes is None or outer.frame != inner.frame:
        return False
    for (start, size), (at, inner_size) in zip(outer.box, inner.box, strict=True):
        into = _distance(start, at, False)
        if into is None or into < 0 or into + inner_size > size:
            return False
    return True


# reshapes


StructuredOp = linalg.abstract_ops.LinalgStructuredOperation


@dataclass(frozen=True)
class Destination:
    """Operand number `index` of `op`, which a value is written over."""

    op: Operation
    index: int

    @property
    def value(self) -> SSAValue:
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
class InsertionSlice:
    """The slice of `dest` that `insertion` writes."""

    insertion: tensor.InsertSliceOp
    anchor: SSAValue
    """The value in whose buffer `dest` lives and which is there when the buffer is needed."""


@dataclass(frozen=True)
class BranchResult:
    """The buffer of `result`, of an `scf.if` one branch of which yields the value."""

    result: SSAValue


class NoBufferSlice(Exception):
    """A value that has no slice: a reshape that strides cannot express, or a destination within itself."""

    def __init__(self, value: SSAValue):
        super().__init__()
        self.value = value


# the structure of values


def is_tensor(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType)


def result_number(value: SSAValue) -> int:
    """The number of a result among those of its op."""
    assert isinstance(value, OpResult)
    return value.index


def tie_of(value: SSAValue) -> Destination | None:
    """The destination that `value` is written over; None for a view and for a fresh value."""
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        if isinstance(loop, ForallOp) and value.index >= len(loop.indices):
            return Destination(loop, loop.first_output + value.index - len(loop.indices))
        if isinstance(loop, scf.WhileOp):
            return Destination(loop, value.index)
        return Destination(loop, 2 + value.index) if isinstance(loop, scf.ForOp) and value.index else None
    match value.owner:
        case StructuredOp() as op:
            return Destination(op, len(op.inputs) + result_number(value))
        case tensor.InsertSliceOp() | tensor.InsertOp() as op:
            return Destination(op, 1)
        case scf.ForOp() as op:
            return Destination(op, 3 + result_number(value))
        case scf.WhileOp() as op:
            return Destination(op, result_number(value))
        case ForallOp() as op:
            return Destination(op, op.first_output + result_number(value))
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
    """
    Whether `value` is a pad of which only boxes are taken, and no explicit copy: then only the boxes are ever
    materialised.
    """
    if not isinstance(value.owner, tensor.PadOp) or is_explicit(value.owner):
        return False
    return all(
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


def is_undefined(value: SSAValue) -> bool:
    """
    Whether a value has no contents: a view of a `tensor.empty`, or of what the iterations of an `scf.forall` share of
    one, which each of them sees as it was before the loop.
    """
    base = base_of(value)
    while isinstance(base, BlockArgument) and isinstance(base.block.parent_op(), ForallOp):
        if (tie := tie_of(base)) is None:
            return False
        base = base_of(tie.value)
    return isinstance(base.owner, tensor.EmptyOp)


def upwards(value: SSAValue) -> Iterator[tuple[SSAValue, Destination | None]]:
    """`value` and all it is made from in place, each with the tie that was last passed on the way up."""
    tie: Destination | None = None
    while True:
        yield value, tie
        if (source := viewed(value)) is not None:
            value = source
        elif (above := tie_of(value)) is not None:
            value, tie = above.value, above
        else:
            return


def origin_of(value: SSAValue) -> SSAValue:
    """The fresh value or function argument that `value` is made from in place."""
    for value, _ in upwards(value):
        pass
    return value


def mixed_slice(
    op: tensor.ExtractSliceOp | Insertion,
) -> tuple[list[int | SSAValue], list[int], list[int]]:
    """Offsets, sizes and steps of a slice whose sizes and steps are static."""
    offsets = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
    return offsets, list(op.static_sizes.get_values()), list(op.static_strides.get_values())


# slices


class BufferAssignment:
    """
    The slices of all tensor values of one function.

    `own_buffers` are fresh values that are not to be assigned to a destination.
    """

    def __init__(self, function: func.FuncOp, layouts: Layouts, own_buffers: set[SSAValue]):
        self.function = function
        self.layouts = layouts
        self.assigned: dict[SSAValue, OutArgument | InsertionSlice | BranchResult] = {}
        self._slices: dict[SSAValue, BufferSlice] = {}
        self._pending: set[SSAValue] = set()
        self._assign(own_buffers)

    def buffer_slice(self, value: SSAValue) -> BufferSlice:
        """Where `value` lives; raises NoBufferSlice."""
        if (known := self._slices.get(value)) is not None:
            return known
        # walk down from the nearest value whose slice is known, so that long chains need no deep recursion
        chain: list[SSAValue] = []
        current: SSAValue | None = value
        while current is not None and current not in self._slices:
            chain.append(current)
            tie = tie_of(current)
            current = tie.value if tie is not None else viewed(current)
        for step in reversed(chain):
            self._slices[step] = self._slice_of_one(step)
        return self._slices[value]

    def inserted(self, insertion: Insertion, dest: SSAValue) -> BufferSlice:
        """The part that `insertion` overwrites, of the slice of `dest`, in the shape of its source."""
        offsets, sizes, steps = mixed_slice(insertion)
        kept = kept_dims(sizes, shape_of(insertion.source))
        return slice_of(self.buffer_slice(dest), [AffineIndex.of(at) for at in offsets], sizes, steps, kept)

    def is_in_place(self, insertion: Insertion) -> bool:
        """Whether the source already is where the insertion would put it."""
        return same(self.buffer_slice(insertion.source), self.inserted(insertion, insertion.dest))

    def _slice_of_one(self, value: SSAValue) -> BufferSlice:
        if (tie := tie_of(value)) is not None:
            return self._slices[tie.value]
        source = viewed(value)
        if source is None:
            return self._fresh(value)
        piece, op = self._slices[source], value.owner
        if isinstance(op, tensor.ExtractSliceOp):
            offsets, sizes, steps = mixed_slice(op)
            return slice_of(
                piece, [AffineIndex.of(at) for at in offsets], sizes, steps, kept_dims(sizes, shape_of(value))
            )
        return self._reshaped(piece, value)

    def result(self, index: int) -> BufferSlice:
        """All of the buffer for result number `index`."""
        type = self.function.function_type.outputs.data[index]
        assert isa(type, TensorType)
        return whole(OutArgument(index), type.get_shape(), self.layouts.results[index])

    def _fresh(self, value: SSAValue) -> BufferSlice:
        match self.assigned.get(value):
            case None:
                argument = isinstance(value, BlockArgument)
                return whole(value, shape_of(value), self.layouts.arguments[value.index] if argument else None)
            case OutArgument(index=index):
                return self._reshaped(self.result(index), value)
            case BranchResult(result=result):
                return self._reshaped(self.buffer_slice(result), value)
            case InsertionSlice(insertion=insertion, anchor=anchor):
                if value in self._pending:
                    raise NoBufferSlice(value)
                self._pending.add(value)
                try:
                    return self._reshaped(self.inserted(insertion, anchor), value)
                finally:
                    self._pending.discard(value)

    def _reshaped(self, piece: BufferSlice, value: SSAValue) -> BufferSlice:
        if piece.shape == shape_of(value):
            return piece
        if (view := reshaped(piece, shape_of(value))) is None:
            raise NoBufferSlice(value)
        return view

    # destinations of fresh values

    def _assign(self, own_buffers: set[SSAValue]) -> None:
        on_machine = device_of(self.function) not in (None, HOST)
        for block in self.function.body.blocks:
            terminator = block.last_op
            if isinstance(terminator, func.ReturnOp):
                for index, value in enumerate(terminator.arguments):
                    root = _whole_origin(value) if is_tensor(value) else None
                    if root is None or root in own_buffers:
                        continue
                    # No engine pads what it stores off chip: what goes on from a pad is stored when it is complete.
                    if not (on_machine and (isinstance(root.owner, tensor.PadOp) or window_of(root) is not None)):
                        self.assigned.setdefault(root, OutArgument(index))
        for op in self.function.walk():
            if isinstance(op, scf.YieldOp) and isinstance(branch := op.parent_op(), scf.IfOp):
                for value, result in zip(op.arguments, branch.results, strict=True):
                    root = _whole_origin(value) if is_tensor(value) else None
                    if root is not None and root not in own_buffers and _is_inside(root, op.parent):
                        self.assigned.setdefault(root, BranchResult(result))
        if on_machine:
            # there a tile is computed in a scope and then stored: its buffer is not the destination
            return
        for op in self.function.walk():
            if not isinstance(op, tensor.InsertSliceOp) or is_explicit(op):
                continue
            root = _whole_origin(op.source)
            if root is None or root in own_buffers or root in self.assigned:
                continue
            if (anchor := _anchor(op, root)) is not None:
                self.assigned[root] = InsertionSlice(op, anchor)


def _is_inside(value: SSAValue, block: Block | None) -> bool:
    """Whether an op of `block`, or one inside such an op, defines `value`."""
    at = value.owner.parent if isinstance(value.owner, Operation) else value.owner
    while at is not None and at is not block:
        at = at.parent_block()
    return at is not None


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
    if not _belongs_to(root, block) or not all(_is_early(offset, block) for offset in insertion.offsets):
        return None
    value = insertion.dest
    while _belongs_to(value, block):
        if (tie := tie_of(value)) is None:
            movable = isinstance(value.owner, tensor.EmptyOp) and value is not root
            return value if movable else None
        value = tie.value
    return value


def _is_early(value: SSAValue, block: Block | None) -> bool:
    """Whether a value can be had at the start of a block: see `early_ops`."""
    owner = value.owner
    if not isinstance(owner, Operation) or owner.parent is not block:
        return True
    return isinstance(owner, arith.ConstantOp) or (
        is_index_arithmetic(owner) and all(_is_early(operand, block) for operand in owner.operands)
    )


def early_ops(value: SSAValue, block: Block | None) -> Iterator[Operation]:
    """The arithmetic of a block that computes `value` of what is there at its start, users first."""
    if isinstance(value.owner, Operation) and value.owner.parent is block:
        yield value.owner
        for operand in value.owner.operands:
            yield from early_ops(operand, block)


def _belongs_to(value: SSAValue, block: Block | None) -> bool:
    """Whether an op of `block` itself defines `value`."""
    return isinstance(value.owner, Operation) and value.owner.parent is block
