# SPDX-License-Identifier: Apache-2.0
"""
The buffers of a whole program as it runs, with transfers ahead of and behind the computation.

Every execution of a `mem.buffer` is a buffer of its own, alive from the first op that touches it to the last; time
counts the copies and structured ops that are executed. What is filled from off chip is there `ahead` iterations of its
loop earlier (outside of loops, one kernel earlier), what is emptied to the outside is there as many iterations longer:
the lifetimes of a pipelined schedule, from which the planner may find better than rings of a fixed depth. Results of
kernels that are small beside the scope stay in it until the last kernel that reads them has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.machine import find_target
from penstock.dialects.mem import BufferOp, CopyOp, scope_of, span_in_bytes
from penstock.passes.analysis.kernels import ENTRY, machine_kernels
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.storage import storage_of
from penstock.passes.planning.problem import Buffer, Problem

MAX_ITERATIONS = 6
"""At most so many iterations of each loop are followed: the later ones repeat them."""
RESIDENT = 16
"""A result stays on chip if it takes at most this part of the scope."""


@dataclass
class _Instance:
    """One execution of a buffer."""

    name: str
    size: int
    first: int | None = None
    last: int = 0


@dataclass
class _Leaving:
    """An instance that is being emptied, for so many more iterations."""

    instance: _Instance
    iterations: int


class _Trace:
    """Follows an execution."""

    def __init__(self, scope: str, granule: int, ahead: int):
        self.scope, self.granule, self.ahead = scope, granule, ahead
        self.clock = 0
        self.instances: list[_Instance] = []
        self.kernel_starts: list[int] = []
        self._now: dict[SSAValue, _Instance] = {}
        self._leaving: list[_Leaving] = []

    def add(self, name: str, size: int) -> _Instance:
        size = -(-size // self.granule) * self.granule
        self.instances.append(_Instance(f"{len(self.instances)} {name}", size))
        return self.instances[-1]

    def kernel(self, function: func.FuncOp) -> None:
        """One call."""
        self.kernel_starts.append(self.clock)
        self._block(function.body.block, None)
        self._end_of_iteration()

    def _block(self, block: Block, starts: Sequence[int] | None) -> None:
        """A block of a kernel; `starts` are those of the iterations of the loop around it, None outside of loops."""
        for op in block.ops:
            match op:
                case scf.ForOp():
                    self._loop(op)
                case BufferOp() if op.scope == self.scope:
                    self._now[op.memref] = self.add(op.memref.name_hint or "buffer", op.size_in_bytes)
                case CopyOp() | GenericOp():
                    self._run(op, starts)
                case _:
                    for region in op.regions:
                        for inner in region.blocks:
                            self._block(inner, starts)

    def _loop(self, loop: scf.ForOp) -> None:
        trips = trip_count(loop)
        starts: list[int] = []
        for _ in range(MAX_ITERATIONS if trips is None else min(trips, MAX_ITERATIONS)):
            starts.append(self.clock)
            self._block(loop.body.block, starts)
            self._end_of_iteration()

    def _run(self, op: CopyOp | GenericOp, starts: Sequence[int] | None) -> None:
        begin = self.clock
        self.clock += 1
        touched = [each for value in _memrefs(op) if (each := self._now.get(storage_of(value))) is not None]
        for instance in touched:
            instance.first = begin if instance.first is None else instance.first
            instance.last = self.clock
        if not self.ahead or all(scope_of(value.type) == self.scope for value in _memrefs(op)):
            return
        written = op.dest if isinstance(op, CopyOp) else op.outputs[0]
        if scope_of(written.type) is None:
            self._leaving += [_Leaving(instance, self.ahead) for instance in touched]
        elif isinstance(op, CopyOp) and (filled := self._now.get(storage_of(written))) is not None:
            # Outside of loops a kernel takes the place of an iteration.
            iterations = self.kernel_starts if starts is None else starts
            if filled.first == begin:
                filled.first = iterations[max(0, len(iterations) - 1 - self.ahead)]

    def _end_of_iteration(self) -> None:
        for leaving in self._leaving:
            leaving.iterations -= 1
            if leaving.iterations < 0:
                leaving.instance.last = max(leaving.instance.last, self.clock)
        self._leaving = [leaving for leaving in self._leaving if leaving.iterations >= 0]


def _memrefs(op: Operation) -> Iterator[SSAValue]:
    return (value for value in op.operands if isa(value.type, MemRefType))


def trace(module: ModuleOp, scope: str, ahead: int) -> Problem:
    """The problem of a scope over the whole program, whose buffers have no places yet."""
    target = find_target(module)
    assert target is not None
    main = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == ENTRY)
    kernels = {kernel.sym_name.data: kernel for kernel in machine_kernels(module)[1]}
    room = target.scope(scope)
    run = _Trace(scope, room.granule_bytes, ahead)
    residents: dict[SSAValue, _Instance] = {}
    for call in main.walk():
        if not isinstance(call, func.CallOp) or (kernel := kernels.get(call.callee.string_value())) is None:
            continue
        begin = run.clock
        run.kernel(kernel)
        if scope not in {op.scope for op in kernel.walk() if isinstance(op, BufferOp)}:
            continue
        for operand in _memrefs(call):
            root = storage_of(operand)
            if not isinstance(root.owner, memref.AllocOp | BufferOp) or not isa(root.type, MemRefType):
                continue
            if ahead and span_in_bytes(root.type) * RESIDENT <= room.size_bytes:
                if root not in residents:
                    residents[root] = run.add(root.name_hint or "result", span_in_bytes(root.type))
                    residents[root].first = begin
                residents[root].last = run.clock
    alive = [each for each in run.instances if each.first is not None and each.size]
    return Problem(
        tuple(
            Buffer(each.name, ((each.first or 0, each.last),), each.size, room.granule_bytes)
            for each in alive
            if (each.first or 0) < each.last
        ),
        room.size_bytes,
    )
