# SPDX-License-Identifier: Apache-2.0
"""Problems that no plan fits: whatever is seen without a search is answered without one, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.bounds import obstacle
from penstock.passes.planning.problem import Buffer, Limits, Problem, height, lower_bound
from penstock.passes.planning.registry import solve

SEARCHING = ("portfolio", "exact", "ejection", "hill-climb")
MANY = Limits(steps=1_000_000_000)
"""What a planner that starts to search does not get through."""


def crowd(random: Random) -> tuple[Buffer, ...]:
    """Buffers that are alive for a while each, and none of which has a place given."""
    made: list[Buffer] = []
    for number in range(random.randint(2, 30)):
        lower = random.randint(0, 20)
        made.append(Buffer(f"b{number}", ((lower, lower + random.randint(1, 8)),), 16 * random.randint(1, 20), 16))
    return tuple(made)


def below_the_peak(random: Random) -> Problem:
    buffers = crowd(random)
    return Problem(buffers, lower_bound(Problem(buffers)) - 1)


def one_too_large(random: Random) -> Problem:
    return Problem((*crowd(random), Buffer("large", ((0, 1),), 10_016, 16)), 10_000)


def fixed_beyond(random: Random) -> Problem:
    return Problem((*crowd(random), Buffer("far", ((0, 1),), 16, 16, offset=20_000)), 20_000)


def aligned_apart(random: Random) -> Problem:
    """Of `count` buffers of one byte each takes the whole of its alignment but the last."""
    count, step = random.randint(2, 9), 1 << random.randint(1, 6)
    buffers = tuple(Buffer(f"b{number}", ((0, 2),), 1, step) for number in range(count))
    return Problem(buffers, (count - 1) * step)


def too_much_for_banks(random: Random) -> Problem:
    size, banks = random.randint(8, 40), tuple(sorted(random.sample(range(6), random.randint(1, 3))))
    inside = tuple(
        Buffer(f"k{number}", ((0, 3),), size, banks=random.choice([banks, banks[:1]]))
        for number in range(len(banks) + 1)
    )
    return Problem((*crowd(random), *inside), random.choice([None, 100_000]), bank_size=size)


def aligned_out_of_its_bank(random: Random) -> Problem:
    return Problem((*crowd(random), Buffer("k", ((0, 3),), 40, 64, banks=(1,))), 100_000, bank_size=48)


KINDS = (below_the_peak, one_too_large, fixed_beyond, aligned_apart, too_much_for_banks, aligned_out_of_its_bank)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SEARCHING)
def test_what_cannot_fit_is_known_without_a_search(name: str, kind: Callable[[Random], Problem]) -> None:
    for seed in range(4):
        problem = kind(Random(seed))
        outcome = solve(problem, name, MANY)
        assert outcome.infeasible
        assert outcome.reason
        assert outcome.steps <= len(problem.buffers)


def small(random: Random) -> Problem:
    """Few buffers, of which some may lie in banks, and a capacity that may be too small."""
    bank_size = random.choice([None, 12])
    buffers: list[Buffer] = []
    for number in range(random.randint(1, 5)):
        interval = random.randint(0, 2), random.randint(3, 5)
        banks = random.choice([None, (0,), (0, 1)]) if bank_size is not None else None
        buffers.append(Buffer(f"b{number}", (interval,), random.randint(1, 9), 1 << random.randint(0, 3), banks=banks))
    return Problem(tuple(buffers), random.randint(4, 24), bank_size)


def test_what_is_known_without_a_search_is_what_an_exhaustive_search_finds() -> None:
    known_of = 0
    for seed in range(120):
        problem = small(Random(seed))
        capacity = problem.capacity
        assert capacity is not None
        # The least height of all plans, or that there is no plan at all.
        least = solve(replace(problem, capacity=None), "exact").plan
        if (known := obstacle(problem)) is not None:
            known_of += 1
            assert least is None or known.bound <= height(problem, least) > capacity
    assert 20 < known_of < 100


def test_fixed_places_that_overlap_are_refused_at_once() -> None:
    pair = (Buffer("a", ((0, 2),), 8, offset=0), Buffer("b", ((1, 3),), 8, offset=4))
    with pytest.raises(UserError, match="the offsets given by hand are not a plan"):
        solve(Problem(pair, 4), limits=MANY)
