# SPDX-License-Identifier: Apache-2.0
"""
The orders in which the planner `exact` searches: measures of pieces, rules for sections, and runs of Luby's lengths.

The lengths are those of Luby, Sinclair and Zuckerman (1993). `exact.py` says why there are several orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import count as counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.instance import Numbers, Subproblem


class SectionRule(IntEnum):
    """Which section to fill next, of those with the lowest floor; among equals the earliest."""

    LEAST_SLACK = 0
    WEIGHTED_SLACK = 1
    """The least slack over the number of times that it overflowed in this run, as in weighted-degree heuristics."""
    EARLIEST = 2
    LATEST = 3
    FIRST_RANK = 4
    """The tightest one of the piece that comes first in the order, as where buffers are branched on (minimalloc)."""


class FitRule(IntEnum):
    """What goes before the rank where several pieces may start at a floor; a piece next to a higher one has a wall."""

    NONE = 0
    SIDES = 1
    """How many of its two sides are at a wall: a piece at none leaves pits that little fits in."""
    TOPS = 2
    """Both, that and at how many of its sides its top is flush with the floor beside it."""


NOISES = (0.03, 0.1, 0.3, 1.0)
"""Standard deviations of the noise on a measure's logarithm, as shares of that logarithm's own."""

FITS = (FitRule.NONE, FitRule.TOPS, FitRule.SIDES)
RULES = (
    SectionRule.FIRST_RANK,
    SectionRule.WEIGHTED_SLACK,
    SectionRule.LEAST_SLACK,
    SectionRule.LATEST,
    SectionRule.EARLIEST,
)

Measure = Callable[[Subproblem], Numbers]


def lifetime(part: Subproblem) -> Numbers:
    """For how long a piece lasts: what lasts long is in the way of the most sections."""
    return part.spans[:, 1] - part.spans[:, 0]


def area(part: Subproblem) -> Numbers:
    """Bytes times lifetime."""
    return lifetime(part) * part.size


def size(part: Subproblem) -> Numbers:
    """Bytes."""
    return part.size


def conflicts(part: Subproblem) -> Numbers:
    """How many others a piece meets."""
    return np.diff(part.near.starts)


def extent(part: Subproblem) -> Numbers:
    """How many sections a piece is alive in: its lifetime, however long the moments are."""
    return np.diff(part.sections.starts)


def extended_area(part: Subproblem) -> Numbers:
    """Bytes times sections."""
    return extent(part) * part.size


def pressure(part: Subproblem) -> Numbers:
    """The most units alive at once in the sections of a piece."""
    return np.maximum.reduceat(part.total[part.sections.values], part.sections.starts[:-1])


MEASURES: tuple[Measure, ...] = (lifetime, area, size, conflicts, pressure, extent, extended_area)


def luby(index: int) -> int:
    """The run length of index 1, 2, ... in 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..."""
    power = index.bit_length()
    return 1 << (power - 1) if index == (1 << power) - 1 else luby(index - (1 << (power - 1)) + 1)


def ranks(part: Subproblem, values: NDArray[Any]) -> Numbers:
    """[pieces] The rank of each piece: the largest value is 0; ties by size, then in the order of the problem."""
    order = np.lexsort((-part.size, -values))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found


@dataclass(frozen=True)
class SearchRun:
    """How to search, and for how many nodes."""

    rank: Numbers
    rule: SectionRule
    fit: FitRule
    nodes: int


def runs(
    part: Subproblem, seed: int, restarts: bool = True, orders: bool = True, lane: int = 0, lanes: int = 1
) -> Iterator[SearchRun]:
    """
    The runs of a lane of a search, without end. `restarts`: else there is but one; `orders`: else all are drawn.

    The fixed ones are dealt out to the lanes in turn.
    """
    count = len(part.size)
    measures = [measure(part) for measure in MEASURES]
    if not restarts:
        yield SearchRun(ranks(part, measures[0]), RULES[0], FITS[0], 1 << 62)
    fixed = len(MEASURES) * len(RULES) * len(FITS) if orders else 0
    for index in range(lane, fixed, lanes):
        # three numbers without a common divisor: a run shares nothing with the next, and no two are the same
        rank = ranks(part, measures[index % len(MEASURES)])
        yield SearchRun(rank, RULES[index % len(RULES)], FITS[index % len(FITS)], _length(count, index // lanes + 1))
    logarithms = np.stack([_standardised(np.log1p(measure.astype(np.float64))) for measure in measures])
    random = np.random.default_rng((seed, lane))
    for index in counter(1):
        for mixed in (False, True):
            noise = random.normal(0.0, NOISES[int(random.integers(len(NOISES)))], count)
            if mixed:
                # squares, so that mostly one or two measures prevail
                shares = random.exponential(size=len(MEASURES)) ** 2
                values = _standardised((shares[:, None] * logarithms).sum(axis=0))
            else:
                values = logarithms[int(random.integers(len(MEASURES)))]
            rule, fit = RULES[int(random.integers(len(RULES)))], FITS[int(random.integers(len(FITS)))]
            yield SearchRun(ranks(part, values + noise), rule, fit, _length(count, index))


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / (values.std() or 1.0)


def _length(count: int, index: int) -> int:
    return (count + count // 2 + 1) * luby(index)
