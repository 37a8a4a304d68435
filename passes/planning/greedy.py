"""
One-pass planners: the buffers in some order, each at the lowest gap that holds it (first fit).

The orders are those of the field: by size (the default of TensorFlow Lite and of many others), by number of
conflicts, by start (the order in which a program allocates), by urgency and by area.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from penstock.passes.planning.problem import Buffer, Plan, Problem, live_sums

Rank = Callable[[Buffer], tuple[int, ...]]
"""The rank of a buffer: the smallest is placed first."""

Key = Callable[[Problem], Rank]
"""What ranks the buffers of a problem."""


def by_size(problem: Problem) -> Rank:
    """The largest first; among equals the longer-lived."""
    return lambda buffer: (-buffer.size, -buffer.duration)


def by_conflicts(problem: Problem) -> Rank:
    """First the buffer that is alive together with the most others; among equals the larger."""
    return lambda buffer: (-sum(buffer.meets(other) for other in problem.buffers), -buffer.size)


def by_start(problem: Problem) -> Rank:
    """In the order in which they come alive; among equals the larger first."""
    return lambda buffer: (buffer.lower, -buffer.size)


def by_urgency(problem: Problem) -> Rank:
    """First the buffer whose lifetime sees the most bytes alive at once; among equals the longer-lived."""
    sums = live_sums(problem)
    times = [time for time, _ in sums]

    def rank(buffer: Buffer) -> tuple[int, ...]:
        worst = max(
            alive
            for lower, upper in buffer.intervals
            for _, alive in sums[bisect_left(times, lower) : bisect_left(times, upper)]
        )
        return (-worst, -buffer.duration, -buffer.size)

    return rank


def by_area(problem: Problem) -> Rank:
    """The largest product of bytes and lifetime first."""
    return lambda buffer: (-buffer.size * buffer.duration, -buffer.size)


def greedy(key: Key) -> Callable[[Problem], Plan]:
    """The planner that takes buffers in the order of `key`, ties in the order of the problem; fixed ones first."""

    def plan(problem: Problem) -> Plan:
        offsets: dict[str, int] = {}
        placed: list[Buffer] = []
        for buffer in problem.buffers:
            if buffer.offset is not None:
                offsets[buffer.id] = buffer.offset
                placed.append(buffer)
        free = (buffer for buffer in problem.buffers if buffer.offset is None)
        for buffer in sorted(free, key=key(problem)):
            taken = sorted(
                (offsets[other.id], offsets[other.id] + other.size)
                for other in placed
                if other.size and buffer.meets(other)
            )
            offsets[buffer.id] = first_fit(buffer, taken)
            placed.append(buffer)
        return Plan(offsets)

    return plan


def first_fit(buffer: Buffer, taken: list[tuple[int, int]]) -> int:
    """The lowest aligned offset at which `buffer` misses every span of bytes in `taken`, which ascends."""
    offset = 0
    for start, end in taken:
        if offset + buffer.size <= start:
            break
        offset = max(offset, -(-end // buffer.alignment) * buffer.alignment)
    return offset
