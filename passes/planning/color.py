# SPDX-License-Identifier: Apache-2.0
"""
Planning by colours, as TOpLib does it: buffers of one colour are never alive together and share a static partition.

The interference graph is coloured greedily, in one of several orders; a buffer takes the colour whose partition
grows least for it (ours; TOpLib says greedy). A partition is as large as its largest buffer, and all its buffers
begin where it begins. That is simple to explain and to address, and structurally larger than offsets of their own:
a colouring is one valid plan among others. A step is a buffer coloured.

(Li et al., TOpLib, NPC 2020.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import lcm

from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.one_pass import Order, by_conflicts, by_size, by_start
from penstock.passes.planning.problem import Limits, Outcome, PlanError, Problem, first_gap, lower_bound


@dataclass
class Partition:
    """The bytes of one colour."""

    size: int = 0
    alignment: int = 1
    """The least common multiple of those of its buffers."""
    buffers: list[int] = field(default_factory=list[int])
    """Their numbers."""


def partitions(conflicts: Conflicts, order: Order) -> list[Partition]:
    """The buffers that have no fixed place, by colours."""
    buffers = conflicts.problem.buffers
    neighbours = [[other for other, _, _ in spans] for spans in conflicts.spans]
    colours: list[Partition] = []
    colour_of = [-1] * len(buffers)
    for number in order(conflicts):
        buffer = buffers[number]
        if buffer.offset is not None:
            continue
        taken = {colour_of[neighbour] for neighbour in neighbours[number]}
        free = [colour for colour in range(len(colours)) if colour not in taken]
        if free:
            colour = min(free, key=lambda colour: max(buffer.size - colours[colour].size, 0))
        else:
            colour = len(colours)
            colours.append(Partition())
        colour_of[number] = colour
        partition = colours[colour]
        partition.size = max(partition.size, buffer.size)
        partition.alignment = lcm(partition.alignment, buffer.alignment)
        partition.buffers.append(number)
    return colours


def _planner(name: str, order: Order) -> Callable[[Problem, Limits], Outcome]:
    def plan(problem: Problem, limits: Limits) -> Outcome:
        for buffer in problem.buffers:
            if buffer.banks is not None and buffer.offset is None:
                raise PlanError(f"the planner {name} knows no banks, and buffer {buffer.id} has to lie in one")
        conflicts = Conflicts(problem)
        offsets = [0 if buffer.offset is None else buffer.offset for buffer in problem.buffers]
        # A partition is static: what is fixed keeps its bytes for ever.
        taken = [(b.offset, b.offset + b.size) for b in problem.buffers if b.offset is not None and b.size]
        for partition in partitions(conflicts, order):
            start = first_gap(taken, partition.size, partition.alignment)
            taken.append((start, start + partition.size))
            for number in partition.buffers:
                offsets[number] = start
        return Outcome(conflicts.plan(offsets), lower_bound(problem), steps=len(problem.buffers))

    plan.__doc__ = f"Colours taken in this order: {order.__doc__} Raises PlanError where a buffer has to lie in a bank."
    return plan


color_by_size = _planner("color-by-size", by_size)
color_by_start = _planner("color-by-start", by_start)
color_by_conflicts = _planner("color-by-conflicts", by_conflicts)
