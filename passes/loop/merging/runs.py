"""Runs of calls of which one kernel may be made: what they access, and whether there is room on chip for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.analysis.memory.liveness import ProgramTime
from penstock.passes.analysis.memory.storage import VIEWS
from penstock.passes.planning.problem import Interval, merge_intervals
from penstock.passes.schedule.scope_offsets import ScopeOffsets


def is_call_of(op: Operation, kernels: Mapping[str, func.FuncOp]) -> bool:
    """Whether an op calls one of these kernels."""
    return isinstance(op, func.CallOp) and op.callee.string_value() in kernels


def _root(value: SSAValue) -> SSAValue:
    """What a memref is a view of."""
    while isinstance(value.owner, VIEWS):
        value = value.owner.operands[0]
    return value


@dataclass
class Run:
    """Calls of kernels on the machine with nothing between them but views, constants and allocations."""

    calls: list[func.CallOp]

    @property
    def names(self) -> list[str]:
        """The kernels that are called."""
        return [call.callee.string_value() for call in self.calls]

    def storages(self) -> dict[SSAValue, list[SSAValue]]:
        """What the calls access, and as which views of it."""
        found: dict[SSAValue, dict[SSAValue, None]] = {}
        for value in (value for call in self.calls for value in call.arguments):
            found.setdefault(_root(value), {})[value] = None
        return {root: list(views) for root, views in found.items()}

    def stays_inside(self, root: SSAValue) -> bool:
        """Whether a buffer in a scope is used by these calls alone, and may become one of theirs."""
        pending, inside = [root], set[Operation](self.calls)
        while pending:
            for use in pending.pop().uses:
                if isinstance(use.operation, VIEWS):
                    pending.append(use.operation.results[0])
                elif use.operation not in inside:
                    return False
        return isinstance(root.owner, ScopedAllocation) and root.owner.scope is not None


class Room:
    """Whether there is room on chip for several kernels as one, beside what @main keeps in scopes while they run."""

    def __init__(self, module: ModuleOp, entry: func.FuncOp, machine: Mapping[str, func.FuncOp], target: TargetOp):
        self._machine, self._target = machine, target
        self._time = ProgramTime(module)
        placed = (op for op in entry.walk() if isinstance(op, ScopedAllocation) and op.scope is not None)
        self._kept = {op: self._time.lifetime(op.results[0]) for op in placed if op.byte_offset is not None}

    def is_enough(self, run: Run) -> bool:
        """Whether all that is kept during one of the calls may be kept during all, but for what is theirs alone."""
        spans = {call: self._time.spans(call) for call in run.calls}
        held = {call: [op for op in self._kept if self._is_alive(op, spans[call])] for call in run.calls}
        passing = {op for each in held.values() for op in each if not run.stays_inside(op.results[0])}
        for call in run.calls:
            bytes_of: dict[str, list[Interval]] = {}
            for op in dict.fromkeys((*passing, *held[call])):
                bytes_of.setdefault(op.scope or "", []).append(self._bytes(op))
            if any(low < end for each in bytes_of.values() for (_, end), (low, _) in pairwise(sorted(each))):
                return False
            kept = {scope: merge_intervals(each) for scope, each in bytes_of.items()}
            offsets = ScopeOffsets(self._machine[call.callee.string_value()], self._target, kept)
            if not all(map(offsets.has_room, kept)):
                return False
        return True

    def _is_alive(self, op: ScopedAllocation, spans: Sequence[Interval]) -> bool:
        return any(a < end and start < b for a, b in self._kept[op] for start, end in spans)

    def _bytes(self, op: ScopedAllocation) -> Interval:
        offset, granule = op.byte_offset or 0, self._target.scope(op.scope or "").granule_bytes
        return offset, offset + -(-op.size_in_bytes // granule) * granule


def runs(block: Block, machine: Mapping[str, func.FuncOp], most: int, room: Room) -> Iterator[Run]:
    """The runs of two calls and more, as they stand, the longest that there is room for first."""
    for calls in _neighbours(block, machine):
        while calls:
            lengths = range(min(len(calls), most or len(calls)), 0, -1)
            length = next(n for n in lengths if n == 1 or room.is_enough(Run(calls[:n])))
            if length > 1:
                yield Run(calls[:length])
            calls = calls[length:]


def _neighbours(block: Block, machine: Mapping[str, func.FuncOp]) -> Iterator[list[func.CallOp]]:
    """Calls on the machine with nothing between them but views, constants and allocations."""
    calls: list[func.CallOp] = []
    for op in block.ops:
        if isinstance(op, func.CallOp) and is_call_of(op, machine):
            calls.append(op)
        elif not isinstance(op, (*VIEWS, ScopedAllocation)) and not _is_harmless(op):
            yield calls
            calls = []
    yield calls


def _is_harmless(op: Operation) -> bool:
    """Whether an op may stand between two calls: it makes a buffer, or a constant."""
    return op.name in ("memref.alloc", "memref.alloca", "memref.dealloc", "arith.constant")
