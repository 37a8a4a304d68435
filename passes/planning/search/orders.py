"""
The orders in which a search tries what may lie at a floor, and how long it follows each.

The run time of a depth-first search is heavy-tailed in its orders: most luck is had early or not at all (Gomes,
Selman and Kautz, AAAI 1998). So it starts anew after a while, the lengths being those of Luby, Sinclair and
Zuckerman (1993), which lose only a logarithm against the best lengths in hindsight.

The shortest run takes half as many nodes again as there are pieces: one way down, and a little around its end.

First come fixed runs: each measure that the field sorts buffers by, largest first, with each rule for choosing sections
and each for what fits best. Then everything is drawn from the seed, for each run anew, and the lengths start over: by
turns one measure and a weighted sum of all, the amount of log-normal noise in it, and both rules. Which of these helps
differs from problem to problem; a search that kept to one of them would be as heavy-tailed in its seed as in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count as counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.instance import Numbers, Part
from penstock.passes.planning.search.state import Fit, Rule

NOISES = (0.03, 0.1, 0.3, 1.0)
"""Standard deviations of the noise on a measure's logarithm, as shares of that logarithm's own."""

FITS = (Fit.NONE, Fit.TOPS, Fit.SIDES)
RULES = (Rule.WEIGHTED_SLACK, Rule.LEAST_SLACK, Rule.LATEST, Rule.EARLIEST)

Measure = Callable[[Part], Numbers]


def lifetime(part: Part) -> Numbers:
    """For how long a piece lasts: what lasts long is in the way of the most sections."""
    return part.spans[:, 1] - part.spans[:, 0]


def area(part: Part) -> Numbers:
    """Bytes times lifetime."""
    return lifetime(part) * part.size


def size(part: Part) -> Numbers:
    """Bytes."""
    return part.size


def conflicts(part: Part) -> Numbers:
    """How many others a piece meets."""
    return np.diff(part.near.starts)


def pressure(part: Part) -> Numbers:
    """The most units alive at once in the sections of a piece."""
    return np.maximum.reduceat(part.total[part.sections.values], part.sections.starts[:-1])


MEASURES: tuple[Measure, ...] = (lifetime, area, size, conflicts, pressure)


def luby(index: int) -> int:
    """The run length of index 1, 2, ... in 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..."""
    power = index.bit_length()
    return 1 << (power - 1) if index == (1 << power) - 1 else luby(index - (1 << (power - 1)) + 1)


def ranks(part: Part, values: NDArray[Any]) -> Numbers:
    """[pieces] The rank of each piece: the largest value is 0; ties by size, then in the order of the problem."""
    order = np.lexsort((-part.size, -values))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found


@dataclass(frozen=True)
class Run:
    """How to search, and for how many nodes."""

    rank: Numbers
    rule: Rule
    fit: Fit
    nodes: int


def runs(part: Part, seed: int, restarts: bool = True, orders: bool = True) -> Iterator[Run]:
    """The runs of a search, without end. `restarts`: else there is but one; `orders`: else all are drawn."""
    count = len(part.size)
    measures = [measure(part) for measure in MEASURES]
    if not restarts:
        yield Run(ranks(part, measures[0]), RULES[0], FITS[0], 1 << 62)
    fixed = len(MEASURES) * len(RULES) * len(FITS) if orders else 0
    for index in range(fixed):
        # three numbers without a common divisor: a run shares nothing with the next, and no two are the same
        rank = ranks(part, measures[index % len(MEASURES)])
        yield Run(rank, RULES[index % len(RULES)], FITS[index % len(FITS)], _length(count, index + 1))
    logarithms = np.stack([_standardised(np.log1p(measure.astype(np.float64))) for measure in measures])
    random = np.random.default_rng(seed)
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
            yield Run(ranks(part, values + noise), rule, fit, _length(count, index))


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / (values.std() or 1.0)


def _length(count: int, index: int) -> int:
    return (count + count // 2 + 1) * luby(index)
