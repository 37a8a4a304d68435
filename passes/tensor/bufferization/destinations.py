# SPDX-License-Identifier: Apache-2.0
"""
Destination-passing form of a function on tensors: what `insert-copies` does, and what `tensor-to-loop` starts from.

1. What cannot be lowered is refused, dead ops go, `tensor.concat` becomes insertions, and every writer gets a
   `tensor.empty` of its own, since common subexpression elimination merges them.
2. Every value is assigned a slice of a buffer as if all ops overwrote their destinations in place.
3. A value conflicts with a write to any of its elements that may be executed after its definition and before it is
   read, where a loop executes its body several times, and an insertion reads all of its destination but the slice that
   it overwrites. Function arguments and constants are always read. Each conflict is repaired: a fresh value gets back
   its own buffer (`OwnBuffer`), or an operand is copied (`Copy`). Steps 2 and 3 repeat until there are no conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType, UnrankedTensorType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.mem import EXPLICIT
from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.upstream.tensor import ParallelInsertSliceOp
from penstock.passes.analysis.effects import is_destination
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.shapes import shape_of
from penstock.passes.tensor.bufferization.assignment import (
    BranchResult,
    BufferAssignment,
    BufferSlice,
    Destination,
    InsertionSlice,
    Layouts,
    NoBufferSlice,
    Root,
    StructuredOp,
    base_of,
    contains,
    disjoint,
    early_ops,
    is_tensor,
    is_undefined,
    is_window_pad,
    mixed_slice,
    origin_of,
    result_number,
    same,
    slice_of,
    tie_of,
    upwards,
    viewed,
    window_of,
)


@dataclass(frozen=True)
class Copy:
    """Let operand number `index` of `op` be a copy of what it is; an undefined value is made anew instead."""

    op: Operation
    index: int
    put_back: tensor.InsertSliceOp | None = None
    """An insertion whose destination becomes the same copy."""


@dataclass(frozen=True)
class OwnBuffer:
    """Let `value` have a buffer of its own."""

    value: SSAValue


Repair = Copy | OwnBuffer


@dataclass(frozen=True)
class Read:
    """A value that an op reads as operand number `index`, all but the part `spared`."""

    value: SSAValue
    index: int
    spared: BufferSlice | None = None


@dataclass(frozen=True)
class Write:
    """`op` overwrites `piece` with `value`, or with the next iteration of the loop argument `value`."""

    op: Operation
    piece: BufferSlice
    value: SSAValue


class When(Enum):
    """Whether a write can be executed between the definition of a value and a read of it."""

    NEVER = 0
    SAME_ITERATION = 1
    """In the same iteration of all loops that are around both."""
    OTHER_ITERATION = 2
    """Also in another iteration of some loop."""


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


def _element(assignment: BufferAssignment, op: tensor.InsertOp) -> BufferSlice:
    ones = [1] * len(op.indices)
    return slice_of(
        assignment.buffer_slice(op.dest), [AffineIndex.of(i) for i in op.indices], ones, ones, range(len(ones))
    )


def reads(assignment: BufferAssignment, op: Operation) -> Iterator[Read]:
    """What `op` itself reads, apart from what ops in its regions do."""
    match op:
        case StructuredOp():
            for index, value in enumerate(op.operands):
                output = index - len(op.inputs)
                is_read = not ignores_input(op, index) if output < 0 else needs_contents(op, output)
                if is_tensor(value) and is_read:
                    yield Read(value, index)
        case tensor.InsertSliceOp():
            yield Read(op.source, 0)
            yield Read(op.dest, 1, assignment.inserted(op, op.dest))
        case ParallelInsertSliceOp():
            yield Read(op.source, 0)
        case tensor.InsertOp():
            yield Read(op.dest, 1, _element(assignment, op))
        case tensor.PadOp():
            if not is_window_pad(op.result):
                yield Read(op.source, 0)
        case tensor.ExtractSliceOp():
            if (pad := window_of(op.result)) is not None:
                yield Read(pad.source, 0)
        case (
            tensor.ExtractOp()
            | scf.ForOp()
            | scf.WhileOp()
            | ForallOp()
            | scf.YieldOp()
            | func.CallOp()
            | func.ReturnOp()
        ):
            for index, value in enumerate(op.operands):
                if is_tensor(value):
                    yield Read(value, index)
        case _:
            pass


def carried(op: scf.YieldOp) -> Iterator[tuple[int, SSAValue, SSAValue]]:
    """
    For each tensor that is yielded: its number, the value, and what it becomes: the argument of the loop's next
    iteration, or the result of an `scf.if`. What an `scf.condition` hands on stays what it is.
    """
    parent = op.parent_op()
    becomes: Sequence[SSAValue] = ()
    if isinstance(parent, scf.ForOp):
        becomes = parent.body.block.args[1:]
    elif isinstance(parent, scf.WhileOp):
        becomes = parent.before_region.block.args
    elif isinstance(parent, scf.IfOp):
        becomes = parent.results
    for number, (value, result) in enumerate(zip(op.arguments, becomes, strict=False)):
        if is_tensor(value):
            yield number, value, result


def writes(assignment: BufferAssignment, op: Operation) -> Iterator[Write]:
    """What `op` itself overwrites, apart from what ops in its regions do."""
    match op:
        case tensor.InsertSliceOp():
            if not assignment.is_in_place(op):
                yield Write(op, assignment.inserted(op, op.dest), op.result)
        case ParallelInsertSliceOp():
            if not assignment.is_in_place(op):
                yield Write(op, assignment.inserted(op, op.dest), op.dest)
        case tensor.InsertOp():
            yield Write(op, _element(assignment, op), op.result)
        case scf.YieldOp():
            for _, value, argument in carried(op):
                if not same(assignment.buffer_slice(value), assignment.buffer_slice(argument)):
                    yield Write(op, assignment.buffer_slice(argument), argument)
        case scf.ForOp() | scf.WhileOp() | scf.IfOp() | ForallOp() | tensor.EmptyOp() | arith.ConstantOp():
            pass
        case _:
            for value in op.results:
                if is_tensor(value) and viewed(value) is None and not is_window_pad(value):
                    yield Write(op, assignment.buffer_slice(value), value)


# the order of execution


def _between(number: Mapping[Operation, int], value: SSAValue, write: Operation, read: Operation) -> When:
    """Whether `write` can come between the definition of `value` and `read`, by the numbers of ops in program order."""

    def before(first: Operation, second: Operation) -> When:
        return When.SAME_ITERATION if number[first] < number[second] else When.NEVER

    base = base_of(value)
    if isinstance(base, BlockArgument):
        block, start = base.block, -1
    else:
        assert isinstance(base.owner, Operation)
        block, start = base.owner.parent, number[base.owner]
    writes_in, reads_in = _ancestors(write, block), _ancestors(read, block)
    if writes_in is None or reads_in is None or number[writes_in[-1]] <= start:
        return When.NEVER
    if writes_in[-1] is not reads_in[-1]:
        return before(writes_in[-1], reads_in[-1])
    around = [op for op in writes_in[1:] if op in reads_in[1:]]
    if any(not isinstance(op, scf.IfOp) for op in around):
        return When.OTHER_ITERATION
    if not around:
        return When.NEVER
    left, right = writes_in[writes_in.index(around[0]) - 1], reads_in[reads_in.index(around[0]) - 1]
    return before(left, right) if left.parent is right.parent else When.NEVER


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


def find_repairs(assignment: BufferAssignment) -> list[Repair]:
    """Repairs for the conflicts of an assignment, at most one for each buffer; none are left if it is sound."""
    if unplaced := _unplaced(assignment):
        return unplaced
    try:
        return _find_repairs(assignment)
    except NoBufferSlice as error:
        return [_reallocated(assignment, error.value)]


def _unplaced(assignment: BufferAssignment) -> list[Repair]:
    """Repairs for all values that are written, or read, in a shape that strides do not express, at once."""
    found: dict[Repair, None] = {}
    for op in assignment.function.walk():
        try:
            for _ in writes(assignment, op):
                pass
            for read in reads(assignment, op):
                assignment.buffer_slice(read.value)
        except NoBufferSlice as error:
            found[_reallocated(assignment, error.value)] = None
    own = {each.value for each in found if isinstance(each, OwnBuffer)}
    # With the buffer around it a value gets elements that are contiguous, perhaps.
    return [each for each in found if not (isinstance(each, OwnBuffer) and own & set(_hosts(assignment, each.value)))]


def _reallocated(assignment: BufferAssignment, value: SSAValue) -> Repair:
    """Give `value`, a reshape of strided elements, a slice: contiguous ones, if need be a copy."""
    origin = origin_of(value)
    if origin in assignment.assigned:
        return OwnBuffer(origin)
    assert isinstance(value.owner, Operation)
    return Copy(value.owner, 0)


def _find_repairs(assignment: BufferAssignment) -> list[Repair]:
    ops = list(assignment.function.walk())
    written: dict[Root, list[Write]] = {}
    repairs: dict[Root, Repair] = {}
    for op in ops:
        own = list(writes(assignment, op))
        for write in own:
            written.setdefault(write.piece.root, []).append(write)
            if (repair := _within_one_op(assignment, write, own)) is not None:
                repairs.setdefault(write.piece.root, repair)
    number = {op: index for index, op in enumerate(ops)}
    for root, on_root in written.items():
        # Arguments and constants are read only.
        if isinstance(root, BlockArgument) or (isinstance(root, SSAValue) and isinstance(root.owner, arith.ConstantOp)):
            repairs.setdefault(root, _repair(assignment, root, on_root[0]))
    for op in ops:
        for read in reads(assignment, op):
            piece = assignment.buffer_slice(read.value)
            if piece.root in repairs or is_undefined(read.value):
                continue
            for write in written.get(piece.root, ()):
                if _overwrites(_between(number, read.value, write.op, op), write, read, piece):
                    repairs[piece.root] = _repair(assignment, read.value, write)
                    break
    return list(dict.fromkeys(repairs.values()))


def _overwrites(when: When, write: Write, read: Read, piece: BufferSlice) -> bool:
    if when is When.NEVER:
        return False
    across = when is When.OTHER_ITERATION
    if read.spared is not None and contains(read.spared, write.piece, across=across):
        return False
    return not disjoint(piece, write.piece, across=across)


def _repair(assignment: BufferAssignment, value: SSAValue, write: Write) -> Repair:
    """
    Keep `write` off `value`: a copy of the destination where the two part from what they have in common, or, where
    only an assigned destination has brought them together, an end to that.
    """
    made_from = _made_from(assignment, value)
    for above, tie in upwards(write.value):
        if tie is not None and above in made_from:
            return _put_back(assignment, above, tie, made_from) or Copy(tie.op, tie.index)
    return OwnBuffer(_intruder(assignment, origin_of(write.value), origin_of(value)))


def _intruder(assignment: BufferAssignment, left: SSAValue, right: SSAValue) -> SSAValue:
    """Of two fresh values in one buffer, the one that was put there: into the other, or into a third beside it."""
    for inner, outer in ((left, right), (right, left)):
        if outer in _hosts(assignment, inner):
            return inner
    intruder = left if isinstance(assignment.assigned.get(left), InsertionSlice) else right
    assert intruder in assignment.assigned
    return intruder


def _hosts(assignment: BufferAssignment, value: SSAValue) -> list[SSAValue]:
    """The fresh values in whose buffers `value` lies because it is assigned there, from the inside out."""
    hosts: list[SSAValue] = []
    while isinstance(target := assignment.assigned.get(value), InsertionSlice | BranchResult) and value not in hosts:
        value = origin_of(target.anchor if isinstance(target, InsertionSlice) else target.result)
        hosts.append(value)
    return hosts


def _made_from(assignment: BufferAssignment, value: SSAValue) -> set[SSAValue]:
    """`value` and all that it is made from in place: of an insertion that moves nothing, the source too."""
    found: set[SSAValue] = set()
    starts = [value]
    while starts:
        for above, _ in upwards(starts.pop()):
            if above in found:
                break
            found.add(above)
            if isinstance(above.owner, tensor.InsertSliceOp) and assignment.is_in_place(above.owner):
                starts.append(above.owner.source)
    return found


def _put_back(assignment: BufferAssignment, value: SSAValue, tie: Destination, made_from: set[SSAValue]) -> Copy | None:
    """
    A copy of all of `value`, where `tie` overwrites a slice of it that is then put back into `value`.

    Copying the slice alone would call for a second copy, of `value`, at the insertion that puts it back.
    """
    view = tie.value
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
            and assignment.is_in_place(insertion)
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


def _within_one_op(assignment: BufferAssignment, write: Write, own: list[Write]) -> Repair | None:
    """What to do about a write that meets what its op reads, or writes besides."""
    op = write.op
    for other in own:
        if other is not write and not disjoint(write.piece, other.piece):
            return _repair(assignment, other.value, write)
    if isinstance(op, scf.YieldOp):
        for number, value, argument in carried(op):
            if not disjoint(assignment.buffer_slice(value), write.piece):
                return Copy(op, number)
            if argument is not write.value and not disjoint(assignment.buffer_slice(argument), write.piece):
                return _repair(assignment, argument, write)
        return None
    tie = tie_of(write.value)
    for read in reads(assignment, op):
        own_destination = tie is not None and tie == Destination(op, read.index)
        if own_destination or disjoint(assignment.buffer_slice(read.value), write.piece):
            continue
        if isinstance(op, StructuredOp) and _is_pointwise(assignment, op, read, write):
            continue
        repair = _repair(assignment, read.value, write)
        # the source is no larger than the destination; what iterations share is copied before they begin
        moves = isinstance(op, tensor.InsertSliceOp) or (
            isinstance(op, ParallelInsertSliceOp) and op.dest in _made_from(assignment, read.value)
        )
        if moves and isinstance(repair, Copy):
            return Copy(op, read.index)
        return repair
    return None


def _is_pointwise(assignment: BufferAssignment, op: StructuredOp, read: Read, write: Write) -> bool:
    """Whether every element that is read is read only at the point of the iteration that overwrites it."""
    maps = [attribute.data for attribute in op.get_indexing_maps()]
    written = maps[len(op.inputs) + result_number(write.value)]
    dims = {expr.position for expr in written.results if isinstance(expr, AffineDimExpr)}
    return (
        same(assignment.buffer_slice(read.value), write.piece)
        and maps[read.index] == written
        and dims == set(range(op.get_num_loops()))
    )


_LOWERED = (
    StructuredOp,
    arith.ConstantOp,
    func.CallOp,
    func.ReturnOp,
    scf.ForOp,
    scf.WhileOp,
    scf.IfOp,
    scf.ConditionOp,
    scf.YieldOp,
    ForallOp,
    ParallelInsertSliceOp,
    tensor.CastOp,
    tensor.CollapseShapeOp,
    tensor.ConcatOp,
    tensor.DimOp,
    tensor.EmptyOp,
    tensor.ExpandShapeOp,
    tensor.ExtractOp,
    tensor.ExtractSliceOp,
    tensor.FromElementsOp,
    tensor.InsertOp,
    tensor.InsertSliceOp,
    tensor.PadOp,
    tensor.ReshapeOp,
    tensor.SplatOp,
    tensor.YieldOp,
)
"""The ops with tensors among their operands or results that have a form on memrefs."""

_SIDE_EFFECTS = (
    func.CallOp,
    func.ReturnOp,
    scf.ForOp,
    scf.WhileOp,
    scf.IfOp,
    ForallOp,
    scf.ConditionOp,
    scf.YieldOp,
    tensor.YieldOp,
)
"""Those of them that stay when their results are not used."""


def uses_tensors(function: func.FuncOp) -> bool:
    """Whether a function that is defined has any tensor at all."""
    if function.is_declaration:
        return False
    types = [*function.function_type.inputs, *function.function_type.outputs]
    return any(isinstance(type, TensorType) for type in types) or any(
        is_tensor(result) for op in function.walk() for result in op.results
    )


def pass_destinations(function: func.FuncOp, layouts: Layouts | None = None) -> BufferAssignment:
    """
    Rewrite a function until every op can overwrite its destination in place, and say where its values live.

    `layouts` are those of the buffers that its callers hand over, contiguous by default.

    Raises UserError, located, for what has no form on memrefs.
    """
    _refuse(function)
    _erase_dead(function)
    for op in list(function.walk()):
        if isinstance(op, tensor.ConcatOp):
            _split_concat(op)
        elif isinstance(op, tensor.PadOp) and not any((*op.static_low.get_values(), *op.static_high.get_values())):
            Rewriter.replace_op(op, [], [op.source])
    for op in list(function.walk()):
        if isinstance(op, ForallOp):
            _read_what_was_there(op)
    _share_no_empties(function)
    own_buffers: set[SSAValue] = set()
    while True:
        assignment = BufferAssignment(function, layouts or Layouts.contiguous(function), own_buffers)
        repairs = find_repairs(assignment)
        if not repairs:
            break
        for repair in repairs:
            _apply(repair, own_buffers)
    _raise_destinations(assignment)
    return assignment


# refusals


def _refuse(function: func.FuncOp) -> None:
    if len(function.body.blocks) > 1:
        raise UserError(
            f"@{function.sym_name.data} has branches between blocks, which tensors cannot cross",
            loc=location_of(function),
            notes=["write loops as scf.for"],
        )
    for op in function.walk():
        types = [type for type in (*op.operand_types, *op.result_types) if _is_tensor_type(type)]
        if not types:
            continue
        if not isinstance(op, _LOWERED):
            raise UserError(
                f'"{op.name}" with tensors has no form at the loop level',
                loc=location_of(op),
                notes=_how_to_lower(op),
                status=UNSUPPORTED,
            )
        for type in types:
            if not (isa(type, TensorType) and type.has_static_shape()):
                raise UserError(f"the shape of {type} is not static", loc=location_of(op), status=UNSUPPORTED)
        _refuse_slice_or_pad(op)
        if isinstance(op, scf.ConditionOp) and not _hands_on(op):
            raise UserError(
                "a loop hands tensors on in another order than it takes them in",
                loc=location_of(op),
                notes=["the operands of scf.condition are the arguments of its block, in their order"],
                status=UNSUPPORTED,
            )


def _hands_on(op: scf.ConditionOp) -> bool:
    """Whether the tensors that the body of an `scf.while` gets are those that its condition saw."""
    block, values = op.parent, list(op.args)
    assert block is not None
    return all(
        not _is_tensor_type(value.type) or (number < len(block.args) and value is block.args[number])
        for number, value in enumerate(values)
    ) and len(values) == len(block.args)


def _is_tensor_type(type: Attribute) -> bool:
    return isinstance(type, TensorType | UnrankedTensorType)


def _how_to_lower(op: Operation) -> list[str]:
    if op.name.startswith("graph."):
        return ["graph-to-tensor lowers it first"]
    if op.name.startswith("linalg."):
        return ["write it as linalg.generic"]
    return []


def _refuse_slice_or_pad(op: Operation) -> None:
    match op:
        case tensor.ExtractSliceOp() | tensor.InsertSliceOp() | ParallelInsertSliceOp():
            static = (*op.static_sizes.get_values(), *op.static_strides.get_values())
            if DYNAMIC_INDEX in static:
                raise UserError("the sizes and steps of a slice must be static", loc=location_of(op))
            if any(step < 1 for step in op.static_strides.get_values()):
                raise UserError("the steps of a slice must be positive", loc=location_of(op))
        case tensor.PadOp():
            if DYNAMIC_INDEX in (*op.static_low.get_values(), *op.static_high.get_values()):
                raise UserError("the amounts of a pad must be static", loc=location_of(op))
            if any(arg.uses for arg in op.region.block.args):
                raise UserError("a pad must be filled with one value", loc=location_of(op))
        case _:
            pass


# normal form


def _erase_dead(function: func.FuncOp) -> None:
    for op in reversed(list(function.walk())):
        removable = isinstance(op, _LOWERED) and not isinstance(op, _SIDE_EFFECTS) and EXPLICIT not in op.attributes
        if removable and op.results and not any(result.uses for result in op.results):
            Rewriter.erase_op(op)


def _insert_before(op: Operation, *new: Operation) -> None:
    for made in new:
        made.location = op.location
    parent = op.parent_op()
    # The end of an iteration holds insertions only.
    place = parent if isinstance(op, ParallelInsertSliceOp) and parent is not None else op
    Rewriter.insert_op(new, InsertPoint.before(place))


def _read_what_was_there(forall: ForallOp) -> None:
    """
    Let an iteration that reads more of a shared tensor than the box that it inserts read the tensor as it was before.

    Iterations see nothing of what others insert, and what they insert does not overlap, so that each of them can
    overwrite its own box.
    """

    def box_of(op: tensor.ExtractSliceOp | ParallelInsertSliceOp) -> tuple[list[AffineIndex], list[int], list[int]]:
        offsets, sizes, steps = mixed_slice(op)
        return [AffineIndex.of(at) for at in offsets], sizes, steps

    for shared, before in zip(forall.shared, forall.outputs, strict=True):
        own = [box_of(each) for each in forall.terminator.insertions if each.dest is shared]
        for use in list(shared.uses):
            user = use.operation
            is_own = isinstance(user, tensor.ExtractSliceOp) and box_of(user) in own
            if not is_own and not (isinstance(user, ParallelInsertSliceOp) and use.index == 1):
                user.operands[use.index] = before


def _insertion(source: SSAValue, dest: SSAValue, at: list[int]) -> tensor.InsertSliceOp:
    sizes = shape_of(source)
    return tensor.InsertSliceOp.get(source, dest, sizes, at, [1] * len(sizes))


def _split_concat(op: tensor.ConcatOp) -> None:
    """`tensor.concat` as a chain of insertions."""
    dim = op.dim.value.data
    empty = tensor.EmptyOp([], op.result.type)
    _insert_before(op, empty)
    value: SSAValue = empty.tensor
    at = [0] * len(shape_of(value))
    for source in op.inputs:
        insertion = _insertion(source, value, at)
        _insert_before(op, insertion)
        value = insertion.result
        at[dim] += shape_of(source)[dim]
    value.name_hint = op.result.name_hint
    Rewriter.replace_op(op, [], [value])


def _share_no_empties(function: func.FuncOp) -> None:
    """Leave each `tensor.empty` to its views and its first writer; all other uses get one of their own."""
    order = {op: number for number, op in enumerate(function.walk())}
    for empty in order:
        if not isinstance(empty, tensor.EmptyOp):
            continue
        uses = [(use.operation, use.index) for use in empty.tensor.uses]
        taken = False
        for op, index in sorted(uses, key=lambda use: (order[use[0]], use[1])):
            writes = is_destination(op, index)
            if writes and not taken:
                taken = True
            elif (writes or _is_shape_only(op, index)) and len(uses) > 1:
                op.operands[index] = _empty_before(op, empty.tensor)
        if not empty.tensor.uses:
            Rewriter.erase_op(empty)


def _is_shape_only(op: Operation, index: int) -> bool:
    return isinstance(op, StructuredOp) and index < len(op.inputs) and ignores_input(op, index)


def _empty_before(op: Operation, like: SSAValue) -> SSAValue:
    fresh = tensor.EmptyOp([], like.type)
    fresh.tensor.name_hint = like.name_hint
    _insert_before(op, fresh)
    return fresh.tensor


# repairs


def _apply(repair: Repair, own_buffers: set[SSAValue]) -> None:
    match repair:
        case OwnBuffer(value=value):
            own_buffers.add(value)
        case Copy(op=op, index=index, put_back=put_back):
            value = op.operands[index]
            fresh = _empty_before(op, value)
            if not _is_needless(Destination(op, index)):
                copy = _insertion(value, fresh, [0] * len(shape_of(value)))
                copy.result.name_hint = value.name_hint
                _insert_before(op, copy)
                fresh = copy.result
            op.operands[index] = fresh
            if put_back is not None:
                put_back.operands[1] = fresh


def _is_needless(tie: Destination) -> bool:
    """Whether the elements of an operand do not matter."""
    if is_undefined(tie.value):
        return True
    op = tie.op
    if not isinstance(op, StructuredOp) or tie.index < len(op.inputs):
        return False
    return not needs_contents(op, tie.index - len(op.inputs))


def _raise_destinations(assignment: BufferAssignment) -> None:
    """Move each `tensor.empty` into which parts are written early to the start of its block, and say there which."""
    for target in list(assignment.assigned.values()):
        while isinstance(target, InsertionSlice) and isinstance(target.anchor.owner, tensor.EmptyOp):
            empty = target.anchor.owner
            block = empty.parent
            assert block is not None
            _raise(empty, block)
            target = assignment.assigned.get(empty.tensor)
    for target in assignment.assigned.values():
        if isinstance(target, InsertionSlice):
            block = target.insertion.parent
            assert block is not None
            for offset in target.insertion.offsets:
                for op in early_ops(offset, block):
                    _raise(op, block)


def _raise(op: Operation, block: Block) -> None:
    op.detach()
    Rewriter.insert_op(op, InsertPoint.at_start(block))
