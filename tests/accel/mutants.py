# SPDX-License-Identifier: Apache-2.0
"""
Kernels with one thing left out of what orders their commands, and what becomes of them.

A token operand is left out by putting one in its place that is complete from the beginning: of a command, a join, a
wait, or one that a loop takes or hands on. A queue's push is left out together with the pop that receives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reachability import events, ordered
from xdsl.dialects import func
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import ReadyOp, TokenType
from penstock.dialects.diagnostics import location_of
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.hazards import Hazard, check
from penstock.passes.analysis.commands.program import Program
from penstock.passes.analysis.commands.trace import trace


@dataclass(frozen=True)
class Mutant:
    """A token operand that is left out."""

    op: Operation
    operand: int

    def __str__(self) -> str:
        return f"operand {self.operand} of {self.op.name} at {location_of(self.op)}"


def mutants(function: func.FuncOp) -> Iterator[Mutant]:
    """Every token operand in turn. While one is looked at it is left out, and afterwards it is as it was."""
    ready = ReadyOp()
    Rewriter.insert_op(ready, InsertPoint.at_start(function.body.block))
    try:
        for op in list(function.walk()):
            for number, value in enumerate(op.operands):
                if isinstance(value.type, TokenType) and value is not ready.token and not _is_nothing(value):
                    _set(op, number, ready.token)
                    try:
                        yield Mutant(op, number)
                    finally:
                        _set(op, number, value)
    finally:
        ready.detach()
        ready.erase()


def _is_nothing(value: SSAValue) -> bool:
    return isinstance(value.owner, ReadyOp) and not value.owner.dependencies


def _set(op: Operation, number: int, value: SSAValue) -> None:
    op.operands[number] = value


def keeps_order(one: Program, other: Program) -> bool:
    """Whether two programs of the same commands order them alike, by the long way."""
    mine, theirs = events(one), events(other)
    assert mine is not None
    assert theirs is not None
    return bool((ordered(mine, len(one.commands)) == ordered(theirs, len(other.commands))).all())


@dataclass(frozen=True)
class Verdict:
    """What the static check says of a mutant, and whether brute force finds the order unchanged."""

    mutant: str
    hazards: tuple[Hazard, ...]
    is_redundant: bool


def verdicts(function: func.FuncOp, target: TargetOp) -> Iterator[tuple[Mutant, Verdict]]:
    """Every mutant with its verdict, while it is in place."""
    whole = trace(function, target)
    for mutant in mutants(function):
        program = trace(function, target)
        hazards = tuple(check(program))
        yield mutant, Verdict(str(mutant), hazards, not hazards and keeps_order(whole, program))


def without_queue_token(program: Program, push: int, position: int, pop: int, place: int) -> Program:
    """The program without one push, of the command and at the position given, and without the pop that receives it."""
    from dataclasses import replace

    commands = list(program.commands)
    pushes = commands[push].pushes
    commands[push] = replace(commands[push], pushes=pushes[:position] + pushes[position + 1 :])
    pops = commands[pop].pops
    commands[pop] = replace(commands[pop], pops=pops[:place] + pops[place + 1 :])
    return replace(program, commands=commands)


def queue_mutants(program: Program) -> Iterator[Program]:
    """The program without each pair of a push and the pop that receives it, in turn."""
    for queue in program.machine.queues:
        pushes = [
            (number, at)
            for number, command in enumerate(program.commands)
            for at, name in enumerate(command.pushes)
            if name == queue.name
        ]
        pops = [
            (number, at)
            for number, command in enumerate(program.commands)
            for at, name in enumerate(command.pops)
            if name == queue.name
        ]
        for (push, position), (pop, place) in zip(pushes, pops[queue.initial :], strict=False):
            yield without_queue_token(program, push, position, pop, place)
