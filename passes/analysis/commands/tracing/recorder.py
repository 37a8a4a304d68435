"""
The list of commands as it grows, and what the tokens of its commands mean.

A token is the number of a command, or a `Join` of tokens. What a command comes after is spelled without what the order
of units says anyway: a unit has completed all its earlier commands when an exec starts, or a transfer of an engine
that has one outstanding, and nothing starts beside an exec.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program, QueueName


class Join:
    """A token that is complete when all of its parts are."""

    __slots__ = ("numbers", "parts")

    def __init__(self, parts: Sequence[Token]):
        self.parts = parts
        self.numbers: tuple[int, ...] | None = None
        """The commands that it stands for, ascending; None before it has been asked for."""


Token = int | Join

NOTHING = Join(())


def join(*tokens: Token) -> Token:
    """The token of all of `tokens`."""
    parts = [token for token in tokens if token is not NOTHING]
    return parts[0] if len(parts) == 1 else Join(parts) if parts else NOTHING


class Recorder:
    """Commands in program order. Every `issue` is one more; what it returns is the token."""

    def __init__(self, machine: MachineModel, limit: int):
        self.commands: list[Command] = []
        self._machine = machine
        self._limit = limit
        self._units: list[str] = []
        self._closes: list[bool] = []
        """Of each command whether all earlier ones of its unit are complete when it starts."""
        self._latest: dict[str, int] = {}
        """The last command of each unit, and the last one that closes."""
        self._latest_closing: dict[str, int] = {}
        self._barriers: list[int] = []
        self._start = 0
        """The first command after the last barrier."""
        self._waits: dict[str, Token] = {}
        """What the next command of a unit comes after because the host has waited for it."""
        self._pops: dict[str, list[QueueName]] = {}
        """What the next command of a unit pops."""

    def program(self, storages: Sequence[str]) -> Program:
        """All of them."""
        for unit in list(self._pops):
            self._carrier(unit, None, ())
        barriers = [number for number in self._barriers if number < len(self.commands)]
        return Program(self._machine, self.commands, tuple(dict.fromkeys(barriers)), tuple(storages))

    def issue(self, command: Command, tokens: Sequence[Token], *, closes: bool) -> int:
        """Give a command to its unit; raises UserError if there are too many."""
        number = len(self.commands)
        unit = command.unit
        if number >= self._limit:
            raise UserError(
                f"more than {self._limit:,} commands: this one is too many to look at one by one",
                loc=location_of(command.op) if command.op is not None else None,
            )
        if unit in self._waits:
            tokens = (*tokens, self._waits.pop(unit))
        if tokens:
            command.after = self._after(tokens, unit, closes)
        if unit in self._pops:
            command.pops = tuple(self._pops.pop(unit))
        self.commands.append(command)
        self._units.append(unit)
        self._closes.append(closes)
        self._latest[unit] = number
        if closes:
            self._latest_closing[unit] = number
        return number

    def wait(self, tokens: Sequence[Token]) -> None:
        """The host waits: every later command comes after them."""
        for unit in self._machine.units:
            self._waits[unit] = join(*tokens, self._waits.get(unit, NOTHING))

    def barrier(self) -> None:
        """Later commands come after all that there are, and after pops that no command has taken yet."""
        for unit in list(self._pops):
            self._carrier(unit, None, ())
        self._start = len(self.commands)
        self._barriers.append(self._start)
        self._waits.clear()

    def pop(self, op: Operation, unit: str, peer: str, counters: tuple[int, ...]) -> None:
        """The next command of the unit takes a token."""
        if unit in self._pops and (peer, unit) in self._pops[unit]:
            self._carrier(unit, op, counters)
        self._pops.setdefault(unit, []).append((peer, unit))

    def push(self, op: Operation, unit: str, peer: str, counters: tuple[int, ...]) -> None:
        """The last command of the unit gives a token, or an empty one where there is none since all that holds it."""
        latest = self._latest.get(unit, -1)
        if latest < self._start or unit in self._pops or unit in self._waits:
            self._carrier(unit, op, counters)
            latest = self._latest[unit]
        self.commands[latest].pushes += ((unit, peer),)

    def _carrier(self, unit: str, op: Operation | None, counters: tuple[int, ...]) -> None:
        self.issue(Command(unit, Kind.CARRIER, op=op, counters=counters), (), closes=True)

    # tokens

    def _after(self, tokens: Sequence[Token], unit: str, closes: bool) -> tuple[int, ...]:
        """What a command of `unit` comes after that neither its unit nor a barrier says."""
        start, units = self._start, self._units
        first = tokens[0]
        if len(tokens) > 1:
            numbers = self._numbers(Join(tokens))
        elif isinstance(first, int):
            if first >= start and units[first] != unit:
                return (first,)
            numbers = (first,)
        else:
            numbers = self._numbers(first)
        if (not numbers or numbers[0] >= start) and unit not in [units[number] for number in numbers]:
            return numbers
        implied = len(units) if closes else self._latest_closing.get(unit, -1)
        if not closes and implied >= 0 and self.commands[implied].kind is not Kind.TRANSFER:
            implied += 1
        return tuple(n for n in numbers if n >= start and (units[n] != unit or n >= implied))

    def _numbers(self, token: Join) -> tuple[int, ...]:
        """The commands that a token stands for, without those that others of their unit imply."""
        if token.numbers is None:
            found: set[int] = set()
            seen: set[int] = set()
            pending: list[Token] = [token]
            while pending:
                part = pending.pop()
                if isinstance(part, int):
                    found.add(part)
                elif part.numbers is not None:
                    found.update(part.numbers)
                elif id(part) not in seen:
                    seen.add(id(part))
                    pending.extend(part.parts)
            token.numbers = self._reduced(found)
            token.parts = ()
        return token.numbers

    def _reduced(self, numbers: Iterable[int]) -> tuple[int, ...]:
        kept: list[int] = []
        closed: set[str] = set()
        for number in sorted(numbers, reverse=True):
            unit = self._units[number]
            if unit not in closed:
                kept.append(number)
                if self._closes[number]:
                    closed.add(unit)
        return tuple(reversed(kept))
