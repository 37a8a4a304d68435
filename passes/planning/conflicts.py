"""
Which buffers of a problem keep which apart, as arrays: what the heuristic planners compute with.

A pair of buffers that are alive together forbids one span of relative offsets, or several where only windows of
them are alive. Gaps in lifetimes, windows, and buffers of any size are all in those spans; alignments, banks and
fixed offsets are all in the offsets that a buffer may have. So planners need to know of none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.problem import FAR, AllowedOffsets, Buffer, Plan, PlanError, Problem

Array = NDArray[np.int64]

Separation = tuple[int, int, int]
"""Another buffer, and the open interval, from its offset, in which the offset of this one may not lie."""


class Conflicts:
    """
    The conflicts of a problem, over the numbers of its buffers.

    The entries of buffer n are `first[n]` to `first[n + 1]`, ascending by the other buffer: `other`, and `low` and
    `high`, where the offset of n may not lie strictly between `low` and `high` from that of the other. Buffers
    without bytes have none. It takes time in the size of what it holds, not in the square of the buffers.
    """

    def __init__(self, problem: Problem):
        """Raises PlanError where sums of bytes, or moments, would not fit in 64 bits."""
        _check_range(problem)
        self.problem = problem
        self.sizes = [buffer.size for buffer in problem.buffers]
        self.first, self.other, self.low, self.high = _entries(problem.buffers)

    @cached_property
    def spans(self) -> list[list[Separation]]:
        """The entries of every buffer, for planners in Python."""
        entries = list(zip(self.other.tolist(), self.low.tolist(), self.high.tolist(), strict=True))
        bounds = self.first.tolist()
        return [entries[start:end] for start, end in pairwise(bounds)]

    @cached_property
    def allowed(self) -> list[AllowedOffsets]:
        """The offsets that each buffer may have."""
        bank_size = self.problem.bank_size
        return [AllowedOffsets.of(buffer, bank_size) for buffer in self.problem.buffers]

    @cached_property
    def degrees(self) -> list[int]:
        """How many others each buffer is alive together with."""
        owner = np.repeat(np.arange(len(self.sizes)), np.diff(self.first))
        new = np.ones(len(owner), bool)
        new[1:] = (owner[1:] != owner[:-1]) | (self.other[1:] != self.other[:-1])
        return np.bincount(owner[new], minlength=len(self.sizes)).tolist()

    def height(self, offsets: Sequence[int]) -> int:
        """The highest end of any buffer."""
        return max((offset + size for offset, size in zip(offsets, self.sizes, strict=True)), default=0)

    def plan(self, offsets: Sequence[int]) -> Plan:
        """The offsets by the ids of the buffers."""
        return Plan({buffer.id: offset for buffer, offset in zip(self.problem.buffers, offsets, strict=True)})

    def offsets(self, plan: Plan) -> list[int]:
        """The offsets of a plan by the numbers of the buffers."""
        return [plan.offsets[buffer.id] for buffer in self.problem.buffers]


def _check_range(problem: Problem) -> None:
    bank_size = problem.bank_size or 0
    reach = 0
    for buffer in problem.buffers:
        reach += buffer.size + buffer.alignment
        furthest = max(buffer.offset or 0, (max(buffer.banks, default=0) + 1) * bank_size if buffer.banks else 0)
        if max(reach + furthest, -buffer.lower, buffer.upper) >= FAR // 4:
            raise PlanError(f"with buffer {buffer.id} the numbers of the problem exceed 2 ** 60")


def _entries(buffers: tuple[Buffer, ...]) -> tuple[Array, Array, Array, Array]:
    rows = [
        (lower, upper, number, low, high)
        for number, buffer in enumerate(buffers)
        if buffer.size
        for (lower, upper), (low, high) in buffer.pieces
    ]
    if not rows:
        nothing = np.zeros(0, np.int64)
        return np.zeros(len(buffers) + 1, np.int64), nothing, nothing, nothing
    rows.sort()
    lower, upper, owner, bottom, top = np.array(rows, np.int64).T
    # Of two intervals that overlap, the later in this order starts within the earlier.
    ends: Array = np.array([*map(int, lower.searchsorted(upper))], np.int64)
    counts = ends - np.arange(1, len(rows) + 1)
    left = np.repeat(np.arange(len(rows)), counts)
    right = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts) + left + 1
    this = np.concatenate((owner[left], owner[right]))
    other = np.concatenate((owner[right], owner[left]))
    low = np.concatenate((bottom[right] - top[left], bottom[left] - top[right]))
    high = np.concatenate((top[right] - bottom[left], top[left] - bottom[right]))
    pair = this * len(buffers) + other
    if len(rows) == sum(1 for buffer in buffers if buffer.size):
        order = np.argsort(pair)
    else:
        # Two buffers may meet several times, in the same way or not.
        order = np.lexsort((high, low, pair))
        keys = np.stack((pair, low, high))[:, order]
        order = order[np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)))] if len(order) else order
    first = np.searchsorted(this[order], np.arange(len(buffers) + 1))
    return first, other[order], low[order], high[order]
