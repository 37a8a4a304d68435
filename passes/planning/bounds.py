# SPDX-License-Identifier: Apache-2.0
"""
Lower bounds: bytes that no plan can do without.

`lower_bound` of `penstock.passes.planning.problem` counts live bytes and ends of fixed buffers. Those here also know
what alignments waste, and what lies above what must lie high up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from penstock.passes.planning.instance import Instance, Subproblem, compact
from penstock.passes.planning.problem import AllowedOffsets, Problem, lower_bound, peak


@dataclass(frozen=True)
class Obstacle:
    """Why no plan of a problem fits its capacity, known without a search."""

    reason: str
    """For people."""
    bound: int
    """Bytes that no plan can do without."""


def obstacle(problem: Problem) -> Obstacle | None:
    """
    Why no plan fits, where that takes no search; None where only a search can tell.

    Looked at are the bytes alive at once, where each buffer ends at its lowest, what banks hold, and what alignments
    waste. Places that are given and overlap are refused before.
    """
    bound, capacity = lower_bound(problem), problem.capacity
    for buffer in problem.buffers:
        if (
            buffer.banks is not None
            and buffer.offset is None
            and not AllowedOffsets.of(buffer, problem.bank_size).ranges
        ):
            reason = (
                f"buffer {buffer.id} of {buffer.size:,} bytes, aligned to {buffer.alignment}, fits none of its banks"
            )
            return Obstacle(reason, bound)
    if (reason := _full_banks(problem)) is not None:
        return Obstacle(reason, bound)
    if capacity is None:
        return None
    moment, alive = peak(problem)
    if alive > capacity:
        return Obstacle(f"{alive:,} bytes are alive at time {moment}", bound)
    if bound > capacity:
        return Obstacle(_highest(problem, bound), bound)
    if any(buffer.size % buffer.alignment or buffer.banks is not None for buffer in problem.buffers):
        # In all other problems nothing is known beyond what has been looked at, for a price that grows with them.
        bound = strong_lower_bound(problem, compact(problem))
        if bound > capacity:
            most = f"{alive:,} bytes are alive at time {moment}"
            return Obstacle(
                f"{most}, and with what alignments and banks waste the lower bound is {bound:,} bytes", bound
            )
    return None


def _full_banks(problem: Problem) -> str | None:
    """Why some banks do not hold what may lie nowhere else, if so."""
    bank_size = problem.bank_size or 0
    for banks in sorted({tuple(sorted(set(buffer.banks))) for buffer in problem.buffers if buffer.banks is not None}):
        inside = tuple(b for b in problem.buffers if b.banks is not None and set(b.banks) <= set(banks))
        moment, alive = peak(Problem(inside, bank_size=bank_size))
        if alive > len(banks) * bank_size:
            names = ", ".join(map(str, banks))
            return (
                f"at time {moment} {alive:,} bytes are alive that may lie in no banks but {names}, "
                f"which have {len(banks) * bank_size:,}"
            )
    return None


def _highest(problem: Problem, bound: int) -> str:
    """Which buffer cannot end below the bound."""
    for buffer in problem.buffers:
        alone = Problem((buffer,), bank_size=problem.bank_size)
        if lower_bound(alone) == bound:
            fixed = "" if buffer.offset is None else f", which is fixed at {buffer.offset:,},"
            return f"buffer {buffer.id} of {buffer.size:,} bytes{fixed} ends at {bound:,} at the lowest"
    return f"the lower bound is {bound:,} bytes"


def strong_lower_bound(problem: Problem, instance: Instance) -> int:
    """
    The bytes that no plan can do without, as far as looking at one moment at a time tells; at least `lower_bound`.

    At each moment and for each byte from which on something alive must lie: all that must lie there, each taking
    the bytes that alignment takes from its neighbours, except for the one at the top, which nothing lies above.
    """
    windows = any(buffer.windows for buffer in problem.buffers)
    known = fixed_ends(problem) if windows else lower_bound(problem)
    return max([known, *(part_lower_bound(part) for part in instance.parts)])


def fixed_ends(problem: Problem) -> int:
    """The highest end of a buffer whose place is given."""
    return max((b.offset + b.size for b in problem.buffers if b.offset is not None), default=0)


def part_lower_bound(part: Subproblem) -> int:
    """The bytes that no plan of a part can do without."""
    count = len(part.size)
    shift, align = part.shift * part.unit, part.align * part.unit
    first = np.array([spans[0][0] if spans else 0 for spans in part.allowed], np.int64)
    first = -(-first // align) * align + shift
    rounded = part.size * part.unit
    # what the end of its buffer is above its own, which may be less than its rounded size
    above = np.array([buffer.size for buffer in part.buffers], np.int64) - shift - rounded
    bound = int((first + rounded + above).max()) if count else 0
    if count and not first.any():
        # everything may lie at the bottom: of a section, all of it is the most
        starts, alive = part.members.starts[:-1], part.members.values
        sums = np.add.reduceat(rounded[alive], starts) + np.minimum.reduceat(above[alive], starts)
        return max(bound, int(sums.max()))
    for section in range(len(part.members)):
        alive = part.members[section]
        alive = alive[np.argsort(-first[alive], kind="stable")]
        # for each byte from which on something lies: all that begins no lower
        sums = np.cumsum(rounded[alive]) + np.minimum.accumulate(above[alive])
        bound = max(bound, int((first[alive] + sums).max()))
    return bound


def grain(instance: Instance) -> int:
    """Some best plan has a height that is a multiple of this many bytes."""
    found = 0
    for part in instance.parts:
        found = gcd(found, part.unit, *(buffer.size for buffer in part.buffers))
    return max(found, 1)


def sufficient_height(problem: Problem, bound: int) -> int:
    """A height with room for a plan if there is one at all: where banks end, and above that all buffers stacked."""
    banks = max((max(buffer.banks) for buffer in problem.buffers if buffer.banks), default=0) + 1
    stack = sum(buffer.size + buffer.alignment for buffer in problem.buffers)
    return banks * (problem.bank_size or 0) + bound + stack
