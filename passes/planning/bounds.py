"""
Lower bounds: bytes that no plan can do without.

`lower_bound` of `penstock.passes.planning.problem` counts live bytes and ends of fixed buffers. Those here also know
what alignments waste, and what lies above what must lie high up.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from penstock.passes.planning.instance import Instance, Part
from penstock.passes.planning.problem import Problem, lower_bound


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


def part_lower_bound(part: Part) -> int:
    """The bytes that no plan of a part can do without."""
    count = len(part.size)
    shift, align = part.shift * part.unit, part.align * part.unit
    first = np.array([spans[0][0] if spans else 0 for spans in part.allowed], np.int64)
    first = -(-first // align) * align + shift
    rounded = part.size * part.unit
    # what the end of its buffer is above its own, which may be less than its rounded size
    above = np.array([buffer.size for buffer in part.buffers], np.int64) - shift - rounded
    bound = int((first + rounded + above).max()) if count else 0
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
