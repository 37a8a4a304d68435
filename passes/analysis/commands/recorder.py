# SPDX-License-Identifier: Apache-2.0
"""
The commands of a kernel as they are issued: what each comes after, in the order of its unit or by tokens.

A token is the number of a command, or a `Join` of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program, QueueName
from penstock.passes.analysis.commands.stationary import Residents


class Join:
    """A token that is complete when all of its parts are."""

    __slots__ = ("latest", "numbers", "others", "parts")

    def __init__(self, parts: Sequence[Token]):
        self.parts = parts
        self.numbers: tuple[int, ...] | None = None
        """The commands that it is of, ascending; None before they are first needed."""
        self.latest: dict[str, int] = {}
        """The last of these of each unit."""
        self.others: dict[str, tuple[int, ...]] = {}
        """Those of other units than one."""


Token = int | Join

NOTHING = Join(())


def join(*tokens: Token) -> Token:
    """The token of all of `tokens`."""
    parts = [token for token in tokens if token is not NOTHING]
    return parts[0] if len(parts) == 1 else Join(parts) if parts else NOTHING


class TooManyCommandsError(UserError):
    """A kernel has more commands than are to be looked at one by one."""


class Recorder:
    """
    Commands in program order. Every `issue` is one more; what it returns is the token.

    `after` of a command is left without what the order of its unit and barriers imply: an earlier one of the unit, if
    the command starts alone, or a later one did or executes.
    """

    def __init__(self, machine: MachineModel, limit: int):
        self.commands: list[Command] = []
        self._machine = machine
        self._limit = limit
        self._units: list[str] = []
        self._alone: list[bool] = []
        """By command: its unit, and whether it starts alone."""
        self._latest: dict[str, int] = {}
        """The last command of each unit, and the last one that starts alone."""
        self._latest_alone: dict[str, int] = {}
        self._barriers: list[int] = []
        self._start = 0
        """The first command after the last barrier."""
        self._waits: dict[str, Token] = {}
        """What the next command of a unit comes after because the host has waited for it."""
        self._pops: dict[str, list[QueueName]] = {}
        """What the next command of a unit pops."""
        self._joined: dict[Operation | None, tuple[Sequence[Token], Join]] = {}
        """By op: the tokens that its last command waited for, and their join."""
        self.residents = Residents()
        """What units hold of their stationary operands."""

    def program(self, storages: Sequence[str]) -> Program:
        """All of them."""
        for unit in list(self._pops):
            self._carrier(unit, None, ())
        barriers = [number for number in self._barriers if number < len(self.commands)]
        return Program(self._machine, self.commands, tuple(dict.fromkeys(barriers)), tuple(storages))

    def issue(self, command: Command, tokens: Sequence[Token]) -> int:
        """Give a command to its unit; raises UserError if there are too many."""
        number = len(self.commands)
        unit = command.unit
        if number >= self._limit:
            raise TooManyCommandsError(
                f"more than {self._limit:,} commands: this one is too many to look at one by one",
                loc=command.location,
            )
        if unit in self._waits:
            tokens = (*tokens, self._waits.pop(unit))
        if tokens:
            command.after = self._after(tokens, command)
        if unit in self._pops:
            command.pops = tuple(self._pops.pop(unit))
        self.commands.append(command)
        self.residents.overwrite(command.writes)
        alone = self._machine.starts_alone(command)
        self._units.append(unit)
        self._alone.append(alone)
        self._latest[unit] = number
        if alone:
            self._latest_alone[unit] = number
        return number

    def wait(self, tokens: Sequence[Token]) -> None:
        """The host waits: every later command comes after them."""
        for unit in self._machine.units:
            self._waits[unit] = join(*tokens, self._waits.get(unit, NOTHING))

    def barrier(self) -> None:
        """Later commands come after all that there are, and after pops that no command has made yet."""
        for unit in list(self._pops):
            self._carrier(unit, None, ())
        self._start = len(self.commands)
        self._barriers.append(self._start)
        self._waits.clear()

    def pop(self, op: Operation, unit: str, peer: str, counters: tuple[int, ...]) -> None:
        """The next command of the unit pops a token."""
        if unit in self._pops and (peer, unit) in self._pops[unit]:
            self._carrier(unit, op, counters)
        self._pops.setdefault(unit, []).append((peer, unit))

    def push(self, op: Operation, unit: str, peer: str, counters: tuple[int, ...]) -> None:
        """The last command of the unit pushes a token, or a carrier if it was issued before a barrier, wait or pop."""
        latest = self._latest.get(unit, -1)
        if latest < self._start or unit in self._pops or unit in self._waits:
            self._carrier(unit, op, counters)
            latest = self._latest[unit]
        self.commands[latest].pushes += ((unit, peer),)

    def _carrier(self, unit: str, op: Operation | None, counters: tuple[int, ...]) -> None:
        self.issue(Command(unit, Kind.CARRIER, op=op, counters=counters), ())

    def _after(self, tokens: Sequence[Token], command: Command) -> tuple[int, ...]:
        """What a command comes after that neither its unit nor a barrier implies."""
        units, unit, first = self._units, command.unit, tokens[0]
        token = first if len(tokens) == 1 else self._join(tokens, command.op)
        implied = len(units) if self._machine.starts_alone(command) else self._latest_alone.get(unit, -1)
        if 0 <= implied < len(units) and self.commands[implied].kind is not Kind.TRANSFER:
            implied += 1
        if isinstance(token, int):
            numbers = () if token < implied and units[token] == unit else (token,)
        else:
            numbers = self._numbers(token)
            last = token.latest.get(unit, -1)
            if last >= implied:
                numbers = tuple(n for n in numbers if n >= implied or units[n] != unit)
            elif last >= 0:
                if unit not in token.others:
                    token.others[unit] = tuple(n for n in numbers if units[n] != unit)
                numbers = token.others[unit]
        return numbers if not numbers or numbers[0] >= self._start else tuple(n for n in numbers if n >= self._start)

    def _join(self, tokens: Sequence[Token], op: Operation | None) -> Join:
        """The join of tokens, which is that of the last command of an op if it waited for the same."""
        last = self._joined.get(op)
        if last is None or last[0] != tokens:
            last = self._joined[op] = tokens, Join(tokens)
        return last[1]

    def _numbers(self, token: Join) -> tuple[int, ...]:
        """The commands that a token is of, without those that later ones of their unit imply."""
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
            kept: list[int] = []
            closed: set[str] = set()
            for number in sorted(found, reverse=True):
                unit = self._units[number]
                if unit not in closed:
                    kept.append(number)
                    token.latest.setdefault(unit, number)
                    if self._alone[number]:
                        closed.add(unit)
            token.numbers = tuple(reversed(kept))
            token.parts = ()
        return token.numbers
