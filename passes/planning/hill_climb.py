# SPDX-License-Identifier: Apache-2.0
"""
Hill climbing over the order in which first fit places the buffers, as TVM's USMP and Arm's Vela do it.

From the better of two one-pass orders, a buffer that reaches the top changes places with one that comes before it
and is alive together with it or with one of those that are; the new order is kept where the plan is not higher.
Only what comes after the first changed place is placed anew. A step is a buffer placed. It is here to be compared
with, and for where there is no C compiler: `ejection.py` reaches lower in less time.
"""

from __future__ import annotations

from random import Random

from penstock.passes.planning.budget import Budget
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.one_pass import by_size, by_urgency, first_fit, place_in_order
from penstock.passes.planning.problem import Limits, Outcome, Problem, lower_bound

DEFAULT_STEPS_PER_BUFFER = 100
"""Where no limit is given."""

MAX_IDLE_EXCHANGES = 500
"""Exchanges without a gain after which it stops."""


def plan(problem: Problem, limits: Limits) -> Outcome:
    """The best plan of a hill climb; it stops at the bound, or at what is good enough."""
    conflicts = Conflicts(problem)
    bound = lower_bound(problem)
    goal = max(bound, limits.good_enough or 0)
    starts = [order(conflicts) for order in (by_size, by_urgency)]
    placed = [(order, offsets) for order in starts if (offsets := place_in_order(conflicts, order)) is not None]
    if not placed:
        return Outcome(None, bound, steps=len(problem.buffers))
    climb = _Climb(conflicts, *min(placed, key=lambda start: conflicts.height(start[1])), limits.seed)
    budget = Budget(limits, DEFAULT_STEPS_PER_BUFFER * len(problem.buffers))
    budget.spend(climb.steps)
    while climb.height > goal and not budget.over and climb.idle < MAX_IDLE_EXCHANGES:
        before = climb.steps
        climb.exchange()
        budget.spend(climb.steps - before)
    return Outcome(conflicts.plan(climb.offsets), bound, steps=climb.steps)


class _Climb:
    def __init__(self, conflicts: Conflicts, order: list[int], offsets: list[int], seed: int):
        self.conflicts = conflicts
        # What is fixed does not take part.
        self.order = [number for number in order if conflicts.problem.buffers[number].offset is None]
        self.offsets = offsets
        self.height = conflicts.height(offsets)
        self.random = Random(seed)
        self.steps = len(offsets)
        self.idle = 0

    def exchange(self) -> None:
        """Exchange a buffer at the top with an earlier one, and keep that where it does no harm."""
        turn = {number: at for at, number in enumerate(self.order)}
        sizes, spans, offsets = self.conflicts.sizes, self.conflicts.spans, self.offsets
        tops = [number for number in self.order if offsets[number] + sizes[number] == self.height]
        self.idle += 1
        if not tops:
            self.idle = MAX_IDLE_EXCHANGES
            return
        top = self.random.choice(tops)
        near = {other for other, _, _ in spans[top]}
        if self.random.random() < 0.5:
            near |= {other for number in near for other, _, _ in spans[number]}
        earlier = sorted(turn[number] for number in near if number in turn and turn[number] < turn[top])
        if not earlier:
            return
        at = self.random.choice(earlier)
        order = list(self.order)
        order[at], order[turn[top]] = order[turn[top]], order[at]
        found = self._place(order, at)
        if found is None or (height := self.conflicts.height(found)) > self.height:
            return
        if height < self.height:
            self.idle = 0
        self.order, self.offsets, self.height = order, found, height

    def _place(self, order: list[int], start: int) -> list[int] | None:
        """All offsets, those of an order from a place on anew; None if a buffer finds none or gets too high."""
        found = list(self.offsets)
        for number in order[start:]:
            found[number] = -1
        for number in order[start:]:
            self.steps += 1
            found[number] = first_fit(self.conflicts, number, found)
            if found[number] + self.conflicts.sizes[number] > self.height:
                return None
        return found
