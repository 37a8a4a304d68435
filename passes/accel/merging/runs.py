# SPDX-License-Identifier: Apache-2.0
"""Runs of calls of which one kernel may be made: what they access, and whether there is room on chip for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.accel.merging.places import bytes_of, meet
from penstock.passes.analysis.memory.liveness import ProgramTime
from penstock.passes.analysis.memory.storage import VIEWS


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
    """Whether several kernels may be one, beside what @main keeps in scopes while they run."""

    def __init__(self, module: ModuleOp, entry: func.FuncOp, machine: Mapping[str, func.FuncOp], target: TargetOp):
        self._target = target
        self._time = ProgramTime(module)
        self._kept = {op: self._time.lifetime(op.results[0]) for op in placed(entry)}
        self._own = {name: [bytes_of(op, target) for op in placed(kernel)] for name, kernel in machine.items()}

    def held(self, call: func.CallOp) -> list[ScopedAllocation]:
        """What @main keeps in scopes during a call."""
        spans = self._time.spans(call)
        return [
            op
            for op, alive in self._kept.items()
            if any(a < end and start < b for a, b in alive for start, end in spans)
        ]

    def is_enough(self, run: Run) -> bool:
        """Whether what is kept beyond a run has bytes that nothing else has during any of the calls."""
        held = dict.fromkeys(op for call in run.calls for op in self.held(call))
        beyond = [bytes_of(op, self._target) for op in held if not run.stays_inside(op.results[0])]
        inside = [bytes_of(op, self._target) for op in held if run.stays_inside(op.results[0])]
        inside += [each for name in set(run.names) for each in self._own[name]]
        return not any(meet(one, other) for number, one in enumerate(beyond) for other in (*beyond[:number], *inside))


def placed(function: func.FuncOp) -> list[ScopedAllocation]:
    """The buffers in scopes that a function makes, and that have an offset."""
    made = (op for op in function.walk() if isinstance(op, ScopedAllocation))
    return [op for op in made if op.scope is not None and op.byte_offset is not None]


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
