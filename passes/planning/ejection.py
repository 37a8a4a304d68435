"""
Ejection search: a local search that asks whether a plan fits below a target, and lowers the target when it does.

Its state is a plan of which some buffers are left out. A step takes one of those, puts it where the buffers in its
way weigh least together, and takes these out. What had to throw others out grows heavier, so that it is thrown out
less easily: what is hard to place settles, and what is easy moves around it. Nothing is left out: the plan fits
below the target, and the target goes down by a fraction of the distance to the goal. After too many steps in vain
half of the weights is forgotten, and the search goes back to the best plan with a target closer to it. (The weights
are those of guided ejection search, Nagata and Bräysy, 2009, for vehicle routing; the rest is ours.)

The loop is C, `ejection.c`, where there is a compiler, and Python otherwise; both take the same steps to the same
plan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from penstock.passes.planning.budget import Budget
from penstock.passes.planning.conflicts import FAR, Conflicts
from penstock.passes.planning.ejection_library import first_fit_in_c, is_loaded, load_library, numbers, pack
from penstock.passes.planning.one_pass import Order, by_hint, by_size, by_urgency, hinted_fit, place_in_order
from penstock.passes.planning.problem import Limits, Outcome, Problem, lower_bound

FIXED = 1 << 40
"""The weight of what never moves."""

SLOWEST, FASTEST = 20, 2
"""Limits of the pace: the target goes down by 2 ** -pace of the distance to the goal."""

FIRST_PACE = 3

PATIENCE = 5
"""Steps in vain for each buffer, beyond a thousand, after which the best plan is taken up again."""

GRUDGE = 3
"""What a buffer that throws others out weighs more from then on."""

SIZE_WEIGHT = 8
"""What the largest buffer weighs more than the smallest at first."""

STARTS: tuple[Order, ...] = (by_size, by_urgency)
"""The orders that it starts from; between them they reach the bound on networks."""

SLICE = 5_000
"""Steps between looks at the clock."""

DEFAULT_WORK = 250_000_000
"""About what C gets through in a second; `default_steps` says in what."""

FEW = 2_000
"""Steps times buffers, up to which Python is faster than loading the library where it is not loaded yet."""

MANY_CONFLICTS = 12_000
"""Conflicts from which on the one-pass orders, too, are worth C."""


class EjectionSearch:
    """
    A search from a plan, or from none, down to a goal; it can be stopped and resumed between any two steps.

    `best` is the best plan so far, as offsets by the numbers of the buffers, None as long as there is none, and
    `height` is its height. `done` is set at the goal, and where nothing more can come of it. The plan that it starts
    from has to be valid. A step is a buffer put somewhere.
    """

    def __init__(
        self,
        conflicts: Conflicts,
        offsets: Sequence[int] | None,
        goal: int,
        seed: int = 0,
        native: bool | None = None,
    ):
        """`native` forces C or Python; None takes what is there, and C only where it is worth loading it."""
        buffers = conflicts.problem.buffers
        largest = max((buffer.size for buffer in buffers), default=0) or 1
        self.conflicts = conflicts
        self.goal = goal
        self.steps: int = 0
        self.done = False
        self._native = native
        self._weights = [
            1 + SIZE_WEIGHT * buffer.size // largest if buffer.offset is None else FIXED for buffer in buffers
        ]
        self._offsets = (
            list(offsets)
            if offsets is not None
            else [-1 if buffer.offset is None else buffer.offset for buffer in buffers]
        )
        self._best: list[int] = list(self._offsets)
        self._outside: list[int] = [number for number, offset in enumerate(self._offsets) if offset < 0]
        self.height = conflicts.height(self._best) if offsets is not None else FAR
        self._target = self.height
        self._pace: int = FIRST_PACE
        self._stale: int = 0
        self._patience = PATIENCE * len(buffers) + 1000
        # Of xorshift, which is never zero.
        self._random: int = (seed * 0x9E3779B97F4A7C15 + 0x853C49E6748FEA9B) % (1 << 64) or 1

    @property
    def best(self) -> list[int] | None:
        """The offsets of the best plan; None if there is none."""
        return None if self.height == FAR else list(self._best)

    def aim(self, goal: int) -> None:
        """Go for another goal from the next step on."""
        self.goal = goal
        self.done = self.height <= goal

    def adopt(self, offsets: Sequence[int]) -> None:
        """Go on from a plan that something else found, if it is lower than the best."""
        height = self.conflicts.height(offsets)
        if height >= self.height:
            return
        self.height = height
        self._best = list(offsets)
        self.done = height <= self.goal
        if not self.done:
            self._restart()

    def run(self, steps: int) -> None:
        """Take a number of steps, or fewer where it is done."""
        if self.done or steps <= 0:
            return
        library = self._library(steps)
        if library is None:
            self._run_in_python(steps)
        else:
            self._run_in_c(library, steps)

    def _library(self, steps: int) -> ctypes.CDLL | None:
        if self._native is False or (self._native is None and not is_loaded() and steps * len(self._best) <= FEW):
            return None
        library = load_library()
        if library is None and self._native:
            raise RuntimeError("there is no C compiler")
        return library

    # In C.

    def _run_in_c(self, library: ctypes.CDLL, steps: int) -> None:
        search, arrays = pack(
            self.conflicts,
            self._offsets,
            self._weights,
            self._outside,
            self._best,
            goal=self.goal,
            target=self._target,
            height=self.height,
            pace=self._pace,
            stale=self._stale,
            patience=self._patience,
            taken=self.steps,
            random=self._random,
        )
        library.penstock_eject(ctypes.byref(search), ctypes.c_int64(steps))
        self._offsets, self._weights = numbers(arrays["offsets"]), numbers(arrays["weights"])
        self._best, self._outside = numbers(arrays["best"]), numbers(arrays["outside"])[: search.left]
        self._target, self.height, self._pace = search.target, search.height, search.pace
        self._stale, self._random = search.stale, search.random
        self.steps, self.done = search.taken, bool(search.done)

    # In Python: the same, line by line.

    def _run_in_python(self, steps: int) -> None:
        end = self.steps + steps
        spans, offsets, weights, outside = self.conflicts.spans, self._offsets, self._weights, self._outside
        while self.steps < end:
            if not outside:
                self._record()
                self.done = self.height <= self.goal
                if not self.done:
                    self._restart()
                    self.done = not outside
                if self.done:
                    return
            pick = max(range(len(outside)), key=lambda at: weights[outside[at]])
            buffer = outside[pick]
            place, cost = self._cheapest(buffer)
            stuck = place < 0 or cost >= FIXED
            self.steps += 1
            if not stuck:
                self._stale += 1
            if stuck or self._stale > self._patience:
                if stuck and (self.height == FAR or self._target >= self.height - 1):
                    self.done = True
                    return
                self._pace = min(self._pace + 1, SLOWEST)
                if not stuck:
                    # Half of what they have come to: what was hard below one target need not be for ever.
                    weights[:] = [1 + weight // 2 if weight < FIXED else weight for weight in weights]
                self._restart()
                continue
            outside[pick] = outside[-1]
            outside.pop()
            if cost:
                weights[buffer] += GRUDGE
                for other, low, high in spans[buffer]:
                    offset = offsets[other]
                    if offset >= 0 and offset + low < place < offset + high:
                        offsets[other] = -1
                        outside.append(other)
            offsets[buffer] = place

    def _cheapest(self, buffer: int) -> tuple[int, int]:
        """The place below the target at which least has to leave, and the weight of that; -1 if there is no place."""
        offsets, weights, places = self._offsets, self._weights, self.conflicts.places[buffer]
        last, at = places.highest(self._target - self.conflicts.sizes[buffer]), places.lowest(0)
        met = [(offset, o, low, high) for o, low, high in self.conflicts.spans[buffer] if (offset := offsets[o]) >= 0]
        lows = sorted((offset + low, weights[other]) for offset, other, low, _ in met)
        highs = sorted((offset + high, weights[other]) for offset, other, _, high in met)
        # The places at the ends of spans, in one ascending line; the least beyond the last is not one of them.
        candidates = sorted(
            {
                *(place for side, _ in highs if at < (place := places.lowest(side)) < last),
                *(place for side, _ in lows if at < (place := places.highest(side)) < last),
            }
        )
        best, cost, ties, total, opened, closed = -1, FAR, 0, 0, 0, 0
        line = [] if at > last else [at] if at == last else [at, *candidates, last]
        for place in line:
            while opened < len(lows) and lows[opened][0] < place:
                total += lows[opened][1]
                opened += 1
            while closed < len(highs) and highs[closed][0] <= place:
                total -= highs[closed][1]
                closed += 1
            if total < cost:
                best, cost, ties = place, total, 1
                if not total:
                    break
            elif total == cost:
                ties += 1
                if not self._draw(ties):
                    best = place
        return best, cost

    def _restart(self) -> None:
        """From the best plan again, without what stands out above a new target."""
        self._target = max(self.height - 1 - ((self.height - self.goal) >> self._pace), self.goal)
        self._stale = 0
        self._offsets[:] = self._best
        self._outside.clear()
        for buffer, (offset, size) in enumerate(zip(self._best, self.conflicts.sizes, strict=True)):
            if self._weights[buffer] < FIXED and (offset < 0 or offset + size > self._target):
                self._offsets[buffer] = -1
                self._outside.append(buffer)

    def _record(self) -> None:
        height = self.conflicts.height(self._offsets)
        if height < self.height:
            self.height = height
            self._best = list(self._offsets)
            self._pace = max(self._pace - 1, FASTEST)

    def _draw(self, below: int) -> int:
        value = self._random
        value ^= value << 13 & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 7
        value ^= value << 17 & 0xFFFFFFFFFFFFFFFF
        self._random = value
        return (value >> 32) * below >> 32


def default_steps(conflicts: Conflicts) -> int:
    """Steps that take about a second in C, by how much there is to look at in one."""
    count = len(conflicts.sizes)
    return DEFAULT_WORK // (300 + count + 4 * (len(conflicts.other) // max(count, 1)))


def plan(problem: Problem, limits: Limits) -> Outcome:
    """The best plan of an ejection search that starts from the better of two one-pass orders."""
    conflicts = Conflicts(problem)
    bound = lower_bound(problem)
    goal = max(bound, limits.good_enough or 0)
    budget = Budget(limits, default_steps(conflicts))
    search = EjectionSearch(conflicts, best_start(conflicts, goal), goal, limits.seed)
    while not search.done and not budget.over:
        before = search.steps
        search.run(budget.slice(SLICE))
        budget.spend(search.steps - before)
    found = search.best
    return Outcome(None if found is None else conflicts.plan(found), bound, steps=search.steps)


def best_start(conflicts: Conflicts, goal: int) -> list[int] | None:
    """
    The best of the plan that the hints give, if there are any, and of the one-pass orders `STARTS`.

    None if there is none; those after the first that reaches the goal are not tried.
    """
    best: list[int] | None = None
    for order in (by_hint, *STARTS):
        if order is not by_hint:
            offsets = fit_in_order(conflicts, order(conflicts))
        elif any(buffer.hint is not None for buffer in conflicts.problem.buffers):
            offsets = place_in_order(conflicts, by_hint(conflicts), hinted_fit)
        else:
            continue
        if offsets is not None and (best is None or conflicts.height(offsets) < conflicts.height(best)):
            best = offsets
        if best is not None and conflicts.height(best) <= goal:
            break
    return best


def fit_in_order(conflicts: Conflicts, order: Sequence[int]) -> list[int] | None:
    """First fit in an order, as `place_in_order` does it, in C where that is worth it."""
    if len(conflicts.other) >= MANY_CONFLICTS and (library := load_library()) is not None:
        return first_fit_in_c(library, conflicts, order)
    return place_in_order(conflicts, order)
