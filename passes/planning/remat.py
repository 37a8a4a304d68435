# SPDX-License-Identifier: Apache-2.0
"""
Which values are computed again rather than kept, so that a program fits a memory with least extra work.

A schedule is a sequence of executions of ops, in which an op may stand several times: what reads a value after it has
been computed again reads the new instance, and the old one is dead from its last read on. The search lowers what
exceeds the limit: at a moment of the peak a value that is alive and not read there is computed anew before its next
read, or before each, with those of its operands that are not alive then (or are kept for it, if that is cheaper), where
that takes least work for the bytes; executions that nothing reads any more go. What is computed again for one
elementwise op may be computed inside it, element by element, and takes no bytes.

To find the least work is NP-hard. Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor
Rematerialization", MLSys 2020, state it as an integer program; the tests hold the search to the shortest way over all
states of memory, which is small enough for chains of four layers and back.

Units: bytes, and multiply-accumulates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import NamedTuple


class RematOp(NamedTuple):
    """One op: the numbers of the values that it reads and makes, and its work."""

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    work: int
    inside: int = 0
    """Bytes that it needs for itself while it is executed."""
    can_repeat: bool = True
    is_result: bool = False
    """Whether it is executed though nothing reads what it makes."""
    can_join: bool = False
    """Whether what it makes may be computed inside an op that takes it, when it is computed again."""
    takes: tuple[int, ...] = ()
    """Values that it reads which may be computed inside it, and then take no bytes."""
    overwrites: tuple[int, ...] = ()
    """Values that it reads, which it may write its result over where nothing reads them later."""


@dataclass(frozen=True)
class RematProblem:
    """Ops in the order in which they stand, each of which makes its values; others are given, and always there."""

    sizes: tuple[int, ...]
    """Bytes of each value; 0 for one that is given, or that the program returns, for it lies elsewhere."""
    ops: tuple[RematOp, ...]

    @cached_property
    def maker(self) -> dict[int, int]:
        """The op that makes each value that is not given."""
        return {value: number for number, op in enumerate(self.ops) for value in op.makes}

    @property
    def given(self) -> tuple[int, ...]:
        """The schedule in which each op is executed once."""
        return tuple(range(len(self.ops)))

    @property
    def bound(self) -> int:
        """Bytes that no schedule can do without: what an op reads and makes, unless it need not be there."""
        needed = {number for number, op in enumerate(self.ops) if op.is_result}
        waiting = list(needed)
        while waiting:
            more = {self.maker[each] for each in self.ops[waiting.pop()].reads if each in self.maker} - needed
            needed |= more
            waiting += more
        return max((self._least(self.ops[number]) for number in needed), default=0)

    def _least(self, op: RematOp) -> int:
        read, made = set(op.reads) - set(op.takes), set(op.makes)
        values = [sum(self.sizes[each] for each in one) for one in ((read, made) if op.overwrites else (read | made,))]
        return max(values) + op.inside

    def work(self, schedule: Sequence[int]) -> int:
        """Of all executions of a schedule."""
        return sum(self.ops[number].work for number in schedule)


class Instance(NamedTuple):
    """A value as one execution makes it: where in the schedule, and where it is read."""

    value: int
    made: int
    reads: tuple[int, ...]
    is_joined: bool = False
    """Whether it is computed inside the op that reads it."""

    @property
    def last(self) -> int:
        return self.reads[-1] if self.reads else self.made


def instances(problem: RematProblem, schedule: Sequence[int]) -> list[Instance]:
    """
    What the executions of a schedule make. Raises ValueError for a schedule that lacks a result, or reads what is not
    there yet.

    An execution of an op that has several is inside the only reader of its result where both allow it, and nothing but
    others of the kind stands between: what it reads, the reader then reads.
    """
    executed = set(schedule)
    if any(op.is_result and number not in executed for number, op in enumerate(problem.ops)):
        raise ValueError("a schedule has each result")
    made = _made(problem, schedule)
    inside = _joined(problem, schedule, made)
    return [
        Instance(value, place, tuple(sorted({inside.get(each, each) for each in reads})), place in inside)
        for value, place, reads in made
    ]


def joined(problem: RematProblem, schedule: Sequence[int]) -> dict[int, int]:
    """The executions that are inside another one, by their places, and the place of that one."""
    return _joined(problem, schedule, _made(problem, schedule))


def _made(problem: RematProblem, schedule: Sequence[int]) -> list[tuple[int, int, list[int]]]:
    """What each execution makes: the value, the place, and the places where it is read."""
    current: dict[int, list[int]] = {}
    found: list[tuple[int, int, list[int]]] = []
    for place, number in enumerate(schedule):
        op = problem.ops[number]
        for value in dict.fromkeys(op.reads):
            if value in problem.maker:
                if value not in current:
                    raise ValueError("a schedule reads a value before it is made")
                current[value].append(place)
        for value in op.makes:
            current[value] = []
            found.append((value, place, current[value]))
    return found


def _joined(
    problem: RematProblem, schedule: Sequence[int], made: Sequence[tuple[int, int, list[int]]]
) -> dict[int, int]:
    times = Counter(schedule)
    inside: dict[int, int] = {}
    for value, place, reads in reversed(made):
        op = problem.ops[schedule[place]]
        if times[schedule[place]] == 1 or not op.can_join or len(op.makes) != 1 or len(reads) != 1:
            continue
        reader = inside.get(reads[0], reads[0])
        is_next = all(inside.get(each) == reader for each in range(place + 1, reader))
        if is_next and value in problem.ops[schedule[reads[0]]].takes:
            inside[place] = reader
    return inside


def alive(problem: RematProblem, schedule: Sequence[int]) -> list[int]:
    """The bytes that are alive during each execution of a schedule."""
    change = [0] * (len(schedule) + 1)
    over = [-problem.ops[number].inside for number in schedule]
    for each in instances(problem, schedule):
        if not each.is_joined:
            size = problem.sizes[each.value]
            change[each.made] += size
            change[each.last + 1] -= size
            op = problem.ops[schedule[each.last]]
            if each.last != each.made and each.value in op.overwrites:
                over[each.last] = -op.inside + min(size, sum(problem.sizes[made] for made in op.makes))
    return [total - saved for total, saved in zip(accumulate(change[:-1]), over, strict=True)]


def peak_of(problem: RematProblem, schedule: Sequence[int]) -> int:
    """The most bytes that are alive during one execution of a schedule."""
    return max(alive(problem, schedule), default=0)


def least_work(problem: RematProblem, limit: int) -> tuple[int, ...] | None:
    """A schedule whose peak is within a limit, with as little extra work as the search finds; None if it finds none."""
    schedule = problem.given
    while (now := _measure(problem, schedule))[0] > limit:
        best: tuple[tuple[float, int, int, int], tuple[int, ...]] | None = None
        for other in _neighbours(problem, schedule):
            found = _measure(problem, other)
            if found < now:
                less = now[0] - max(found[0], limit)
                more = problem.work(other) - problem.work(schedule)
                key = more / less if less else inf if more > 0 else 0.0, *found, len(other)
                if best is None or key < best[0]:
                    best = key, other
        if best is None:
            return None
        schedule = best[1]
    return _pruned(problem, schedule, limit)


def _measure(problem: RematProblem, schedule: Sequence[int]) -> tuple[int, int]:
    """The peak of a schedule, and at how many executions there is as much alive."""
    bytes = alive(problem, schedule)
    peak = max(bytes, default=0)
    return peak, bytes.count(peak)


def least_limit(problem: RematProblem, tries: int = 8) -> int:
    """The least limit that `least_work` is found to meet, by halves between what is known to do and the bound."""
    low, high = problem.bound, peak_of(problem, problem.given)
    for _ in range(tries):
        if low >= high:
            break
        middle = (low + high) // 2
        found = least_work(problem, middle)
        if found is None:
            low = middle + 1
        else:
            high = peak_of(problem, found)
    return high


def _neighbours(problem: RematProblem, schedule: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The schedules in which a value that is alive at the peak, and need not be there, is computed again after it."""
    bytes = alive(problem, schedule)
    at = bytes.index(max(bytes))
    found = instances(problem, schedule)
    seen: set[tuple[int, ...]] = set()
    for each in found:
        if each.is_joined or not problem.sizes[each.value] or not each.made <= at <= each.last:
            continue
        later = [place for place in each.reads if place > at]
        if at in each.reads:
            # What is read at the peak may be computed inside what reads it there.
            if each.value not in problem.ops[schedule[at]].takes or each.made == at:
                continue
            later = [at, *later]
        if not later:
            continue
        again: list[tuple[tuple[int, ...], list[int]]] = []
        # Operands are kept for it where they are alive at the peak, or afterwards, or all of them.
        for kept_at in (at, later[0]):
            there = {one.value for one in found if one.made <= kept_at <= one.last}
            for depth in (0, 1, 2, len(problem.ops)):
                if (ops := _closure(problem, each.value, there, depth)) is not None:
                    again.append((ops, later[:1]))
                    again.append((ops, later))
        for ops, places in again:
            other = list(schedule)
            for place in reversed(places):
                other[place:place] = ops
            other = _read_only(problem, other)
            if other not in seen:
                seen.add(other)
                yield other


def _read_only(problem: RematProblem, schedule: Sequence[int]) -> tuple[int, ...]:
    """A schedule without the executions that nothing reads, and that are no results."""
    kept = list(schedule)
    while True:
        read = {place for _, place, reads in _made(problem, kept) if reads}
        result = {number: place for place, number in enumerate(kept) if problem.ops[number].is_result}
        left = [number for place, number in enumerate(kept) if place in read or result.get(number) == place]
        if len(left) == len(kept):
            return tuple(kept)
        kept = left


def _closure(problem: RematProblem, value: int, there: set[int], depth: int) -> tuple[int, ...] | None:
    """
    The ops that compute a value again, in order: those that make its operands too, unless they are `there` or further
    up than `depth`. None if one of them cannot be repeated.
    """
    needed: set[int] = set()
    waiting = [(value, depth)]
    while waiting:
        wanted, left = waiting.pop()
        number = problem.maker[wanted]
        if not problem.ops[number].can_repeat:
            return None
        needed.add(number)
        for each in problem.ops[number].reads:
            if left and each in problem.maker and each not in there and problem.maker[each] not in needed:
                waiting.append((each, left - 1))
    return tuple(sorted(needed))


def _pruned(problem: RematProblem, schedule: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """The schedule without executions that it fits the limit without, the dearest first."""
    place = 0
    order = sorted(range(len(schedule)), key=lambda each: (-problem.ops[schedule[each]].work, each))
    while place < len(order):
        other = (*schedule[: order[place]], *schedule[order[place] + 1 :])
        try:
            fits = peak_of(problem, other) <= limit
        except ValueError:
            fits = False
        if fits:
            schedule, place = other, 0
            order = sorted(range(len(schedule)), key=lambda each: (-problem.ops[schedule[each]].work, each))
        else:
            place += 1
    return schedule
