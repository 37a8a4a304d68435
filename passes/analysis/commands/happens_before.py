# SPDX-License-Identifier: Apache-2.0
"""
What is certainly complete when a command starts: vector clocks over the units of a machine.

A command has two events, its start and its end. Happens-before (Lamport, CACM 1978) is the least partial order in
which start(a) < end(a) and, where `a` precedes `b` in program order,

1. start(a) < start(b) if both are of one unit;
2. end(a) < start(b) if both are of one unit, and `b` starts alone or `a` executes;
3. end(a) < start(b) if `b` waits for the token of `a`, or there is a barrier between them;
4. end(a) < start(b) if `b` pops a token pushed by `a` or by a later command of the unit of `a`: a push happens when its
   command and all earlier ones of the unit are complete.

A command starts alone if it is an exec, a carrier, or a transfer of an engine with one outstanding. Other transfers of
a unit complete in any order. That a push waits for room in its queue orders nothing.

The commands complete at an event are, by unit, a prefix of its commands and a mask of later ones: vector clocks
(Mattern 1989), with the exceptions that transfers in flight make.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.commands.program import Kind, Program, QueueName

Completed = tuple[int, int]
"""Commands of one unit: all whose position is below the first, and those that the mask counts from there on."""
Clock = tuple[Completed, ...]
"""The complete commands of each unit."""

_MAX_ENDS = 1 << 12
"""How many sets of commands have their ends kept."""


def _union(one: Completed, other: Completed) -> Completed:
    if one[0] < other[0]:
        one, other = other, one
    base, mask = one[0], one[1] | other[1] >> (one[0] - other[0])
    if mask & 1:
        run = (mask ^ (mask + 1)).bit_length() - 1
        base, mask = base + run, mask >> run
    return base, mask


def join(one: Clock, other: Clock) -> Clock:
    """What is complete according to either."""
    if one is other:
        return one
    return tuple([a if a == b else _union(a, b) for a, b in zip(one, other, strict=True)])


class HappensBefore:
    """
    Commands in an order in which they can start, each with what is complete then. `number` names a command.

    A command is added in two steps: `before` is what its unit and barriers imply, to which the caller joins `end` or
    `pushed` of what the command waits for; `start` records the result.
    """

    def __init__(self, units: Iterable[str]):
        self._units = {unit: index for index, unit in enumerate(units)}
        self.nothing: Clock = ((0, 0),) * len(self._units)
        self._counts = [0] * len(self._units)
        """By unit: how many commands have started, and how many have when the last one that executes has."""
        self._executed = [0] * len(self._units)
        self._last = [self.nothing] * len(self._units)
        """By unit: what is complete when its last command starts."""
        self._at: dict[int, tuple[int, int]] = {}
        """The unit of each command and its position there."""
        self._starts: dict[int, Clock] = {}
        self._ends: dict[tuple[int, ...], Clock] = {}
        """What is complete when all of some commands are."""

    def barrier(self) -> None:
        """Everything so far is complete before anything later starts."""
        self._last = [tuple((count, 0) for count in self._counts)] * len(self._counts)

    def before(self, unit: str, *, alone: bool) -> Clock:
        """What is complete when the next command of a unit starts, if it waits for no token."""
        index = self._units[unit]
        return self._and_first(self._last[index], index, self._counts[index] if alone else self._executed[index])

    def start(self, number: int, unit: str, clock: Clock, *, executes: bool) -> None:
        """Add a command that starts when `clock` is complete; nothing of its unit starts beside one that executes."""
        index = self._units[unit]
        position = self._counts[index]
        self._at[number] = index, position
        self._starts[number] = clock
        self._last[index] = clock
        self._counts[index] = position + 1
        if executes:
            self._executed[index] = position + 1

    def end(self, number: int) -> Clock:
        """What is complete when a command is."""
        clock, (unit, position) = self._starts[number], self._at[number]
        base, mask = clock[unit]
        if position == base and not mask:
            own = base + 1, 0
        elif position >= base:
            own = _union((base, mask), (base, 1 << (position - base)))
        else:
            return clock
        return (*clock[:unit], own, *clock[unit + 1 :])

    def ends(self, numbers: tuple[int, ...]) -> Clock:
        """
        What is complete when all of these commands are: found once for those that many commands wait for.

        Start clocks of a unit ascend, so of each unit the latest start implies those of the others.
        """
        if len(numbers) == 1:
            return self.end(numbers[0])
        if (found := self._ends.get(numbers)) is not None:
            return found
        clock, at = self.nothing, self._at
        for number in {at[number][0]: number for number in sorted(numbers)}.values():
            clock = join(clock, self._starts[number])
        own = [0] * len(clock)
        for number in numbers:
            unit, position = at[number]
            if position >= clock[unit][0]:
                own[unit] |= 1 << (position - clock[unit][0])
        clock = tuple(_union(each, (each[0], mask)) if mask else each for each, mask in zip(clock, own, strict=True))
        if len(self._ends) == _MAX_ENDS:
            self._ends.clear()
        self._ends[numbers] = clock
        return clock

    def pushed(self, number: int) -> Clock:
        """What is complete when a command has pushed its tokens."""
        unit, position = self._at[number]
        return self._and_first(self._starts[number], unit, position + 1)

    @staticmethod
    def _and_first(clock: Clock, unit: int, count: int) -> Clock:
        """`clock`, and the first `count` commands of a unit."""
        if count <= clock[unit][0]:
            return clock
        return (*clock[:unit], _union(clock[unit], (count, 0)), *clock[unit + 1 :])

    def is_complete(self, number: int, clock: Clock) -> bool:
        """Whether a command is complete."""
        unit, position = self._at[number]
        base, mask = clock[unit]
        return position < base or bool(mask >> (position - base) & 1)

    def has_started(self, number: int, other: int) -> bool:
        """Whether a command has started when another starts: it is earlier in the unit, or a later one is complete."""
        if number not in self._at:
            return False
        unit, position = self._at[number]
        own, later = self._at[other]
        base, mask = self._starts[other][unit]
        return position < base or bool(mask >> (position - base)) or (own == unit and position <= later)

    def complete_prefix(self, number: int, unit: str) -> int:
        """How many of the first commands of a unit are complete when a command starts, without those in flight."""
        return self._starts[number][self._units[unit]][0]

    def essential(self, clock: Clock, numbers: Iterable[int], pushed_to: str | None = None) -> tuple[list[int], Clock]:
        """
        Of the commands to wait for beyond `clock` those that no other implies, latest first, and what is complete then.

        Transitive reduction (Aho, Garey, Ullman, SIAM J. Comput. 1972): only a later command can imply an earlier one,
        so, latest first, each that is not complete yet is essential. Commands of units other than `pushed_to` signal by
        a push, if a unit is given.
        """
        found: list[int] = []
        for number in sorted(set(numbers), reverse=True):
            if not self.is_complete(number, clock):
                found.append(number)
                through_queue = pushed_to is not None and self._at[number][0] != self._units[pushed_to]
                clock = join(clock, self.pushed(number) if through_queue else self.end(number))
        return found, clock


Pushers = Sequence[Sequence[int | None]]
"""For each command and each of its pops, the command that pushes the token; None for one that the queue began with."""


def pushers(program: Program) -> Pushers:
    """
    Where the tokens that are popped come from: the k-th pop of a queue receives the k-th push.

    Raises UserError, located, for a pop without a push.
    """
    tokens: dict[QueueName, list[int | None]] = defaultdict(list)
    for queue in program.machine.queues:
        tokens[queue.name] += [None] * queue.initial
    for number, command in enumerate(program.commands):
        for name in command.pushes:
            tokens[name].append(number)
    popped: Counter[QueueName] = Counter()
    found: list[Sequence[int | None]] = []
    for command in program.commands:
        received: list[int | None] = []
        for name in command.pops:
            if popped[name] == len(tokens[name]):
                raise UserError(
                    f'pops token {popped[name] + 1} of the queue from "{name[0]}" to "{name[1]}", into which '
                    f"{len(tokens[name])} are pushed",
                    loc=command.location,
                )
            received.append(tokens[name][popped[name]])
            popped[name] += 1
        found.append(received)
    return found


def waited_for(program: Program) -> list[list[int]]:
    """What each command waits for: by tokens, and by the pushes that its pops receive; raises UserError likewise."""
    return [
        [*command.after, *(each for each in received if each is not None)]
        for command, received in zip(program.commands, pushers(program), strict=True)
    ]


Start = tuple[int, HappensBefore, Clock, Clock]
"""A command, the relation, what is complete when the command starts, and what would be if it waited for no token."""


def happens_before(program: Program, order: Iterable[int] | None = None) -> Iterator[Start]:
    """
    The starts of the commands, in an order in which they can start: program order, unless one is given.

    Each command is part of the relation when it is given.
    """
    relation = HappensBefore(program.machine.units)
    received = pushers(program)
    barriers = iter([*program.barriers, -1])
    barrier = next(barriers)
    commands, model = program.commands, program.machine
    for at, number in enumerate(range(len(commands)) if order is None else order):
        while at == barrier:
            relation.barrier()
            barrier = next(barriers)
        command = commands[number]
        implied = relation.before(command.unit, alone=model.starts_alone(command))
        for other in received[number]:
            if other is not None:
                implied = join(implied, relation.pushed(other))
        clock = join(implied, relation.ends(command.after)) if command.after else implied
        relation.start(number, command.unit, clock, executes=command.kind is not Kind.TRANSFER)
        yield number, relation, clock, implied
