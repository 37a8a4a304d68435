# SPDX-License-Identifier: Apache-2.0
"""
One-pass planners: the buffers in some order, each at the lowest offset that is free (first fit), or in the smallest
gap that holds it (best fit).

The orders are those of the field: by size (the default of TensorFlow Lite and of many others), by start (the order
in which a program allocates; with best fit it is what upstream MLIR's static memory planner does), by number of
conflicts, by urgency and by area. Fixed buffers come first. A step is a buffer placed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np

from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.problem import FAR, Limits, Outcome, Problem, live_sums, lower_bound

Order = Callable[[Conflicts], list[int]]
"""All buffers of a problem, by number, in the order in which they are placed."""

FitFunction = Callable[[Conflicts, int, Sequence[int]], int]
"""Where to put a buffer among others that have their offsets, those without having -1; FAR if nowhere."""


def by_size(conflicts: Conflicts) -> list[int]:
    """The largest first; among equals the longer-lived."""
    buffers = conflicts.problem.buffers
    return _ranked([(-buffer.size, -buffer.duration) for buffer in buffers])


def by_start(conflicts: Conflicts) -> list[int]:
    """In the order in which they come alive; among equals the larger first."""
    return _ranked([(buffer.lower, -buffer.size) for buffer in conflicts.problem.buffers])


def by_conflicts(conflicts: Conflicts) -> list[int]:
    """First the buffer that is alive together with the most others; among equals the larger."""
    return _ranked([(-n, -size) for n, size in zip(conflicts.degrees, conflicts.sizes, strict=True)])


def by_urgency(conflicts: Conflicts) -> list[int]:
    """First the buffer whose lifetime sees the most bytes alive at once; among equals the longer-lived."""
    buffers = conflicts.problem.buffers
    if not buffers:
        return []
    times, sums = zip(*live_sums(conflicts.problem), strict=True)
    ends = [bisect_left(times, moment) for b in buffers for interval in b.intervals for moment in interval]
    # Of every two, reduceat takes the most from the lower end of an interval to its upper end, and one to skip.
    most: list[int] = np.maximum.reduceat(np.array(sums, np.int64), ends)[::2].tolist()
    firsts = accumulate((len(b.intervals) for b in buffers), initial=0)
    worst = [max(most[first:end]) for first, end in pairwise(firsts)]
    return _ranked([(-w, -b.duration, -b.size) for w, b in zip(worst, buffers, strict=True)])


def by_area(conflicts: Conflicts) -> list[int]:
    """The largest product of bytes and lifetime first."""
    return _ranked([(-b.size * b.duration, -b.size) for b in conflicts.problem.buffers])


ORDERS: tuple[Order, ...] = (by_size, by_urgency, by_conflicts, by_area, by_start)
"""All of them; first those that reach the bound on most networks."""


def first_fit(conflicts: Conflicts, buffer: int, offsets: Sequence[int]) -> int:
    """The lowest offset of a buffer that is free."""
    allowed = conflicts.allowed[buffer]
    found = allowed.lowest(0)
    for start, end in _taken(conflicts, buffer, offsets):
        if found <= start:
            break
        if found < end:
            found = allowed.lowest(end)
    return found


def best_fit(conflicts: Conflicts, buffer: int, offsets: Sequence[int]) -> int:
    """The lowest offset in the smallest gap that holds a buffer; above all others if none does."""
    allowed = conflicts.allowed[buffer]
    found = allowed.lowest(0)
    best, least = FAR, FAR
    for start, end in _taken(conflicts, buffer, offsets):
        if found <= start and start - found < least:
            best, least = found, start - found
        if found < end:
            found = allowed.lowest(end)
    return found if best == FAR else best


def hinted_fit(conflicts: Conflicts, buffer: int, offsets: Sequence[int]) -> int:
    """The hint of a buffer, where it has one that is allowed and free; the lowest offset otherwise."""
    hint = conflicts.problem.buffers[buffer].hint
    if hint is not None and conflicts.allowed[buffer].lowest(hint) == hint:
        if not any(start < hint < end for start, end in _taken(conflicts, buffer, offsets)):
            return hint
    return first_fit(conflicts, buffer, offsets)


def by_hint(conflicts: Conflicts) -> list[int]:
    """Those with a hint first, from the bottom up; then the largest first."""
    buffers = conflicts.problem.buffers
    return _ranked([(FAR if b.hint is None else b.hint, -b.size, -b.duration) for b in buffers])


def place_in_order(conflicts: Conflicts, order: Sequence[int], fit: FitFunction = first_fit) -> list[int] | None:
    """The offsets of all buffers, placed in an order; None where the banks of one are full."""
    offsets = [-1 if buffer.offset is None else buffer.offset for buffer in conflicts.problem.buffers]
    for buffer in order:
        if offsets[buffer] < 0:
            offsets[buffer] = fit(conflicts, buffer, offsets)
            if offsets[buffer] == FAR:
                return None
    return offsets


def _ranked(ranks: Sequence[tuple[int, ...]]) -> list[int]:
    return sorted(range(len(ranks)), key=ranks.__getitem__)


def _taken(conflicts: Conflicts, buffer: int, offsets: Sequence[int]) -> list[tuple[int, int]]:
    """The open intervals in which a buffer may not begin, ascending."""
    return sorted(
        (offset + low, offset + high) for other, low, high in conflicts.spans[buffer] if (offset := offsets[other]) >= 0
    )


def _planner(order: Order, fit: FitFunction) -> Callable[[Problem, Limits], Outcome]:
    def plan(problem: Problem, limits: Limits) -> Outcome:
        conflicts = Conflicts(problem)
        offsets = place_in_order(conflicts, order(conflicts), fit)
        found = None if offsets is None else conflicts.plan(offsets)
        return Outcome(found, lower_bound(problem), steps=len(problem.buffers))

    plan.__doc__ = f"{(order.__doc__ or '').rstrip('.')}; placed by {fit.__name__.replace('_', ' ')}."
    return plan


first_fit_by_size = _planner(by_size, first_fit)
first_fit_by_start = _planner(by_start, first_fit)
first_fit_by_conflicts = _planner(by_conflicts, first_fit)
first_fit_by_urgency = _planner(by_urgency, first_fit)
first_fit_by_area = _planner(by_area, first_fit)
best_fit_by_size = _planner(by_size, best_fit)
best_fit_by_start = _planner(by_start, best_fit)
best_fit_by_conflicts = _planner(by_conflicts, best_fit)
best_fit_by_urgency = _planner(by_urgency, best_fit)
best_fit_by_area = _planner(by_area, best_fit)
