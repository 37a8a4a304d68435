# SPDX-License-Identifier: Apache-2.0
"""Where the processor has to wait: what may not be complete, forward over the ops of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from penstock.dialects.accel import BarrierOp, ReadyOp, TokenType, WaitOp
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.analysis.loops import trip_count

Pending = frozenset[SSAValue]
"""The tokens that may be of commands that are not complete."""


@dataclass
class Waiting:
    """
    Before which ops the processor waits, each as late as it can, and for which tokens.

    `complete` says which of the pending tokens are known to be complete when one of them has been waited for. With
    `early`, a loop waits once before it where it would wait in each iteration for what is outside.
    """

    complete: Callable[[SSAValue, Pending], Sequence[SSAValue]]
    early: bool
    before: dict[Operation, Sequence[SSAValue]] = field(default_factory=dict[Operation, Sequence[SSAValue]])

    def block(self, block: Block, pending: Pending) -> Pending:
        """What may not be complete at the end of a block, which begins with `pending`, all its waits noted."""
        for op in block.ops:
            match op:
                case BarrierOp():
                    pending = frozenset()
                case _ if isinstance(op, CommandOp | WaitOp):
                    pending = self._wait(op, op.tokens if isinstance(op, WaitOp) else op.dependencies, pending)
                    if isinstance(op, CommandOp):
                        pending |= {op.token}
                case ReadyOp():
                    if not pending.isdisjoint(op.dependencies):
                        pending |= {op.token}
                case scf.ForOp():
                    pending = self.loop(op, pending)
                case scf.IfOp():
                    ends = [self.block(region.block, pending) for region in op.regions if region.blocks]
                    tokens = {result for result in op.results if isinstance(result.type, TokenType)}
                    pending = pending.union(*ends, tokens)
                case _:
                    pass
        return pending

    def _wait(self, op: Operation, tokens: Sequence[SSAValue], pending: Pending) -> Pending:
        """The last first: it may be known by it that the others are complete."""
        needed: list[SSAValue] = []
        for token in reversed(tokens):
            if token in pending:
                found = self.complete(token, pending)
                needed[:0] = found
                pending = pending.difference(found)
        if needed:
            self.before[op] = needed
        return pending

    def loop(self, op: scf.ForOp, pending: Pending) -> Pending:
        """What may not be complete after a loop."""
        inside, after = self._loop(op, pending)
        if self.early and pending:
            fewer, after_fewer = self._loop(op, frozenset())
            if len(fewer) < len(inside):
                inside, after = {**fewer, op: ()}, after_fewer
        self.before |= inside
        return after

    def _loop(self, op: scf.ForOp, pending: Pending) -> tuple[dict[Operation, Sequence[SSAValue]], Pending]:
        """The waits of a loop that begins with `pending`, and what may not be complete after it."""
        body = op.body.block
        terminator = body.last_op
        assert isinstance(terminator, scf.YieldOp)
        carried = [n for n, value in enumerate(op.iter_args) if isinstance(value.type, TokenType)]
        begin = pending | {body.args[1 + n] for n in carried if op.iter_args[n] in pending}
        while True:
            trial = Waiting(self.complete, self.early)
            end = trial.block(body, begin)
            # What an iteration leaves, the next one begins with.
            again = begin | end | {body.args[1 + n] for n in carried if terminator.operands[n] in end}
            if again == begin:
                break
            begin = again
        results = {op.results[n] for n in carried if terminator.operands[n] in end or op.iter_args[n] in pending}
        left = end if trip_count(op) else end | pending
        return trial.before, left | results


@dataclass(frozen=True)
class Completion:
    """What is complete when a token is, where a unit completes its commands in the order in which they are issued."""

    issued: Callable[[SSAValue], tuple[str, Operation] | None]
    """The unit and the op of the command that a token is of; None for what is no command's."""
    is_none: Callable[[SSAValue], bool]
    """Whether a token is complete from the beginning."""

    def implies(
        self, token: SSAValue, other: SSAValue, seen: frozenset[tuple[SSAValue, SSAValue]] = frozenset()
    ) -> bool:
        """Whether `other` is complete when `token` is: it is of an earlier command of its unit, in every iteration."""
        if token is other or self.is_none(other):
            return True
        mine, theirs = self.issued(token), self.issued(other)
        if mine is not None and theirs is not None:
            (unit, op), (other_unit, earlier) = mine, theirs
            return unit == other_unit and op.parent is earlier.parent and earlier.is_before_in_block(op)
        both = carried(token), carried(other)
        if both[0] is None or both[1] is None or both[0][0] is not both[1][0] or (token, other) in seen:
            return False
        (loop, number), (_, second) = both[0], both[1]
        terminator = loop.body.block.last_op
        assert terminator is not None
        ways = [(terminator.operands[number], terminator.operands[second])]
        ways += [(loop.iter_args[number], loop.iter_args[second])]
        return all(self.implies(*way, seen | {(token, other)}) for way in ways)

    def least(self, tokens: Sequence[SSAValue]) -> list[SSAValue]:
        """Those of some tokens that are enough to wait for, in their order."""
        kept: list[SSAValue] = []
        for token in reversed(tokens):
            if not any(self.implies(each, token) for each in kept):
                kept.insert(0, token)
        return kept


def carried(token: SSAValue) -> tuple[scf.ForOp, int] | None:
    """The loop that carries a token, in it or after it, and as which of its values."""
    if isinstance(token, BlockArgument):
        loop = token.owner.parent_op()
        return (loop, token.index - 1) if isinstance(loop, scf.ForOp) else None
    owner = token.owner
    return (owner, list[SSAValue](owner.results).index(token)) if isinstance(owner, scf.ForOp) else None
