# SPDX-License-Identifier: Apache-2.0
"""
The default planner: anytime, and of each kind of search only as much as the problem needs.

1. The lower bound, and one-pass orders until one reaches it: that is all that chains of operators need.
2. A few steps of ejection search, which smaller problems often need no more than.
3. The planner `exact`, in turns with ejection search, which brings the best plan down. Whatever one finds or proves is
   where the other goes on from. Where there are so many buffers that the steps do not suffice to place each once,
   ejection search has them all.

It stops where the best plan meets the bound, where the bound exceeds the capacity, at what is good enough, and at its
limits; without limits and without a capacity, where any plan will do, also where many steps were of no use. A step is
one of the exact search; one of ejection search, which takes longer, counts as many as it takes the time of. Without a C
compiler hill climbing takes the place of 2 and 3, and a warning on stderr says so.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.passes.planning import hill_climb
from penstock.passes.planning.base import above_base
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.ejection import EjectionSearch, best_start, default_steps
from penstock.passes.planning.exact import Minimiser
from penstock.passes.planning.instance import time_parts
from penstock.passes.planning.native import is_available, warn_without
from penstock.passes.planning.problem import Limits, Outcome, Plan, Problem, height, lower_bound

DEFAULT_STEPS = 40_000_000
"""Steps without any limit: about a second."""

PATIENCE = 5_000_000
"""Steps without use after which it gives up, without limits and without a capacity: a tenth of a second."""

FIRST_STEPS = 100
"""Steps of ejection search before the exact search is set up."""


@above_base
def plan(problem: Problem, limits: Limits) -> Outcome:
    """The best plan within the limits, the best proven bound, and whether it is proved that nothing fits."""
    conflicts = Conflicts(problem)
    bound = lower_bound(problem)
    infeasible = problem.capacity is not None and bound > problem.capacity
    goal = max(bound, limits.good_enough or 0)
    start = best_start(conflicts, goal)
    if start is not None and conflicts.height(start) <= goal:
        return Outcome(conflicts.plan(start), bound, infeasible)
    if not is_available():
        warn_without("portfolio", "has no search but hill climbing")
        climbed = hill_climb.plan(problem, limits)
        if start is not None and (climbed.plan is None or conflicts.height(start) < height(problem, climbed.plan)):
            climbed = replace(climbed, plan=conflicts.plan(start))
        return replace(climbed, infeasible=infeasible)
    return _Portfolio(conflicts, start, limits).run()


class _Portfolio(Minimiser):
    """Exact search, in turns with ejection search."""

    def __init__(self, conflicts: Conflicts, start: list[int] | None, limits: Limits):
        super().__init__(conflicts.problem, limits, default_steps=DEFAULT_STEPS)
        self.conflicts = conflicts
        # What a step of ejection search counts.
        self.rate = max(DEFAULT_STEPS // max(default_steps(conflicts), 1), 1)
        self.ejection = EjectionSearch(conflicts, start, self.goal, limits.seed)
        if start is not None:
            super().take(conflicts.plan(start))
        self.worth = {self._eject: 1.0, **self.worth}
        is_limited = (self.problem.capacity, limits.steps, limits.seconds, limits.good_enough) != (None,) * 4
        self.patience = None if is_limited else PATIENCE
        self.last_use = 0
        """After how many steps it last found something out."""

    @property
    def is_finished(self) -> bool:
        has_given_up = self.patience is not None and self.budget.spent > self.last_use + self.patience
        return self.is_infeasible or super().is_finished or has_given_up

    def run(self) -> Outcome:
        self._eject(FIRST_STEPS * self.rate)
        steps = self.patience if self.patience is not None else self.budget.steps_left
        most = max(map(len, time_parts(self.problem.buffers)))
        # To place a piece takes a look at the sections left: about half as many as there are pieces, half of them left.
        if steps is not None and most * most // 4 > steps:
            while not self.is_finished and not self.ejection.done:
                self._eject(FIRST_STEPS * self.rate)
            return self.outcome()
        return self.outcome() if self.is_finished else super().run()

    def take(self, found: Plan) -> None:
        self._take(found)
        self.ejection.adopt(self.conflicts.offsets(found))

    def _take(self, found: Plan) -> None:
        before = self.peak
        super().take(found)
        self.last_use = self.budget.spent if self.peak < before else self.last_use

    def raise_bound(self, bound: int) -> None:
        self.last_use = self.budget.spent if bound > self.bound else self.last_use
        super().raise_bound(bound)
        self.ejection.aim(self.goal)

    def _eject(self, steps: int) -> None:
        end = self.budget.spent + steps
        while not self.ejection.done and not self.is_finished and self.budget.spent < end:
            turn = self.budget.slice(end - self.budget.spent)
            before = self.ejection.steps
            self.ejection.run(max(turn // self.rate, 1))
            self.budget.spend((self.ejection.steps - before) * self.rate)
            if self.ejection.height < self.peak and (best := self.ejection.best) is not None:
                self._take(self.conflicts.plan(best))
