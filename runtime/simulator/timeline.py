# SPDX-License-Identifier: Apache-2.0
"""
What a simulation found: when each command did what, what units and buses did all the time, and why it did not complete.

A cycle of a unit belongs to the first of these that holds: an exec runs, or a transfer has its bus (`busy`); a transfer
waits for its bus (`bus`); one is between its start and its request (`latency`); a command waits for room in a queue
(`push`); the next command waits for what it waits for last (`queue`, `token`, `barrier`); there is none left (`done`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program, QueueName

BUSY, BUS, LATENCY, PUSH, DONE = "busy", "bus", "latency", "push", "done"

Spans = list[tuple[int, int]]


class IndexedProgram:
    """A program whose units, buses and queues are numbers, in the order of the machine."""

    def __init__(self, program: Program):
        """Raises UserError, located, for a command of a hand-made program that its machine does not have."""
        machine, commands = program.machine, program.commands
        for number, command in enumerate(commands):
            if (fault := _fault_of(machine, command, number, len(commands))) is not None:
                raise UserError(fault, loc=None if command.op is None else location_of(command.op))
        units = {name: number for number, name in enumerate(machine.units)}
        queues = {queue.name: number for number, queue in enumerate(machine.queues)}
        buses = {name: number for number, name in enumerate(machine.buses)}
        self.program = program
        self.unit_of = [units[command.unit] for command in commands]
        self.streams: list[list[int]] = [[] for _ in units]
        """The commands of each unit, in program order."""
        for number, unit in enumerate(self.unit_of):
            self.streams[unit].append(number)
        self.phases = [bisect_right(program.barriers, number) for number in range(len(commands))]
        """How many barriers are before each command."""
        self.engines = [
            machine.engines[command.engine or ""] if command.kind is Kind.TRANSFER else None for command in commands
        ]
        self.bus_of = [
            -1 if engine is None else buses.setdefault(engine.bus or f"{engine.name} (own)", len(buses))
            for engine in self.engines
        ]
        """The bus of each transfer; -1 for other commands."""
        self.buses = list(buses)
        """Those of the machine, and after them one for each engine that names none and transfers something."""
        self.pops = [tuple(queues[name] for name in command.pops) for command in commands]
        self.pushes = [tuple(queues[name] for name in command.pushes) for command in commands]


def _fault_of(machine: MachineModel, command: Command, number: int, total: int) -> str | None:
    """Why the machine does not have a command; nothing for those that `trace` makes of verified IR."""
    if command.unit not in machine.units:
        return f'the machine "{machine.name}" has no unit "{command.unit}"'
    if command.kind is Kind.TRANSFER:
        if (engine := machine.engines.get(command.engine or "")) is None:
            return f'the machine "{machine.name}" has no DMA engine "{command.engine}"'
        if engine.unit != command.unit:
            return f'the engine "{engine.name}" is driven by "{engine.unit}", not by "{command.unit}"'
    for names, end, verb in ((command.pops, 1, "pops"), (command.pushes, 0, "pushes into")):
        for name in names:
            title = f'queue from "{name[0]}" to "{name[1]}"'
            if all(queue.name != name for queue in machine.queues):
                return f'the machine "{machine.name}" has no {title}'
            if command.unit != name[end]:
                return f'the unit "{command.unit}" {verb} the {title}'
    if any(not 0 <= other < total for other in command.after):
        return f"command {number} comes after one that is not there"
    return f"command {number} takes {command.cycles} cycles" if command.cycles < 0 else None


@dataclass(frozen=True)
class Cause:
    """What a command waited for last before it started."""

    kind: str
    """`queue` (empty), `token` (of a unit), `barrier`, or empty: it waited for nothing but its own unit."""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


@dataclass(frozen=True)
class Stuck:
    """A command that a unit does not get past, and what it waits for."""

    unit: str
    command: int
    waits: tuple[str, ...]

    def __str__(self) -> str:
        return f'"{self.unit}" at command {self.command}, which waits for {" and ".join(self.waits)}'


@dataclass(frozen=True)
class Deadlock:
    """Commands remain, and none can start; the next one of each unit that has any."""

    time: int
    stuck: tuple[Stuck, ...]


@dataclass(frozen=True)
class Overflow:
    """A push into a full queue that does not block."""

    time: int
    command: int
    queue: QueueName


@dataclass(frozen=True)
class Ideal:
    """The time of the busiest resource, if it never waited."""

    cycles: Fraction
    resource: str
    """`bus NAME` or `unit NAME`; the first of several, and empty where there are no commands."""


@dataclass(frozen=True)
class UnitUse:
    """The cycles of a unit."""

    unit: str
    commands: int
    busy: int
    stalls: tuple[tuple[str, int], ...]
    """The others by cause, in the order of the module's text; causes without cycles are left out."""


@dataclass(frozen=True)
class CycleWindow:
    """The cycles in [first, last) of a run."""

    first: int
    last: int

    def meets(self, begin: int, end: int) -> bool:
        """Whether it has a cycle of [begin, end), or the time `begin` where that is empty."""
        return begin < self.last and end > self.first if end > begin else self.first <= begin < self.last


@dataclass(frozen=True)
class Segments:
    """The time of a unit, or of a bus, cut where something changes."""

    edges: NDArray[np.int64]
    """From 0 to T, ascending."""
    which: NDArray[np.int64]
    """What each piece between two edges is: a number of `names`."""
    names: tuple[str, ...]


@dataclass(eq=False)
class Simulation:
    """The times of every command, -1 for what did not happen, and why the program did not complete, if so."""

    index: IndexedProgram
    """The commands, and what they wait for."""
    starts: list[int]
    """The cycle in which each command starts."""
    requests: list[int]
    """When a transfer asked for its bus; of other commands the start."""
    grants: list[int]
    """When it got the bus; of other commands the start."""
    finishes: list[int]
    """When its work was done; its pushes begin."""
    ends: list[int]
    """When its last push was, too: it is complete."""
    causes: list[Cause]
    """What each command waited for last."""
    fault: Deadlock | Overflow | None = None
    """Why commands did not happen; None where all did."""

    @property
    def program(self) -> Program:
        return self.index.program

    @property
    def commands(self) -> Sequence[Command]:
        return self.program.commands

    def check(self) -> None:
        """Raise UserError, located, for a program that did not complete."""
        match self.fault:
            case Deadlock():
                first = self.fault.stuck[0]
                message = f"deadlock at cycle {self.fault.time:,}: {first}"
                notes = [f"also {other}" for other in self.fault.stuck[1:]]
                raise UserError(message, loc=self.location_of(first.command), notes=notes)
            case Overflow():
                source, destination = self.fault.queue
                message = f'the queue from "{source}" to "{destination}" is full at cycle {self.fault.time:,}'
                capacity = next(q.capacity for q in self.program.machine.queues if q.name == self.fault.queue)
                notes = [f"it holds {capacity} tokens, and a push into it when it is full is an error"]
                raise UserError(message, loc=self.location_of(self.fault.command), notes=notes)
            case None:
                pass

    def location_of(self, number: int) -> str | None:
        """Where a command comes from, for people."""
        op = self.commands[number].op
        return None if op is None else location_of(op)

    @cached_property
    def cycles(self) -> int:
        """T: the largest end. Raises UserError where the program did not complete."""
        self.check()
        return max(self.ends, default=0)

    @cached_property
    def ideal(self) -> Ideal:
        """
        T*, what the busiest unit or bus takes: the largest of, over the buses, how long their transfers occupy them;
        over the units, the cycles of their execs and (latency + occupation) / outstanding of their transfers.
        """
        loads = {f"bus {name}": Fraction(0) for name in self.index.buses}
        loads |= {f"unit {name}": Fraction(0) for name in self.program.machine.units}
        for command, engine, bus in zip(self.commands, self.index.engines, self.index.bus_of, strict=True):
            if engine is not None:
                loads[f"bus {self.index.buses[bus]}"] += command.cycles
                loads[f"unit {command.unit}"] += Fraction(engine.latency + command.cycles, engine.outstanding)
            elif command.kind is Kind.EXEC:
                loads[f"unit {command.unit}"] += command.cycles
        resource = max(loads, key=lambda name: loads[name], default="")
        cycles = loads.get(resource, Fraction(0))
        return Ideal(cycles, resource if cycles else "")

    @property
    def ratio(self) -> float:
        """T / T*; 1 where there is nothing to do."""
        return float(self.cycles / self.ideal.cycles) if self.ideal.cycles else 1.0

    @cached_property
    def units(self) -> tuple[UnitUse, ...]:
        """What each unit did in every cycle, in the order of the machine."""
        found: list[UnitUse] = []
        for unit, stream in zip(self.program.machine.units, self.index.streams, strict=True):
            each = self.unit_segments(unit)
            sums = np.bincount(each.which, np.diff(each.edges), len(each.names))
            cycles = {name: int(count) for name, count in zip(each.names, sums, strict=True) if count}
            busy = cycles.pop(BUSY, 0)
            found.append(UnitUse(unit, len(stream), busy, tuple(cycles.items())))
        return tuple(found)

    @cached_property
    def buses(self) -> dict[str, int]:
        """How many cycles each bus was busy, in the order of the machine."""
        self.check()
        busy = dict.fromkeys(self.index.buses, 0)
        for number, bus in enumerate(self.index.bus_of):
            if bus >= 0:
                busy[self.index.buses[bus]] += self.finishes[number] - self.grants[number]
        return busy

    @cached_property
    def moved(self) -> dict[tuple[str, str], int]:
        """The bytes from one scope to another, as they are counted on the off-chip side; "dram" is off chip."""
        sums: dict[tuple[str, str], int] = {}
        for command in self.commands:
            for source, destination, size in command.moved:
                sums[source, destination] = sums.get((source, destination), 0) + size
        return sums

    def unit_segments(self, unit: str) -> Segments:
        """What a unit does all the time, piece by piece."""
        kinds: dict[str, Spans] = {BUSY: [], BUS: [], LATENCY: [], PUSH: []}
        causes: dict[str, Spans] = {}
        before = 0
        for number in self.index.streams[self.program.machine.units.index(unit)]:
            start, finish = self.starts[number], self.finishes[number]
            kinds[BUSY].append((self.grants[number], finish))
            if self.commands[number].kind is Kind.TRANSFER:
                kinds[BUS].append((self.requests[number], self.grants[number]))
                kinds[LATENCY].append((start, self.requests[number]))
            kinds[PUSH].append((finish, self.ends[number]))
            # As far as nothing is in flight meanwhile, it waits for what came last.
            causes.setdefault(str(self.causes[number]), []).append((before, start))
            before = start
        return _cut({**kinds, **dict(sorted(causes.items())), DONE: [(0, self.cycles)]}, self.cycles)

    def bus_segments(self, bus: str) -> Segments:
        """When a bus is occupied."""
        number = self.index.buses.index(bus)
        users = [command for command, each in enumerate(self.index.bus_of) if each == number]
        spans = [(self.grants[command], self.finishes[command]) for command in users]
        return _cut({BUSY: spans, DONE: [(0, self.cycles)]}, self.cycles)


def _cut(spans: dict[str, Spans], total: int) -> Segments:
    """The time below `total` in pieces, each of which is of the first name that has a span over it."""
    pairs = [np.array(each, np.int64).reshape(-1, 2) for each in spans.values()]
    edges: NDArray[np.int64] = np.unique(np.concatenate([np.array([0, total]), *(each.ravel() for each in pairs)]))
    which = np.full(len(edges) - 1, -1, np.int64)
    for number, each in enumerate(pairs):
        open_at = np.zeros(len(edges), np.int64)
        np.add.at(open_at, np.searchsorted(edges, each[:, 0]), 1)
        np.add.at(open_at, np.searchsorted(edges, each[:, 1]), -1)
        which[(which < 0) & (np.cumsum(open_at)[:-1] > 0)] = number
    return Segments(edges, which, tuple(spans))
