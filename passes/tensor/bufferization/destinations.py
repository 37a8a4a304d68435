"""
Destination-passing form of a function on tensors: what `insert-copies` does, and what `tensor-to-loop` starts from.

First the ops that stand in the way are brought into shape: what cannot be lowered is refused, dead ops go,
`tensor.concat` becomes insertions, and every writer gets a `tensor.empty` of its own, since common subexpression
elimination merges them. Then copies are inserted until the placement is free of conflicts.
"""

from __future__ import annotations

from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType, UnrankedTensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.passes.tensor.bufferization.conflicts import (
    Copy,
    Remedy,
    Undo,
    find_remedies,
    ignores_input,
    needs_contents,
)
from penstock.passes.tensor.bufferization.placement import (
    Layouts,
    Part,
    Placement,
    StructuredOp,
    Tie,
    is_tensor,
    shape_of,
)

_LOWERED = (
    StructuredOp,
    arith.ConstantOp,
    func.CallOp,
    func.ReturnOp,
    scf.ForOp,
    scf.YieldOp,
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

_SIDE_EFFECTS = (func.CallOp, func.ReturnOp, scf.ForOp, scf.YieldOp, tensor.YieldOp)
"""Those of them that stay when their results are not used."""


def uses_tensors(function: func.FuncOp) -> bool:
    """Whether a function that is defined has any tensor at all."""
    if function.is_declaration:
        return False
    types = [*function.function_type.inputs, *function.function_type.outputs]
    return any(isinstance(type, TensorType) for type in types) or any(
        is_tensor(result) for op in function.walk() for result in op.results
    )


def pass_destinations(function: func.FuncOp, layouts: Layouts | None = None) -> Placement:
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
    _share_no_empties(function)
    undone: set[SSAValue] = set()
    while True:
        placement = Placement(function, layouts or Layouts.contiguous(function), undone)
        remedies = find_remedies(placement)
        if not remedies:
            break
        for remedy in remedies:
            _apply(remedy, undone)
    _raise_destinations(placement)
    return placement


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


def _is_tensor_type(type: Attribute) -> bool:
    return isinstance(type, TensorType | UnrankedTensorType)


def _how_to_lower(op: Operation) -> list[str]:
    if op.name.startswith("graph."):
        return ["graph-to-tensor lowers it first"]
    if op.name.startswith("linalg."):
        return ["write it as linalg.generic"]
    if isinstance(op, scf.IfOp):
        return ["choose between elements with arith.select in a linalg.generic"]
    return []


def _refuse_slice_or_pad(op: Operation) -> None:
    match op:
        case tensor.ExtractSliceOp() | tensor.InsertSliceOp():
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
        removable = isinstance(op, _LOWERED) and not isinstance(op, _SIDE_EFFECTS)
        if removable and op.results and not any(result.uses for result in op.results):
            Rewriter.erase_op(op)


def _insert_before(op: Operation, *new: Operation) -> None:
    for made in new:
        made.location = op.location
    Rewriter.insert_op(new, InsertPoint.before(op))


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
            writes = _is_destination(op, index)
            if writes and not taken:
                taken = True
            elif (writes or _is_shape_only(op, index)) and len(uses) > 1:
                op.operands[index] = _empty_before(op, empty.tensor)
        if not empty.tensor.uses:
            Rewriter.erase_op(empty)


def _is_destination(op: Operation, index: int) -> bool:
    match op:
        case StructuredOp():
            return index >= len(op.inputs)
        case tensor.InsertSliceOp() | tensor.InsertOp():
            return index == 1
        case scf.ForOp():
            return index >= 3
        case _:
            return False


def _is_shape_only(op: Operation, index: int) -> bool:
    return isinstance(op, StructuredOp) and index < len(op.inputs) and ignores_input(op, index)


def _empty_before(op: Operation, like: SSAValue) -> SSAValue:
    fresh = tensor.EmptyOp([], like.type)
    fresh.tensor.name_hint = like.name_hint
    _insert_before(op, fresh)
    return fresh.tensor


# remedies


def _apply(remedy: Remedy, undone: set[SSAValue]) -> None:
    match remedy:
        case Undo(value=value):
            undone.add(value)
        case Copy(op=op, index=index, put_back=put_back):
            value = op.operands[index]
            fresh = _empty_before(op, value)
            if not _is_undefined(Tie(op, index)):
                copy = _insertion(value, fresh, [0] * len(shape_of(value)))
                copy.result.name_hint = value.name_hint
                _insert_before(op, copy)
                fresh = copy.result
            op.operands[index] = fresh
            if put_back is not None:
                put_back.operands[1] = fresh


def _is_undefined(tie: Tie) -> bool:
    """Whether the elements of an operand do not matter."""
    if isinstance(tie.dest.owner, tensor.EmptyOp):
        return True
    op = tie.op
    if not isinstance(op, StructuredOp) or tie.index < len(op.inputs):
        return False
    return not needs_contents(op, tie.index - len(op.inputs))


def _raise_destinations(placement: Placement) -> None:
    """Move each `tensor.empty` into which parts are written early to the start of its block."""
    for target in list(placement.assigned.values()):
        while isinstance(target, Part) and isinstance(target.anchor.owner, tensor.EmptyOp):
            empty = target.anchor.owner
            block = empty.parent
            assert block is not None
            empty.detach()
            Rewriter.insert_op(empty, InsertPoint.at_start(block))
            target = placement.assigned.get(empty.tensor)
