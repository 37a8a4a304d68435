# SPDX-License-Identifier: Apache-2.0
"""Removing the tokens of a kernel, and simplifying those that were inserted."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import DenseArrayBase, i32
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import DmaOp, ReadyOp, TokenType, WaitOp
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.analysis.loops import trip_count

SIZES = "operandSegmentSizes"


def set_dependencies(op: CommandOp, tokens: Sequence[SSAValue]) -> None:
    """Let a command come after these tokens, and no others."""
    sizes = op.properties[SIZES]
    assert isinstance(sizes, DenseArrayBase)
    numbers = [int(number) for number in sizes.get_values()]
    segment = 0 if isinstance(op, DmaOp) else 1
    start = sum(numbers[:segment])
    operands = list(op.operands)
    op.operands = [*operands[:start], *tokens, *operands[start + numbers[segment] :]]
    numbers[segment] = len(tokens)
    op.properties[SIZES] = DenseArrayBase.from_list(i32, numbers)


def strip(function: func.FuncOp) -> None:
    """Remove all tokens of a kernel: only barriers order anything then."""
    for op in list(function.walk()):
        if isinstance(op, CommandOp):
            set_dependencies(op, ())
        elif isinstance(op, WaitOp):
            Rewriter.erase_op(op)
    for op in list(function.walk(reverse=True)):
        if isinstance(op, scf.ForOp):
            tokens = [n for n, value in enumerate(op.iter_args) if isinstance(value.type, TokenType)]
            _remove(op, tokens, {n: op.iter_args[n] for n in tokens})
    for op in list(function.walk(reverse=True)):
        if isinstance(op, ReadyOp):
            Rewriter.erase_op(op)


def _remove(loop: scf.ForOp, numbers: Sequence[int], instead: dict[int, SSAValue]) -> None:
    """Remove values that a loop carries; `instead` is used for them inside and after it."""
    if not numbers:
        return
    body, gone = loop.body.block, set(numbers)
    terminator = body.last_op
    assert isinstance(terminator, scf.YieldOp)
    kept = [n for n in range(len(loop.iter_args)) if n not in gone]
    Rewriter.replace_op(terminator, scf.YieldOp(*(terminator.operands[n] for n in kept)))
    for number in sorted(gone, reverse=True):
        argument = body.args[1 + number]
        argument.replace_all_uses_with(instead[number])
        body.erase_arg(argument)
        loop.results[number].replace_all_uses_with(instead[number])
    new = scf.ForOp(loop.lb, loop.ub, loop.step, [loop.iter_args[n] for n in kept], loop.detach_region(loop.body))
    new.location = loop.location
    new.attributes = dict(loop.attributes)
    for old, result in zip(kept, new.results, strict=True):
        result.name_hint = loop.results[old].name_hint
        loop.results[old].replace_all_uses_with(result)
    Rewriter.insert_op(new, InsertPoint.before(loop))
    Rewriter.erase_op(loop)


def tidy(function: func.FuncOp, completed: SSAValue) -> None:
    """
    Remove tokens that nothing waits for, and those that a loop carries without changing them.

    `completed` is a token at the start of the kernel that is complete from the beginning; it stays, used or not.
    """
    changed = True
    while changed:
        changed = False
        needed = _needed(function)
        for op in list(function.walk()):
            if isinstance(op, scf.ForOp):
                changed |= _tidy_loop(op, needed, completed)
            elif isinstance(op, ReadyOp) and op.token is not completed:
                changed |= _tidy_join(op, completed)
    for op in list(function.walk(reverse=True)):
        if isinstance(op, CommandOp):
            waits = [token for token in op.dependencies if not is_completed(token)]
            if len(waits) < len(op.dependencies):
                set_dependencies(op, waits)
    for op in list(function.walk(reverse=True)):
        if isinstance(op, ReadyOp) and not op.token.uses and op.token is not completed:
            Rewriter.erase_op(op)


def _tidy_join(join: ReadyOp, completed: SSAValue) -> bool:
    tokens = list(dict.fromkeys(token for token in join.dependencies if not is_completed(token)))
    if len(tokens) < 2:
        join.token.replace_all_uses_with(tokens[0] if tokens else completed)
        Rewriter.erase_op(join)
        return True
    if shorter := len(tokens) < len(join.dependencies):
        join.operands = tokens
    return shorter


def is_completed(token: SSAValue) -> bool:
    """Whether a token is complete from the beginning."""
    return isinstance(token.owner, ReadyOp) and not token.owner.dependencies


def _tidy_loop(loop: scf.ForOp, needed: set[SSAValue], completed: SSAValue) -> bool:
    terminator = loop.body.block.last_op
    assert isinstance(terminator, scf.YieldOp)
    arguments, results = loop.body.block.args[1:], loop.results
    seen: dict[tuple[SSAValue, SSAValue], int] = {}
    last: dict[SSAValue, int] = {}
    instead: dict[int, SSAValue] = {}
    # Those of which only the result is used come last: any other with the same final value serves as well.
    for number in sorted(range(len(arguments)), key=lambda each: arguments[each] not in needed):
        init, value, argument = loop.iter_args[number], terminator.operands[number], arguments[number]
        if not isinstance(init.type, TokenType):
            continue
        if argument not in needed and trip_count(loop) and init is not completed:
            loop.operands[3 + number] = init = completed
        is_kept = needed.intersection((argument, results[number]))
        if (
            not is_kept
            or value is argument
            or value is init
            or _is_for_the_first_iteration(loop, number, value, needed)
        ):
            instead[number] = init
        elif (init, value) in seen:
            same = seen[init, value]
            argument.replace_all_uses_with(arguments[same])
            results[number].replace_all_uses_with(results[same])
            instead[number] = init
        elif argument not in needed and trip_count(loop) and value in last:
            results[number].replace_all_uses_with(results[last[value]])
            instead[number] = init
        else:
            seen[init, value] = number
            last.setdefault(value, number)
    _remove(loop, list(instead), instead)
    return bool(instead)


def _is_for_the_first_iteration(loop: scf.ForOp, number: int, value: SSAValue, needed: set[SSAValue]) -> bool:
    """
    Whether only commands of the first iteration wait for a token that a loop takes. They may do so in all iterations:
    a unit starts its commands in order, so that implies nothing new.
    """
    if not is_completed(value) or loop.results[number] in needed:
        return False
    return all(
        isinstance(use.operation, CommandOp) and _is_issued(use.operation, loop)
        for use in loop.body.block.args[1 + number].uses
    )


def _is_issued(op: Operation, loop: scf.ForOp) -> bool:
    """Whether a command is issued in each iteration of this loop around it."""
    while (parent := op.parent_op()) is not loop:
        if not isinstance(parent, scf.ForOp) or not trip_count(parent):
            return False
        op = parent
    return True


def _needed(function: func.FuncOp) -> set[SSAValue]:
    """The tokens that commands, or the processor, wait for, directly or through others."""
    pending = [token for op in function.walk() for token in _waited_for(op)]
    needed: set[SSAValue] = set()
    while pending:
        token = pending.pop()
        if token in needed:
            continue
        needed.add(token)
        owner = token.owner
        if isinstance(owner, ReadyOp):
            pending += owner.dependencies
        elif isinstance(owner, Block):
            loop, number = owner.parent_op(), owner.args.index(token) - 1
            assert isinstance(loop, scf.ForOp)
            pending += [loop.iter_args[number], _yielded(loop, number)]
        elif isinstance(owner, scf.ForOp):
            number = list[SSAValue](owner.results).index(token)
            pending.append(_yielded(owner, number))
            if not trip_count(owner):
                pending.append(owner.iter_args[number])
    return needed


def _waited_for(op: Operation) -> Sequence[SSAValue]:
    return op.dependencies if isinstance(op, CommandOp) else op.tokens if isinstance(op, WaitOp) else ()


def _yielded(loop: scf.ForOp, number: int) -> SSAValue:
    terminator = loop.body.block.last_op
    assert terminator is not None
    return terminator.operands[number]
