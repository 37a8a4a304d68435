# SPDX-License-Identifier: Apache-2.0
"""The default planner: what it stops at, what it proves, and that its turns fit together."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from random import Random

import pytest

from penstock.passes.planning import exact, hill_climb, native, portfolio
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.ejection import best_start
from penstock.passes.planning.exact import Search, Switches
from penstock.passes.planning.instance import Instance
from penstock.passes.planning.portfolio import plan
from penstock.passes.planning.problem import Buffer, Limits, Outcome, Plan, Problem, height, lower_bound, validate


def buffer(id: str, lower: int, upper: int, size: int, alignment: int = 1, offset: int | None = None) -> Buffer:
    return Buffer(id, ((lower, upper),), size, alignment, offset)


def perfect_packing(seed: int, cuts: int, width: int = 32, height: int = 256) -> Problem:
    """A rectangle of time and bytes cut again and again: there is a plan without a hole."""
    random = Random(seed)
    pieces = [(0, width, 0, height)]
    while len(pieces) <= cuts:
        lower, upper, low, high = pieces.pop(random.randrange(len(pieces)))
        if random.random() < 0.5 and upper - lower > 1:
            at = random.randrange(lower + 1, upper)
            pieces += [(lower, at, low, high), (at, upper, low, high)]
        elif high - low > 1:
            at = random.randrange(low + 1, high)
            pieces += [(lower, upper, low, at), (lower, upper, at, high)]
        else:
            pieces.append((lower, upper, low, high))
    random.shuffle(pieces)
    return Problem(tuple(buffer(str(n), a, b, high - low) for n, (a, b, low, high) in enumerate(pieces)), height)


def chain(seed: int, count: int) -> Problem:
    """The values of a network whose operators follow each other, with some values that skip a few."""
    random = Random(seed)
    lives = [2 + (random.randrange(2, 6) if random.random() < 0.25 else 0) for _ in range(count)]
    sizes = [random.choice([49, 98, 196, 392, 784]) * random.choice([16, 32, 64]) for _ in range(count)]
    return Problem(tuple(buffer(str(n), n, n + lives[n], sizes[n]) for n in range(count)))


def found(outcome: Outcome, problem: Problem) -> Plan:
    assert outcome.plan is not None
    validate(Problem(problem.buffers, bank_size=problem.bank_size), outcome.plan)
    return outcome.plan


def test_chains_of_operators_need_no_search_and_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> None:
        raise AssertionError("the library is asked for")

    monkeypatch.setattr(portfolio, "EjectionSearch", no_library)
    monkeypatch.setattr(native, "build_library", no_library)
    for count in (10, 100, 300):
        problem = chain(count, count)
        outcome = plan(problem, Limits())
        assert height(problem, found(outcome, problem)) == outcome.bound == lower_bound(problem)
        assert outcome.steps == 0


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_packings_without_a_hole(seed: int) -> None:
    problem = perfect_packing(seed, 50)
    outcome = plan(problem, Limits())
    assert height(problem, found(outcome, problem)) == outcome.bound == problem.capacity


def test_it_proves_that_the_best_is_the_best() -> None:
    problem = Problem(
        (
            buffer("a", 0, 2, 3),
            buffer("b", 1, 4, 2),
            buffer("c", 3, 5, 4),
            buffer("d", 0, 1, 4),
            buffer("e", 2, 3, 5),
            buffer("f", 4, 5, 3),
            buffer("g", 0, 5, 1, offset=4),
        )
    )
    outcome = plan(problem, Limits())
    best = height(problem, found(outcome, problem))
    assert lower_bound(problem) < best == outcome.bound


def test_infeasible_is_said_where_it_is_proved_and_with_the_best_plan() -> None:
    problem = Problem((buffer("a", 0, 2, 6), buffer("b", 1, 3, 6)), capacity=11)
    outcome = plan(problem, Limits())
    assert (outcome.infeasible, outcome.bound) == (True, 12)
    assert height(problem, found(outcome, problem)) == 12
    assert not plan(replace(problem, capacity=12), Limits()).infeasible


def test_within_the_capacity_is_good_enough_if_so_told() -> None:
    problem = perfect_packing(11, 60)
    loose = Problem(problem.buffers, 300)
    outcome = plan(loose, Limits(good_enough=300))
    assert height(loose, found(outcome, loose)) <= 300
    assert outcome.steps <= plan(loose, Limits()).steps


def test_limits_are_kept_and_there_is_a_plan_all_the_same() -> None:
    problem = perfect_packing(3, 120)
    first = plan(problem, Limits(seconds=0.0))
    assert first.steps == 0
    start = best_start(Conflicts(problem), 0)
    assert start is not None
    assert height(problem, found(first, problem)) == Conflicts(problem).height(start)
    few = plan(problem, Limits(steps=10_000))
    assert height(problem, found(few, problem)) <= height(problem, found(first, problem))


def test_the_same_steps_and_seed_give_the_same_plan() -> None:
    problem = perfect_packing(5, 150)
    limits = Limits(steps=300_000, seed=7)
    assert plan(problem, limits) == plan(problem, limits)


def test_every_feature_of_a_problem_is_honoured_at_once() -> None:
    problem = Problem(
        (
            Buffer("ring", ((0, 4), (4, 8)), 16, 8, windows=((0, 8), (8, 16))),
            Buffer("calls", ((0, 2), (6, 8)), 12),
            Buffer("banked", ((1, 7),), 20, 4, banks=(1, 2)),
            Buffer("fixed", ((3, 5),), 8, offset=32),
            Buffer("hinted", ((2, 6),), 8, hint=16),
        ),
        96,
        32,
    )
    outcome = plan(problem, Limits())
    validate(problem, found(outcome, problem))
    assert height(problem, found(outcome, problem)) == outcome.bound


def test_banks_that_hold_no_two_of_what_must_lie_there_are_proved_hopeless() -> None:
    buffers = tuple(Buffer(str(number), ((0, 1),), 6, banks=(0,)) for number in range(2))
    outcome = plan(Problem(buffers, bank_size=10), Limits())
    assert outcome.plan is None
    assert outcome.infeasible


def test_it_goes_for_the_capacity_before_it_goes_for_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = perfect_packing(5, 150)
    heights: list[int] = []

    class Watched(Search):
        def __init__(
            self,
            instance: Instance,
            height: int,
            switches: Switches | None = None,
            seed: int = 0,
            known: Plan | None = None,
            pool: Executor | None = None,
        ):
            super().__init__(instance, height, switches, seed, known, pool)
            heights.append(height)

    monkeypatch.setattr(exact, "Search", Watched)
    for capacity in (None, 260):
        plan(Problem(problem.buffers, capacity), Limits(steps=200_000))
    assert heights[0] == lower_bound(problem)
    assert 260 in heights[1:]
    assert min(heights) == lower_bound(problem)


def test_without_a_compiler_it_climbs_hills_and_says_so_once(
    without_compiler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = perfect_packing(3, 60)
    outcomes = [plan(problem, Limits(steps=3000)) for _ in range(2)]
    start = best_start(Conflicts(problem), 0)
    assert start is not None
    climbed = found(hill_climb.plan(problem, Limits(steps=3000)), problem)
    for outcome in outcomes:
        least = min(Conflicts(problem).height(start), height(problem, climbed))
        assert height(problem, found(outcome, problem)) == least
    assert capsys.readouterr().err == (
        "warning: the planner portfolio has no search but hill climbing: no C compiler is found\n"
    )


def test_nothing_takes_nothing() -> None:
    assert plan(Problem(()), Limits()).plan == Plan({})


def test_it_gives_up_where_steps_are_of_no_use_only_if_any_plan_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = perfect_packing(0, 200)
    free = replace(bounded, capacity=None)
    assert height(free, found(plan(free, Limits()), free)) == 256
    monkeypatch.setattr(portfolio, "PATIENCE", 1)
    given_up = plan(free, Limits())
    assert height(free, found(given_up, free)) > given_up.bound
    for problem, limits in ((bounded, Limits()), (free, Limits(steps=10_000_000)), (free, Limits(good_enough=256))):
        assert height(problem, found(plan(problem, limits), problem)) == 256
