"""
Planners by name: ours, and those that installed packages offer under the entry point group `penstock.planners`.

A planner is a function from a `Problem` to a `Plan`. It may ignore the capacity; it may not place two buffers
that are alive together on the same bytes, and whatever it returns is checked.

```toml
[project.entry-points."penstock.planners"]
my-planner = "my_package.planners:plan"
```
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.passes.planning.greedy import (
    by_area,
    by_conflicts,
    by_size,
    by_start,
    by_urgency,
    greedy,
)
from penstock.passes.planning.problem import Plan, PlanError, Problem, validate

Planner = Callable[[Problem], Plan]

GROUP = "penstock.planners"
"""The entry point group in which packages offer planners."""

DEFAULT_PLANNER = "greedy-by-size"

_OWN: dict[str, Planner] = {
    "greedy-by-area": greedy(by_area),
    "greedy-by-conflicts": greedy(by_conflicts),
    "greedy-by-size": greedy(by_size),
    "greedy-by-start": greedy(by_start),
    "greedy-by-urgency": greedy(by_urgency),
}


def planner_names() -> tuple[str, ...]:
    """All names that `planner` knows, in alphabetical order."""
    return tuple(sorted({*_OWN, *(entry.name for entry in entry_points(group=GROUP))}))


def planner(name: str) -> Planner:
    """The planner `name`; raises UserError, with the nearest name, if there is none."""
    if (own := _OWN.get(name)) is not None:
        return own
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return entry.load()
    near = did_you_mean(name, planner_names())
    raise UserError(
        f'no planner is called "{name}"',
        notes=[*([near] if near else []), f"there are {', '.join(planner_names())}"],
    )


def solve(problem: Problem, name: str = DEFAULT_PLANNER) -> Plan:
    """
    The plan of the planner `name`, checked against everything but the capacity.

    Raises UserError for an unknown planner, and for one whose plan is not valid.
    """
    plan = planner(name)(problem)
    try:
        validate(Problem(problem.buffers), plan)
    except PlanError as error:
        fixed = Problem(tuple(b for b in problem.buffers if b.offset is not None))
        try:
            validate(fixed, Plan({b.id: b.offset for b in fixed.buffers if b.offset is not None}))
        except PlanError as cause:
            raise UserError(f"the places given by hand are no plan: {cause}") from None
        raise UserError(f'the planner "{name}" returned a plan that is not valid: {error}') from None
    return plan
