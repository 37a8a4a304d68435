"""
The planner `exact`: the least peak, proved, if it is given the time.

It asks the search of `penstock.passes.planning.search` for plans of ever lower heights, and keeps the best plan and
the best proof in between: an answer "nothing fits below this height" raises the bound, and where the two meet the
plan is optimal. Any time it stops it has a plan. It needs a C compiler.

One step is one look at a section or at a pair of buffers that meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.passes.planning.bounds import grain, strong_lower_bound, sufficient_height
from penstock.passes.planning.budget import Budget
from penstock.passes.planning.instance import compact
from penstock.passes.planning.problem import (
    FAR,
    Limits,
    Outcome,
    Plan,
    PlanError,
    Problem,
    height,
    lower_bound,
    validate,
)
from penstock.passes.planning.search import Search, Switches, Verdict

DEFAULT_STEPS = 60_000_000
"""Steps without any limit: one or two seconds."""

SLICE = 500_000
"""Steps of the search for one height before the next is tried; doubled each time that none gave an answer."""

SHARES = (1 / 4, 1 / 2, 3 / 4)
"""Where between the least and the best it looks for heights that it reaches sooner."""

LEAST_WORTH = 1 / 8
"""Of a turn that never is of any use, against one of the search for the least height."""


def plan(problem: Problem, limits: Limits) -> Outcome:
    """The best plan found, what was proved of every other, and whether nothing at all fits the capacity."""
    return Minimiser(problem, limits).run()


class Minimiser:
    """
    Brings a plan and a bound together until they meet, or until a limit.

    In turns, for ever longer: the search for a plan of the least height that may exist (any plan as long as there is
    none, and one within the capacity as long as nothing fits it), and that for heights between the least and the best.
    """

    def __init__(
        self, problem: Problem, limits: Limits, switches: Switches | None = None, default_steps: int = DEFAULT_STEPS
    ):
        self.problem = problem
        self.limits = limits
        self.switches = switches
        self.budget = Budget(limits, default_steps)
        self.bound = lower_bound(problem)
        self.best: Plan | None = None
        self.peak = FAR
        self.is_hopeless = False
        """Whether it is proved that there is no plan, however large the memory is."""
        self.worth: dict[Callable[[int], None], float] = {self._search_between: 1.0}
        """The turns beside the search for the least height, and how long each is against that."""
        self._searches: dict[int, Search] = {}
        self._between = dict.fromkeys(SHARES, 0)

    @property
    def goal(self) -> int:
        """The height at which nothing is left to do."""
        return max(self.bound, self.limits.good_enough or 0)

    @property
    def aim(self) -> int:
        """The height to reach next: any at all, then the capacity, then the least."""
        if self.best is None:
            return self._sufficient
        capacity = self.problem.capacity
        return capacity if capacity is not None and self.goal < capacity < self.peak else self.goal

    @property
    def is_infeasible(self) -> bool:
        """Whether it is proved that no plan fits."""
        return self.is_hopeless or (self.problem.capacity is not None and self.bound > self.problem.capacity)

    @property
    def is_finished(self) -> bool:
        """Whether more steps are of no use, or there are none."""
        return self.is_hopeless or self.peak <= self.goal or self.budget.over

    def run(self) -> Outcome:
        """Take turns until the goal, or a limit."""
        self._instance = compact(self.problem)
        self._grain = grain(self._instance)
        self.raise_bound(strong_lower_bound(self.problem, self._instance))
        self._sufficient = sufficient_height(self.problem, self.bound)
        if self.best is None:
            self._take_hints()
        effort = SLICE
        while not self.is_finished:
            self._search(self.aim, effort)
            for turn in self.worth:
                self._in_proportion(turn, effort)
            effort *= 2
        return self.outcome()

    def outcome(self) -> Outcome:
        """What is known so far."""
        return Outcome(self.best, self.bound, self.is_infeasible, self.budget.spent)

    def take(self, found: Plan) -> None:
        """Take note of a plan, if it is lower than the best."""
        peak = height(self.problem, found)
        if peak < self.peak:
            self.best, self.peak = found, peak

    def raise_bound(self, bound: int) -> None:
        """Take note of a proof."""
        self.bound = max(self.bound, bound)

    def _take_hints(self) -> None:
        """What the hints say, if that is a plan."""
        hints = {b.id: b.hint if b.offset is None else b.offset for b in self.problem.buffers}
        hinted = Plan({id: hint for id, hint in hints.items() if hint is not None})
        try:
            validate(replace(self.problem, capacity=None), hinted)
        except PlanError:
            return
        self.take(hinted)

    def _in_proportion(self, turn: Callable[[int], None], effort: int) -> None:
        """A turn, the shorter the longer it has been of no use."""
        if self.is_finished:
            return
        before = self.peak, self.bound
        turn(int(effort * self.worth[turn]))
        # Where only the first plan that fits is wanted, one that is lower but does not fit is of no use.
        lower = self.peak < before[0] and self.limits.good_enough is None
        useful = lower or self.bound != before[1]
        self.worth[turn] = 1.0 if useful else max(self.worth[turn] / 2, LEAST_WORTH)

    def _search_between(self, steps: int) -> None:
        """Search for heights between the least and the best; the same as before while those will do."""
        for share in SHARES:
            least, best, target = self.aim, self.peak, self._between[share]
            if best == FAR or self.is_finished:
                return
            if not least < target <= least + (best - least) * min(2 * share, (1 + share) / 2):
                target = least + int((best - least) * share) // self._grain * self._grain
                self._between[share] = target
            if least < target < best:
                self._search(target, steps // len(SHARES))

    def _search(self, target: int, steps: int) -> None:
        """Search for a plan of a height."""
        if target not in self._searches:
            # Searches for heights that are of no use any more are dropped.
            wanted = {self.aim, self.goal, *self._between.values()}
            self._searches = {height: search for height, search in self._searches.items() if height in wanted}
            self._searches[target] = Search(self._instance, target, self.switches, self.limits.seed, self.best)
        search = self._searches[target]
        end = self.budget.spent + steps
        while search.verdict is Verdict.OPEN and not self.budget.over and self.budget.spent < end:
            before = search.steps
            search.advance(self.budget.slice(end - self.budget.spent))
            self.budget.spend(max(search.steps - before, 1))
        if search.verdict is Verdict.FOUND:
            self.take(search.plan)
        elif search.verdict is Verdict.IMPOSSIBLE and target == self._sufficient:
            self.is_hopeless = True
        elif search.verdict is Verdict.IMPOSSIBLE:
            self.raise_bound((target // self._grain + 1) * self._grain)
