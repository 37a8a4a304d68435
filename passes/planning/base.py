# SPDX-License-Identifier: Apache-2.0
"""
Buffers that are alive throughout a problem, as the weights of a model are: they go to the bottom, and others above.

Such a buffer meets every other, so all others lie wholly below it or wholly above, and it may change places with what
is below. So some best plan has them all at the bottom, and planners need not look at them, nor hold whom they meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from itertools import accumulate

from penstock.passes.planning.problem import Buffer, Limits, Outcome, Plan, Problem

MIN_MEETINGS = 100_000
"""Pairs of which one is alive throughout, from which on it is worth it."""


@dataclass(frozen=True)
class Base:
    """What lies at the bottom, and the problem of the rest, which lies above it."""

    problem: Problem
    """With the offsets, and with the capacity, if there is one, counted from the top of the base."""
    offsets: dict[str, int]
    height: int


def base_below(problem: Problem) -> Base | None:
    """
    The buffers that may go to the bottom without any loss; None where those are few.

    Where an offset is given, or a hint, or buffers lie in banks, or where only windows of them are alive, none may. The
    bytes that an alignment takes above a buffer are lost unless it is the topmost: so either those are none, or all
    buffers have one alignment, and the one that loses most stays with the rest.
    """
    buffers = problem.buffers
    start, end = min((b.lower for b in buffers), default=0), max((b.upper for b in buffers), default=0)
    lasting = [buffer for buffer in buffers if buffer.intervals == ((start, end),) and buffer.size]
    if len(lasting) * len(buffers) < MIN_MEETINGS:
        return None
    if any(b.windows or b.banks is not None or b.offset is not None or b.hint is not None for b in buffers):
        return None
    alignments = {buffer.alignment for buffer in buffers}
    step = max(alignments)
    if len(alignments) == 1:
        topmost = max(lasting, key=lambda buffer: -buffer.size % step)
        lasting = [buffer for buffer in lasting if buffer is not topmost]
    elif all(step % alignment == 0 for alignment in alignments):
        lasting = [buffer for buffer in lasting if buffer.size % step == 0]
    else:
        return None
    *places, height = accumulate((_rounded(buffer, step) for buffer in lasting), initial=0)
    offsets = {buffer.id: place for buffer, place in zip(lasting, places, strict=True)}
    rest = tuple(buffer for buffer in buffers if buffer.id not in offsets)
    capacity = None if problem.capacity is None else max(problem.capacity - height, 0)
    return Base(replace(problem, buffers=rest, capacity=capacity), offsets, height)


def _rounded(buffer: Buffer, step: int) -> int:
    return -(-buffer.size // step) * step


def above_base(planner: Callable[[Problem, Limits], Outcome]) -> Callable[[Problem, Limits], Outcome]:
    """A planner that is given only what lies above the buffers that are alive throughout."""

    @wraps(planner)
    def plan(problem: Problem, limits: Limits) -> Outcome:
        base = base_below(problem)
        if base is None:
            return planner(problem, limits)
        enough = limits.good_enough
        outcome = planner(base.problem, replace(limits, good_enough=enough and max(enough - base.height, 0)))
        bound = outcome.bound + base.height
        raised = {} if outcome.plan is None else {id: place + base.height for id, place in outcome.plan.offsets.items()}
        return replace(
            outcome,
            plan=None if outcome.plan is None else Plan({**base.offsets, **raised}),
            bound=bound,
            infeasible=outcome.infeasible or (problem.capacity is not None and bound > problem.capacity),
        )

    return plan
