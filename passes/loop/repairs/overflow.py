"""
What is said when buffers do not fit their scope: what is alive at the peak, and the cheapest changes that help.

Every repair has been tried: the problem with the change made is planned again, and only what then fits is listed.
Its price is the bytes that would cross the chip's edge more than now; where that is not known exactly, at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.dialects.diagnostics import TIME_LIMIT, USER_FAULT, UserError, location_of
from penstock.passes.analysis.memory.memory_problems import MemoryProblem
from penstock.passes.analysis.memory.plan_faults import op_in
from penstock.passes.loop.repairs.variants import Variant, variants
from penstock.passes.planning.problem import (
    Buffer,
    Limits,
    Outcome,
    Problem,
    alive_at,
    height,
    live_sums,
    lower_bound,
    peak,
)
from penstock.passes.planning.registry import DEFAULT_PLANNER, solve

MAX_REPAIRS = 5
"""Repairs that are listed."""

MAX_BUFFERS_LISTED = 12
"""Buffers that are named of those alive at the peak."""

MAX_VARIANTS = 16
"""Variants that are planned to see whether they fit."""

MAX_SEARCHES = 3
"""How many of them are searched for up to the limits, where the plan that a planner starts from does not fit."""


def overflow(memory: MemoryProblem, outcome: Outcome, planner: str, limits: Limits) -> UserError:
    """
    The error for a scope that is too small: it is located at the op where most bytes are alive.

    Its status is 4 where a longer search might still find a plan.
    """
    problem, capacity = memory.problem, memory.problem.capacity
    assert capacity is not None
    bound = max(outcome.bound, lower_bound(problem))
    proved = outcome.infeasible or bound > capacity
    needed = None if outcome.plan is None else height(problem, outcome.plan)
    step, at_once = peak(problem)
    who = f"@{memory.function}" if memory.function else "the program"
    if at_once > capacity:
        reason = f"{at_once} bytes are alive at once here, and it has {capacity}"
    elif proved:
        reason = f"{at_once} bytes are alive at once here, but no plan takes the {capacity} that it has, or less"
    else:
        reason = f'within its limits "{planner}" found no plan of the {capacity} bytes that it has'
    alive = alive_at(problem, step)
    end = next((time for time, _ in live_sums(problem) if time > step), step + 1)
    found = "" if needed is None else f"peak of the best plan {needed}, "
    notes = [
        f"alive here: {len(alive)} of {len(problem.buffers)} buffers",
        *(f"  {memory.describe(buffer)}" for buffer in _largest(alive)),
        *([f"  and {len(alive) - MAX_BUFFERS_LISTED} smaller ones"] if len(alive) > MAX_BUFFERS_LISTED else []),
        f"{found}lower bound {bound}, capacity {capacity} bytes",
        *_repairs(memory, needed, bound, planner, limits),
    ]
    if not proved:
        notes.append("it is not proved that there is none: with more steps or time-limit, mem-plan searches longer")
    return UserError(
        f'{who} does not fit scope "{memory.scope}": {reason}',
        loc=location_of(op_in(memory, (step, end), [buffer.id for buffer in alive])),
        notes=notes,
        status=USER_FAULT if proved else TIME_LIMIT,
    )


def _repairs(memory: MemoryProblem, needed: int | None, bound: int, planner: str, limits: Limits) -> list[str]:
    """What would fit, a line each, the cheapest first."""
    problem = memory.problem
    lines: list[str] = []
    least = needed
    if planner != DEFAULT_PLANNER:
        default = _height(problem, DEFAULT_PLANNER, limits)
        if _fits(problem, default):
            lines.append(f'planner="{DEFAULT_PLANNER}": {default} bytes')
        if default is not None and (least is None or default < least):
            least = default
    searches = 0
    for variant in variants(memory)[:MAX_VARIANTS]:
        if len(lines) == MAX_REPAIRS - 1:
            break
        changed = replace(problem, buffers=variant.buffers)
        taken = _height(changed, planner, replace(limits, steps=0))
        if not _fits(problem, taken) and searches < MAX_SEARCHES:
            searches += 1
            taken = _height(changed, planner, limits)
        if _fits(problem, taken):
            lines.append(f"{variant.text}: {taken} bytes; {_price(variant)}")
    if least is not None and not _fits(problem, least):
        known = "; no smaller one will do" if least == bound else ""
        lines.append(f'a scope "{memory.scope}" of {least} bytes{known}')
    return ["each of these alone would fit, the cheapest first:", *(f"  {line}" for line in lines)] if lines else []


def _largest(alive: Sequence[Buffer]) -> list[Buffer]:
    """Those that are listed, in the order of the program."""
    listed = sorted(alive, key=lambda buffer: -buffer.size)[:MAX_BUFFERS_LISTED]
    return [buffer for buffer in alive if buffer in listed]


def _price(variant: Variant) -> str:
    if variant.moved is None:
        return "how many off-chip bytes more is not known"
    if variant.moved == 0:
        return f"no off-chip bytes more{variant.also}"
    return f"{'at most ' if variant.is_bound else ''}{variant.moved} off-chip bytes more in a run of {variant.where}"


def _fits(problem: Problem, bytes: int | None) -> bool:
    return bytes is not None and problem.capacity is not None and bytes <= problem.capacity


def _height(problem: Problem, planner: str, limits: Limits) -> int | None:
    """What the plan of a variant takes; None where the planner has none, or does not take such a problem."""
    try:
        plan = solve(problem, planner, replace(limits, good_enough=problem.capacity)).plan
    except UserError:
        return None
    return None if plan is None else height(problem, plan)
