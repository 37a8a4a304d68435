"""A program as the simulator plays it: names are numbers, and what is inconsistent is refused."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.commands.program import Command, Engine, Kind, Program, Queue, QueueName


@dataclass(eq=False)
class Layout:
    """The commands of a program by unit, and what they have in common."""

    program: Program
    unit_of: list[int]
    """The unit of each command."""
    streams: list[list[int]]
    """The commands of each unit, in program order."""
    phases: list[int]
    """How many barriers stand before each command."""
    buses: list[str]
    """Those of the machine, and behind them one for each engine that names none and transfers something."""
    bus_of: list[int]
    """The bus of each transfer; -1 for other commands."""
    engines: list[Engine | None]
    """The engine of each transfer."""
    queues: list[Queue]
    pops: list[tuple[int, ...]]
    """The queues that each command pops, by number."""
    pushes: list[tuple[int, ...]]

    @staticmethod
    def of(program: Program) -> Layout:
        """
        The layout of a program.

        Raises UserError, located, for a command that its machine does not have: of an unknown unit, engine or queue,
        on the wrong side of a queue, or after a command that is not there.
        """
        return _Reader(program).layout


def fault_at(command: Command, message: str) -> UserError:
    """A fault of a command, at the place that it comes from."""
    return UserError(message, loc=None if command.op is None else location_of(command.op))


class _Reader:
    """Reads a program, command by command."""

    def __init__(self, program: Program):
        machine = program.machine
        self.program, self.machine = program, machine
        self.units = {name: number for number, name in enumerate(machine.units)}
        self.queues = {queue.name: number for number, queue in enumerate(machine.queues)}
        buses = {name: number for number, name in enumerate(machine.buses)}
        streams: list[list[int]] = [[] for _ in machine.units]
        layout = Layout(program, [], streams, [], [], [], [], list(machine.queues), [], [])
        barriers = sorted(program.barriers)
        for number, command in enumerate(program.commands):
            engine = self._engine(command)
            unit = self._unit(command)
            layout.unit_of.append(unit)
            streams[unit].append(number)
            layout.phases.append(bisect_right(barriers, number))
            layout.engines.append(engine)
            name = None if engine is None else engine.bus or private_bus(engine)
            layout.bus_of.append(-1 if name is None else buses.setdefault(name, len(buses)))
            layout.pops.append(tuple(self._queue(command, name, pops=True) for name in command.pops))
            layout.pushes.append(tuple(self._queue(command, name, pops=False) for name in command.pushes))
            if any(not 0 <= other < len(program.commands) for other in command.after):
                raise fault_at(command, f"command {number} comes after one that is not there")
            if command.cycles < 0:
                raise fault_at(command, f"command {number} takes {command.cycles} cycles")
        layout.buses = list(buses)
        self.layout = layout

    def _unit(self, command: Command) -> int:
        if (unit := self.units.get(command.unit)) is None:
            raise fault_at(command, f'the machine "{self.machine.name}" has no unit "{command.unit}"')
        return unit

    def _engine(self, command: Command) -> Engine | None:
        if command.kind is not Kind.TRANSFER:
            return None
        engine = self.machine.engines.get(command.engine or "")
        if engine is None:
            raise fault_at(command, f'the machine "{self.machine.name}" has no DMA engine "{command.engine}"')
        if engine.unit != command.unit:
            message = f'the engine "{engine.name}" is driven by "{engine.unit}", not by "{command.unit}"'
            raise fault_at(command, message)
        return engine

    def _queue(self, command: Command, name: QueueName, *, pops: bool) -> int:
        source, destination = name
        if name not in self.queues:
            raise fault_at(
                command, f'the machine "{self.machine.name}" has no queue from "{source}" to "{destination}"'
            )
        if command.unit != (destination if pops else source):
            verb = "pops" if pops else "pushes into"
            message = f'the unit "{command.unit}" {verb} the queue from "{source}" to "{destination}"'
            raise fault_at(command, message)
        return self.queues[name]


def private_bus(engine: Engine) -> str:
    """The name of the bus that an engine has to itself because it names none."""
    return f"{engine.name} (own)"


@dataclass(frozen=True)
class Ideal:
    """The time of the busiest resource, if it never waited."""

    cycles: Fraction
    resource: str
    """`bus NAME` or `unit NAME`; the first of several, and empty where there are no commands."""


def ideal_of(layout: Layout) -> Ideal:
    """
    The largest of: over the buses, how long their transfers occupy them; over the units, the cycles of their
    execs and (latency + occupation) / outstanding of their transfers.
    """
    program = layout.program
    loads = {f"bus {name}": Fraction(0) for name in layout.buses}
    loads |= {f"unit {name}": Fraction(0) for name in program.machine.units}
    for number, command in enumerate(program.commands):
        engine = layout.engines[number]
        if command.kind is Kind.EXEC:
            loads[f"unit {command.unit}"] += command.cycles
        elif engine is not None:
            loads[f"bus {layout.buses[layout.bus_of[number]]}"] += command.cycles
            loads[f"unit {command.unit}"] += Fraction(engine.latency + command.cycles, engine.outstanding)
    resource = max(loads, key=lambda name: loads[name], default="")
    cycles = loads.get(resource, Fraction(0))
    return Ideal(cycles, resource if cycles else "")
