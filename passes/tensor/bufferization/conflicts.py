"""
Which values of a placement would be overwritten before they are read, and what to do about it.

A value holds from its definition on. It is in conflict with a write to any of its elements that may be executed
after that and before the value is read, where a loop executes its body again and again, and where an insertion
reads all of its destination but the part that it overwrites. Function arguments and constants are read for ever.

The remedies are to give a fresh value back its own buffer (`Undo`), and to copy an operand (`Copy`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from xdsl.dialects import arith, func, scf, tensor
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from penstock.passes.analysis.index import AffineIndex
from penstock.passes.tensor.bufferization.placement import (
    NotPlaced,
    Part,
    Placement,
    StructuredOp,
    Tie,
    base_of,
    is_tensor,
    is_window_pad,
    origin_of,
    result_number,
    shape_of,
    tie_of,
    upwards,
    viewed,
    window_of,
)
from penstock.passes.tensor.bufferization.places import Place, Root, contains, disjoint, same, slice_of


@dataclass(frozen=True)
class Copy:
    """Let operand number `index` of `op` be a copy of what it is; an undefined value is made anew instead."""

    op: Operation
    index: int
    put_back: tensor.InsertSliceOp | None = None
    """An insertion whose destination becomes the same copy."""


@dataclass(frozen=True)
class Undo:
    """Let `value` have a buffer of its own."""

    value: SSAValue


Remedy = Copy | Undo


@dataclass(frozen=True)
class Read:
    """A value that an op reads as operand number `index`, all but the part `spared`."""

    value: SSAValue
    index: int
    spared: Place | None = None


@dataclass(frozen=True)
class Write:
    """`op` overwrites `place` with `value`, or with a new round of the loop argument `value`."""

    op: Operation
    place: Place
    value: SSAValue


class When(Enum):
    """Whether a write can be executed between the definition of a value and a read of it."""

    NEVER = 0
    SAME_ROUND = 1
    """In the same round of all loops that are around both."""
    OTHER_ROUND = 2
    """Also in another round of some loop."""


# what ops read and write


def ignores_input(op: StructuredOp, index: int) -> bool:
    """Whether operand number `index` gives only its shape: the body does not use its elements."""
    return not op.body.block.args[index].uses


def needs_contents(op: StructuredOp, output: int) -> bool:
    """Whether output number `output` is read, or not wholly overwritten."""
    index = len(op.inputs) + output
    if not ignores_input(op, index) or 0 in op.get_static_loop_ranges():
        return True
    dims: list[int] = []
    for expr, size in zip(op.get_indexing_maps().data[index].data.results, shape_of(op.operands[index]), strict=True):
        if isinstance(expr, AffineDimExpr):
            dims.append(expr.position)
        elif not (isinstance(expr, AffineConstantExpr) and size == 1):
            return True
    return len(set(dims)) != len(dims)


def _element(placement: Placement, op: tensor.InsertOp) -> Place:
    ones = [1] * len(op.indices)
    return slice_of(placement.place(op.dest), [AffineIndex.of(i) for i in op.indices], ones, ones, range(len(ones)))


def reads(placement: Placement, op: Operation) -> Iterator[Read]:
    """What `op` itself reads, apart from what ops in its regions do."""
    match op:
        case StructuredOp():
            for index, value in enumerate(op.operands):
                output = index - len(op.inputs)
                wanted = not ignores_input(op, index) if output < 0 else needs_contents(op, output)
                if is_tensor(value) and wanted:
                    yield Read(value, index)
        case tensor.InsertSliceOp():
            yield Read(op.source, 0)
            yield Read(op.dest, 1, placement.part(op, op.dest))
        case tensor.InsertOp():
            yield Read(op.dest, 1, _element(placement, op))
        case tensor.PadOp():
            if not is_window_pad(op.result):
                yield Read(op.source, 0)
        case tensor.ExtractSliceOp():
            if (pad := window_of(op.result)) is not None:
                yield Read(pad.source, 0)
        case tensor.ExtractOp() | scf.ForOp() | scf.YieldOp() | func.CallOp() | func.ReturnOp():
            for index, value in enumerate(op.operands):
                if is_tensor(value):
                    yield Read(value, index)
        case _:
            pass


def carried(op: scf.YieldOp) -> Iterator[tuple[int, SSAValue, SSAValue]]:
    """For each tensor that a loop carries: its number, the value yielded, and the argument that becomes it."""
    loop = op.parent_op()
    if isinstance(loop, scf.ForOp):
        for number, value in enumerate(op.arguments):
            if is_tensor(value):
                yield number, value, loop.body.block.args[1 + number]


def writes(placement: Placement, op: Operation) -> Iterator[Write]:
    """What `op` itself overwrites, apart from what ops in its regions do."""
    match op:
        case tensor.InsertSliceOp():
            if not placement.is_in_place(op):
                yield Write(op, placement.part(op, op.dest), op.result)
        case tensor.InsertOp():
            yield Write(op, _element(placement, op), op.result)
        case scf.YieldOp():
            for _, value, argument in carried(op):
                if not same(placement.place(value), placement.place(argument)):
                    yield Write(op, placement.place(argument), argument)
        case scf.ForOp() | tensor.EmptyOp() | arith.ConstantOp():
            pass
        case _:
            for value in op.results:
                if is_tensor(value) and viewed(value) is None and not is_window_pad(value):
                    yield Write(op, placement.place(value), value)


# the order of execution


class Order:
    """The order of the ops of a function: a number for each, those in its regions after it."""

    def __init__(self, function: func.FuncOp):
        self._number = {op: number for number, op in enumerate(function.walk())}

    def between(self, value: SSAValue, write: Operation, read: Operation) -> When:
        """Whether `write` can come between the definition of `value` and its use in `read`."""
        base = base_of(value)
        if isinstance(base, BlockArgument):
            block, start = base.block, -1
        else:
            assert isinstance(base.owner, Operation)
            block, start = base.owner.parent, self._number[base.owner]
        writes_in, reads_in = _ancestors(write, block), _ancestors(read, block)
        if writes_in is None or reads_in is None or self._number[writes_in[-1]] <= start:
            return When.NEVER
        if writes_in[-1] is not reads_in[-1]:
            return self._before(writes_in[-1], reads_in[-1])
        around = [op for op in writes_in[1:] if op in reads_in[1:]]
        if any(not isinstance(op, scf.IfOp) for op in around):
            return When.OTHER_ROUND
        if not around:
            return When.NEVER
        left, right = writes_in[writes_in.index(around[0]) - 1], reads_in[reads_in.index(around[0]) - 1]
        return self._before(left, right) if left.parent is right.parent else When.NEVER

    def _before(self, first: Operation, second: Operation) -> When:
        return When.SAME_ROUND if self._number[first] < self._number[second] else When.NEVER


def _ancestors(op: Operation, block: Block | None) -> list[Operation] | None:
    """`op` and the ops around it up to the one in `block`; None if it is not in there."""
    chain = [op]
    while chain[-1].parent is not block:
        parent = chain[-1].parent_op()
        if parent is None:
            return None
        chain.append(parent)
    return chain


# conflicts


def find_remedies(placement: Placement) -> list[Remedy]:
    """Remedies for the conflicts of a placement, at most one for each buffer; none are left if it is sound."""
    try:
        return _find_remedies(placement)
    except NotPlaced as error:
        return [_place(placement, error.value)]


def _place(placement: Placement, value: SSAValue) -> Remedy:
    """Give `value`, a reshape of strided elements, a place: contiguous ones, if need be a copy."""
    origin = origin_of(value)
    if origin in placement.assigned:
        return Undo(origin)
    assert isinstance(value.owner, Operation)
    return Copy(value.owner, 0)


def _find_remedies(placement: Placement) -> list[Remedy]:
    ops = list(placement.function.walk())
    written: dict[Root, list[Write]] = {}
    remedies: dict[Root, Remedy] = {}
    for op in ops:
        own = list(writes(placement, op))
        for write in own:
            written.setdefault(write.place.root, []).append(write)
            if (remedy := _within_one_op(placement, write, own)) is not None:
                remedies.setdefault(write.place.root, remedy)
    order = Order(placement.function)
    for root, on_root in written.items():
        if isinstance(root, SSAValue) and _is_read_only(root):
            remedies.setdefault(root, _remedy(placement, root, on_root[0]))
    for op in ops:
        for read in reads(placement, op):
            place = placement.place(read.value)
            if place.root in remedies or isinstance(base_of(read.value).owner, tensor.EmptyOp):
                continue
            for write in written.get(place.root, ()):
                if _overwrites(order.between(read.value, write.op, op), write, read, place):
                    remedies[place.root] = _remedy(placement, read.value, write)
                    break
    return list(dict.fromkeys(remedies.values()))


def _is_read_only(root: SSAValue) -> bool:
    return isinstance(root, BlockArgument) or isinstance(root.owner, arith.ConstantOp)


def _overwrites(when: When, write: Write, read: Read, place: Place) -> bool:
    if when is When.NEVER:
        return False
    across = when is When.OTHER_ROUND
    if read.spared is not None and contains(read.spared, write.place, across=across):
        return False
    return not disjoint(place, write.place, across=across)


def _remedy(placement: Placement, value: SSAValue, write: Write) -> Remedy:
    """
    Keep `write` off `value`: a copy of the destination where the two part from what they have in common, or, where
    only an assigned destination has brought them together, an end to that.
    """
    made_from = _made_from(placement, value)
    for above, tie in upwards(write.value):
        if tie is not None and above in made_from:
            return _put_back(placement, above, tie, made_from) or Copy(tie.op, tie.index)
    return Undo(_intruder(placement, origin_of(write.value), origin_of(value)))


def _intruder(placement: Placement, left: SSAValue, right: SSAValue) -> SSAValue:
    """Of two fresh values in one buffer, the one that was put there: into the other, or into a third beside it."""
    for inner, outer in ((left, right), (right, left)):
        if outer in _hosts(placement, inner):
            return inner
    intruder = left if isinstance(placement.assigned.get(left), Part) else right
    assert intruder in placement.assigned
    return intruder


def _hosts(placement: Placement, value: SSAValue) -> list[SSAValue]:
    """The fresh values in whose buffers `value` lies because it is assigned there, from the inside out."""
    hosts: list[SSAValue] = []
    while isinstance(target := placement.assigned.get(value), Part) and value not in hosts:
        value = origin_of(target.anchor)
        hosts.append(value)
    return hosts


def _made_from(placement: Placement, value: SSAValue) -> set[SSAValue]:
    """`value` and all that it is made from in place: of an insertion that moves nothing, the source too."""
    found: set[SSAValue] = set()
    starts = [value]
    while starts:
        for above, _ in upwards(starts.pop()):
            if above in found:
                break
            found.add(above)
            if isinstance(above.owner, tensor.InsertSliceOp) and placement.is_in_place(above.owner):
                starts.append(above.owner.source)
    return found


def _put_back(placement: Placement, value: SSAValue, tie: Tie, made_from: set[SSAValue]) -> Copy | None:
    """
    A copy of all of `value`, where `tie` overwrites a slice of it that is then put back into `value`.

    Copying the slice alone would call for a second copy, of `value`, at the insertion that puts it back.
    """
    view = tie.dest
    while (source := viewed(view)) is not None and source is not value:
        view = source
    if source is None or not isinstance(view.owner, Operation) or _is_copy(value):
        return None
    for use in value.uses:
        insertion = use.operation
        if (
            isinstance(insertion, tensor.InsertSliceOp)
            and use.index == 1
            and insertion.result not in made_from
            and insertion.parent is view.owner.parent
            and placement.is_in_place(insertion)
            and any(passed == tie for _, passed in upwards(insertion.source))
        ):
            return Copy(view.owner, 0, insertion)
    return None


def _is_copy(value: SSAValue) -> bool:
    """Whether `value` is what `Copy` makes: all of another one, inserted into a fresh tensor."""
    op = value.owner
    return (
        isinstance(op, tensor.InsertSliceOp)
        and isinstance(op.dest.owner, tensor.EmptyOp)
        and shape_of(op.source) == shape_of(op.dest)
    )


def _within_one_op(placement: Placement, write: Write, own: list[Write]) -> Remedy | None:
    """What to do about a write that meets what its op reads, or writes besides."""
    op = write.op
    for other in own:
        if other is not write and not disjoint(write.place, other.place):
            return _remedy(placement, other.value, write)
    if isinstance(op, scf.YieldOp):
        for number, value, argument in carried(op):
            if not disjoint(placement.place(value), write.place):
                return Copy(op, number)
            if argument is not write.value and not disjoint(placement.place(argument), write.place):
                return _remedy(placement, argument, write)
        return None
    tie = tie_of(write.value)
    for read in reads(placement, op):
        own_destination = tie is not None and read.index == tie.index
        if own_destination or disjoint(placement.place(read.value), write.place):
            continue
        if isinstance(op, StructuredOp) and _is_pointwise(placement, op, read, write):
            continue
        remedy = _remedy(placement, read.value, write)
        if isinstance(op, tensor.InsertSliceOp) and isinstance(remedy, Copy):
            # the source is no larger than the destination
            return Copy(op, read.index)
        return remedy
    return None


def _is_pointwise(placement: Placement, op: StructuredOp, read: Read, write: Write) -> bool:
    """Whether every element that is read is read only at the point of the iteration that overwrites it."""
    maps = [attribute.data for attribute in op.get_indexing_maps()]
    written = maps[len(op.inputs) + result_number(write.value)]
    dims = {expr.position for expr in written.results if isinstance(expr, AffineDimExpr)}
    return (
        same(placement.place(read.value), write.place)
        and maps[read.index] == written
        and dims == set(range(op.get_num_loops()))
    )
