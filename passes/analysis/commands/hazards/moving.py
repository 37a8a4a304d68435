"""Accesses that are at other bytes in each round of a loop of which rounds are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import scf
from xdsl.ir import Operation

from penstock.passes.analysis.commands.hazards.cuts import Cuts
from penstock.passes.analysis.commands.hazards.far import Term, UndecidedError, meet
from penstock.passes.analysis.commands.hazards.hazard import Hazard
from penstock.passes.analysis.commands.hazards.races import race
from penstock.passes.analysis.commands.program import Command, Program
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.loops import loops_around, trip_count

_MOST_PAIRS = 200_000

_Key = tuple[Operation, bool, int]
"""An op, whether it writes, and which of its accesses is meant."""


@dataclass(eq=False)
class _Access:
    """One access of an op, in all the rounds that are gone through."""

    op: Operation
    writes: bool
    loops: tuple[scf.ForOp, ...]
    regions: dict[int, Region]
    """By the number of the command."""
    steps: list[int]
    """By loop: how many bytes further it is after a period; 0 for a loop that is not cut."""
    mask: int = 0
    """The commands that make it."""

    @property
    def is_moving(self) -> bool:
        return any(self.steps)


class Moving:
    """The accesses of a program of which rounds are left out; `before` is what each command comes after, as a mask."""

    def __init__(self, program: Program, before: Sequence[int], cuts: Cuts):
        self._program, self._before, self._cuts = program, before, cuts
        self._accesses: dict[_Key, _Access] = {}
        for number, command in enumerate(program.commands):
            for writes, regions in ((False, command.reads), (True, command.writes)):
                for at, region in enumerate(regions):
                    self._access(command, writes, at).regions[number] = region
        for access in self._accesses.values():
            access.steps = [self._step(access, depth) for depth in range(len(access.loops))]
            for number in access.regions:
                access.mask |= 1 << number
        self._looked = 0

    def _access(self, command: Command, writes: bool, at: int) -> _Access:
        assert command.op is not None
        key = command.op, writes, at
        if key not in self._accesses:
            self._accesses[key] = _Access(command.op, writes, loops_around(command.op), {}, [])
        return self._accesses[key]

    def _step(self, access: _Access, depth: int) -> int:
        """How far the access moves in a period of the loop at a depth, which must be the same everywhere."""
        cut = self._cuts.get(access.loops[depth])
        if cut is None:
            return 0
        period = cut.steady.period
        by_counters = {self._program.commands[number].counters: region for number, region in access.regions.items()}
        found: set[int] = set()
        for counters, region in by_counters.items():
            if cut.alike <= counters[depth] < cut.far:
                later = (*counters[:depth], counters[depth] + period, *counters[depth + 1 :])
                other = by_counters.get(later)
                if other is None or (other.length, other.dims) != (region.length, region.dims):
                    raise UndecidedError
                found.add(other.start - region.start)
        if len(found) > 1:
            raise UndecidedError
        return next(iter(found), 0)

    def is_moving(self, command: Command, writes: bool, at: int) -> bool:
        """Whether an access of a command is at other bytes after a period."""
        return self._access(command, writes, at).is_moving

    def named_counters(self, command: Command) -> tuple[int, ...]:
        """The rounds that issued a command; none if it stands for those of other rounds as well."""
        assert command.op is not None
        return () if any(loop in self._cuts for loop in loops_around(command.op)) else command.counters

    def hazards(self) -> Iterator[Hazard]:
        """Each two ops of which accesses meet in no order, one moving and one writing; raises UndecidedError."""
        accesses = list(self._accesses.values())
        named: set[tuple[Operation, Operation]] = set()
        for number, one in enumerate(accesses):
            for two in accesses[number:]:
                if not (one.writes or two.writes) or not (one.is_moving or two.is_moving):
                    continue
                if (one.op, two.op) in named or self._are_apart(one, two):
                    continue
                if (found := self._race(one, two)) is not None:
                    named |= {(one.op, two.op), (two.op, one.op)}
                    yield found

    # all pairs at once

    def _are_apart(self, one: _Access, two: _Access) -> bool:
        """Whether it can be seen quickly that no two different commands meet in these accesses."""
        first, second = next(iter(one.regions.values())), next(iter(two.regions.values()))
        if (first.space, first.storage) != (second.space, second.storage):
            return True
        if one is not two:
            (low, high), (least, most) = self._hull(one), self._hull(two)
            if high <= least or most <= low:
                return True
        line, second_line = self._line(one), self._line(two)
        if line is None or second_line is None:
            return False
        (region, mine), (other, theirs) = line, second_line
        trips = [[(trip_count(loop) or 1) - 1 for loop in each.loops] for each in (one, two)]
        try:
            if one is not two:
                terms = [(-step, most) for step, most in zip(mine, trips[0], strict=True)]
                return not meet(region, other, terms + list(zip(theirs, trips[1], strict=True)))
            for depth, (step, most) in enumerate(zip(mine, trips[0], strict=True)):
                terms = [(step, most - 1)]
                for inner, times in zip(mine[depth + 1 :], trips[0][depth + 1 :], strict=True):
                    terms += [(inner, times), (-inner, times)]
                if most and meet(region, replace(region, start=region.start + step), terms):
                    return False
        except UndecidedError:
            return False
        return True

    def _hull(self, access: _Access) -> tuple[int, int]:
        low = min(region.start for region in access.regions.values())
        high = max(region.end for region in access.regions.values())
        for loop, step in zip(access.loops, access.steps, strict=True):
            if step:
                distance = step * self._cuts[loop].periods
                low, high = low + min(0, distance), high + max(0, distance)
        return low, high

    def _line(self, access: _Access) -> tuple[Region, list[int]] | None:
        """The access in the first rounds and how far it moves in a round of each loop, if it is as simple as that."""
        commands = self._program.commands
        by_counters = {commands[number].counters: region for number, region in access.regions.items()}
        zero = (0,) * len(access.loops)
        origin = by_counters.get(zero)
        if origin is None:
            return None
        steps: list[int] = []
        for depth in range(len(zero)):
            next_one = by_counters.get((*zero[:depth], 1, *zero[depth + 1 :]))
            steps.append(0 if next_one is None else next_one.start - origin.start)
        for counters, region in by_counters.items():
            start = origin.start + sum(step * count for step, count in zip(steps, counters, strict=True))
            if (region.start, region.length, region.dims) != (start, origin.length, origin.dims):
                return None
        return origin, steps

    # pair by pair

    def _race(self, one: _Access, two: _Access) -> Hazard | None:
        """The first pair of commands in no order that stands for one that meets."""
        pairs = [(one, two)] if one is two else [(one, two), (two, one)]
        for early, late in pairs:
            for later, region in late.regions.items():
                open_ = early.mask & ~self._before[later] & ((1 << later) - 1)
                while open_:
                    earlier = (open_ & -open_).bit_length() - 1
                    open_ &= open_ - 1
                    if self._meet(early, earlier, late, later):
                        mine, theirs = (later, region, late.writes), (earlier, early.regions[earlier], early.writes)
                        return race(self._named(), mine, theirs)
        return None

    def _named(self) -> Program:
        commands = [replace(command, counters=self.named_counters(command)) for command in self._program.commands]
        return replace(self._program, commands=commands)

    def _meet(self, early: _Access, earlier: int, late: _Access, later: int) -> bool:
        self._looked += 1
        if self._looked > _MOST_PAIRS:
            raise UndecidedError
        family = self._family(early, earlier, late, later)
        if family is None:
            return False
        distance, terms, is_exact = family
        other = late.regions[later]
        if not meet(early.regions[earlier], replace(other, start=other.start + distance), terms):
            return False
        if not is_exact:
            raise UndecidedError
        return True

    def _family(self, early: _Access, earlier: int, late: _Access, later: int) -> tuple[int, list[Term], bool] | None:
        """
        The pairs that two commands stand for: how much further the second is from the first, with what is added.

        None if another pair stands for all of them; the last says whether none is added that there is not.
        """
        mine, theirs = (self._program.commands[number].counters for number in (earlier, later))
        distance, terms, is_exact = 0, list[Term](), True
        depth = 0
        while depth < min(len(mine), len(theirs)) and early.loops[depth] is late.loops[depth]:
            cut = self._cuts.get(early.loops[depth])
            first, second = mine[depth], theirs[depth]
            depth += 1
            if cut is not None:
                at, to = cut.position(first), cut.position(second)
                step, other = early.steps[depth - 1], late.steps[depth - 1]
                if at < cut.alike:
                    if at != to and cut.far <= to < cut.head:
                        terms.append((other, cut.periods))
                elif at < cut.settled:
                    if to < cut.far:
                        terms.append((other - step, cut.periods))
                    elif to < cut.head:
                        # The second may lie further on than the first, but not behind it.
                        terms.append((other, cut.periods))
                        if step != other:
                            terms.append((-step, cut.periods))
                            is_exact = False
                    else:
                        terms.append((-step, cut.periods))
                elif at < cut.head:
                    if to < cut.head and step == other:
                        return None
                    distance += ((other if to < cut.head else 0) - step) * cut.periods
            if first != second:
                break
        for loop, step, round in zip(early.loops[depth:], early.steps[depth:], mine[depth:], strict=True):
            cut = self._cuts.get(loop)
            if cut is not None and cut.alike <= cut.position(round) < cut.settled:
                terms.append((-step, cut.periods))
            elif cut is not None and cut.settled <= cut.position(round) < cut.head:
                distance -= step * cut.periods
        for loop, step, round in zip(late.loops[depth:], late.steps[depth:], theirs[depth:], strict=True):
            cut = self._cuts.get(loop)
            if cut is not None and cut.far <= cut.position(round) < cut.head:
                terms.append((step, cut.periods))
        return distance, terms, is_exact
