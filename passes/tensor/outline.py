"""Outlining: a kernel becomes several, each with some of its ops, and every call of it calls of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter


def outline(kernel: func.FuncOp, groups: Sequence[Sequence[GenericOp]]) -> list[func.FuncOp]:
    """
    Replace `kernel` by one kernel a group, in this order, and return these.

    Every generic with a use is in one group, but for those that only initialise others: they, like all that is
    no generic (empties, pads, constants), are cloned into each group that needs them. A group takes what it
    uses of the kernel's arguments and of earlier groups, and returns what later groups or the kernel's callers
    use.
    """
    group_of: dict[Operation, int] = {op: number for number, group in enumerate(groups) for op in group}
    returned = kernel.body.block.last_op
    assert isinstance(returned, func.ReturnOp)
    inside = [_closure(group, group_of, number) for number, group in enumerate(groups)]
    taken = [
        list(dict.fromkeys(v for op in ops for inner in op.walk() for v in inner.operands if _is_outside(v, op, ops)))
        for ops in inside
    ]
    parts: list[func.FuncOp] = []
    results: list[list[SSAValue]] = []
    for number, group in enumerate(groups):
        later = {v for values in taken[number + 1 :] for v in values} | set(returned.operands)
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
            for part, operands, values in zip(parts, taken, results, strict=True):
                piece = func.CallOp(part.sym_name.data, [known[v] for v in operands], [v.type for v in values])
                piece.location = call.location
                Rewriter.insert_op(piece, InsertPoint.before(call))
                known.update(zip(values, piece.results, strict=True))
            Rewriter.replace_op(call, [], [known[v] for v in returned.operands])
    Rewriter.erase_op(kernel)
    return parts


def _is_outside(value: SSAValue, op: Operation, ops: Sequence[Operation]) -> bool:
    owner = value.owner
    if isinstance(owner, Block):
        return owner is op.parent
    return owner.parent is op.parent and owner not in ops


def _closure(group: Sequence[GenericOp], group_of: Mapping[Operation, int], number: int) -> list[Operation]:
    """The group and all that only feeds it, in program order."""
    block = group[0].parent
    assert block is not None
    needed: set[Operation] = set()
    pending: list[Operation] = list(group)
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
