# SPDX-License-Identifier: Apache-2.0
"""
One run of a program on the machine and its host: what each takes, one after the other and side by side.

The machine takes its kernels in order, and so does the host. One after the other, each call begins when the one before
is done, as programs run today. Side by side, a call begins when its device is free and all calls before it are done
that write bytes which it accesses, or access bytes which it writes: the bytes off chip as they are planned, so what
shares bytes of the arena waits. Nothing else delays a call, so with these orders none ends earlier. What @main does
itself waits for all before it, and all after it waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation

from penstock.dialects.machine import DRAM, ProcessorOp
from penstock.passes.analysis.commands.program import View
from penstock.passes.analysis.commands.trace import Call
from penstock.passes.analysis.kernels import ENTRY
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.dataflow import Flows
from penstock.passes.analysis.work import kernel_cycles, op_cycles


@dataclass(frozen=True)
class ProgramStep:
    """A call, or what @main does itself between two calls."""

    name: str
    on_host: bool
    cycles: int
    reads: tuple[View, ...] = ()
    """What of the memory off chip it may read."""
    writes: tuple[View, ...] = ()
    touches_all: bool = False
    """Whether it waits for everything, and everything for it."""

    def waits_for(self, earlier: ProgramStep) -> bool:
        """Whether it begins when another one is done, that comes before it."""
        if self.touches_all or earlier.touches_all or self.on_host == earlier.on_host:
            return True
        return _share(self.writes, (*earlier.reads, *earlier.writes)) or _share(self.reads, earlier.writes)


def _share(some: Iterable[View], others: Sequence[View]) -> bool:
    return any(
        one.storage == other.storage and one.start < other.end and other.start < one.end
        for one in some
        for other in others
    )


@dataclass(frozen=True)
class ProgramTime:
    """The steps of one run, in order."""

    steps: tuple[ProgramStep, ...]

    @cached_property
    def host(self) -> int:
        """The cycles of the machine that the host works."""
        return sum(step.cycles for step in self.steps if step.on_host)

    @cached_property
    def serial(self) -> int:
        """The cycles of all, one after the other."""
        return sum(step.cycles for step in self.steps)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """When each step ends, side by side."""
        found: list[int] = []
        for number, step in enumerate(self.steps):
            earlier = zip(self.steps[:number], found, strict=True)
            found.append(step.cycles + max((end for other, end in earlier if step.waits_for(other)), default=0))
        return tuple(found)

    @cached_property
    def side_by_side(self) -> int:
        """The cycles of all, side by side as far as nothing depends."""
        return max(self.ends, default=0)


def _in_order(block: Block) -> Iterator[Operation]:
    """The ops of a block as they run: those of a loop in which something is called again and again."""
    for op in block.ops:
        has_calls = isinstance(op, scf.ForOp) and any(isinstance(inner, func.CallOp) for inner in op.walk())
        trips = trip_count(op) if isinstance(op, scf.ForOp) and has_calls else None
        if trips is None:
            yield op
        else:
            for _ in range(trips):
                yield from _in_order(op.regions[0].block)


class ProgramTimes:
    """The steps of a run, as its calls are traced."""

    def __init__(self, module: ModuleOp, processor: ProcessorOp):
        self._flows = Flows(module)
        self._processor = processor
        self._steps: list[ProgramStep] = []
        self._is_known = True
        self._known: dict[func.FuncOp, int | None] = {}
        entry = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == ENTRY)
        self._rest = _in_order(entry.body.blocks[0])

    def host_cycles(self, function: func.FuncOp) -> int | None:
        """The cycles that a call of a function takes on the host."""
        if function not in self._known:
            found = None if function.is_declaration else kernel_cycles(function, self._processor)
            self._known[function] = None if found is None else ceil(found)
        return self._known[function]

    def add(self, call: Call, machine: int | None) -> None:
        """The next call, with its cycles on the machine if it is there."""
        self._up_to(call.op)
        cycles = self.host_cycles(call.function) if machine is None else machine
        summary = self._flows.summarize(call.op)
        views = {number: view for number, view in enumerate(call.arguments) if view is not None and view.space == DRAM}
        read, written = views.keys(), views.keys()
        if summary is not None:
            read, written = summary.reads, summary.writes
        parts = [tuple(view for number, view in views.items() if number in each) for each in (read, written)]
        self._is_known &= cycles is not None
        self._steps.append(ProgramStep(call.function.sym_name.data, machine is None, cycles or 0, parts[0], parts[1]))

    def time(self) -> ProgramTime | None:
        """The time of all; None where the cycles of something are not known."""
        self._up_to(None)
        return ProgramTime(tuple(self._steps)) if self._is_known else None

    def _up_to(self, call: func.CallOp | None) -> None:
        """What @main does itself up to a call."""
        for op in self._rest:
            if op is call:
                return
            cycles = op_cycles(op, self._processor)
            self._is_known &= cycles is not None
            if cycles:
                self._steps.append(ProgramStep(ENTRY, True, ceil(cycles), touches_all=True))
        self._is_known &= call is None
