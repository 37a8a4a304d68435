"""
The planner `exact`: the least peak, proved, if it is given the time.

It asks the search of `penstock.passes.planning.search` for plans of ever lower heights, and keeps the best plan and
the best proof in between: an answer "nothing fits below this height" raises the bound, and where the two meet the
plan is optimal. Any time it stops it has a plan. It needs a C compiler.

One step is one look at a section or at a pair of buffers that meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.passes.planning.bounds import grain, strong_lower_bound, sufficient_height
from penstock.passes.planning.budget import Budget
from penstock.passes.planning.instance import compact
from penstock.passes.planning.problem import Limits, Outcome, Plan, PlanError, Problem, height, validate
from penstock.passes.planning.search import Search, Switches, Verdict

DEFAULT_STEPS = 60_000_000
"""Steps without any limit: one or two seconds."""

SLICE = 1_000_000
"""Steps given to one height before the next is tried; doubled each time that none gave an answer."""

BREATH = 2_000_000
"""Steps between looks at the clock."""


def plan(problem: Problem, limits: Limits) -> Outcome:
    """The best plan found, what was proved of every other, and whether nothing at all fits the capacity."""
    return Minimiser(problem, limits).run()


class Minimiser:
    """Brings a plan and a bound together until they meet, or until a limit."""

    def __init__(self, problem: Problem, limits: Limits, switches: Switches | None = None):
        self._problem = problem
        self._limits = limits
        self._switches = switches
        self._instance = compact(problem)
        self._grain = grain(self._instance)
        self._searches: dict[int, Search] = {}
        self._budget = Budget(limits, DEFAULT_STEPS)
        self.bound = strong_lower_bound(problem, self._instance)
        self.best: Plan | None = None
        self.peak = 0
        self.hopeless = False

    def run(self) -> Outcome:
        """Minimise until a limit."""
        self._first()
        effort = SLICE
        while self.best is not None and not self._enough() and not self._budget.over:
            if not any(self._try(target, effort) for target in self._targets()):
                effort *= 2
        capacity = self._problem.capacity
        impossible = self.hopeless or (capacity is not None and self.bound > capacity)
        return Outcome(self.best, self.bound, impossible, self._budget.spent)

    def _first(self) -> None:
        """Any plan, however high: what the hints say, if that is one."""
        buffers = self._problem.buffers
        hints = {b.id: b.hint if b.offset is None else b.offset for b in buffers}
        hinted = Plan({id: hint for id, hint in hints.items() if hint is not None})
        try:
            validate(replace(self._problem, capacity=None), hinted)
        except PlanError:
            pass
        else:
            self.best, self.peak = hinted, height(self._problem, hinted)
            return
        search = self._search(sufficient_height(self._problem, self.bound))
        while search.verdict is Verdict.OPEN and not self._budget.over:
            self._advance(search, SLICE)
        if search.verdict is Verdict.FOUND:
            self.best = search.plan
            self.peak = height(self._problem, self.best)
        self.hopeless = search.verdict is Verdict.IMPOSSIBLE

    def _enough(self) -> bool:
        good = self._limits.good_enough
        return self.peak <= (self.bound if good is None else max(self.bound, good))

    def _targets(self) -> Iterator[int]:
        """The heights to try, while none gives an answer: what is asked for, and ever further below the best."""
        least = max(self.bound, self._limits.good_enough or 0)
        capacity = self._problem.capacity
        if capacity is not None and least < capacity < self.peak:
            yield capacity
        yield least
        room = self.peak - least
        for share in (1 / 2, 1 / 4, 3 / 4):
            target = least + int(room * share) // self._grain * self._grain
            if least < target < self.peak and not self._budget.over:
                yield target

    def _search(self, target: int) -> Search:
        if target not in self._searches:
            self._searches[target] = Search(self._instance, target, self._switches, self._limits.seed, self.best)
        return self._searches[target]

    def _advance(self, search: Search, steps: int) -> None:
        before = search.steps
        search.advance(self._budget.slice(steps))
        self._budget.spend(search.steps - before)

    def _try(self, target: int, effort: int) -> bool:
        """Whether the height gives an answer for that many steps, those of earlier passes included."""
        search = self._search(target)
        while search.verdict is Verdict.OPEN and search.steps < effort and not self._budget.over:
            self._advance(search, min(BREATH, effort - search.steps))
        if search.verdict is Verdict.FOUND:
            self.best = search.plan
            self.peak = height(self._problem, self.best)
        elif search.verdict is Verdict.IMPOSSIBLE:
            self.bound = max(self.bound, (target // self._grain + 1) * self._grain)
        else:
            return False
        self._searches = {
            height: search for height, search in self._searches.items() if self.bound <= height < self.peak
        }
        return True
