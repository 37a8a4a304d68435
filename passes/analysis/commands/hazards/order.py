"""
What is certain to be complete when a command starts.

A command is a bit of an int, and what is known at a moment is a mask. A command knows what every command it comes after
knew, and these themselves; what was known when an earlier command of its unit started; as an exec, a carrier or a
transfer of an engine with one outstanding, all earlier commands of its unit; and otherwise the earlier execs and
carriers of its unit, which let nothing start beside them. A token that comes through a queue is pushed when its
command and all earlier ones of that unit are complete. That is what the interpreter goes by, too: transfers in flight
may complete in any order, so that with several outstanding the start of one says nothing of those before it, and
that a push into a full queue waits for a pop is no reason to rely on it.

Bits that nobody can ask for are taken out now and then, so that masks stay short however long a program is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from penstock.passes.analysis.commands.hazards.network import Flow, is_alone
from penstock.passes.analysis.commands.program import Kind, Program

_LEAST = 2048
"""How many bits there are before it is worth while to look for those that are not needed."""


class Order:
    """Commands, given in an order in which they can start, and what each knows to be complete."""

    def __init__(self, program: Program, flow: Flow):
        self._commands = program.commands
        units = {name: number for number, name in enumerate(program.machine.units)}
        self._unit = [units[command.unit] for command in program.commands]
        self._alone = [is_alone(program.machine, command) for command in program.commands]
        self._sources = flow.sources
        self._left = [0] * len(units)
        """The commands of each unit that have not started."""
        self._uses = [0] * len(program.commands)
        """How often what a command knows will be asked for, by tokens and through queues."""
        for number, command in enumerate(program.commands):
            self._left[self._unit[number]] += 1
            for other in command.after:
                self._uses[other] += 1
            for other in flow.sources.get(number, ()):
                self._uses[other] += 1
        self._started = [0] * len(units)
        self._all = [0] * len(units)
        self._execs = [0] * len(units)
        self._ends: dict[int, int] = {}
        """What is known with the token of a command, while it is still to be used."""
        self._pushed: dict[int, int] = {}
        """The same of its pushes."""
        self.bit: dict[int, int] = {}
        """The bit of each command that has one; those without are complete when any later one starts."""
        self._named: list[int] = []
        """The command of each bit."""
        self._enough = _LEAST

    def barrier(self) -> None:
        """All commands so far are complete."""
        count = len(self._started)
        self._started, self._all, self._execs = [0] * count, [0] * count, [0] * count
        self._ends.clear()
        self._pushed.clear()
        self.bit.clear()
        self._named.clear()

    def without_tokens(self, number: int) -> int:
        """What is complete when the next command, `number`, starts, if it came after no token but those it pops."""
        unit = self._unit[number]
        before = self._started[unit] | (self._all[unit] if self._alone[number] else self._execs[unit])
        for other in self._sources.get(number, ()):
            before |= self._pushed.get(other, 0)
        return before

    def end(self, number: int) -> int:
        """What is complete with a command whose token is still to be used."""
        return self._ends.get(number, 0)

    def start(self, number: int) -> int:
        """What is complete when the next command starts, which is `number`, as a mask of bits."""
        unit = self._unit[number]
        before = self.without_tokens(number)
        for other in self._commands[number].after:
            before |= self._ends.get(other, 0)
            self._used(other)
        for other in self._sources.get(number, ()):
            self._used(other)
        at = len(self._named)
        self.bit[number] = at
        self._named.append(number)
        done = before | 1 << at
        self._started[unit] |= before
        self._all[unit] |= done
        if self._commands[number].kind is not Kind.TRANSFER:
            self._execs[unit] |= done
        self._left[unit] -= 1
        if self._uses[number]:
            self._ends[number] = done
            if self._commands[number].pushes:
                self._pushed[number] = self._all[unit]
        return before

    def _used(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            self._ends.pop(number, None)
            self._pushed.pop(number, None)

    def tidy(self, is_needed: Callable[[int], bool]) -> None:
        """Take out the bits of commands that are not needed, or that every unit knows, if there are many."""
        count = len(self._named)
        if count < self._enough:
            return
        everywhere = -1
        for unit, left in enumerate(self._left):
            if left:
                everywhere &= self._started[unit]
        keep = np.array([is_needed(number) for number in self._named])
        keep &= ~_bits(everywhere & (1 << count) - 1, count)
        for number, kept in zip(self._named, keep.tolist(), strict=True):
            if not kept:
                del self.bit[number]
        self._named = [number for number, kept in zip(self._named, keep.tolist(), strict=True) if kept]
        for at, number in enumerate(self._named):
            self.bit[number] = at
        for masks in (self._started, self._all, self._execs):
            masks[:] = _squeezed(masks, keep)
        for known in (self._ends, self._pushed):
            known.update(zip(list(known), _squeezed(list(known.values()), keep), strict=True))
        self._enough = max(_LEAST, 2 * len(self._named))


def _bits(mask: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    packed = np.frombuffer(mask.to_bytes(-(-count // 8), "little"), np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)


def _squeezed(masks: Iterable[int], keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
    return [
        int.from_bytes(np.packbits(_bits(mask, len(keep))[keep], bitorder="little").tobytes(), "little")
        for mask in masks
    ]
