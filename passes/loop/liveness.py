"""
When buffers are alive, on the time line of a function's ops in program order.

An op takes one step, an op with regions as many as its regions hold and one more, a call as many as its caller is told.
A buffer is alive from the first op that touches it, itself or through a view, to the end of the last. Where such
an op stands in a loop that does not create the buffer, the buffer is alive throughout that loop: the next round
may read what this one wrote, and no write is taken for a complete one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue
from xdsl.traits import IsTerminator, NoMemoryEffect

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.planning.problem import Interval


def _no_steps(call: func.CallOp) -> int:
    return 0


class TimeLine:
    """The steps at which each op of a function begins and ends; `call_length` says how long a callee takes."""

    def __init__(self, function: func.FuncOp, call_length: Callable[[func.CallOp], int] = _no_steps):
        self._begin: dict[Operation, int] = {}
        self._end: dict[Operation, int] = {}
        self._call_length = call_length
        self.length = self._number(function, 0)
        """Steps of the whole function."""

    def _number(self, op: Operation, step: int) -> int:
        self._begin[op] = step
        step += 1
        for region in op.regions:
            for block in region.blocks:
                for inner in block.ops:
                    step = self._number(inner, step)
        if isinstance(op, func.CallOp):
            step += self._call_length(op)
        self._end[op] = step
        return step

    def span(self, op: Operation) -> Interval:
        """The half-open steps of `op`, what it holds included."""
        return self._begin[op], self._end[op]

    def lifetime(self, buffer: SSAValue) -> Interval:
        """When a buffer, which an op of this function creates, is alive; one that is not used is for one step."""
        assert isinstance(buffer.owner, Operation)
        lower, upper = self.span(buffer.owner)
        spans = [self._as_seen_from(buffer.owner, op) for op in accesses(buffer)]
        if not spans:
            return lower, upper
        return min(lower for lower, _ in spans), max(upper for _, upper in spans)

    def _as_seen_from(self, creator: Operation, op: Operation) -> Interval:
        """The steps of `op`, or of the outermost loop around it that is not around `creator`."""
        span = self.span(op)
        around = op
        while around.parent is not creator.parent:
            parent = around.parent_op()
            assert parent is not None
            around = parent
            if not isinstance(around, scf.IfOp):
                span = self.span(around)
        return span


def accesses(buffer: SSAValue) -> Iterator[Operation]:
    """
    The ops that touch a buffer, itself or through views.

    Raises UserError where a function returns it: then it outlives every plan.
    """
    seen = {buffer}
    aliases = [buffer]
    while aliases:
        alias = aliases.pop()
        for use in alias.uses:
            op = use.operation
            more = list(_aliases_through(op, use.index))
            for value in more:
                if value not in seen:
                    seen.add(value)
                    aliases.append(value)
            if isinstance(op, func.ReturnOp):
                raise UserError(
                    "a buffer that a function returns cannot be planned",
                    loc=location_of(op),
                    notes=["let the caller pass the memref that is written"],
                )
            if not (more and (op.has_trait(NoMemoryEffect) or op.has_trait(IsTerminator))):
                yield op


def _aliases_through(op: Operation, operand: int) -> Iterator[SSAValue]:
    """The memrefs that may be, or may view, what operand number `operand` of `op` is."""
    if isinstance(op, scf.ForOp):
        if operand >= 3:
            yield op.results[operand - 3]
            yield op.body.block.args[operand - 2]
        return
    if isinstance(op, scf.YieldOp):
        parent = op.parent_op()
        assert parent is not None
        yield parent.results[operand]
        if isinstance(parent, scf.ForOp):
            yield parent.body.block.args[operand + 1]
        return
    for result in op.results:
        if isinstance(result.type, MemRefType):
            yield result
