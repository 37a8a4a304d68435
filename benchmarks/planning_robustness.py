"""Sections of benchmarks/planning.py: a planner beside its test set, and how long a large plan takes to check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import median

from benchmarks.instances.perturbed import perturbed
from benchmarks.measure import cpu_seconds, say
from benchmarks.planning_runs import Settings, attempt, text_table
from penstock.passes.planning.problem import Buffer, Limits, Problem, validate
from penstock.passes.planning.registry import solve

STEPS = 120_000_000
"""Steps for an instance: three to five seconds."""
SOON = 4.4
"""Seconds within which an earlier version solved 70 of 77 instances like these."""
LARGE = 20_000
"""Buffers of the plan that is validated."""


def perturbed_instances(settings: Settings) -> None:
    """A-K, each changed in seven ways: how many fit, and how CPU seconds are distributed."""
    instances = list(perturbed(settings.folder, settings.quick))
    if not instances:
        return
    seconds: list[float] = []
    for instance in instances:
        capacity = instance.problem.capacity
        assert capacity is not None
        found = attempt(instance, settings.planner, Limits(steps=STEPS, good_enough=capacity))
        fits = found is not None and found.height <= capacity
        seconds.append(found.seconds if found is not None and fits else math.inf)
        say(f"planning: {instance.name}: {seconds[-1]:.2f} s")
    ordered = sorted(seconds)
    solved = [each for each in ordered if each < math.inf]
    late = ordered[math.ceil(0.95 * len(ordered)) - 1]
    row = (
        f"{len(solved)} of {len(seconds)}", sum(each <= SOON for each in solved), median(ordered),
        late if late < math.inf else None, max(solved, default=None), sum(solved),
    )  # fmt: skip
    head = ("solved", f"within {SOON:g} s", "median, s", "95th in 100, s", "slowest solved, s", "all solved, s")
    print(text_table(f"A-K with changes, at 1 MiB: {settings.planner}, {STEPS:,} steps each, one seed", head, [row]))
    names = [each.name for each, taken in zip(instances, seconds, strict=True) if taken == math.inf]
    print("not solved: " + ("; ".join(names) or "none"))


def validator(settings: Settings) -> None:
    """CPU seconds to check a plan of many buffers, beside those that it takes to make one."""
    rows: list[Sequence[object]] = []
    for count in (LARGE // 10, LARGE) if not settings.quick else (LARGE // 10,):
        problem = _many(count)
        started = cpu_seconds()
        plan = solve(problem, "first-fit-by-size").plan
        between = cpu_seconds()
        assert plan is not None
        validate(problem, plan)
        rows.append((count, between - started, cpu_seconds() - between))
    head = ("buffers", "first fit by size, and checked, s", "checked alone, s")
    print(text_table("The check that every plan passes through", head, rows))


def _many(count: int) -> Problem:
    """Buffers of which some dozens are alive at a time."""
    random = Random(count)
    made: list[Buffer] = []
    for number in range(count):
        lower = random.randrange(count)
        duration = 1 + int(random.expovariate(1 / 60))
        made.append(Buffer(f"b{number}", ((lower, lower + duration),), 64 * random.randint(1, 200)))
    return Problem(tuple(made))
