"""
The default planner: anytime, and of each kind of search only as much as the problem needs.

1. The lower bound, and one-pass orders until one reaches it: that is all that chains of operators need.
2. A few steps of ejection search, which smaller problems often need no more than.
3. In turns, for ever longer: the exact search for a plan of the least height that may exist (or within the capacity,
   as long as nothing fits it); ejection search, which brings the best plan down; the exact search for heights between
   the two. Whatever one finds or proves is where the others go on from.

It stops where the best plan meets the bound, where the bound exceeds the capacity, at what is good enough, and at its
limits. A step is one of the exact search; one of ejection search, which takes longer, counts as many as it takes the
time of. Without a C compiler hill climbing takes the place of 2 and 3, and a warning on stderr says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.passes.planning import hill_climb
from penstock.passes.planning.bounds import grain, strong_lower_bound, sufficient_height
from penstock.passes.planning.budget import Budget
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.ejection import EjectionSearch, best_start, default_steps
from penstock.passes.planning.instance import compact
from penstock.passes.planning.native import is_available, warn_without
from penstock.passes.planning.problem import FAR, Limits, Outcome, Problem, height, lower_bound
from penstock.passes.planning.search import Search, Verdict

DEFAULT_STEPS = 40_000_000
"""Steps without any limit: about a second."""

FIRST_STEPS = 100
"""Steps of ejection search before the exact search is set up."""

SLICE = 500_000
"""Steps of the first turns; those of the next are twice as long, and so on."""

SHARES = (1 / 4, 1 / 2, 3 / 4)
"""Where between the least and the best the exact search looks for heights that it reaches sooner."""

LEAST_WORTH = 1 / 8
"""Of a turn that never is of any use, against one of the search for the least height."""


def plan(problem: Problem, limits: Limits) -> Outcome:
    """The best plan within the limits, the best proven bound, and whether it is proved that nothing fits."""
    conflicts = Conflicts(problem)
    bound = lower_bound(problem)
    goal = max(bound, limits.good_enough or 0)
    start = best_start(conflicts, goal)
    if start is not None and conflicts.height(start) <= goal:
        return Outcome(conflicts.plan(start), bound, _exceeds(bound, problem))
    if not is_available():
        warn_without("portfolio", "has no search but hill climbing")
        climbed = hill_climb.plan(problem, limits)
        if start is not None and (climbed.plan is None or conflicts.height(start) < height(problem, climbed.plan)):
            climbed = replace(climbed, plan=conflicts.plan(start))
        return replace(climbed, infeasible=_exceeds(bound, problem))
    return _Portfolio(conflicts, start, bound, limits).run()


class _Portfolio:
    def __init__(self, conflicts: Conflicts, start: list[int] | None, bound: int, limits: Limits):
        self.conflicts = conflicts
        self.problem = conflicts.problem
        self.limits = limits
        self.bound = bound
        self.budget = Budget(limits, DEFAULT_STEPS)
        # What a step of ejection search counts.
        self.rate = max(DEFAULT_STEPS // max(default_steps(conflicts), 1), 1)
        self.ejection = EjectionSearch(conflicts, start, self.goal, limits.seed)
        self.hopeless = False
        self.room = 0
        self.searches: dict[int, Search] = {}
        self.between = dict.fromkeys(SHARES, 0)
        self.worth: dict[Callable[[int], None], float] = {self._eject: 1.0, self._search_between: 1.0}

    @property
    def goal(self) -> int:
        """The height at which nothing is left to do."""
        return max(self.bound, self.limits.good_enough or 0)

    @property
    def aim(self) -> int:
        """The height to reach next: any at all, then the capacity, then the least."""
        if self.ejection.best is None:
            return self.room
        capacity = self.problem.capacity
        return capacity if capacity is not None and self.goal < capacity < self.ejection.height else self.goal

    @property
    def finished(self) -> bool:
        done = self.hopeless or _exceeds(self.bound, self.problem) or self.ejection.height <= self.goal
        return done or self.budget.over

    def run(self) -> Outcome:
        """Take turns until the goal, or a limit."""
        self._eject(FIRST_STEPS * self.rate)
        if not self.finished:
            self.instance = compact(self.problem)
            self.grain = grain(self.instance)
            self._raise(strong_lower_bound(self.problem, self.instance))
            self.room = sufficient_height(self.problem, self.bound)
        effort = SLICE
        while not self.finished:
            self._search(self.aim, effort)
            for arm in self.worth:
                self._in_proportion(arm, effort)
            effort *= 2
        best = self.ejection.best
        found = None if best is None else self.conflicts.plan(best)
        return Outcome(found, self.bound, self.hopeless or _exceeds(self.bound, self.problem), self.budget.spent)

    def _in_proportion(self, arm: Callable[[int], None], effort: int) -> None:
        """A turn, the shorter the longer that arm has been of no use."""
        if self.finished:
            return
        before = self.ejection.height, self.bound
        arm(int(effort * self.worth[arm]))
        # Where only the first plan that fits is wanted, one that is lower but does not fit is of no use.
        lower = self.ejection.height < before[0] and self.limits.good_enough is None
        useful = lower or self.bound != before[1]
        self.worth[arm] = 1.0 if useful else max(self.worth[arm] / 2, LEAST_WORTH)

    def _search_between(self, steps: int) -> None:
        """Ask the exact search for heights between the least and the best; the same as before while those will do."""
        for share in SHARES:
            least, best, target = self.aim, self.ejection.height, self.between[share]
            if best == FAR or self.finished:
                return
            if not least < target <= least + (best - least) * min(2 * share, (1 + share) / 2):
                target = least + int((best - least) * share) // self.grain * self.grain
                self.between[share] = target
            if least < target < best:
                self._search(target, steps // len(SHARES))

    def _eject(self, steps: int) -> None:
        end = self.budget.spent + steps
        while not self.ejection.done and not self.finished and self.budget.spent < end:
            turn = self.budget.slice(end - self.budget.spent)
            before = self.ejection.steps
            self.ejection.run(max(turn // self.rate, 1))
            self.budget.spend((self.ejection.steps - before) * self.rate)

    def _search(self, target: int, steps: int) -> None:
        """Ask the exact search for a plan of a height."""
        if target not in self.searches:
            self._drop_searches()
            best = self.ejection.best
            known = None if best is None else self.conflicts.plan(best)
            self.searches[target] = Search(self.instance, target, seed=self.limits.seed, known=known)
        search = self.searches[target]
        end = self.budget.spent + steps
        while search.verdict is Verdict.OPEN and not self.budget.over and self.budget.spent < end:
            before = search.steps
            search.advance(self.budget.slice(end - self.budget.spent))
            self.budget.spend(max(search.steps - before, 1))
        if search.verdict is Verdict.FOUND:
            self.ejection.adopt(self.conflicts.offsets(search.plan))
        elif search.verdict is Verdict.IMPOSSIBLE and target == self.room:
            self.hopeless = True
        elif search.verdict is Verdict.IMPOSSIBLE:
            self._raise((target // self.grain + 1) * self.grain)

    def _raise(self, bound: int) -> None:
        self.bound = max(self.bound, bound)
        self.ejection.aim(self.goal)

    def _drop_searches(self) -> None:
        """Drop searches for heights that are of no use any more."""
        wanted = {self.aim, self.goal, *self.between.values()}
        self.searches = {target: search for target, search in self.searches.items() if target in wanted}


def _exceeds(bound: int, problem: Problem) -> bool:
    return problem.capacity is not None and bound > problem.capacity
