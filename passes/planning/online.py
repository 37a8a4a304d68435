# SPDX-License-Identifier: Apache-2.0
"""
Plans for buffers whose sizes a run decides, from the plan for the sizes that they have at most.

A plan says more than offsets: of two buffers that are alive at once, which lies beneath the other. Where buffers are
smaller, each may sink onto those beneath it, in one pass from the bottom to the top, which takes no search: an arena
that is laid out when the sizes are known. None ends higher than at the bounds, by induction over what lies beneath: it
begins no higher, for its offset at the bounds is aligned and above all of that, and it is no larger. So the peak of the
plan at the bounds is the worst case, and is proved by the validator of that plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.passes.planning.problem import Plan, PlanError, Problem


def at_sizes(problem: Problem, sizes: Mapping[str, int]) -> Problem:
    """
    The problem with buffers of these bytes, by id; those that are alive by parts keep the bytes that they have.

    Raises PlanError for a buffer that is larger than in the problem, which is that of the bounds.
    """
    for each in problem.buffers:
        if sizes[each.id] > each.size:
            raise PlanError(f"buffer {each.id} of {sizes[each.id]:,} bytes has at most {each.size:,}")
    return replace(
        problem,
        buffers=tuple(each if each.windows else replace(each, size=sizes[each.id]) for each in problem.buffers),
    )


def settled(problem: Problem, plan: Plan, sizes: Mapping[str, int]) -> Plan:
    """
    A valid plan of buffers of these sizes, none of which ends higher than in `plan`, which is one of the problem at the
    bounds. Raises PlanError as `at_sizes`.

    Each buffer lies as low as those beneath it leave it. What must be where it is stays, at an offset, in banks, or in
    the dead part of another.
    """
    buffers = sorted(at_sizes(problem, sizes).buffers, key=lambda each: (plan.offsets[each.id], each.id))
    ends = {each.id: plan.offsets[each.id] + each.size for each in problem.buffers}
    offsets: dict[str, int] = {}
    for buffer in buffers:
        at = plan.offsets[buffer.id]
        others = [other for other in buffers if other is not buffer and other.meets(buffer)]
        beneath = [other for other in others if ends[other.id] <= at]
        is_apart = all(ends[other.id] <= at or ends[buffer.id] <= plan.offsets[other.id] for other in others)
        if is_apart and not buffer.windows and buffer.offset is None and buffer.banks is None:
            top = max((offsets[other.id] + other.size for other in beneath if other.size), default=0)
            at = -(-top // buffer.alignment) * buffer.alignment
        offsets[buffer.id] = at
    return Plan(offsets)
