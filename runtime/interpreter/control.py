# SPDX-License-Identifier: Apache-2.0
"""Control ops as Python source: `scf` and `func`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import cf, func, scf
from xdsl.ir import Block, Operation, Region, SSAValue

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.upstream.cf import cases_of, handed_to_successors
from penstock.runtime.interpreter.registry import emits
from penstock.runtime.interpreter.source import SourceWriter


def _body(block: Block) -> tuple[list[Operation], Sequence[SSAValue]]:
    """The ops of a block without its terminator, and what the terminator hands on."""
    *ops, terminator = block.ops
    return ops, terminator.operands


def _assign_all(writer: SourceWriter, targets: Sequence[SSAValue], sources: Sequence[str]) -> None:
    """Assign several values at once, so that none is read after it has changed."""
    if targets:
        writer.line(
            f"{''.join(f'{writer.name(target)}, ' for target in targets)} = {''.join(f'{s}, ' for s in sources)}"
        )


def _positive(step: int) -> int:
    if step <= 0:
        raise ValueError(f"the step of a loop is {step}, it must be positive")
    return step


@emits(scf.ForOp)
def _emit_for(writer: SourceWriter, op: scf.ForOp) -> None:
    block = op.body.block
    induction, carried = block.args[0], block.args[1:]
    ops, yielded = _body(block)
    bounds = 3  # the operands before those that are carried
    _assign_all(writer, carried, [
        _handed_on(writer, op, bounds + number, value, argument)
        for number, (value, argument) in enumerate(zip(op.iter_args, carried, strict=True))
    ])  # fmt: skip
    step = writer.name(op.step)
    if op.step not in writer.constants or writer.constants[op.step] <= 0:
        step = f"{writer.bind(_positive, 'positive')}({step})"
    if op.lb in writer.non_negative:
        writer.non_negative.add(induction)
    if op.lb in writer.bits and op.ub in writer.bits:
        writer.bits[induction] = max(writer.bits[op.lb], writer.bits[op.ub])
    writer.line(f"for {writer.name(induction)} in range({writer.name(op.lb)}, {writer.name(op.ub)}, {step}):")
    with writer.indented():
        writer.defined(carried)
        writer.ops(ops)
        terminator = block.last_op
        assert terminator is not None
        leaving = [
            _handed_on(writer, terminator, number, value, argument)
            for number, (value, argument) in enumerate(zip(yielded, carried, strict=True))
        ]
        if [writer.name(value) for value in carried] != leaving:
            _assign_all(writer, carried, leaving)
    _assign_all(writer, op.results, [writer.name(value) for value in carried])
    writer.defined(op.results)


def _handed_on(writer: SourceWriter, op: Operation, number: int, value: SSAValue, carried: SSAValue) -> str:
    """What `op` hands to the loop as `carried`: its operand, or a copy where the loop may overwrite it."""
    name = writer.name(value)
    if not writer.ownership.is_owned(carried) or writer.ownership.may_take(op, number):
        return name
    return f"{name}.copy()"


@emits(scf.IfOp)
def _emit_if(writer: SourceWriter, op: scf.IfOp) -> None:
    writer.line(f"if {writer.name(op.cond)}:")
    with writer.indented():
        _emit_branch(writer, op.true_region, op.results)
    if op.false_region.blocks:
        writer.line("else:")
        with writer.indented():
            _emit_branch(writer, op.false_region, op.results)
    writer.defined(op.results)


def _emit_branch(writer: SourceWriter, region: Region, results: Sequence[SSAValue]) -> None:
    ops, yielded = _body(region.block)
    writer.ops(ops)
    _assign_all(writer, results, [writer.name(value) for value in yielded])


@emits(scf.ExecuteRegionOp)
def _emit_execute_region(writer: SourceWriter, op: scf.ExecuteRegionOp) -> None:
    if len(op.region.blocks) == 1:
        _emit_branch(writer, op.region, op.results)
    else:
        _emit_blocks(writer, op.region, op.results)
    writer.defined(op.results)


def _emit_blocks(writer: SourceWriter, region: Region, results: Sequence[SSAValue]) -> None:
    """A region of several blocks: a loop that executes the block whose number a variable holds."""
    numbers = {block: number for number, block in enumerate(region.blocks)}
    at = writer.bind(region, "block")
    writer.line(f"{at} = 0")
    writer.line("while True:")
    with writer.indented():
        for block, number in numbers.items():
            writer.line(f"{'elif' if number else 'if'} {at} == {number}:")
            with writer.indented():
                writer.defined(block.args if number else ())
                *ops, terminator = block.ops
                writer.ops(ops)
                match terminator:
                    case func.ReturnOp():
                        writer.ops([terminator])
                    case scf.YieldOp():
                        _assign_all(writer, results, [writer.name(value) for value in terminator.operands])
                        writer.line("break")
                    case _:
                        _emit_jump(writer, terminator, at, numbers)


def _emit_jump(writer: SourceWriter, terminator: Operation, at: str, numbers: Mapping[Block, int]) -> None:
    """Set the number of the block that comes next, and its arguments."""
    successors = handed_to_successors(terminator)
    match terminator:
        case cf.BranchOp():
            conditions = ["if True:"]
        case cf.ConditionalBranchOp():
            conditions = [f"if {writer.name(terminator.cond)}:", "else:"]
        case cf.SwitchOp():
            cases = cases_of(terminator)
            flag = writer.name(terminator.flag)
            conditions = [f"{'elif' if n else 'if'} {flag} == {case}:" for n, case in enumerate(cases)]
            conditions.append("else:" if cases else "if True:")
            successors = [*successors[1:], successors[0]]
        case _:
            raise UserError(f"{terminator.name} is not interpreted", loc=location_of(terminator), status=UNSUPPORTED)
    for condition, (target, values) in zip(conditions, successors, strict=True):
        writer.line(condition)
        with writer.indented():
            _assign_all(writer, target.args, [writer.name(value) for value in values])
            writer.line(f"{at} = {numbers[target]}")


@emits(scf.IndexSwitchOp)
def _emit_index_switch(writer: SourceWriter, op: scf.IndexSwitchOp) -> None:
    keyword = "if"
    for case, region in zip(op.cases.get_values(), op.case_regions, strict=True):
        writer.line(f"{keyword} {writer.name(op.arg)} == {case}:")
        keyword = "elif"
        with writer.indented():
            _emit_branch(writer, region, op.results)
    writer.line("else:" if keyword == "elif" else "if True:")
    with writer.indented():
        _emit_branch(writer, op.default_region, op.results)
    writer.defined(op.results)


@emits(scf.WhileOp)
def _emit_while(writer: SourceWriter, op: scf.WhileOp) -> None:
    before, after = op.before_region.block, op.after_region.block
    leaving, ending = before.last_op, after.last_op
    assert leaving is not None
    assert ending is not None
    _assign_all(writer, before.args, [
        _handed_on(writer, op, number, value, argument)
        for number, (value, argument) in enumerate(zip(op.arguments, before.args, strict=True))
    ])  # fmt: skip
    writer.line("while True:")
    with writer.indented():
        writer.defined(before.args)
        ops, (condition, *handed) = _body(before)
        writer.ops(ops)
        names = [
            _handed_on(writer, leaving, number, value, argument)
            for number, (value, argument) in enumerate(zip(handed, after.args, strict=True), 1)
        ]
        writer.line(f"if not {writer.name(condition)}:")
        with writer.indented():
            _assign_all(writer, op.results, names)
            writer.line("break")
        _assign_all(writer, after.args, names)
        writer.defined(after.args)
        ops, yielded = _body(after)
        writer.ops(ops)
        _assign_all(writer, before.args, [
            _handed_on(writer, ending, number, value, argument)
            for number, (value, argument) in enumerate(zip(yielded, before.args, strict=True))
        ])  # fmt: skip
    writer.defined(op.results)


@emits(cf.AssertOp)
def _emit_assert(writer: SourceWriter, op: cf.AssertOp) -> None:
    writer.line(f"if not {writer.name(op.arg)}:")
    with writer.indented():
        writer.line(f"{writer.bind(_refuse, 'refuse')}({writer.bind(op, 'op')})")


def _refuse(op: cf.AssertOp) -> None:
    raise UserError(op.msg.data, loc=location_of(op))


@emits(scf.ParallelOp)
def _emit_parallel(writer: SourceWriter, op: scf.ParallelOp) -> None:
    """In program order, which is one of the orders that it permits."""
    block = op.body.block
    terminator = block.last_op
    assert isinstance(terminator, scf.ReduceOp)
    _assign_all(writer, op.results, [writer.name(value) for value in op.initVals])
    _emit_parallel_loops(writer, op, terminator, 0)
    writer.defined(op.results)


def _emit_parallel_loops(writer: SourceWriter, op: scf.ParallelOp, reduce: scf.ReduceOp, depth: int) -> None:
    block = op.body.block
    if depth < len(op.lowerBound):
        lower, upper, step = op.lowerBound[depth], op.upperBound[depth], op.step[depth]
        if lower in writer.non_negative:
            writer.non_negative.add(block.args[depth])
        stepped = f"{writer.bind(_positive, 'positive')}({writer.name(step)})"
        writer.line(
            f"for {writer.name(block.args[depth])} in range({writer.name(lower)}, {writer.name(upper)}, {stepped}):"
        )
        with writer.indented():
            _emit_parallel_loops(writer, op, reduce, depth + 1)
        return
    writer.ops(_body(block)[0])
    for result, operand, region in zip(op.results, reduce.args, reduce.reductions, strict=True):
        _assign_all(writer, region.block.args, [writer.name(result), writer.name(operand)])
        ops, (reduced,) = _body(region.block)
        writer.ops(ops)
        writer.assign(result, writer.name(reduced))


@emits(func.FuncOp)
def _emit_function(writer: SourceWriter, op: func.FuncOp) -> None:
    block = op.body.blocks[0]
    writer.defined(block.args)
    if block.next_block is None:
        writer.ops(block.ops)
    else:
        _emit_blocks(writer, op.body, ())


@emits(func.CallOp)
def _emit_call(writer: SourceWriter, op: func.CallOp) -> None:
    target = f"{writer.names(op.results)} = " if op.results else ""
    call = writer.bind(writer.execution.call, "call")
    callee = op.callee.string_value()
    writer.line(f"{target}{call}({callee!r}, ({writer.names(op.arguments)}), {writer.bind(op, 'op')})")
    writer.defined(op.results)


@emits(func.ReturnOp)
def _emit_return(writer: SourceWriter, op: func.ReturnOp) -> None:
    writer.line(f"return ({writer.names(op.arguments)})")
