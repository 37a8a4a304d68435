# SPDX-License-Identifier: Apache-2.0
"""Buffers that are alive throughout: at the bottom, without any loss, and out of the tables."""

from __future__ import annotations

from random import Random

import pytest

from penstock.passes.planning import base, exact, portfolio
from penstock.passes.planning.base import above_base, base_below
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.native import is_available
from penstock.passes.planning.one_pass import first_fit_by_size
from penstock.passes.planning.problem import Buffer, Limits, Outcome, Problem, height, validate


def drawn(seed: int, alignments: tuple[int, ...], count: int = 9) -> Problem:
    """A few buffers, of which about a third are alive throughout."""
    random = Random(seed)
    buffers: list[Buffer] = []
    for number in range(count):
        lower = random.randrange(9)
        span = (0, 10) if random.random() < 0.35 else (lower, random.randint(lower + 1, 10))
        buffers.append(Buffer(str(number), (span,), random.randint(1, 40), random.choice(alignments)))
    return Problem(tuple(buffers))


@pytest.mark.skipif(not is_available(), reason="there is no C compiler")
@pytest.mark.parametrize("alignments", [(1,), (8,), (1, 4, 16), (4, 6)])
def test_nothing_is_lost_by_it(alignments: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    split = 0
    for seed in range(25):
        problem = drawn(seed, alignments)
        monkeypatch.setattr(base, "MIN_MEETINGS", 1 << 60)
        whole = exact.plan(problem, Limits())
        monkeypatch.setattr(base, "MIN_MEETINGS", 1)
        apart = exact.plan(problem, Limits())
        assert whole.plan is not None
        assert apart.plan is not None
        validate(problem, apart.plan)
        assert height(problem, whole.plan) == height(problem, apart.plan) == apart.bound == whole.bound
        found = base_below(problem)
        split += found is not None and bool(found.offsets)
        for capacity in (whole.bound, whole.bound - 1):
            limited = Problem(problem.buffers, capacity)
            assert exact.plan(limited, Limits()).infeasible == (capacity < whole.bound)
    assert split > 2 or alignments == (4, 6)


def test_what_cannot_be_moved_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MIN_MEETINGS", 1)
    always = Buffer("always", ((0, 9),), 8)
    assert base_below(Problem((always, Buffer("short", ((0, 4),), 8)))) is not None
    for other in (
        Buffer("fixed", ((0, 4),), 8, offset=0),
        Buffer("hinted", ((0, 4),), 8, hint=0),
        Buffer("banked", ((0, 4),), 8, banks=(1,)),
        Buffer("in part", ((0, 4), (4, 6)), 8, windows=((0, 8), (0, 4))),
    ):
        assert base_below(Problem((always, other), bank_size=64)) is None
    assert base_below(Problem(())) is None


def test_limits_and_bounds_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MIN_MEETINGS", 1)
    given: list[tuple[int | None, int | None, int]] = []

    @above_base
    def plan(problem: Problem, limits: Limits) -> Outcome:
        given.append((problem.capacity, limits.good_enough, len(problem.buffers)))
        return first_fit_by_size(problem, limits)

    buffers = tuple(Buffer(f"w{number}", ((0, 9),), 16) for number in range(4))
    problem = Problem((*buffers, Buffer("a", ((0, 5),), 8), Buffer("b", ((4, 9),), 8)), 100)
    outcome = plan(problem, Limits(good_enough=90))
    assert given == [(52, 42, 3)]
    assert outcome.plan is not None
    assert height(problem, outcome.plan) == outcome.bound == 80
    assert not outcome.infeasible
    assert plan(Problem(problem.buffers, 79), Limits()).infeasible


@pytest.mark.skipif(not is_available(), reason="there is no C compiler")
def test_a_model_with_many_weights_is_planned_without_a_table_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Watched(Conflicts):
        def __init__(self, problem: Problem):
            super().__init__(problem)
            seen.append(len(self.other))

    monkeypatch.setattr(portfolio, "Conflicts", Watched)
    weights = [Buffer(f"w{number}", ((0, 3000),), 64) for number in range(1000)]
    values = [Buffer(f"a{number}", ((number, number + 2),), 64) for number in range(2999)]
    problem = Problem((*weights, *values))
    outcome = portfolio.plan(problem, Limits())
    assert outcome.plan is not None
    validate(problem, outcome.plan)
    assert height(problem, outcome.plan) == outcome.bound == 64 * 1002
    assert seen == [2 * (2998 + 2999)]
