# SPDX-License-Identifier: Apache-2.0
"""
A second opinion on the cycles, independent on purpose: the longest path in a graph (max-plus algebra).

Every time is the largest of others, each plus a constant. Nothing is simulated: the rules are equations, solved in the
order of their dependences. They can be written down where no choice depends on time: no bus serves two units, and what
is given in program order happens in it (the ends of a unit's transfers, and the pushes into a queue). Whether the
second holds is seen in the solution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from penstock.passes.analysis.commands.program import Command, Engine, Kind, Program, QueueName


@dataclass(frozen=True)
class Times:
    """The solution; a time that is never reached is None."""

    starts: tuple[int | None, ...]
    ends: tuple[int | None, ...]
    pushes: dict[QueueName, tuple[int | None, ...]]
    """The times of the pushes into each queue, in program order."""
    pops: dict[QueueName, tuple[int | None, ...]]
    in_order: bool
    """
    Whether transfers of a unit end, and pushes into a queue are ready and happen, in program order, and of those that
    are ready at one time it does not matter which is first: the equations hold.
    """

    @property
    def cycles(self) -> int | None:
        """The largest end; None where some command never ends."""
        ends = [end for end in self.ends if end is not None]
        return max(ends, default=0) if len(ends) == len(self.ends) else None


def shares_no_bus(program: Program) -> bool:
    """Whether no bus serves two units."""
    users: dict[str, set[str]] = defaultdict(set)
    for command in program.commands:
        if command.kind is Kind.TRANSFER and (bus := program.machine.engines[command.engine or ""].bus) is not None:
            users[bus].add(command.unit)
    return all(len(units) == 1 for units in users.values())


def longest_path(program: Program) -> Times | None:
    """The times of a program that may be written as equations; None for one that shares a bus between units."""
    return _Equations(program).solution() if shares_no_bus(program) else None


class _Equations:
    """Variables, numbered, and for each the others that it is not before, with the cycles between."""

    def __init__(self, program: Program):
        self.program = program
        self.terms: list[list[tuple[int, int]]] = []
        commands = program.commands
        self.start = [self.variable() for _ in commands]
        self.end = [self.variable() for _ in commands]
        """When the last push was made."""
        self.pushes: dict[QueueName, list[int]] = {queue.name: [] for queue in program.machine.queues}
        self.ready: dict[QueueName, list[tuple[int, int]]] = {queue.name: [] for queue in program.machine.queues}
        """For each push, the time from which it waits only for room in its queue, and its command."""
        self.pops: dict[QueueName, list[int]] = {queue.name: [] for queue in program.machine.queues}
        self.never = self.variable()
        self.terms[self.never].append((self.never, 0))
        self.transfers: dict[str, list[int]] = defaultdict(list)
        self._units()
        self._queues()
        self._barriers()

    def variable(self) -> int:
        self.terms.append([])
        return len(self.terms) - 1

    def _units(self) -> None:
        before: dict[str, int] = {}
        """The last command of each unit."""
        complete: dict[str, int] = {}
        """For each unit, when its last exec and all before that were complete."""
        bus_free: dict[str, int] = {}
        for number, command in enumerate(self.program.commands):
            start = self.terms[self.start[number]]
            start += [(self.end[other], 0) for other in command.after]
            if (previous := before.get(command.unit)) is not None:
                start.append((self.start[previous], 0))
            before[command.unit] = number
            if command.unit in complete:
                start.append((complete[command.unit], 0))
            if command.kind is Kind.TRANSFER:
                done = self._transfer(number, command, bus_free)
            else:
                start += [(self.end[other], 0) for other in self.transfers[command.unit]]
                self.transfers[command.unit].clear()
                done = self.variable()
                length = command.cycles if command.kind is Kind.EXEC else 0
                self.terms[done].append((self.start[number], length))
                complete[command.unit] = self.end[number]
            self._pushes(number, command, done)

    def _transfer(self, number: int, command: Command, bus_free: dict[str, int]) -> int:
        engine: Engine = self.program.machine.engines[command.engine or ""]
        # Room among the transfers in flight: the one so many before is complete.
        in_flight = self.transfers[command.unit]
        if len(in_flight) >= engine.outstanding:
            self.terms[self.start[number]].append((self.end[in_flight[-engine.outstanding]], 0))
        in_flight.append(number)
        done, granted = self.variable(), self.variable()
        self.terms[granted].append((self.start[number], engine.latency))
        bus = f"bus {engine.bus}" if engine.bus is not None else f"engine {engine.name}"
        if bus in bus_free:
            self.terms[granted].append((bus_free[bus], 0))
        self.terms[done].append((granted, command.cycles))
        bus_free[bus] = done
        return done

    def _pushes(self, number: int, command: Command, done: int) -> None:
        """One push after the other, and the end with the last."""
        for name in command.pushes:
            pushed = self.variable()
            self.terms[pushed].append((done, 0))
            self.ready[name].append((done, number))
            self.pushes[name].append(pushed)
            done = pushed
        self.terms[self.end[number]].append((done, 0))
        for name in command.pops:
            self.pops[name].append(self.start[number])

    def _queues(self) -> None:
        for queue in self.program.machine.queues:
            pushes, pops = self.pushes[queue.name], self.pops[queue.name]
            for position, pop in enumerate(pops):
                source = position - queue.initial
                if source >= 0:
                    self.terms[pop].append((pushes[source] if source < len(pushes) else self.never, 0))
            for position, push in enumerate(pushes if queue.blocks else ()):
                room = position + queue.initial - queue.capacity
                if room >= 0:
                    self.terms[push].append((pops[room] if room < len(pops) else self.never, 0))

    def _barriers(self) -> None:
        commands, done = len(self.program.commands), 0
        barriers = set(self.program.barriers)
        for barrier in sorted(barriers):
            passed = self.variable()
            self.terms[passed] += [(self.end[number], 0) for number in range(done, barrier)]
            # What is beyond the next barrier is after this one, because that one is.
            done = barrier
            for number in range(barrier, commands):
                self.terms[self.start[number]].append((passed, 0))
                if number + 1 in barriers:
                    break

    def solution(self) -> Times:
        values = self._solve()
        starts = tuple(values[number] for number in self.start)
        ends = tuple(values[number] for number in self.end)
        pushes = {name: tuple(values[each] for each in found) for name, found in self.pushes.items()}
        pops = {name: tuple(values[each] for each in found) for name, found in self.pops.items()}
        by_unit: dict[str, list[int | None]] = defaultdict(list)
        for command, end in zip(self.program.commands, ends, strict=True):
            if command.kind is Kind.TRANSFER:
                by_unit[command.unit].append(end)
        # A push that never happens may have been ready before another that does, and would have taken its room.
        ready = {name: [values[each] for each, _ in found] for name, found in self.ready.items()}
        in_order = all(map(_ascending, (*by_unit.values(), *pushes.values(), *ready.values()))) and all(
            _any_first(ready[name], pushes[name], [number for _, number in found]) for name, found in self.ready.items()
        )
        return Times(starts, ends, pushes, pops, in_order)

    def _solve(self) -> list[int | None]:
        """Each variable once all that it depends on are known; what depends on itself has none."""
        users: list[list[int]] = [[] for _ in self.terms]
        unknown = [len(terms) for terms in self.terms]
        for variable, terms in enumerate(self.terms):
            for other, _ in terms:
                users[other].append(variable)
        values: list[int | None] = [None] * len(self.terms)
        ready = [variable for variable, count in enumerate(unknown) if not count]
        while ready:
            variable = ready.pop()
            largest = 0
            for other, cycles in self.terms[variable]:
                value = values[other]
                assert value is not None
                largest = max(largest, value + cycles)
            values[variable] = largest
            for user in users[variable]:
                unknown[user] -= 1
                if not unknown[user]:
                    ready.append(user)
        return values


def _ascending(times: tuple[int | None, ...] | list[int | None]) -> bool:
    """Whether times ascend; what never happens comes last."""
    known = [time for time in times if time is not None]
    return known == sorted(known) and None not in times[: len(known)]


def _any_first(ready: Sequence[int | None], pushes: Sequence[int | None], commands: Sequence[int]) -> bool:
    """Return whether those pushes that are ready at one time happen at one time, or are of one command."""
    for _, group in groupby(zip(ready, pushes, commands, strict=True), key=itemgetter(0)):
        _, times, of = map(set, zip(*group, strict=True))
        if len(times) > 1 and len(of) > 1:
            return False
    return True
