# SPDX-License-Identifier: Apache-2.0
"""Hill climbing over orders of first fit."""

from __future__ import annotations

from random import Random

from penstock.passes.planning.hill_climb import plan
from penstock.passes.planning.one_pass import first_fit_by_size
from penstock.passes.planning.problem import Buffer, Limits, Plan, Problem, height, validate


def random_problem(seed: int, count: int = 40) -> Problem:
    random = Random(seed)
    starts = [random.randrange(30) for _ in range(count)]
    return Problem(
        tuple(
            Buffer(str(number), ((start, start + random.randrange(1, 15)),), random.randrange(1, 100))
            for number, start in enumerate(starts)
        )
    )


def found(problem: Problem, limits: Limits) -> Plan:
    outcome = plan(problem, limits)
    assert outcome.plan is not None
    validate(problem, outcome.plan)
    return outcome.plan


def test_it_gets_below_the_order_that_it_starts_from() -> None:
    problem = random_problem(7)
    start = first_fit_by_size(problem, Limits())
    assert start.plan is not None
    assert start.bound <= height(problem, found(problem, Limits())) < height(problem, start.plan)


def test_steps_and_seed_decide_the_plan() -> None:
    problem = random_problem(5)
    assert found(problem, Limits(steps=900, seed=3)) == found(problem, Limits(steps=900, seed=3))
    plans = [found(problem, Limits(steps=900, seed=seed)) for seed in range(8)]
    assert any(other != plans[0] for other in plans)


def test_it_stops_at_what_is_good_enough_and_at_its_limits() -> None:
    problem = random_problem(10)
    assert plan(problem, Limits(good_enough=10**6)).steps == len(problem.buffers)
    assert plan(problem, Limits(seconds=0.0)).steps == len(problem.buffers)
    assert plan(problem, Limits(steps=200)).steps < 200 + len(problem.buffers)


def test_fixed_buffers_stay_where_they_are() -> None:
    problem = random_problem(0)
    fixed = Buffer("fixed", ((5, 20),), 50, offset=30)
    problem = Problem((*problem.buffers, fixed))
    assert found(problem, Limits(steps=2000)).offsets["fixed"] == 30


def test_a_problem_that_banks_make_hard_may_have_no_plan() -> None:
    buffers = tuple(Buffer(str(number), ((0, 1),), 6, banks=(0,)) for number in range(2))
    assert plan(Problem(buffers, bank_size=10), Limits()).plan is None


def test_nothing_takes_nothing() -> None:
    assert plan(Problem(()), Limits()).plan == Plan({})
