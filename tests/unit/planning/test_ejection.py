# SPDX-License-Identifier: Apache-2.0
"""Ejection search: what it reaches, and that it can be stopped and resumed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning import ejection, native
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.ejection import EjectionSearch, fit_in_order, plan
from penstock.passes.planning.one_pass import ORDERS, by_size, first_fit_by_size, place_in_order
from penstock.passes.planning.problem import Buffer, Limits, Plan, Problem, height, lower_bound, validate

pytestmark = pytest.mark.skipif(not native.is_available(), reason="there is no C compiler")


def random_problem(seed: int, count: int = 40, *, features: bool = False) -> Problem:
    """Buffers as they come; with features, some have gaps, windows, alignments, banks or a fixed place."""
    random = Random(seed)
    buffers: list[Buffer] = []
    top = 0
    for number in range(count):
        moments = sorted(random.sample(range(40), 2 * random.randrange(1, 4) if features else 2))
        intervals = tuple(zip(moments[::2], moments[1::2], strict=True))
        size, name = random.randrange(0 if features else 1, 50), str(number)
        if not features or (kind := random.randrange(8)) > 4:
            buffers.append(Buffer(name, intervals, size))
        elif kind == 0:
            buffers.append(Buffer(name, intervals, size, offset=top))
            top += size
        elif kind == 1 and size > 1:
            windows = tuple((low, high) for low, high in (sorted(random.sample(range(size), 2)) for _ in intervals))
            buffers.append(Buffer(name, intervals, size, windows=windows))
        elif kind == 2:
            banks = tuple(random.sample(range(8), random.randrange(1, 5)))
            buffers.append(Buffer(name, intervals, size, random.choice([1, 8]), banks=banks))
        else:
            buffers.append(Buffer(name, intervals, size, random.choice([2, 7, 16])))
    return Problem(tuple(buffers), bank_size=64 if features else None)


def search_from_size(problem: Problem, seed: int = 0) -> EjectionSearch:
    conflicts = Conflicts(problem)
    return EjectionSearch(conflicts, place_in_order(conflicts, by_size(conflicts)), lower_bound(problem), seed)


def test_it_gets_well_below_the_order_that_it_starts_from() -> None:
    problem = random_problem(3)
    start = first_fit_by_size(problem, Limits()).plan
    outcome = plan(problem, Limits(steps=3000))
    assert start is not None
    assert outcome.plan is not None
    validate(problem, outcome.plan)
    assert outcome.bound <= height(problem, outcome.plan) < height(problem, start)


def test_it_finds_the_only_packing_without_a_hole() -> None:
    # Four around a fifth, as in a pinwheel, which no order by size places so.
    rectangles = {"a": (0, 2, 1), "b": (2, 3, 2), "c": (1, 3, 1), "d": (0, 1, 2), "e": (1, 2, 1)}
    problem = Problem(
        tuple(Buffer(name, ((lower, upper),), 10 * size) for name, (lower, upper, size) in rectangles.items())
    )
    outcome = plan(problem, Limits(steps=500))
    assert outcome.plan is not None
    assert height(problem, outcome.plan) == outcome.bound == 30


@pytest.mark.parametrize("seed", range(20))
def test_a_search_that_is_cut_takes_the_same_steps(seed: int) -> None:
    problem = random_problem(seed, 25, features=seed % 4 > 0)
    one, other = (search_from_size(problem, seed) for _ in range(2))
    for _ in range(3):
        one.run(100)
    other.run(300)
    assert (one.best, one.height, one.steps, one.done) == (other.best, other.height, other.steps, other.done)


def test_first_fit_in_c_places_as_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ejection, "MIN_CONFLICTS_IN_C", 0)
    for seed in range(20):
        conflicts = Conflicts(random_problem(seed, 25, features=True))
        for order in ORDERS:
            numbers = order(conflicts)
            assert fit_in_order(conflicts, numbers) == place_in_order(conflicts, numbers)


def test_what_it_finds_with_every_feature_is_valid() -> None:
    plans = 0
    for seed in range(30):
        problem = random_problem(seed, 20, features=True)
        found = plan(problem, Limits(steps=300)).plan
        if found is not None:
            validate(problem, found)
            plans += 1
    assert plans > 10


def test_it_finds_places_in_banks_where_first_fit_finds_none() -> None:
    buffers = (
        Buffer("large", ((0, 2),), 6, banks=(0, 1)),
        Buffer("choosy", ((0, 2),), 5, banks=(0,)),
    )
    problem = Problem(buffers, bank_size=10)
    assert first_fit_by_size(problem, Limits()).plan is None
    found = plan(problem, Limits(steps=100)).plan
    assert found is not None
    assert found.offsets["large"] == 10
    validate(problem, found)


def test_it_gives_up_where_there_is_no_place_at_all() -> None:
    fixed = Buffer("fixed", ((0, 4),), 10, offset=0)
    choosy = Buffer("choosy", ((2, 6),), 4, banks=(0,))
    outcome = plan(Problem((fixed, choosy), bank_size=10), Limits())
    assert (outcome.plan, outcome.steps) == (None, 1)


def test_what_is_fixed_stays_however_much_it_is_in_the_way() -> None:
    problem = random_problem(5)
    problem = Problem((*problem.buffers, Buffer("fixed", ((0, 40),), 30, offset=64)))
    outcome = plan(problem, Limits(steps=2000))
    assert outcome.plan is not None
    assert outcome.plan.offsets["fixed"] == 64
    validate(problem, outcome.plan)


def test_it_stops_at_what_is_good_enough_and_at_its_limits() -> None:
    problem = random_problem(4)
    start = plan(problem, Limits(good_enough=10**6))
    assert start.steps == 0
    assert start.plan is not None
    assert plan(problem, Limits(steps=70)).steps == 70
    assert plan(problem, Limits(seconds=0.0)).steps == 0
    between = (height(problem, start.plan) + lower_bound(problem)) // 2
    outcome = plan(problem, Limits(good_enough=between))
    assert outcome.plan is not None
    assert height(problem, outcome.plan) <= between


def test_a_new_goal_is_taken_up_and_one_already_reached_is_done() -> None:
    search = search_from_size(random_problem(3))
    first = search.height
    search.aim(first)
    assert search.done
    search.aim(first - 1)
    assert not search.done
    search.run(500)
    assert search.done
    assert search.height < first


def test_seeds_differ_and_one_seed_does_not() -> None:
    problem = random_problem(10)
    plans = [plan(problem, Limits(steps=400, seed=seed)).plan for seed in (0, 1, 2, 3, 0)]
    assert plans[0] == plans[4]
    assert any(other != plans[0] for other in plans[1:4])


def test_without_a_compiler_it_refuses_and_first_fit_is_python(
    without_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(9)
    with pytest.raises(UserError, match='the planner "ejection" runs in C: no C compiler is found') as refusal:
        plan(problem, Limits(steps=200))
    assert any("hill-climb and portfolio do without" in note for note in refusal.value.notes)
    monkeypatch.setattr(ejection, "MIN_CONFLICTS_IN_C", 0)
    conflicts = Conflicts(problem)
    assert fit_in_order(conflicts, by_size(conflicts)) == place_in_order(conflicts, by_size(conflicts))


def test_it_starts_from_the_plan_that_the_hints_give() -> None:
    offsets = plan(perfect := random_problem(0), Limits(steps=3000)).plan
    assert offsets is not None
    hinted = Problem(tuple(replace(b, hint=offsets.offsets[b.id]) for b in perfect.buffers))
    outcome = plan(hinted, Limits())
    assert (outcome.plan, outcome.steps) == (offsets, 0)
    assert height(hinted, offsets) == outcome.bound


def test_nothing_takes_nothing() -> None:
    assert plan(Problem(()), Limits()).plan == Plan({})
