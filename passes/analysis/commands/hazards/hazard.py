"""What a hazard is, and how commands are named in messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.commands.program import Command, Kind, QueueName


class Fault(Enum):
    """What can be wrong with the order of a program."""

    DEADLOCK = "deadlock"
    """The units wait for each other, or for a token that never comes."""
    LEAK = "leak"
    """A queue does not end with the tokens that it had at the beginning."""
    OVERFLOW = "overflow"
    """A push can find its queue full, where that is an error."""
    WRONG_UNIT = "wrong-unit"
    """A queue is used that the machine lacks, or by a unit that it does not belong to."""
    RACE = "race"
    """Two accesses to the same bytes, one of which writes, are in no order."""


@dataclass(frozen=True)
class Hazard:
    """One thing that is wrong, with the commands that it is about."""

    fault: Fault
    message: str
    commands: tuple[int, ...] = ()
    """By their numbers; the first is where the message belongs."""
    ops: tuple[Operation, ...] = field(default=(), compare=False)
    """Where these come from, as far as that is known."""
    notes: tuple[str, ...] = ()

    def error(self) -> UserError:
        """The hazard as a fault of the user."""
        return UserError(self.message, loc=location_of(self.ops[0]) if self.ops else None, notes=self.notes)


def title(command: Command) -> str:
    """What a command is: its op and what performs it."""
    name = command.op.name if command.op is not None else command.kind.value
    if command.kind is Kind.CARRIER or not command.name:
        return f"{name} on {command.unit}"
    return f'{name} "{command.name}" on {command.unit}'


def place(command: Command) -> str:
    """Where a command comes from, with the rounds of the loops around it, in front of which stands a blank."""
    where = f" at {location_of(command.op)}" if command.op is not None else ""
    rounds = f" in round {', '.join(map(str, command.counters))}" if command.counters else ""
    return where + rounds


def queue_title(name: QueueName) -> str:
    """A queue in a message."""
    return f'the queue from "{name[0]}" to "{name[1]}"'


def ops_of(commands: Sequence[Command], numbers: Sequence[int]) -> tuple[Operation, ...]:
    """The ops of the commands of these numbers."""

    def found() -> Iterator[Operation]:
        for number in numbers:
            op = commands[number].op
            if op is not None:
                yield op

    return tuple(found())
