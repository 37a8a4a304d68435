"""What a simulation found: when each command did what, and why a program did not complete."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.commands.program import Kind, QueueName
from penstock.runtime.simulator.command_times import CommandTimes
from penstock.runtime.simulator.layout import Ideal, ideal_of
from penstock.runtime.simulator.stalls import BusUse, UnitUse, bus_uses, unit_uses


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


@dataclass(eq=False)
class Simulation(CommandTimes):
    """The times of every command, and why the program did not complete, if so."""

    fault: Deadlock | Overflow | None = None

    def check(self) -> None:
        """Raise UserError, located, for a program that did not complete."""
        match self.fault:
            case Deadlock():
                first = self.fault.stuck[0]
                message = f"deadlock at cycle {self.fault.time:,}: {first}"
                notes = [f"also {other}" for other in self.fault.stuck[1:]]
                raise UserError(message, loc=self.place_of(first.command), notes=notes)
            case Overflow():
                source, destination = self.fault.queue
                message = f'the queue from "{source}" to "{destination}" is full at cycle {self.fault.time:,}'
                capacity = next(q.capacity for q in self.program.machine.queues if q.name == self.fault.queue)
                notes = [f"it holds {capacity} tokens, and a push into it when it is full is an error"]
                raise UserError(message, loc=self.place_of(self.fault.command), notes=notes)
            case None:
                pass

    def place_of(self, number: int) -> str | None:
        """Where a command comes from, for people."""
        op = self.commands[number].op
        return None if op is None else location_of(op)

    @cached_property
    def cycles(self) -> int:
        """T: the largest end. Raises UserError where the program did not complete."""
        self.check()
        return self.last

    @cached_property
    def ideal(self) -> Ideal:
        """T*: what the busiest unit or bus cannot do without."""
        return ideal_of(self.layout)

    @property
    def ratio(self) -> float:
        """T / T*; 1 where there is nothing to do."""
        return float(self.cycles / self.ideal.cycles) if self.ideal.cycles else 1.0

    @cached_property
    def units(self) -> tuple[UnitUse, ...]:
        """What each unit did in every cycle, in the order of the machine."""
        self.check()
        return unit_uses(self)

    @cached_property
    def buses(self) -> tuple[BusUse, ...]:
        """How long each bus was busy."""
        self.check()
        return bus_uses(self)

    @cached_property
    def moved(self) -> dict[tuple[str, str], int]:
        """The bytes from one scope to another, as they are counted on the off-chip side; "dram" is off chip."""
        sums: dict[tuple[str, str], int] = {}
        for command in self.commands:
            for source, destination, size in command.moved:
                sums[source, destination] = sums.get((source, destination), 0) + size
        return sums

    @property
    def transfers(self) -> int:
        """How many of its commands are transfers."""
        return sum(command.kind is Kind.TRANSFER for command in self.commands)
