"""
What is certain to have happened when a command starts: vector clocks over the units of a machine.

A unit starts its commands in program order. An exec or a carrier, and a transfer of an engine with one outstanding,
starts when every earlier command of its unit is complete; everything after an exec or carrier starts when that is
complete. Transfers in flight complete in any order. Beside that only tokens order anything. A token through a queue is
pushed when its command and all earlier ones of the unit are complete; a token within a unit is of its command alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.passes.analysis.commands.program import Command, Kind, MachineModel

Done = tuple[int, int]
"""Commands of a unit, by their number in it: all below the first, and those that the mask counts from there on."""


def union(one: Done, other: Done) -> Done:
    """The commands of either."""
    if one[0] < other[0]:
        one, other = other, one
    base, mask = one[0], one[1] | other[1] >> (one[0] - other[0])
    if mask & 1:
        run = (mask ^ (mask + 1)).bit_length() - 1
        base, mask = base + run, mask >> run
    return base, mask


@dataclass(frozen=True)
class Moment:
    """What has happened: for every unit what is complete, and how many of its commands have started."""

    done: tuple[Done, ...]
    started: tuple[int, ...]

    def join(self, other: Moment) -> Moment:
        """What has happened when both have."""
        if self is other:
            return self
        return Moment(
            tuple(a if a == b else union(a, b) for a, b in zip(self.done, other.done, strict=True)),
            tuple(map(max, self.started, other.started)),
        )


def is_alone(command: Command, model: MachineModel) -> bool:
    """Whether a command starts only when all earlier ones of its unit are complete."""
    if command.kind is not Kind.TRANSFER or command.engine is None:
        return True
    engine = model.engines.get(command.engine)
    return engine is None or engine.outstanding <= 1


class Clocks:
    """Commands in program order, each with what is certain to have happened when it starts."""

    def __init__(self, model: MachineModel):
        self._model = model
        self._unit = {name: number for number, name in enumerate(model.units)}
        self._floor = Moment(((0, 0),) * len(model.units), (0,) * len(model.units))
        self._last = [self._floor] * len(model.units)
        self._held = [0] * len(model.units)
        self._counts = [0] * len(model.units)
        self.units: list[int] = []
        self.numbers: list[int] = []
        """Which of its unit's commands each command is."""
        self.starts: list[Moment] = []

    def barrier(self) -> None:
        """Everything so far is complete before anything later starts."""
        self._floor = Moment(tuple((count, 0) for count in self._counts), tuple(self._counts))
        self._last = [self._floor] * len(self._counts)

    def before(self, command: Command) -> Moment:
        """What is certain when `command` starts next, without any token."""
        unit = self._unit[command.unit]
        moment = self._last[unit]
        count = self._counts[unit]
        held = count if is_alone(command, self._model) else self._held[unit]
        done, started = list(moment.done), list(moment.started)
        if held > done[unit][0]:
            done[unit] = union(done[unit], (held, 0))
        started[unit] = count
        return Moment(tuple(done), tuple(started))

    def append(self, command: Command, start: Moment) -> None:
        """Add a command that starts when `start`, `before` and what its tokens tell, has happened."""
        unit = self._unit[command.unit]
        self.units.append(unit)
        self.numbers.append(self._counts[unit])
        self.starts.append(start)
        self._counts[unit] += 1
        if command.kind is not Kind.TRANSFER:
            self._held[unit] = self._counts[unit]
        self._last[unit] = start

    def told(self, index: int, unit: str) -> Moment:
        """What is certain in `unit` when a command is complete: elsewhere a push tells it, and of all before it."""
        start, own, number = self.starts[index], self.units[index], self.numbers[index]
        done, started = list(start.done), list(start.started)
        if self._unit[unit] != own:
            done[own] = union(done[own], (number + 1, 0))
        elif number >= (base := done[own][0]):
            done[own] = union(done[own], (base, 1 << (number - base)))
        started[own] = max(started[own], number + 1)
        return Moment(tuple(done), tuple(started))

    def is_done(self, index: int, moment: Moment) -> bool:
        """Whether a command is complete at a moment."""
        base, mask = moment.done[self.units[index]]
        number = self.numbers[index]
        return number < base or bool(mask >> (number - base) & 1)

    def has_started(self, index: int, moment: Moment) -> bool:
        """Whether a command has started at a moment."""
        return self.numbers[index] < moment.started[self.units[index]]


def reduced(
    model: MachineModel, commands: Sequence[Command], after: Sequence[Iterable[int]], barriers: Sequence[int]
) -> tuple[list[list[int]], Clocks]:
    """
    The commands that each must get a token of, as nothing else implies it: the transitive reduction of `after`.

    Tokens to other units go through queues. Each entry of `after` names earlier commands; those of the result are a
    subset of them, latest first.
    """
    clocks = Clocks(model)
    kept: list[list[int]] = []
    pending = iter([*barriers, len(commands) + 1])
    barrier = next(pending)
    for index, command in enumerate(commands):
        while barrier <= index:
            clocks.barrier()
            barrier = next(pending)
        moment = clocks.before(command)
        needs: list[int] = []
        # A command can only be implied by a later one, so the latest come first.
        for other in sorted(set(after[index]), reverse=True):
            if not clocks.is_done(other, moment):
                needs.append(other)
                moment = moment.join(clocks.told(other, command.unit))
        clocks.append(command, moment)
        kept.append(needs)
    return kept, clocks
