# SPDX-License-Identifier: Apache-2.0
"""Running planners on a problem, and saying what they found."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.dialects.byte_sizes import read_byte_size
from penstock.dialects.diagnostics import TIME_LIMIT, USAGE, USER_FAULT, UserError
from penstock.passes.planning.problem import (
    Limits,
    Outcome,
    PlanError,
    Problem,
    alive_at,
    bytes_alive,
    height,
    lower_bound,
    peak,
    span_text,
)
from penstock.passes.planning.registry import planner, planner_names, solve
from penstock.tools.arguments import MAX_DIGITS
from penstock.tools.text import aligned

ALL = "all"
"""In place of a list of planners."""

MAX_FAULTS = 10
"""That --verify lists."""

_MAX_LISTED = 12
"""Buffers that an error lists."""
_RETRY_SECONDS = 0.5
"""Seconds at most, where time is limited, to find out what capacity would do."""


@dataclass(frozen=True)
class Found:
    """What one planner made of a problem."""

    problem: Problem
    name: str
    outcome: Outcome
    seconds: float

    @property
    def peak(self) -> int | None:
        """The bytes that its plan takes; None without a plan."""
        return None if self.outcome.plan is None else height(self.problem, self.outcome.plan)

    @property
    def bound(self) -> int:
        """The best lower bound that is known of the peak."""
        return max(self.outcome.bound, lower_bound(self.problem))

    @property
    def fits(self) -> bool:
        """Whether there is a plan, and it fits the capacity, if there is one."""
        peak = self.peak
        return peak is not None and (self.problem.capacity is None or peak <= self.problem.capacity)

    @property
    def infeasible(self) -> bool:
        """Whether it is proved that no plan fits."""
        capacity = self.problem.capacity
        return self.outcome.infeasible or (capacity is not None and self.bound > capacity)


def read_bytes(option: str, word: str | None) -> int | None:
    """A positive number of bytes, as `4096`, `4K` or `4KiB`; raises UserError for what is none."""
    if word is None:
        return None
    size = read_byte_size(word)
    if size is None or size < 1:
        notes = [f"write {option} 1048576, or {option} 1M"]
        raise UserError(f'{option} "{word}" is no positive number of bytes', notes=notes, status=USAGE)
    return size


def read_limits(seconds: str | None, steps: str | None, seed: str, threads: str = "1") -> Limits:
    """The limits that words of the command line set; raises UserError for what is no limit."""
    return Limits(
        seconds=None if seconds is None else _seconds(seconds),
        steps=None if steps is None else _count("--steps", steps, 1),
        seed=_count("--seed", seed, 0),
        threads=_count("--threads", threads, 1),
    )


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        notes = ["write --time-limit 10"]
        raise UserError(f'--time-limit "{word}" is no positive number of seconds', notes=notes, status=USAGE)
    return seconds


def _count(option: str, word: str, least: int) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= MAX_DIGITS and int(word) >= least):
        raise UserError(f'{option} "{word}" is no integer from {least}', status=USAGE)
    return int(word)


def read_planners(words: str) -> tuple[str, ...]:
    """The planners that `a,b,c` or `all` names; raises UserError for one that there is not."""
    if words == ALL:
        return planner_names()
    names = tuple(dict.fromkeys(name for word in words.split(",") if (name := word.strip())))
    if not names:
        raise UserError(f'"{words}" names no planner', notes=[f"there are {', '.join(planner_names())}"], status=USAGE)
    for name in names:
        planner(name)
    return names


def run_planner(problem: Problem, name: str, limits: Limits) -> Found:
    """What a planner finds, and how long it takes; raises UserError where it cannot take the problem."""
    began = time.perf_counter()
    try:
        outcome = solve(problem, name, limits)
    except PlanError as error:
        raise UserError(str(error)) from None
    return Found(problem, name, outcome, time.perf_counter() - began)


def compare(
    problem: Problem, names: Sequence[str], limits: Limits, *, skip: bool = False
) -> tuple[list[Found], list[str]]:
    """
    What each planner finds.

    With `skip`, those that are not installed or cannot take the problem are left out, and second come lines that
    say so.
    """
    found: list[Found] = []
    skipped: list[str] = []
    for name in names:
        try:
            found.append(run_planner(problem, name, limits))
        except UserError as error:
            if not skip:
                raise
            skipped.append(f"{name} is left out: {error.message}")
    return found, skipped


def best_of(found: Sequence[Found]) -> Found:
    """The lowest plan, with all that any of the planners proved; of equals the first."""
    best = min(found, key=lambda each: math.inf if each.peak is None else each.peak)
    bound = max(each.bound for each in found)
    infeasible = any(each.infeasible for each in found)
    reason = next((each.outcome.reason for each in found if each.outcome.reason is not None), None)
    return replace(best, outcome=replace(best.outcome, bound=bound, infeasible=infeasible, reason=reason))


def report(found: Found, seed: int) -> list[str]:
    """The figures of what a planner found, for a person."""
    lines: list[str] = []
    if (taken := found.peak) is not None:
        capacity = found.problem.capacity
        of = "" if capacity is None else f" of {capacity:,}"
        room = "" if capacity is None else f", {taken / capacity:.1%} of the capacity"
        fits = capacity is None or taken <= capacity
        verdict = ", which does not fit" if not fits else ", optimal" if taken <= found.bound else ""
        lines.append(f"peak: {taken:,}{of} bytes{room}{verdict}")
    lines.append(f"lower bound: {found.bound:,} bytes{_gap(taken, found.bound)}")
    lines.append(f"planner: {found.name}, seed {seed}, {found.outcome.steps:,} steps, {found.seconds:.3f} s")
    return lines


def _gap(taken: int | None, bound: int) -> str:
    return "" if taken is None or not bound else f", gap {taken / bound - 1:.2%}"


def table(found: Sequence[Found]) -> list[str]:
    """A row for each planner, held against the best bound that any of them proved."""
    bound = max(each.bound for each in found)
    rows = [("planner", "peak", "peak / bound", "seconds", "result")]
    for each in found:
        taken = each.peak
        ratio = "-" if taken is None or not bound else f"{taken / bound:.3f}"
        rows.append(
            (each.name, "-" if taken is None else f"{taken:,}", ratio, f"{each.seconds:.3f}", _result(each, bound))
        )
    return aligned(rows, left=(0, 4))


def _result(found: Found, bound: int) -> str:
    if found.peak is None:
        return "none fits" if found.infeasible else "no plan"
    if not found.fits:
        return "none fits" if found.infeasible else "too large"
    return "optimal" if found.peak <= bound else "fits" if found.problem.capacity is not None else ""


def does_not_fit(found: Found, limits: Limits, loc: str) -> UserError:
    """The fault of a problem without a plan: what is proved, who is alive at the peak, and what would do."""
    problem, capacity = found.problem, found.problem.capacity
    taken, bound = found.peak, found.bound
    moment, alive = peak(problem)
    if found.infeasible and (taken is None or taken > bound):
        # What would do is worth another look, though not another wait.
        seconds = None if limits.seconds is None else min(limits.seconds, _RETRY_SECONDS)
        again = replace(limits, seconds=seconds, good_enough=None)
        free = run_planner(replace(problem, capacity=None), found.name, again)
        taken = min((size for size in (taken, free.peak) if size is not None), default=None)
        bound = max(bound, free.bound)
    where = "" if capacity is None else f" a memory of {capacity:,} bytes"
    if not found.infeasible:
        best = "no plan was found" if taken is None else f"the best plan takes {taken:,} bytes"
        notes = [
            f"it is not proved that none fits: the lower bound is {bound:,} bytes",
            'give it longer, --time-limit, or another planner, --planner; "portfolio" tries several',
        ]
        return UserError(
            f"no plan was found{' for' * bool(where)}{where}: {best}", loc=loc, notes=notes, status=TIME_LIMIT
        )
    most = f"{alive:,} bytes are alive at time {moment}"
    why = found.outcome.reason or f"the proof is a search; the most at once, {most}"
    notes = [f"alive at time {moment}:", *_alive(problem, moment), *_repair(taken, bound)]
    return UserError(f"no plan fits{where}: {why}", loc=loc, notes=notes, status=USER_FAULT)


def _alive(problem: Problem, moment: int) -> list[str]:
    """The buffers alive at a moment, the largest first."""
    alive = sorted(alive_at(problem, moment), key=lambda buffer: -bytes_alive(buffer, moment))
    lines: list[str] = []
    for buffer in alive[:_MAX_LISTED]:
        size = bytes_alive(buffer, moment)
        part = "" if size == buffer.size else f" of {buffer.size:,}"
        life = " and ".join(span_text(interval) for interval in buffer.intervals)
        lines.append(f"  {buffer.id}: {size:,}{part} bytes, alive at {life}")
    if rest := alive[_MAX_LISTED:]:
        lines.append(f"  and {len(rest)} more of {sum(bytes_alive(buffer, moment) for buffer in rest):,} bytes")
    return lines


def _repair(taken: int | None, bound: int) -> list[str]:
    if taken is None:
        return []
    if taken <= bound:
        return [f"the least capacity that would do is {taken:,} bytes"]
    return [f"a capacity of {taken:,} bytes would do; none below {bound:,} can"]
