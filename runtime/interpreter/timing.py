"""
As soon as possible and as late as possible: the times of starts and ends, where every command takes one unit of time.

Of these times only the order matters. They know the order of commands of a unit and the tokens; where
a queue is full, or transfers wait for each other, commands are later than their time says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.runtime.interpreter.commands import Command, Kind, Token


@dataclass
class _Last:
    """The latest times of a unit's commands so far."""

    start: int = 0
    end: int = 0
    exec_end: int = 0


def is_alone(command: Command) -> bool:
    """Whether a command starts only when all earlier ones of its unit are complete."""
    return command.kind is Kind.EXEC or (command.kind is Kind.TRANSFER and command.outstanding == 1)


class Earliest:
    """The first time at which each command can start and end, known when it is issued."""

    def __init__(self) -> None:
        self._units: dict[str, _Last] = {}
        self._ends: dict[Token, int] = {}
        self._host = 0
        self.starts: dict[Command, int] = {}

    def barrier(self) -> None:
        self._units.clear()
        self._ends.clear()
        self.starts.clear()
        self._host = 0

    def waited(self, tokens: Sequence[Token]) -> None:
        """What the host issues from now on is later than `tokens`."""
        self._host = max([self._host, *(self._end(token) for token in tokens)])

    def issued(self, command: Command) -> None:
        unit = self._units.setdefault(command.unit, _Last())
        before = [self._host, *(self._end(token) for token in command.after)]
        if command.kind is Kind.PUSH:
            start = max(before)
            end = max(start, unit.end)
        else:
            start = max(*before, unit.start, unit.end if is_alone(command) else unit.exec_end)
            end = start + (command.kind is not Kind.POP)
            unit.start = start
        self.starts[command] = start
        self._ends[command.token] = end
        unit.end = max(unit.end, end)
        if command.kind is Kind.EXEC:
            unit.exec_end = end

    def end_of(self, command: Command) -> int:
        """The time at which a command ends."""
        return self._ends[command.token]

    def _end(self, token: Token) -> int:
        found = self._ends.get(token)
        if found is None:
            found = max((self._end(part) for part in token.parts), default=0)
            self._ends[token] = found
        return found


class Latest:
    """
    The last times at which commands can start and end, counted back from the time at which `wanted` must be there.

    Larger is earlier. What is not needed for `wanted`, or for what is, has no time; `wanted` of None needs all.
    """

    def __init__(self, commands: Sequence[Command], wanted: Iterable[Token] | None):
        self.starts: dict[Command, int] = {}
        self.ends: dict[Command, int] = {}
        self._due: dict[Token, int] = {}
        for token in wanted or ():
            self._need(token, 0)
        next_start: dict[str, int] = {}
        next_alone: dict[str, int] = {}
        next_push: dict[str, int] = {}
        for command in reversed(commands):
            unit = command.unit
            behind = [self._due.get(command.token), next_alone.get(unit), next_push.get(unit)]
            if command.kind is Kind.EXEC and unit in next_start:
                behind.append(next_start[unit] + 1)
            needs = [0] if wanted is None else []
            needs += [time for time in behind if time is not None]
            end = max(needs, default=None)
            if end is not None:
                self.ends[command] = end
                if command.kind is Kind.PUSH:
                    next_push[unit] = max(next_push.get(unit, 0), end + 1)
            self._set_start(command, end, next_start, next_alone)

    def _set_start(
        self, command: Command, end: int | None, next_start: dict[str, int], next_alone: dict[str, int]
    ) -> None:
        unit, later = command.unit, next_start.get(command.unit)
        own = None if end is None else end + (command.kind not in (Kind.POP, Kind.PUSH))
        start = max((time for time in (own, later) if time is not None), default=None)
        if start is None:
            return
        self.starts[command] = start
        next_start[unit] = start
        if is_alone(command):
            next_alone[unit] = start + 1
        for token in command.after:
            self._need(token, start + 1)

    def _need(self, token: Token, time: int) -> None:
        waiting = [token]
        while waiting:
            each = waiting.pop()
            if each.complete or self._due.get(each, -1) >= time:
                continue
            self._due[each] = time
            waiting += each.parts
