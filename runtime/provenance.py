# SPDX-License-Identifier: Apache-2.0
"""
Where the bytes and the cycles of a program come from, and where the nodes of a model went: one answer for the command
`penstock explain`, for `penstock report`, and for Python.

Names come from the locations of the operations, which every pass keeps. When a buffer is alive is what the planner was
told (`memory_problems`), in steps of the text; in cycles it is alive from the start of the first command to the end of
the last that touches it in these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from penstock.dialects.diagnostics import USAGE, UserError, nearest_or_all
from penstock.lowering.line_map import origins_of
from penstock.passes.analysis.commands.program import Command
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.passes.analysis.kernels import ENTRY
from penstock.passes.analysis.memory.liveness import Allocation, Liveness, ProgramTime, function_around
from penstock.passes.analysis.memory.memory_problems import ARENA, MemoryProblem, checked_problems, written_plan
from penstock.passes.planning.problem import Buffer, Interval, merge_intervals
from penstock.runtime.simulator.run import KernelRun, ProgramRun, calls
from penstock.runtime.simulator.timeline import Simulation


@dataclass(eq=False)
class CallSpan:
    """One call of a kernel in a run of `@main`."""

    op: func.CallOp
    """The call."""
    kernel: str
    """The name of what is called."""
    steps: Interval
    """Of the whole program: those of the call, the first of which is the call itself."""
    cycles: Interval
    """Of the whole run; empty for a kernel of the host, whose cycles are not known."""
    run: KernelRun | None
    """None for a kernel of the host."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return origins_of(self.op)


@dataclass(eq=False)
class PlacedLife:
    """A buffer with its place, and when it is alive."""

    memory: MemoryProblem
    """What its place was found for: all buffers of its scope."""
    buffer: Buffer
    """Its size, and when it is alive."""
    offset: int
    """Bytes from the start of the scope."""
    op: Allocation
    """What makes it."""
    function: str
    """The function that makes it."""
    steps: tuple[Interval, ...]
    """When it is alive, in steps of that function."""
    users: frozenset[Operation]
    """What touches it there."""

    @property
    def scope(self) -> str:
        return self.memory.scope or ARENA

    @property
    def name(self) -> str:
        return self.buffer.id.partition(" of @")[0]

    @property
    def end(self) -> int:
        return self.offset + self.buffer.size

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where it comes from: what makes it, or else what uses it."""
        users = (name for op in self.time.accesses(self.op.results[0]) for name in origins_of(op))
        return origins_of(self.op) or tuple(dict.fromkeys(users))

    @property
    def time(self) -> Liveness:
        return _time_of(self.memory, self.op)


def _time_of(memory: MemoryProblem, op: Operation) -> Liveness:
    return memory.time if isinstance(memory.time, Liveness) else memory.time.of(function_around(op))


@dataclass(frozen=True)
class ByteUse:
    """What a byte of a scope holds at a cycle."""

    call: CallSpan | None
    """The call that runs then."""
    lives: tuple[PlacedLife, ...]
    """The buffers alive there: one, unless a buffer of another kernel has the byte, too."""
    written: int | None
    """The last command of the call that wrote the byte, or is writing it, by its number."""
    read: int | None
    """The next command of the call that reads it, or is reading it."""


@dataclass(frozen=True)
class UnitState:
    """What a unit does in a cycle."""

    unit: str
    """The name of the unit."""
    does: str
    """`busy`, or why it does not work, as in the timeline."""
    command: int | None
    """What it performs, or what it waits to start; None after its last."""


class Provenance:
    """A program at loop or accel level, whose buffers have offsets, and its run, if it is for a machine."""

    def __init__(self, module: ModuleOp, run: ProgramRun | None = None):
        """Raises UserError, located, for offsets that are no plan."""
        self.module = module
        self.run = run
        self.memories = checked_problems(module)
        self._lives: dict[tuple[int, int], tuple[Interval, ...]] = {}

    @cached_property
    def calls(self) -> tuple[CallSpan, ...]:
        """The calls of `@main` in their order; without a run those that the text has."""
        time = ProgramTime(self.module)
        if self.run is None:
            entry = next((each for each in time.functions() if each.sym_name.data == ENTRY), None)
            found = [op for op in entry.walk() if isinstance(op, func.CallOp)] if entry is not None else []
            return tuple(CallSpan(op, op.callee.string_value(), time.spans(op)[0], (0, 0), None) for op in found)
        known = {each.kernel for each in self.run.kernels}
        runs = list(calls(self.run))
        spans: list[CallSpan] = []
        now, number = 0, 0
        for call in trace_calls(self.module):
            name, steps = call.function.sym_name.data, time.spans(call.op)[0]
            if name in known and number < len(runs) and runs[number][1].kernel == name:
                begin, run = runs[number]
                number, now = number + 1, begin + run.simulation.cycles
                spans.append(CallSpan(call.op, name, steps, (begin, now), run))
            else:
                spans.append(CallSpan(call.op, name, steps, (now, now), None))
        return tuple(spans)

    @cached_property
    def lives(self) -> tuple[PlacedLife, ...]:
        """All buffers, memory by memory."""
        found: list[PlacedLife] = []
        for memory in self.memories:
            plan = written_plan(memory)
            for buffer in memory.problem.buffers:
                op = memory.ops[buffer.id]
                time, result = _time_of(memory, op), op.results[0]
                users = frozenset(time.accesses(result))
                owner, offset = function_around(op).sym_name.data, plan.offsets[buffer.id]
                found.append(PlacedLife(memory, buffer, offset, op, owner, time.lifetime(result), users))
        return tuple(found)

    def lives_of(self, function: str) -> Iterator[PlacedLife]:
        """The buffers that a function makes."""
        return (life for life in self.lives if life.function == function)

    def cycles_of(self, life: PlacedLife, call: CallSpan | None = None) -> tuple[Interval, ...]:
        """
        When a buffer is alive in cycles of the run: in `call`, of the kernel that makes it; without one, a buffer of
        `@main`, from the call that touches it first to the end of the last. What no command touches is not alive.
        """
        if call is None:
            return self._over_calls(life)
        if call.run is None:
            return ()
        own = self._in_run(life, call.run)
        return tuple((call.cycles[0] + lower, call.cycles[0] + upper) for lower, upper in own)

    def _over_calls(self, life: PlacedLife) -> tuple[Interval, ...]:
        found: list[Interval] = []
        for lower, upper in life.memory.time.lifetime(life.op.results[0]) if self.run is not None else ():
            within = [call.cycles for call in self.calls if call.steps[0] < upper and lower < call.steps[1]]
            if within and within[0][0] < within[-1][1]:
                found.append((within[0][0], within[-1][1]))
        return tuple(found)

    def _in_run(self, life: PlacedLife, run: KernelRun) -> tuple[Interval, ...]:
        key = id(life), id(run)
        if key not in self._lives:
            simulation, time = run.simulation, life.time
            # A life inside a loop begins anew in each iteration, unless it is alive where the loop begins, too.
            depths: dict[tuple[Operation, int], int] = {}
            spans: dict[tuple[int, tuple[int, ...]], Interval] = {}
            for number, command in enumerate(simulation.commands):
                if (op := command.op) is None or op not in life.users:
                    continue
                step = time.span(op)[0]
                for index, interval in enumerate(life.steps):
                    if interval[0] <= step < interval[1]:
                        if (depth := depths.get((op, index))) is None:
                            depth = depths[op, index] = _loops_around(op, interval, time)
                        instance = index, command.counters[:depth]
                        start, end = simulation.starts[number], simulation.ends[number]
                        first, last = spans.get(instance, (start, end))
                        spans[instance] = min(first, start), max(last, end)
            self._lives[key] = merge_intervals(span for span in spans.values() if span[0] < span[1])
        return self._lives[key]

    # questions

    def call_at(self, cycle: int) -> CallSpan:
        """The call that runs in a cycle. Raises UserError for a cycle after the last, and for a program without any."""
        total = self._run().cycles
        if not 0 <= cycle < total:
            raise UserError(f"there is no cycle {cycle:,}: the run has {total:,}", status=USAGE)
        return next(call for call in self.calls if call.cycles[0] <= cycle < call.cycles[1])

    def at_byte(self, scope: str, byte: int, cycle: int) -> ByteUse:
        """
        What a byte of a scope, or of the arena, holds in a cycle of the run.

        Raises UserError for a scope that the machine lacks, a byte outside it, and a cycle that there is not.
        """
        scopes = self._run().target.scopes()
        if scope not in scopes and scope != ARENA:
            notes = [nearest_or_all(scope, [*scopes, ARENA], "scopes")]
            raise UserError(f'there is no scope "{scope}"', notes=notes, status=USAGE)
        if scope in scopes and not 0 <= byte < scopes[scope].size_bytes:
            size = scopes[scope].size_bytes
            raise UserError(f'"{scope}" has no byte {byte:,}: it has {size:,}', status=USAGE)
        call = self.call_at(cycle)
        there = [life for life in self.lives if life.scope == scope and life.offset <= byte < life.end]
        alive = [
            life
            for life in there
            if life.function in (call.kernel, ENTRY)
            for lower, upper in self.cycles_of(life, call if life.function == call.kernel else None)
            if lower <= cycle < upper
        ]
        assert call.run is not None
        simulation, now = call.run.simulation, cycle - call.cycles[0]
        wanted = Region(scope, 0, byte, 1)
        written = _latest(simulation, now, wanted) if scope in scopes else None
        read = _next(simulation, now, wanted) if scope in scopes else None
        return ByteUse(call, tuple(dict.fromkeys(alive)), written, read)

    def at_cycle(self, cycle: int) -> tuple[CallSpan, tuple[UnitState, ...]]:
        """The call that runs in a cycle of the run, and what each unit does."""
        call = self.call_at(cycle)
        assert call.run is not None
        simulation, now = call.run.simulation, cycle - call.cycles[0]
        states: list[UnitState] = []
        for unit, stream in zip(simulation.program.machine.units, simulation.index.streams, strict=True):
            segments = simulation.unit_segments(unit)
            place = int(segments.edges.searchsorted(now, side="right")) - 1
            command = next((number for number in stream if simulation.ends[number] > now), None)
            states.append(UnitState(unit, segments.names[int(segments.which[place])], command))
        return call, tuple(states)

    def alive_at(self, cycle: int) -> Iterator[PlacedLife]:
        """The buffers that are alive in a cycle of the run."""
        call = self.call_at(cycle)
        for life in self.lives:
            if life.function in (call.kernel, ENTRY):
                spans = self.cycles_of(life, call if life.function == call.kernel else None)
                if any(lower <= cycle < upper for lower, upper in spans):
                    yield life

    @cached_property
    def names(self) -> dict[str, tuple[Operation, ...]]:
        """The operations of the functions by the names and places that they come from."""
        found: dict[str, list[Operation]] = {}
        for op in self.module.walk():
            if op.parent_op() is not None and not isinstance(op.parent_op(), ModuleOp):
                for name in origins_of(op):
                    found.setdefault(name, []).append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    def commands_of(self, run: KernelRun, ops: Iterable[Operation]) -> list[int]:
        """The commands of a run that come from some operations, by number."""
        wanted = set(ops)
        return [number for number, each in enumerate(run.simulation.commands) if each.op in wanted]

    def _run(self) -> ProgramRun:
        if self.run is None:
            raise UserError("the program is for the host: it has no cycles", status=USAGE)
        return self.run


def _loops_around(op: Operation, interval: Interval, time: Liveness) -> int:
    """How many loops around an op hold all steps of an interval and do not begin in it."""
    count = 0
    while (parent := op.parent_op()) is not None and not isinstance(parent, func.FuncOp):
        begin, end = time.span(parent)
        count += isinstance(parent, scf.ForOp) and begin < interval[0] and interval[1] <= end
        op = parent
    return count


def _latest(simulation: Simulation, now: int, wanted: Region) -> int | None:
    """The command that wrote a byte last by now, or began to."""
    return _extreme(simulation, wanted, lambda command: command.writes, lambda start, end: start <= now, max)


def _next(simulation: Simulation, now: int, wanted: Region) -> int | None:
    """The command that reads a byte next, or does so now."""
    return _extreme(simulation, wanted, lambda command: command.reads, lambda start, end: end > now, min)


def _extreme(
    simulation: Simulation,
    wanted: Region,
    regions: Callable[[Command], Iterable[Region]],
    counts: Callable[[int, int], bool],
    choose: Callable[[Iterable[tuple[int, int]]], tuple[int, int]],
) -> int | None:
    found = [
        (simulation.starts[number], number)
        for number, command in enumerate(simulation.commands)
        if counts(simulation.starts[number], simulation.ends[number])
        and any(region.overlaps(wanted) for region in regions(command))
    ]
    return choose(found)[1] if found else None
