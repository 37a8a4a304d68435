# SPDX-License-Identifier: Apache-2.0
"""
When commands happen.

A unit takes its commands in order. A command starts when all tokens it comes after are complete, and its unit can
take it: the previous command has started and, for a transfer, fewer than `outstanding` of the unit's transfers are
incomplete; an exec also waits for every earlier command of its unit, and everything waits for an earlier exec.
Transfers in flight may complete in any order. A push into a queue happens when the unit's earlier commands are
complete; a pop holds the unit up until its token, that of the push of the same number, is there.

Legal orders are many, and an `Order` says which is taken:

- "program": every command happens when it is issued. Nothing overlaps, so nothing is checked.
- "asap": as soon as possible. All that can start does so before anything ends, and what started first ends first. What
  runs ahead of a token that is missing is ahead here.
- "alap": as late as possible. Nothing happens before the host, or what the host waits for, needs it. What is late
  because a token is missing is late here.
- a number draws one interleaving: units run ahead or are late, transfers take long or short, and a command's start
  and end lie apart.

Iterations that run at once (`scf.forall`) are taken one after the other up to their next barrier, in program order and
as soon as possible from the first to the last, as late as possible from the last to the first, or in an order that is
drawn: where nothing races, iterations that are interleaved more finely do the same.

In all but program order, races (see `races`) are errors, whether they have shown in this order or not; what a command
is overwriting is undefined from its start to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeVar

from penstock.dialects.diagnostics import USAGE, UserError, did_you_mean, location_of
from penstock.runtime.interpreter.commands import DONE, CommandKind, IssuedCommand, Token, TokenQueue
from penstock.runtime.interpreter.races import Races

T = TypeVar("T")

Order = Literal["program", "asap", "alap"] | int
"""Which of the legal orders of starts and ends is taken; a number is what one is drawn with."""
ORDERS: tuple[Order, ...] = ("program", "asap", "alap")
"""Those that are no number."""

_PACES = (0.02, 1.0, 50.0)
"""How quickly a unit or a command gets on, compared with others."""
_EAGERNESS = (0.0, 0.5, 0.95)
"""How far the units get while the host issues: not at all, a little, or about as far as they can."""


@dataclass(eq=False)
class _StartedCommand:
    command: IssuedCommand
    number: int
    """How many started before."""
    pace: float
    earlier: Sequence[Token] = ()
    """Of a push: the commands of its unit that it waits for."""

    def may_end(self) -> bool:
        queue = self.command.queue
        if self.command.kind is not CommandKind.PUSH or queue is None:
            return True
        return all(token.complete for token in self.earlier) and not (queue.is_full and queue.blocks)


@dataclass(eq=False)
class _UnitQueue:
    pace: float
    waiting: deque[IssuedCommand] = field(default_factory=deque[IssuedCommand])
    running: list[_StartedCommand] = field(default_factory=list[_StartedCommand])

    def may_start(self) -> bool:
        """Whether its next command can start now."""
        if not self.waiting:
            return False
        head = self.waiting[0]
        if not all(token.complete for token in head.after):
            return False
        if head.kind is CommandKind.PUSH:
            return True
        busy = [each.command.kind for each in self.running if each.command.kind is not CommandKind.PUSH]
        if CommandKind.EXEC in busy or (busy and head.kind is CommandKind.EXEC):
            return False
        return head.kind is not CommandKind.TRANSFER or len(busy) < head.outstanding


class _Latest:
    """
    The last times at which commands can start and end, counted back from the time at which `wanted` must be there, if
    every command takes one unit of time.

    Larger is earlier. What is not needed for `wanted`, or for what is, has no time; `wanted` of None needs all. Only
    the order of times matters: where a queue is full, or transfers wait for each other, commands are later.
    """

    def __init__(self, commands: Sequence[IssuedCommand], wanted: Iterable[Token] | None):
        self.starts: dict[IssuedCommand, int] = {}
        self.ends: dict[IssuedCommand, int] = {}
        self._due: dict[Token, int] = {}
        for token in wanted or ():
            self._need(token, 0)
        next_start: dict[str, int] = {}
        next_alone: dict[str, int] = {}
        next_push: dict[str, int] = {}
        for command in reversed(commands):
            unit = command.unit
            later = [self._due.get(command.token), next_alone.get(unit), next_push.get(unit)]
            if command.kind is CommandKind.EXEC and unit in next_start:
                later.append(next_start[unit] + 1)
            needs = [0] if wanted is None else []
            needs += [time for time in later if time is not None]
            end = max(needs, default=None)
            if end is not None:
                self.ends[command] = end
                if command.kind is CommandKind.PUSH:
                    next_push[unit] = max(next_push.get(unit, 0), end + 1)
            self._set_start(command, end, next_start, next_alone)

    def _set_start(
        self, command: IssuedCommand, end: int | None, next_start: dict[str, int], next_alone: dict[str, int]
    ) -> None:
        unit, later = command.unit, next_start.get(command.unit)
        own = None if end is None else end + (command.kind not in (CommandKind.POP, CommandKind.PUSH))
        start = max((time for time in (own, later) if time is not None), default=None)
        if start is None:
            return
        self.starts[command] = start
        next_start[unit] = start
        if command.is_alone:
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


@dataclass(frozen=True)
class _NextEvent:
    """A start or an end that is legal now."""

    unit: _UnitQueue
    command: IssuedCommand
    running: _StartedCommand | None
    """What would end; None for a start."""
    pace: float


class Interleaving:
    """The order in which commands start and end."""

    def __init__(self, order: Order = "program"):
        self._in_program_order = order == "program"
        self._random = Random(order if isinstance(order, int) else 0)
        self._is_early = order == "asap"
        self._is_late = order == "alap"
        self._latest: _Latest | None = None
        self._issued: list[IssuedCommand] = []
        """With "alap", those that may be incomplete."""
        self._units: dict[str, _UnitQueue] = {}
        self.races = Races()
        self._eagerness = self._random.choice(_EAGERNESS) if isinstance(order, int) else 0.0
        self._queues: dict[tuple[str, str], TokenQueue] = {}
        self._started = 0
        self.unwaited = 0
        """Commands issued since the last barrier."""

    @property
    def finds_races(self) -> bool:
        """Whether races are errors."""
        return not self._in_program_order

    def in_order(self, iterations: Iterable[T]) -> list[T]:
        """Iterations that run at once, as they are taken one after the other."""
        found = list(iterations)
        if self._is_late:
            found.reverse()
        elif not self._in_program_order and not self._is_early:
            self._random.shuffle(found)
        return found

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

    def issue(self, command: IssuedCommand) -> Token:
        """Give a command to its unit; in program order it happens now. Raises UserError for a race."""
        self.unwaited += 1
        if self._in_program_order:
            command.at_once()
            return DONE
        self.races.issued(command)
        unit = self._units.get(command.unit)
        if unit is None:
            unit = self._units[command.unit] = _UnitQueue(self._random.choice(_PACES))
        unit.waiting.append(command)
        if self._is_late:
            self._issued.append(command)
        while self._eagerness and self._random.random() < self._eagerness and self._step():
            pass
        return command.token

    def wait(self, tokens: Sequence[Token]) -> None:
        """Let the units run until all of `tokens` are complete."""
        if self._in_program_order:
            return
        self._foresee(tokens)
        for token in tokens:
            while not token.complete:
                if not self._step():
                    raise self._deadlock()
        self.races.waited(tokens)

    def barrier(self) -> None:
        """Let the units run until all are quiescent."""
        if not self._in_program_order:
            self._foresee(None)
            while self._step():
                pass
            if any(unit.waiting or unit.running for unit in self._units.values()):
                raise self._deadlock()
            self.races.barrier()
        self.unwaited = 0

    def _foresee(self, tokens: Sequence[Token] | None) -> None:
        """With "alap", find out what is needed for `tokens`, or for the end, and when."""
        if self._is_late:
            self._issued = [command for command in self._issued if not command.token.complete]
            self._latest = _Latest(self._issued, tokens)

    def _deadlock(self) -> UserError:
        stuck = [
            next(iter(unit.waiting), unit.running[-1].command if unit.running else None)
            for unit in self._units.values()
        ]
        commands = [command for command in stuck if command is not None]
        return UserError(
            "deadlock: the units wait for each other",
            loc=location_of(commands[0].op),
            notes=[f"{command.unit} is at {command.op.name}, {location_of(command.op)}" for command in commands],
        )

    def _choices(self) -> Iterator[_NextEvent]:
        """What can happen next: a unit takes its next command, or a running one ends."""
        for unit in self._units.values():
            if unit.may_start():
                yield _NextEvent(unit, unit.waiting[0], None, unit.pace)
            for running in unit.running:
                if running.may_end():
                    yield _NextEvent(unit, running.command, running, running.pace)

    def _chosen(self, choices: Sequence[_NextEvent]) -> _NextEvent:
        """The first start or end as the order has it."""
        if self._is_early:
            return min(choices, key=lambda each: -1 if each.running is None else each.running.number)
        if (late := self._latest) is not None:
            return max(
                choices,
                key=lambda each: (late.starts if each.running is None else late.ends).get(each.command, -1),
            )
        return self._random.choices(choices, [choice.pace for choice in choices])[0]

    def _step(self) -> bool:
        """Start or end one command; False if there is none to start or end."""
        choices = list(self._choices())
        if not choices:
            return False
        chosen = self._chosen(choices)
        unit, command = chosen.unit, chosen.command
        if chosen.running is not None:
            unit.running.remove(chosen.running)
            command.end()
            return True
        unit.waiting.popleft()
        command.start()
        if command.kind is CommandKind.POP:
            command.end()
        else:
            earlier = [running.command.token for running in unit.running] if command.kind is CommandKind.PUSH else ()
            pace = self._random.choice(_PACES) * unit.pace
            unit.running.append(_StartedCommand(command, self._started, pace, earlier))
            self._started += 1
        return True


MAX_DIGITS = 20
"""Of the number that an interleaving is drawn with."""


def read_order(text: str) -> Order:
    """The order that a user names. Raises UserError, with those that there are, for another one."""
    for order in ORDERS:
        if text == order:
            return order
    # Python refuses to read numbers of thousands of digits.
    if text.isdecimal() and len(text) <= MAX_DIGITS:
        return int(text)
    near = did_you_mean(text, [str(order) for order in ORDERS])
    raise UserError(
        f'there is no interleaving "{text}"',
        notes=[near or "interleavings: program, asap, alap, or a number that one is drawn with"],
        status=USAGE,
    )
