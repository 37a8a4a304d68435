# SPDX-License-Identifier: Apache-2.0
"""
Strategies by name, through the entry point group `penstock.on_chip_strategies`: ours and those of other packages.

A strategy is a function from an `OnChipProblem` and `Options` to an `OnChipAllocation`; whatever it returns is checked.

```toml
[project.entry-points."penstock.on_chip_strategies"]
my-strategy = "my_package.on_chip:decide"
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem, validate_allocation
from penstock.passes.planning.problem import PlanError
from penstock.passes.planning.registry import DEFAULT_PLANNER, entries, load_entry

GROUP = "penstock.on_chip_strategies"
"""The entry point group of strategies."""

DEFAULT_STRATEGY = "sweep"
"""The strategy where none is named."""


@dataclass(frozen=True)
class Options:
    """What a strategy may be told; each takes what concerns it."""

    seconds: float | None = None
    """Wall-clock time after which it returns the best that it has; None sets no such limit."""
    planner: str = DEFAULT_PLANNER
    """The planner that finds the places of what stays on chip."""
    iterations: int = 2
    """Which run of the program this is: a strategy that learns has seen those before."""


Strategy = Callable[[OnChipProblem, Options], OnChipAllocation]
"""It raises PlanError where there is no answer, because something that cannot be streamed does not fit."""


def strategy_names() -> tuple[str, ...]:
    """All names that `strategy` knows, in alphabetical order."""
    return tuple(entries(GROUP))


def strategy(name: str) -> Strategy:
    """The strategy `name`; raises UserError, with the nearest name, if there is none."""
    return load_entry(GROUP, name, "on-chip allocation strategy")


def decide(problem: OnChipProblem, name: str = DEFAULT_STRATEGY, options: Options | None = None) -> OnChipAllocation:
    """
    What the strategy `name` decides, checked.

    Raises UserError for an unknown strategy and for one whose answer is not valid; PlanError where there is no
    answer at all, because something that cannot be streamed does not fit.
    """
    allocation = strategy(name)(problem, options or Options())
    try:
        validate_allocation(problem, allocation)
    except PlanError as error:
        raise UserError(f'the strategy "{name}" returned an answer that is not valid: {error}') from None
    return allocation
