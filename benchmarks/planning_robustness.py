# SPDX-License-Identifier: Apache-2.0
"""Sections of benchmarks/planning.py: a planner beside its test set, and how long a large plan takes to check."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from collections.abc import Sequence
from random import Random
from statistics import median

from benchmarks.instances.packings import perfect
from benchmarks.instances.perturbed import perturbed
from benchmarks.measure import ROOT, cpu_seconds, say
from benchmarks.planning_runs import Settings, attempt, geomean, text_table
from penstock.passes.planning.problem import Buffer, Limits, Problem, height, lower_bound, validate
from penstock.passes.planning.registry import solve

STEPS = 120_000_000
"""Steps for an instance: three to five seconds."""
SOON = 4.4
"""Seconds within which an earlier version solved 70 of 77 instances like these."""
LARGE = 20_000
"""Buffers of the plan that is validated."""
BEFORE = "71 of 77, median 0.132 s"
"""What the search did of the same instances, steps and seed before lanes, jumps and minimalloc's order."""
MIB = 1 << 20


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
    print(f"before lanes, jumps and minimalloc's order: {BEFORE}, recorded")


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


def scale(settings: Settings) -> None:
    """CPU seconds and the most memory of a process that plans many buffers; half of a model's are its weights."""
    rows: list[Sequence[object]] = []
    for kind in ("drawn", "weights"):
        for count in (2_000,) if settings.quick else (LARGE, 5 * LARGE):
            for name in (settings.planner, "ejection", "best-fit-by-start"):
                if name == "best-fit-by-start" and (kind == "weights" or count > LARGE):
                    continue  # its table of who meets whom would fill the memory
                words = [sys.executable, "-m", "benchmarks.planning_robustness", kind, str(count), name]
                done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
                ratio, seconds, mebibytes = map(float, done.stdout.split())
                rows.append((kind, f"{count:,}", name, ratio, seconds, mebibytes))
    head = ("buffers", "number", "planner", "peak / bound", "s", "MiB")
    print(text_table("Many buffers (100,000: less than 20 s and 1,024 MiB; 20,000 with weights: 300 MiB)", head, rows))
    print("before, recorded: 20,000 drawn ones 11.9 s and 238 MiB, 4,000 with weights 14.4 s and 970 MiB")


def _one_of_many(kind: str, count: int, name: str) -> None:
    """Print what the planner makes of many buffers, its CPU seconds, and the most MiB that the process held."""
    problem = _many(count) if kind == "drawn" else _with_weights(count)
    started = cpu_seconds()
    plan = solve(problem, name).plan
    assert plan is not None
    seconds = cpu_seconds() - started
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    print(height(problem, plan) / lower_bound(problem), seconds, most)


def packings(settings: Settings) -> None:
    """How far above the optimum ejection search alone ends on perfect packings of 500 buffers."""
    rows: list[Sequence[object]] = []
    for kind, pinwheels in (("guillotine", 0.0), ("pinwheel", 0.7)):
        ratios: list[float] = []
        started = cpu_seconds()
        for seed in range(1 if settings.quick else 5):
            problem = perfect(f"{kind}{seed}", 500, 300, 1024, pinwheels)
            plan = solve(problem, "ejection").plan
            assert plan is not None
            ratios.append(height(problem, plan) / lower_bound(problem))
        taken = (cpu_seconds() - started) / len(ratios)
        rows.append((kind, len(ratios), geomean(ratios), max(ratios), taken))
    head = ("packing", "problems", "peak / optimum", "worst", "s each")
    print(text_table("Perfect packings of 500 buffers: ejection (1.08 aimed at)", head, rows))


def _with_weights(count: int) -> Problem:
    """As a language model has them: every second buffer is alive throughout."""
    random = Random(count)
    made: list[Buffer] = []
    for number in range(count):
        if number % 2:
            made.append(Buffer(f"w{number}", ((0, count),), 64 * random.randint(1, 4000)))
            continue
        lower = random.randrange(count - 1)
        upper = min(count, lower + 1 + int(random.expovariate(1 / 60)))
        made.append(Buffer(f"a{number}", ((lower, upper),), 64 * random.randint(1, 200)))
    return Problem(tuple(made))


def _many(count: int) -> Problem:
    """Buffers of which some dozens are alive at a time."""
    random = Random(count)
    made: list[Buffer] = []
    for number in range(count):
        lower = random.randrange(count)
        duration = 1 + int(random.expovariate(1 / 60))
        made.append(Buffer(f"b{number}", ((lower, lower + duration),), 64 * random.randint(1, 200)))
    return Problem(tuple(made))


if __name__ == "__main__":
    _one_of_many(sys.argv[1], int(sys.argv[2]), sys.argv[3])
