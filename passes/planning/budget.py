# SPDX-License-Identifier: Apache-2.0
"""What a planner that can always go on may still spend, handed out in slices."""

from __future__ import annotations

from time import perf_counter

from penstock.passes.planning.problem import Limits

SLICE_SECONDS = 0.05
"""About how long a slice may take where time is limited, so that the end of it is not missed by more."""

FIRST_TIMED_SLICE = 200


class Budget:
    """
    The limits of one run, of `default` steps where neither steps nor seconds are limited.

    Slices are as long as they are asked for, up to what is left, so that a run in steps is the same everywhere;
    only where seconds are limited are they cut to what the steps so far have taken.
    """

    def __init__(self, limits: Limits, default: int):
        self.start = perf_counter()
        self.seconds = limits.seconds
        self.steps = default if limits.steps is None and limits.seconds is None else limits.steps
        self.spent = 0

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.steps_left == 0 or self.seconds_left == 0

    @property
    def steps_left(self) -> int | None:
        """Steps that may still be taken; None where they are not limited."""
        return None if self.steps is None else max(self.steps - self.spent, 0)

    @property
    def seconds_left(self) -> float | None:
        """Seconds that it may still take; None where they are not limited."""
        return None if self.seconds is None else max(self.seconds - (perf_counter() - self.start), 0)

    def slice(self, steps: int) -> int:
        """How many steps to take next, at most as many as asked for; at least one as long as it is not over."""
        if self.over:
            return 0
        if self.steps is not None:
            steps = min(steps, self.steps - self.spent)
        if self.seconds is not None:
            taken = perf_counter() - self.start
            rate = self.spent / taken if self.spent else FIRST_TIMED_SLICE / SLICE_SECONDS
            steps = min(steps, int(rate * min(SLICE_SECONDS, self.seconds - taken)))
        return max(steps, 1)

    def spend(self, steps: int) -> None:
        """Note that steps have been taken."""
        self.spent += steps
