# SPDX-License-Identifier: Apache-2.0
"""
Planners by name, through the entry point group `penstock.planners`: ours and those of installed packages alike.

A planner is a function from a `Problem` and `Limits` to an `Outcome`. It may return a plan that exceeds the
capacity, as the best it found; it may not place two buffers that are alive together on the same bytes, and
whatever it returns is checked.

```toml
[project.entry-points."penstock.planners"]
my-planner = "my_package.planners:plan"
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.plugins import installed
from penstock.passes.planning.bounds import obstacle
from penstock.passes.planning.problem import Limits, Outcome, Plan, PlanError, Problem, validate

Planner = Callable[[Problem, Limits], Outcome]
"""It never raises for a problem that nothing fits: it says so in the outcome. PlanError is for what it cannot take."""

GROUP = "penstock.planners"
"""The entry point group of planners."""

DEFAULT_PLANNER = "portfolio"
"""The planner where none is named."""


def entries(group: str) -> Mapping[str, EntryPoint]:
    """What installed packages offer in a group of entry points, by name, in alphabetical order."""
    return {entry.name: entry for entry in installed(group)}


def load_entry(group: str, name: str, kind: str) -> Any:
    """What a package offers as `name`; raises UserError, with the nearest name, where no `kind` is called so."""
    found = entries(group)
    if name in found:
        return found[name].load()
    near = did_you_mean(name, found)
    raise UserError(
        f'no {kind} is called "{name}"',
        notes=[*([near] if near else []), f"there are {', '.join(found)}"],
    )


def planner_names() -> tuple[str, ...]:
    """All names that `planner` knows, in alphabetical order."""
    return tuple(entries(GROUP))


def planner(name: str) -> Planner:
    """The planner `name`; raises UserError, with the nearest name, if there is none."""
    return load_entry(GROUP, name, "planner")


def solve(problem: Problem, name: str = DEFAULT_PLANNER, limits: Limits | None = None) -> Outcome:
    """
    What the planner `name` finds; its plan, if it has one, is checked against everything but the capacity.

    It is as low as the planner has found it: where offsets are written, `banks.apart` moves the buffers of pairs.
    Where no plan fits, and that is known without a search (`bounds.obstacle`), the planner is given no steps to search.

    Raises UserError for an unknown planner, for offsets given by hand that are not a plan, and for a planner whose
    plan is not valid.
    """
    check_fixed(problem)
    limits = limits or Limits()
    if (known := obstacle(problem)) is not None:
        limits = replace(limits, steps=0)
    outcome = planner(name)(problem, limits)
    if known is not None:
        outcome = replace(outcome, bound=max(outcome.bound, known.bound), infeasible=True, reason=known.reason)
    if outcome.plan is not None:
        try:
            validate(Problem(problem.buffers, bank_size=problem.bank_size), outcome.plan)
        except PlanError as error:
            raise UserError(f'the planner "{name}" returned a plan that is not valid: {error}') from None
    return outcome


def check_fixed(problem: Problem) -> None:
    """Raise UserError where the offsets given by hand break a rule among themselves."""
    fixed = tuple(buffer for buffer in problem.buffers if buffer.offset is not None)
    places = Plan({buffer.id: buffer.offset for buffer in fixed if buffer.offset is not None})
    try:
        validate(Problem(fixed, bank_size=problem.bank_size), places)
    except PlanError as cause:
        raise UserError(f"the offsets given by hand are not a plan: {cause}") from None
