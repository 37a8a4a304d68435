"""
When commands happen.

A unit takes its commands in order. A command starts when all tokens it comes after are complete, and its unit can
take it: the previous command has started and, for a transfer, fewer than `outstanding` of the unit's transfers are
incomplete; an exec also waits for every earlier command of its unit, and everything waits for an earlier exec.
Transfers in flight may complete in any order. A push into a queue happens when the unit's earlier commands are
complete; a pop holds the unit up until its token, that of the push of the same number, has come.

Without a seed every command happens when it is issued, which is program order. With a seed, one legal interleaving
is drawn: units run ahead or lag behind, transfers take long or short, and a command's start and end lie apart.
Races (see `races`) are then errors, whichever interleaving was drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from penstock.dialects.diagnostics import UserError, location_of
from penstock.runtime.interpreter.commands import DONE, Command, Kind, Token, TokenQueue
from penstock.runtime.interpreter.races import Races

_PACES = (0.02, 1.0, 50.0)
"""How quickly a unit or a command gets on, compared with others."""
_EAGERNESS = (0.0, 0.5, 0.95)
"""How far the units get while the host issues: not at all, a little, or about as far as they can."""


@dataclass(eq=False)
class _Running:
    command: Command
    pace: float
    behind: Sequence[Token] = ()
    """Of a push: the commands it waits for."""

    def may_end(self) -> bool:
        queue = self.command.queue
        if self.command.kind is not Kind.PUSH or queue is None:
            return True
        return all(token.complete for token in self.behind) and not (queue.is_full and queue.blocks)


@dataclass(eq=False)
class _Unit:
    pace: float
    waiting: deque[Command] = field(default_factory=deque[Command])
    running: list[_Running] = field(default_factory=list[_Running])

    def may_start(self) -> bool:
        """Whether its next command can start now."""
        if not self.waiting:
            return False
        head = self.waiting[0]
        if not all(token.complete for token in head.after):
            return False
        if head.kind is Kind.PUSH:
            return True
        busy = [each.command.kind for each in self.running if each.command.kind is not Kind.PUSH]
        if Kind.EXEC in busy or (busy and head.kind is Kind.EXEC):
            return False
        return head.kind is not Kind.TRANSFER or len(busy) < head.outstanding


class Schedule:
    """The order in which commands start and end; `seed` draws one, None is program order."""

    def __init__(self, seed: int | None = None):
        self._random = None if seed is None else Random(seed)
        self._units: dict[str, _Unit] = {}
        self._races = Races()
        self._eagerness = 0.0 if self._random is None else self._random.choice(_EAGERNESS)
        self._queues: dict[tuple[str, str], TokenQueue] = {}
        self.unwaited = 0
        """Commands issued since the last barrier."""

    def add_queue(self, source: str, dest: str, queue: TokenQueue) -> None:
        """Declare the queue from one unit to another."""
        self._queues[source, dest] = queue

    def queue(self, source: str, dest: str) -> TokenQueue:
        """The queue from one unit to another."""
        return self._queues[source, dest]

    def leftover(self) -> str | None:
        """What is wrong with the queues when nothing runs: one that does not hold its initial tokens."""
        for queue in self._queues.values():
            if queue.count != queue.initial:
                return f"{queue.title} holds {queue.count} tokens, {queue.initial} at the beginning"
        return None

    def issue(self, command: Command) -> Token:
        """Give a command to its unit; in program order it happens now. Raises UserError for a race."""
        self.unwaited += 1
        if self._random is None:
            command.at_once()
            return DONE
        self._races.issued(command)
        unit = self._units.get(command.unit)
        if unit is None:
            unit = self._units[command.unit] = _Unit(self._random.choice(_PACES))
        unit.waiting.append(command)
        while self._random.random() < self._eagerness and self._step(self._random):
            pass
        return command.token

    def wait(self, tokens: Sequence[Token]) -> None:
        """Let the units run until all of `tokens` are complete."""
        for token in tokens:
            while self._random is not None and not token.complete:
                if not self._step(self._random):
                    raise self._deadlock()
        self._races.waited(tokens)

    def barrier(self) -> None:
        """Let the units run until all are quiescent."""
        if self._random is not None:
            while self._step(self._random):
                pass
            if any(unit.waiting or unit.running for unit in self._units.values()):
                raise self._deadlock()
            self._races.barrier()
        self.unwaited = 0

    def _deadlock(self) -> UserError:
        stuck = [
            next(iter(unit.waiting), unit.running[-1].command if unit.running else None)
            for unit in self._units.values()
        ]
        commands = [command for command in stuck if command is not None]
        return UserError(
            "the units wait for each other for ever",
            loc=location_of(commands[0].op),
            notes=[f"{command.unit} is at {command.op.name}, {location_of(command.op)}" for command in commands],
        )

    def _choices(self) -> Iterator[tuple[float, _Unit, _Running | None]]:
        """What can happen next, and how likely: a unit takes its next command, or a running one ends."""
        for unit in self._units.values():
            if unit.may_start():
                yield unit.pace, unit, None
            for running in unit.running:
                if running.may_end():
                    yield running.pace, unit, running

    def _step(self, random: Random) -> bool:
        """Start or end one command; False if there is none to start or end."""
        choices = list(self._choices())
        if not choices:
            return False
        _, unit, ending = random.choices(choices, [choice[0] for choice in choices])[0]
        if ending is not None:
            unit.running.remove(ending)
            ending.command.end()
            return True
        command = unit.waiting.popleft()
        command.start()
        if command.kind is Kind.POP:
            command.end()
        else:
            behind = [running.command.token for running in unit.running] if command.kind is Kind.PUSH else ()
            unit.running.append(_Running(command, random.choice(_PACES) * unit.pace, behind))
        return True
