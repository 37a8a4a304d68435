# SPDX-License-Identifier: Apache-2.0
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

from penstock.passes.planning.problem import FAR, AllowedOffsets, Plan, PlanError, Problem

Array = NDArray[np.int64]

MOST_PAIRS = 1 << 30
"""Pairs that meet, each of which is two entries with numbers of 32 bits."""

Separation = tuple[int, int, int]
"""Another buffer, and the open interval, from its offset, in which the offset of this one may not lie."""


class Conflicts:
    """
    The conflicts of a problem, over the numbers of its buffers.

    The entries of buffer n are `first[n]` to `first[n + 1]`, ascending by the other buffer: `other`, and `low` and
    `high`, where the offset of n may not lie strictly between `low` and `high` from that of the other. Where no buffer
    has windows these two are None: `low` is minus the size of n, and `high` the size of the other. Buffers without
    bytes have no entries. It takes time in the size of what it holds, not in the square of the buffers.
    """

    low: Array | None
    """By entry, the open interval from the other's offset in which that of the buffer may not lie; None: see above."""
    high: Array | None
    """Its end."""

    def __init__(self, problem: Problem):
        """Raises PlanError where sums of bytes, or moments, would not fit in 64 bits."""
        _check_range(problem)
        self.problem = problem
        self.sizes = [buffer.size for buffer in problem.buffers]
        rows = sorted(
            (lower, upper, number, low, high)
            for number, buffer in enumerate(problem.buffers)
            if buffer.size
            for (lower, upper), (low, high) in buffer.pieces
        )
        lower, upper, owner, bottom, top = np.array(rows, np.int64).reshape(-1, 5).T
        if any(buffer.windows for buffer in problem.buffers):
            self.first, self.other, self.low, self.high = _separations(
                lower, upper, owner, bottom, top, len(problem.buffers)
            )
        else:
            self.first, self.other = meetings(lower, upper, owner, len(problem.buffers))
            self.low = self.high = None

    @cached_property
    def spans(self) -> list[list[Separation]]:
        """The entries of every buffer, for planners in Python."""
        bounds, other = self.first.tolist(), self.other.tolist()
        if self.low is None or self.high is None:
            sizes = self.sizes
            return [
                [(each, -sizes[number], sizes[each]) for each in other[start:end]]
                for number, (start, end) in enumerate(pairwise(bounds))
            ]
        entries = list(zip(other, self.low.tolist(), self.high.tolist(), strict=True))
        return [entries[start:end] for start, end in pairwise(bounds)]

    @cached_property
    def allowed(self) -> list[AllowedOffsets]:
        """The offsets that each buffer may have."""
        bank_size = self.problem.bank_size
        return [AllowedOffsets.of(buffer, bank_size) for buffer in self.problem.buffers]

    @cached_property
    def degrees(self) -> list[int]:
        """How many others each buffer is alive together with."""
        count = len(self.sizes)
        owner = np.repeat(np.arange(count), np.diff(self.first))
        # with windows, several entries may be of one other, one after the other
        is_new = np.ones(len(owner), bool)
        is_new[1:] = (owner[1:] != owner[:-1]) | (self.other[1:] != self.other[:-1])
        return np.bincount(owner[is_new], minlength=count).tolist()

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


def meetings(lower: Array, upper: Array, owner: Array, count: int) -> tuple[Array, NDArray[np.int32]]:
    """
    Which of `count` owners of intervals, which ascend, meet which: those of owner n are `other[first[n]:first[n + 1]]`,
    ascending. The intervals of one owner are disjoint.
    """
    left, right = _overlaps(lower, upper)
    pair = np.concatenate((owner[left] * count + owner[right], owner[right] * count + owner[left]))
    del left, right
    pair.sort()
    if len(owner) > count or len(np.unique(owner)) < len(owner):
        # two may meet several times
        pair = pair[np.diff(pair, prepend=-1) != 0]
    first = pair.searchsorted(np.arange(count + 1) * count)
    pair %= max(count, 1)
    return first, pair.astype(np.int32)


def _overlaps(lower: Array, upper: Array) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The pairs of intervals that overlap; they ascend, so that the second of a pair starts within the first."""
    counts = lower.searchsorted(upper) - np.arange(1, len(lower) + 1)
    if counts.sum() > MOST_PAIRS:
        raise PlanError(f"more than {MOST_PAIRS:,} pairs of buffers are alive together")
    left = np.repeat(np.arange(len(lower), dtype=np.int32), counts)
    right = np.arange(len(left), dtype=np.int32)
    right -= np.repeat((np.cumsum(counts) - counts - np.arange(1, len(lower) + 1)).astype(np.int32), counts)
    return left, right


def _separations(
    lower: Array, upper: Array, owner: Array, bottom: Array, top: Array, count: int
) -> tuple[Array, NDArray[np.int32], Array, Array]:
    """The entries of `Conflicts` where windows make a difference."""
    left, right = _overlaps(lower, upper)
    this = np.concatenate((owner[left], owner[right]))
    other = np.concatenate((owner[right], owner[left]))
    low = np.concatenate((bottom[right] - top[left], bottom[left] - top[right]))
    high = np.concatenate((top[right] - bottom[left], top[left] - bottom[right]))
    # Two buffers may meet several times, in the same way or not.
    pair = this * count + other
    order = np.lexsort((high, low, pair))
    keys = np.stack((pair, low, high))[:, order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    order = order[is_new]
    first = np.searchsorted(this[order], np.arange(count + 1))
    return first, other[order].astype(np.int32), low[order], high[order]
