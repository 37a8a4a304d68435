# SPDX-License-Identifier: Apache-2.0
"""A planning problem with what is known of its optimum beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.passes.planning.problem import Plan, Problem, height, lower_bound


@dataclass(frozen=True)
class Instance:
    """A problem of a family. What makes it up is drawn from a generator seeded with its name, and nothing else."""

    family: str
    name: str
    """Unique in its family."""
    problem: Problem
    perfect: Plan | None = None
    """A plan that wastes nothing at some moment, hence an optimal one, where the problem was made from such a plan."""

    @property
    def optimum(self) -> int | None:
        """The least height, where the problem was made so that it is known."""
        return None if self.perfect is None else height(self.problem, self.perfect)

    @property
    def bound(self) -> int:
        """The best that is known of the optimum without solving: itself, or the most bytes alive at once."""
        return lower_bound(self.problem) if self.optimum is None else self.optimum
