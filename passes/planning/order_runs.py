# SPDX-License-Identifier: Apache-2.0
"""
Ops that may follow each other directly in an order of least peak, whatever the others do: they become one.

The chains of a graph have hills and valleys (Liu, "An application of generalized tree pebbling to sparse matrix
factorization", SIAM J. Alg. Disc. Meth. 1987): ops of which the last leaves least, and that climb no hill after the
highest, are best executed as one. Two runs of ops become one here if the second, or the first, may be moved to the
other in any order without making an op dearer:

- the second follows the first at once, if all that it waits for is there by then, it leaves no more bytes alive than
  before, and its hill is no higher than one of the first;
- the first waits for the second, if all that waits for it waits for the second, it leaves no fewer bytes alive than
  before, and its hill is no higher than one of the second.

Which op of several is the first or the last to touch a buffer may depend on the order. Then the dearer case is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.passes.planning.order_problem import OrderProblem


class Touch(NamedTuple):
    """A buffer that a run touches."""

    buffer: int
    size: int
    first: int
    """The first op of the run that touches it, counted from its beginning."""
    last: int
    others: int
    """The other runs that touch it."""


class Runs:
    """
    Ops that are executed as one, in an order that is allowed; sets of runs as integers, a bit a run.

    Raises ValueError unless each op is in one run.
    """

    def __init__(self, problem: OrderProblem, ops: Sequence[tuple[int, ...]]):
        self.problem = problem
        self.ops = tuple(ops)
        count = len(problem.touched)
        run_of = {op: number for number, run in enumerate(ops) for op in run}
        if len(run_of) != count or sum(map(len, ops)) != count:
            raise ValueError("an order has each op once")
        self.inside = [[problem.inside[op] for op in run] for run in ops]
        users = [0] * len(problem.sizes)
        for op, buffers in enumerate(problem.touched):
            for buffer in buffers:
                users[buffer] |= 1 << run_of[op]
        self.users = users
        """For each buffer the runs that touch it."""
        self.before = [0] * len(ops)
        """For each run those that must come directly before it."""
        self.after: list[list[int]] = [[] for _ in ops]
        self.ancestors = [0] * len(ops)
        self.descendants = [0] * len(ops)
        self.touches: list[tuple[Touch, ...]] = []
        for number, run in enumerate(ops):
            others = sorted({run_of[other] for op in run for other in problem.before[op]} - {number})
            for other in others:
                self.before[number] |= 1 << other
                self.after[other].append(number)
                self.ancestors[number] |= self.ancestors[other] | 1 << other
            self.touches.append(tuple(self._touches(number, run)))
        for number in reversed(range(len(ops))):
            for later in self.after[number]:
                self.descendants[number] |= self.descendants[later] | 1 << later

    def _touches(self, number: int, run: Sequence[int]) -> Iterator[Touch]:
        places: dict[int, list[int]] = {}
        for place, op in enumerate(run):
            for buffer in self.problem.touched[op]:
                places.setdefault(buffer, []).append(place)
        for buffer, at in sorted(places.items()):
            yield Touch(buffer, self.problem.sizes[buffer], at[0], at[-1], self.users[buffer] & ~(1 << number))

    def least_during(self, number: int) -> int:
        """Bytes that are alive at once while a run is executed, in every order of the runs."""
        sizes = self.problem.sizes
        during = zip(self.inside[number], self.surely_alive(number), strict=True)
        return max(inside + sum(sizes[buffer] for buffer in buffers) for inside, buffers in during)

    def surely_alive(self, number: int) -> list[list[int]]:
        """The buffers that are alive during each op of a run, in every order of the runs."""
        before, after = self.ancestors[number], self.descendants[number]
        throughout = [
            buffer
            for buffer, users in enumerate(self.users)
            if users & before and users & after and not users >> number & 1
        ]
        found = [list(throughout) for _ in self.ops[number]]
        for touch in self.touches[number]:
            first = 0 if touch.others & before else touch.first
            last = len(found) - 1 if touch.others & after else touch.last
            for buffers in found[first : last + 1]:
                buffers.append(touch.buffer)
        return found


@dataclass(frozen=True)
class _Profile:
    """What a run does to the bytes that are alive, whatever has been executed before it."""

    most: int
    """By how much they rise at most."""
    least: int
    hill: int
    """How high they are at most while it is executed, over those before it."""
    hill_before: int
    """How high they are at most while it is executed, over those after it."""
    room_before: int
    """How high they are at least at one of its ops, over those before it."""
    room_after: int

    @staticmethod
    def of(runs: Runs, number: int) -> _Profile:
        inside = runs.inside[number]
        count = len(inside)
        # What is born at an op, or dead after it: at most, and for certain.
        born, surely_born, dead, surely_dead = [0] * count, [0] * count, [0] * count, [0] * count
        before, after = runs.ancestors[number], runs.descendants[number]
        for touch in runs.touches[number]:
            if not touch.others & before:
                born[touch.first] += touch.size
            if not touch.others & ~after:
                surely_born[touch.first] += touch.size
            if not touch.others & after:
                dead[touch.last] += touch.size
            if not touch.others & ~before:
                surely_dead[touch.last] += touch.size
        highest, most = _over_start(inside, born, surely_dead)
        room, least = _over_start(inside, surely_born, dead)
        back = slice(None, None, -1)
        # From behind, what dies is born.
        highest_back, _ = _over_start(inside[back], dead[back], surely_born[back])
        room_back, _ = _over_start(inside[back], surely_dead[back], born[back])
        return _Profile(most, least, highest, highest_back, room, room_back)


def _over_start(inside: Sequence[int], born: Sequence[int], dead: Sequence[int]) -> tuple[int, int]:
    """The highest of what is alive during ops, and what is afterwards, over what is at the beginning."""
    alive = 0
    highest = inside[0] + born[0]
    for more, new, gone in zip(inside, born, dead, strict=True):
        highest = max(highest, alive + new + more)
        alive += new - gone
    return highest, alive


def runs_of(problem: OrderProblem) -> Runs:
    """
    The runs of a problem: of the orders that keep them together one has the least peak of all.

    In the order in which they are returned the peak is no higher than in that in which the ops stand.
    """
    runs = Runs(problem, [(op,) for op in range(len(problem.touched))])
    while True:
        ops = list(_merged(runs))
        if len(ops) == len(runs.ops):
            return runs
        runs = Runs(problem, ops)


def _merged(runs: Runs) -> Iterator[tuple[int, ...]]:
    """The runs, some as one with another: each with one other at most."""
    profiles = [_Profile.of(runs, number) for number in range(len(runs.ops))]
    instead: dict[int, tuple[int, ...]] = {}
    for first, later in enumerate(runs.after):
        for second in later:
            if first in instead or second in instead:
                continue
            if _may_follow(runs, profiles, first, second):
                instead[first], instead[second] = runs.ops[first] + runs.ops[second], ()
            elif _may_wait(runs, profiles, first, second):
                instead[second], instead[first] = runs.ops[first] + runs.ops[second], ()
    return filter(None, (instead.get(number, ops) for number, ops in enumerate(runs.ops)))


def _may_follow(runs: Runs, profiles: Sequence[_Profile], first: int, second: int) -> bool:
    """Whether the second of two runs may be moved to the first."""
    if runs.before[second] & ~(runs.ancestors[first] | 1 << first):
        return False
    return profiles[second].most <= 0 and profiles[second].hill <= profiles[first].room_after


def _may_wait(runs: Runs, profiles: Sequence[_Profile], first: int, second: int) -> bool:
    """Whether the first of two runs may be moved to the second."""
    if any(not (runs.descendants[second] | 1 << second) >> each & 1 for each in runs.after[first]):
        return False
    return profiles[first].least >= 0 and profiles[first].hill_before <= profiles[second].room_before
