# SPDX-License-Identifier: Apache-2.0
"""Running planners on instances: one attempt, many of them side by side, minimalloc's own program, and text tables."""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.instances import Instance
from benchmarks.measure import cpu_seconds, say
from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.minimalloc_csv import write_csv
from penstock.passes.planning.problem import Limits, PlanError, Problem, height
from penstock.passes.planning.registry import Planner, planner, planner_names, solve


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    quick: bool
    seeds: int
    seconds: float
    """The limit of an attempt in the tables of many instances."""
    planner: str
    folder: Path | None
    binary: Path | None
    families: tuple[str, ...]


@dataclass(frozen=True)
class Attempt:
    """What came of one run of a planner."""

    height: int
    bound: int
    """The best that is known of the optimum: of the instance, or proved by this planner."""
    seconds: float
    """CPU seconds."""

    @property
    def ratio(self) -> float:
        return self.height / self.bound if self.bound else 1.0

    @property
    def optimal(self) -> bool:
        return self.height <= self.bound


_reported: set[str] = set()


def _report(what: str) -> None:
    if what not in _reported:
        _reported.add(what)
        say(f"planning: {what}")


def available(names: Iterable[str]) -> list[str]:
    """Of these planners, those that are there; of the others it is said why not."""
    found: list[str] = []
    for name in names:
        try:
            if name in planner_names():
                planner(name)
                found.append(name)
        except (ImportError, AttributeError) as error:
            _report(f"without the planner {name}: {error}")
    return found


def attempt(instance: Instance, name: str, limits: Limits) -> Attempt | None:
    """A run of a registered planner; None where it refuses the problem or finds no plan."""
    return _attempt(instance, limits, lambda problem, given: solve(problem, name, given), name)


def attempt_by(instance: Instance, function: Planner, limits: Limits, what: str) -> Attempt | None:
    """A run of a planner that is not registered."""
    return _attempt(instance, limits, function, what)


def _attempt(instance: Instance, limits: Limits, function: Planner, what: str) -> Attempt | None:
    started = cpu_seconds()
    try:
        outcome = function(instance.problem, limits)
    except (UserError, PlanError) as error:
        _report(f"{what} refuses {instance.family}: {error}")
        return None
    seconds = cpu_seconds() - started
    if outcome.plan is None:
        return None
    found = height(instance.problem, outcome.plan)
    bound = instance.bound if instance.optimum is not None else max(instance.bound, outcome.bound)
    return Attempt(found, bound, seconds)


def best(attempts: Iterable[Attempt | None]) -> Attempt | None:
    """The lowest of several, at the price of all."""
    found = [each for each in attempts if each is not None]
    if not found:
        return None
    seconds = sum(each.seconds for each in found)
    return Attempt(min(each.height for each in found), max(each.bound for each in found), seconds)


def minimalloc(binary: Path, problem: Problem, capacity: int, limit: float) -> tuple[float, bool]:
    """CPU seconds of minimalloc's own program, as it comes, and whether it found a plan of this capacity."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "problem.csv")
        source.write_text(write_csv(problem))
        flags = [f"--capacity={capacity}", f"--input={source}", f"--output={folder}/plan.csv", f"--timeout={limit:g}s"]
        started = cpu_seconds()
        status = subprocess.run([binary, *flags], check=False, stderr=subprocess.DEVNULL).returncode
        return cpu_seconds() - started, status == 0


def is_plain(problem: Problem) -> bool:
    """Whether buffers have one interval and no places, windows or banks: what every program understands."""
    return not any(
        len(buffer.intervals) > 1 or buffer.offset is not None or buffer.windows or buffer.banks
        for buffer in problem.buffers
    )


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; nan of nothing."""
    found = list(values)
    if not found:
        return math.nan
    return math.exp(sum(math.log(max(value, 1e-9)) for value in found) / len(found))


def text_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A title and columns, the first to the left and the others to the right."""
    cells = [list(head), *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(line, widths, strict=True)) for line in cells)
    ]
    return "\n".join([f"\n{title}", *lines])


def cell_text(cell: object) -> str:
    """A cell of a table; `-` for None."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3f}" if cell < 10 else f"{cell:.1f}"
    return str(cell)
