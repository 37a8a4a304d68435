# SPDX-License-Identifier: Apache-2.0
"""
What is known of branches and loops before the program runs.

- A `graph.if` whose condition is constant is the branch that is taken.
- A `graph.loop` of one iteration is its body.
- What a loop carries, or stacks, and nothing reads, is removed, with what computes it.
- What a loop carries and never changes is one of its inputs. A constant that a region reads stands in it, where the
  passes see it, and what it does not read is no input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.graph import ConstantOp, IfOp, LoopOp, ReshapeOp, SliceOp, YieldOp, dense_of, tensor_of
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.values import constant_array

Control = IfOp | LoopOp
ControlT = TypeVar("ControlT", bound=Control)


def resolve_control(block: Block, store: WeightStore) -> None:
    """Apply these rules to the ops of a block."""
    for op in list(block.ops):
        if isinstance(op, IfOp):
            op = _with_own_inputs(op)
            if (condition := constant_array(op.condition, store)) is not None:
                _inline(op, op.then_body.block if condition.item() else op.else_body.block, op.inputs)
        elif isinstance(op, LoopOp):
            op = _with_own_inputs(_without_invariants(_without_dead(op)))
            if op.is_counted and op.most == 1:
                _unroll(op)


def _with_own_inputs(op: ControlT) -> ControlT:
    """The op without inputs that nothing reads, or that are constants: those stand in the regions."""
    first = [len(region.block.args) - len(op.inputs) for region in op.regions]

    def is_needless(number: int) -> bool:
        arguments = [region.block.args[at + number] for region, at in zip(op.regions, first, strict=True)]
        return isinstance(op.inputs[number].owner, ConstantOp) or not any(each.uses for each in arguments)

    needless = [number for number in range(len(op.inputs)) if is_needless(number)]
    if not needless:
        return op
    for region, at in zip(op.regions, first, strict=True):
        for number in reversed(needless):
            argument = region.block.args[at + number]
            if isinstance(constant := op.inputs[number].owner, ConstantOp) and argument.uses:
                Rewriter.insert_op(copy := constant.clone(), InsertPoint.at_start(region.block))
                argument.replace_all_uses_with(copy.result)
            region.block.erase_arg(argument)
    kept = [value for number, value in enumerate(op.inputs) if number not in needless]
    made = rebuilt_control(op, kept, op.inits if isinstance(op, LoopOp) else ())
    replace_control(op, [made], made.outputs)
    return made


def _without_dead(op: LoopOp) -> LoopOp:
    """The loop without what it carries that no result depends on, and without lines that nothing reads."""
    block, last = op.body.block, op.terminator
    first, carried = len(last.values) - len(op.outputs), len(op.inits)
    live = {number for number, output in enumerate(op.outputs) if output.uses}
    pending = [value for at, value in enumerate(last.values) if at < first or at - first in live]
    needed: set[SSAValue] = set()
    while pending:
        value = pending.pop()
        if value in needed:
            continue
        needed.add(value)
        if isinstance(value.owner, Operation):
            pending.extend(value.owner.operands)
        elif (argument := block.args.index(value)) in range(1, carried + 1):  # pyright: ignore[reportArgumentType]
            live.add(argument - 1)
            pending.append(last.values[first + argument - 1])
    if not live or len(live) == len(op.outputs):
        return op
    Rewriter.replace_op(
        last, YieldOp(*(each for at, each in enumerate(last.values) if at < first or at - first in live))
    )
    for each in list(block.ops)[-2::-1]:
        if needed.isdisjoint(each.results):
            Rewriter.erase_op(each)
    for number in reversed(range(carried)):
        if number not in live:
            block.erase_arg(block.args[1 + number])
    made = rebuilt_control(op, op.inputs, [value for number, value in enumerate(op.inits) if number in live])
    results = iter(made.outputs)
    replace_control(op, [made], [next(results) if number in live else None for number in range(len(op.outputs))])
    return made


def _without_invariants(op: LoopOp) -> LoopOp:
    """The loop with what it carries unchanged among its inputs."""
    block, last = op.body.block, op.terminator
    fixed = [number for number, value in enumerate(op.nexts) if value is block.args[1 + number]]
    if not fixed:
        return op
    first = 0 if op.condition is None else 1
    Rewriter.replace_op(last, YieldOp(*(each for at, each in enumerate(last.values) if at - first not in fixed)))
    for number in fixed:
        carried = block.args[1 + number]
        argument = block.insert_arg(carried.type, len(block.args), carried.location)
        argument.name_hint = carried.name_hint
        carried.replace_all_uses_with(argument)
    for number in reversed(fixed):
        block.erase_arg(block.args[1 + number])
    inits = [value for number, value in enumerate(op.inits) if number not in fixed]
    made = rebuilt_control(op, [*op.inputs, *(op.inits[number] for number in fixed)], inits)
    results = iter(made.outputs)
    values = [op.inits[number] if number in fixed else next(results) for number in range(len(op.outputs))]
    replace_control(op, [made], values)
    return made


def rebuilt_control(op: ControlT, inputs: Sequence[SSAValue], inits: Sequence[SSAValue]) -> ControlT:
    """The op with its regions, as they are by now, on other operands, to be put in its place by `replace_control`."""
    blocks = [region.detach_block(region.block) for region in op.regions]
    if isinstance(op, IfOp):
        made = IfOp(op.condition, inputs, blocks[0], blocks[1], [value.type for value in op.outputs])
    else:
        made = LoopOp(
            inits,
            op.slices,
            inputs,
            blocks[0],
            trips=None if op.trips is None else op.trips.value.data,
            reverse=op.reverse is not None,
            count=op.count,
            condition=op.condition,
        )
    made.location = op.location
    made.attributes.update(op.attributes)
    return cast(ControlT, made)


def _unroll(op: LoopOp) -> None:
    """The body in place of a loop of one iteration."""
    zero = dense_of(np.asarray(0, np.int64))
    assert zero is not None
    ops: list[Operation] = [ConstantOp(zero)]
    lines: list[SSAValue] = []
    for value in op.slices:
        shape = tensor_of(value).get_shape()
        cut = SliceOp(value, starts=[0] * len(shape), sizes=[1, *shape[1:]])
        line = ReshapeOp(cut.result, shape[1:])
        ops += [cut, line]
        lines.append(line.result)
    for made in ops:
        made.location = op.location
    Rewriter.insert_op(ops, InsertPoint.before(op))
    _inline(op, op.body.block, [ops[0].results[0], *op.inits, *lines, *op.inputs])


def _inline(op: Control, block: Block, arguments: Sequence[SSAValue]) -> None:
    """The ops of a region of `op`, on what its arguments stand for, in place of `op`."""
    for argument, value in zip(block.args, arguments, strict=True):
        argument.replace_all_uses_with(value)
    last = block.last_op
    assert isinstance(last, YieldOp)
    values: list[SSAValue] = list(last.values)
    Rewriter.erase_op(last)
    ops = list(block.ops)
    for each in ops:
        each.detach()
    for number in range(len(op.inits) if isinstance(op, LoopOp) else len(values), len(values)):
        # The one line of a result.
        line = ReshapeOp(values[number], tensor_of(op.outputs[number]).get_shape())
        line.location = op.location
        ops.append(line)
        values[number] = line.result
    replace_control(op, ops, values)


def replace_control(op: Control, ops: Sequence[Operation], values: Sequence[SSAValue | None]) -> None:
    """Put other ops, and values for its results, None for one that nothing reads, in the place of an op."""
    Rewriter.insert_op(ops, InsertPoint.before(op))
    Rewriter.replace_op(op, [], values)
