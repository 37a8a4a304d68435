# SPDX-License-Identifier: Apache-2.0
"""Outlining: a kernel becomes several, each with some of its ops, and every call of it calls of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

VIEWS = (tensor.CollapseShapeOp, tensor.ExpandShapeOp, tensor.ExtractSliceOp, tensor.ReshapeOp)


def outline(kernel: func.FuncOp, groups: Sequence[Sequence[GenericOp | scf.ForOp]]) -> list[func.FuncOp]:
    """
    Replace `kernel` by one kernel a group, in this order, and return these.

    Every generic and every loop with a use is in one group, but for those that only initialise others: they, like all
    else (empties, pads, constants), are cloned into each group that needs them. A group takes what it
    uses of the kernel's arguments and of earlier groups, and returns what later groups or the kernel's callers
    use. Views of that go to the callers, and so does what joins or views the results: on a machine there is no
    command for them.
    """
    group_of: dict[Operation, int] = {op: number for number, group in enumerate(groups) for op in group}
    returned = kernel.body.block.last_op
    assert isinstance(returned, func.ReturnOp)
    inside = [_closure(group, group_of, number) for number, group in enumerate(groups)]
    before = [_leading_views(ops) for ops in inside]
    inside = [_needed(group, ops, views) for group, ops, views in zip(groups, inside, before, strict=True)]
    after = _closure([v.owner for v in returned.operands if v.owner not in group_of], group_of, len(groups))
    taken = [_taken(ops) for ops in inside]
    read = [{*_taken(views), *values} for views, values in zip(before, taken, strict=True)]
    read.append({*_taken(after), *returned.operands})
    parts: list[func.FuncOp] = []
    results: list[list[SSAValue]] = []
    for number, group in enumerate(groups):
        later = {v for values in read[number + 1 :] for v in values}
        results.append([result for op in group for result in op.results if result in later])
        part = _function(f"{kernel.sym_name.data}_{number}", kernel, inside[number], taken[number], results[number])
        part.location = group[-1].location
        Rewriter.insert_op(part, InsertPoint.before(kernel))
        parts.append(part)
    module = kernel.parent_op()
    assert isinstance(module, ModuleOp)
    for call in [op for op in module.walk() if isinstance(op, func.CallOp)]:
        if call.callee.string_value() == kernel.sym_name.data:
            known: dict[SSAValue, SSAValue] = dict(zip(kernel.body.block.args, call.arguments, strict=True))
            for part, views, operands, values in zip(parts, before, taken, results, strict=True):
                _clone_before(call, views, known)
                piece = func.CallOp(part.sym_name.data, [known[v] for v in operands], [v.type for v in values])
                piece.attributes.update(call.attributes)
                piece.location = call.location
                piece.attributes.update(call.attributes)
                Rewriter.insert_op(piece, InsertPoint.before(call))
                known.update(zip(values, piece.results, strict=True))
            _clone_before(call, after, known)
            Rewriter.replace_op(call, [], [known[v] for v in returned.operands])
    Rewriter.erase_op(kernel)
    return parts


def _taken(ops: Sequence[Operation]) -> list[SSAValue]:
    """What `ops` read and do not compute."""
    return list(dict.fromkeys(v for op in ops for i in op.walk() for v in i.operands if _is_outside(v, op, ops)))


def _leading_views(ops: Sequence[Operation]) -> list[Operation]:
    """The views among `ops` of what comes from outside, and the constants that they read."""
    views: dict[Operation, None] = {}
    for op in ops:
        if isinstance(op, VIEWS):
            owners = [v.owner for v in op.operands]
            constants = [owner for owner in owners if isinstance(owner, arith.ConstantOp)]
            if all(_is_outside(v, op, ops) or v.owner in views or v.owner in constants for v in op.operands):
                views |= dict.fromkeys([*constants, op])
    return list(views)


def _needed(
    group: Sequence[GenericOp | scf.ForOp], ops: Sequence[Operation], views: Sequence[Operation]
) -> list[Operation]:
    """What is left of `ops`, the closure of a group, without its views."""
    kept = [op for op in ops if not isinstance(op, VIEWS) or op not in views]
    used = {v.owner for op in kept for inner in op.walk() for v in inner.operands}
    return [op for op in kept if op not in views or op in used]


def _clone_before(call: func.CallOp, ops: Sequence[Operation], known: dict[SSAValue, SSAValue]) -> None:
    for op in ops:
        copy = op.clone(known)
        copy.location = op.location
        Rewriter.insert_op(copy, InsertPoint.before(call))
        known.update(zip(op.results, copy.results, strict=True))


def _is_outside(value: SSAValue, op: Operation, ops: Sequence[Operation]) -> bool:
    owner = value.owner
    if isinstance(owner, Block):
        return owner is op.parent
    return owner.parent is op.parent and owner not in ops


def _closure(group: Sequence[Operation | Block], group_of: Mapping[Operation, int], number: int) -> list[Operation]:
    """The ops of a group and all that only feeds them, in program order."""
    ops = [op for op in group if isinstance(op, Operation)]
    if not ops:
        return []
    block = ops[0].parent
    assert block is not None
    needed: set[Operation] = set()
    pending = list(ops)
    while pending:
        op = pending.pop()
        if op in needed or op.parent is not block or group_of.get(op, number) != number:
            continue
        needed.add(op)
        pending += [v.owner for inner in op.walk() for v in inner.operands if isinstance(v.owner, Operation)]
    return [op for op in block.ops if op in needed]


def _function(
    name: str, kernel: func.FuncOp, ops: Sequence[Operation], operands: Sequence[SSAValue], results: Sequence[SSAValue]
) -> func.FuncOp:
    block = Block(arg_types=[v.type for v in operands])
    mapper: dict[SSAValue, SSAValue] = dict(zip(operands, block.args, strict=True))
    for arg, value in zip(block.args, operands, strict=True):
        arg.name_hint = value.name_hint
    for op in ops:
        block.add_op(op.clone(mapper))
    block.add_op(func.ReturnOp(*[mapper[v] for v in results]))
    types = ([v.type for v in operands], [v.type for v in results])
    return func.FuncOp(name, types, Region(block), visibility=kernel.sym_visibility)
