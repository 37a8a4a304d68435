# SPDX-License-Identifier: Apache-2.0
"""
Ejection search: a local search that asks whether a plan fits below a target, and lowers the target when it does.

Its state is a plan of which some buffers are left out. A step, in C in `ejection.c`:

1. Of the buffers that are left out, take the heaviest, and put it where the buffers in its way weigh least together.
2. Eject those. A buffer that had to eject others grows heavier by the ejection penalty, so that it is ejected less
   easily: what is hard to place settles, and what is easy moves around it.
3. Nothing is left out: the plan fits below the target, and the target goes down by a fraction of the distance to the
   goal.
4. After too many steps without that, half of the weights is forgotten, and the search goes back to the best plan with a
   target closer to it.

(The weights are those of guided ejection search, Nagata and Bräysy, 2009, for vehicle routing; the rest is ours.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.passes.planning.base import above_base
from penstock.passes.planning.budget import Budget
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.native import NativeState, is_available, library_for
from penstock.passes.planning.one_pass import Order, by_hint, by_size, by_urgency, hinted_fit, place_in_order
from penstock.passes.planning.problem import FAR, Limits, Outcome, Problem, lower_bound

FIXED = 1 << 40
"""The weight of what never moves; as in C."""

FIRST_PACE = 3
"""The target goes down by 2 ** -pace of the distance to the goal."""

PATIENCE = 5
"""Steps without a gain for each buffer, beyond a thousand, after which the best plan is taken up again."""

SIZE_WEIGHT = 8
"""What the largest buffer weighs more than the smallest at first."""

STARTS: tuple[Order, ...] = (by_size, by_urgency)
"""The orders that it starts from; between them they reach the bound on networks."""

SLICE = 5_000
"""Steps between looks at the clock."""

DEFAULT_WORK = 250_000_000
"""About what C gets through in a second; `default_steps` says in what."""

MIN_CONFLICTS_IN_C = 12_000
"""Conflicts from which on the one-pass orders, too, are worth C."""

_POINTERS = (
    "sizes first low high alignments first_range range_start range_end other by_low by_high offsets weights outside "
    "best lows highs scratch"
)
_NUMBERS = "count goal left target height pace stale patience taken done random"


class EjectionSearch:
    """
    A search from a plan, or from none, down to a goal; it can be stopped and resumed between any two steps.

    `best` is the best plan so far, as offsets by the numbers of the buffers, None as long as there is none, and
    `height` is its height. It is `done` at the goal, and where nothing more can come of it. The plan that it starts
    from has to be valid. A step is a buffer put somewhere. Raises UserError where there is no C compiler.
    """

    def __init__(self, conflicts: Conflicts, offsets: Sequence[int] | None, goal: int, seed: int = 0):
        buffers = conflicts.problem.buffers
        largest = max((buffer.size for buffer in buffers), default=0) or 1
        height = FAR if offsets is None else conflicts.height(offsets)
        offsets = _fixed_offsets(conflicts) if offsets is None else offsets
        self.conflicts = conflicts
        self._library = library_for("ejection")
        self._state = _state(conflicts, offsets)
        weights = [1 + SIZE_WEIGHT * buffer.size // largest if buffer.offset is None else FIXED for buffer in buffers]
        outside = [number for number, offset in enumerate(offsets) if offset < 0]
        self._state.arrays["weights"][:] = weights
        self._state.arrays["outside"][: len(outside)] = outside
        self._state.set_numbers(
            goal=goal,
            left=len(outside),
            target=height,
            height=height,
            pace=FIRST_PACE,
            patience=PATIENCE * len(buffers) + 1000,
            # of xorshift, which is never zero
            random=(seed * 0x9E3779B97F4A7C15 + 0x853C49E6748FEA9B) % (1 << 64) or 1,
        )

    @property
    def height(self) -> int:
        """The height of the best plan; FAR if there is none."""
        return self._state.struct.height

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self._state.struct.taken

    @property
    def done(self) -> bool:
        """Whether more steps are of no use."""
        return bool(self._state.struct.done)

    @property
    def best(self) -> list[int] | None:
        """The offsets of the best plan; None if there is none."""
        return None if self.height == FAR else self._state.arrays["best"].tolist()

    def aim(self, goal: int) -> None:
        """Go for another goal from the next step on."""
        self._state.set_numbers(goal=goal, done=self.height <= goal)

    def adopt(self, offsets: Sequence[int]) -> None:
        """Go on from a plan that something else found, if it is lower than the best."""
        height = self.conflicts.height(offsets)
        if height >= self.height:
            return
        self._state.arrays["best"][:] = offsets
        self._state.set_numbers(height=height)
        self.aim(self._state.struct.goal)
        if not self.done:
            self._library.penstock_restart(self._state.reference)

    def run(self, steps: int) -> None:
        """Take a number of steps, or fewer where it is done."""
        if not self.done and steps > 0:
            self._library.penstock_eject(self._state.reference, steps)


def _fixed_offsets(conflicts: Conflicts) -> list[int]:
    return [-1 if buffer.offset is None else buffer.offset for buffer in conflicts.problem.buffers]


def _state(conflicts: Conflicts, offsets: Sequence[int]) -> NativeState:
    """A problem, and offsets to begin with: -1 where a buffer has none yet."""
    count = len(offsets)
    ranges = [allowed.ranges for allowed in conflicts.allowed]
    widest = int(np.diff(conflicts.first).max(initial=0))
    state = NativeState(_POINTERS, _NUMBERS)
    state.set_numbers(count=count)
    state.set_arrays(
        sizes=np.array(conflicts.sizes, np.int64),
        first=conflicts.first,
        other=conflicts.other,
        alignments=np.array([allowed.step for allowed in conflicts.allowed], np.int64),
        first_range=np.cumsum([0, *map(len, ranges)]),
        range_start=np.array([start for each in ranges for start, _ in each], np.int64),
        range_end=np.array([end for each in ranges for _, end in each], np.int64),
        offsets=np.array(offsets, np.int64),
        best=np.array(offsets, np.int64),
        weights=np.ones(count, np.int64),
        outside=np.zeros(count, np.int64),
        by_low=np.arange(len(conflicts.other), dtype=np.int32),
        by_high=np.arange(len(conflicts.other), dtype=np.int32),
        **{name: np.empty(3 * widest + 3, np.int64) for name in ("lows", "highs", "scratch")},
    )
    if conflicts.low is not None and conflicts.high is not None:
        state.set_arrays(low=conflicts.low, high=conflicts.high)
    return state


def default_steps(conflicts: Conflicts) -> int:
    """Steps that take about a second in C, by how much there is to look at in one."""
    count = len(conflicts.sizes)
    return DEFAULT_WORK // (300 + 12 * (len(conflicts.other) // max(count, 1)))


@above_base
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
    """First fit in an order, as `place_in_order` does it, in C where that is worth it and there is a compiler."""
    if len(conflicts.other) < MIN_CONFLICTS_IN_C or not is_available():
        return place_in_order(conflicts, order)
    state = _state(conflicts, _fixed_offsets(conflicts))
    numbers = np.array(order, np.int64)
    found = library_for("first-fit").penstock_first_fit(state.reference, numbers.ctypes.data)
    return state.arrays["offsets"].tolist() if found else None
