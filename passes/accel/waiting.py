"""Where the processor has to wait: what may not be complete, forward over the ops of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

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
