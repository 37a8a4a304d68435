# SPDX-License-Identifier: Apache-2.0
"""The planner on OR-Tools: what it finds and proves, with every feature of a problem, and what it says without them."""

from __future__ import annotations

import sys

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.cp_sat import unit_of
from penstock.passes.planning.problem import Buffer, Limits, Outcome, Problem, height
from penstock.passes.planning.registry import solve


def buffer(id: str, lower: int, upper: int, size: int, alignment: int = 1, offset: int | None = None) -> Buffer:
    return Buffer(id, ((lower, upper),), size, alignment, offset)


TIGHT = (
    buffer("b1", 0, 3, 4),
    buffer("b2", 3, 9, 4),
    buffer("b3", 0, 9, 4),
    buffer("b4", 9, 21, 4),
    buffer("b5", 0, 21, 4),
)
"""12 bytes at most are alive, and a plan of as many exists."""

CYCLE = (
    Buffer("a", ((0, 1), (4, 5)), 1),
    buffer("b", 0, 2, 1),
    buffer("c", 1, 3, 1),
    buffer("d", 2, 4, 1),
    buffer("e", 3, 5, 1),
)
"""Five buffers of which each meets the next, two at a time: two bytes are alive, and an odd cycle takes three."""


def found(problem: Problem, limits: Limits | None = None) -> Outcome:
    pytest.importorskip("ortools")
    return solve(problem, "cp-sat", limits)


def peak_of(problem: Problem) -> int:
    """Of the plan, which is valid: `solve` sees to that."""
    outcome = found(problem)
    assert outcome.plan is not None
    return height(problem, outcome.plan)


def test_a_plan_at_the_bound_is_found() -> None:
    outcome = found(Problem(TIGHT))
    assert peak_of(Problem(TIGHT)) == outcome.bound == 12
    assert not outcome.infeasible


def test_what_does_not_fit_is_proved_to_be_infeasible() -> None:
    outcome = found(Problem(CYCLE, 2))
    assert outcome.infeasible
    assert outcome.bound == 3
    assert outcome.plan is not None
    outcome = found(Problem((buffer("x", 0, 2, 4, 8), buffer("y", 0, 2, 4, 8)), 8))
    assert outcome.infeasible
    assert outcome.bound == 12


def test_the_bound_is_raised_where_no_plan_reaches_it() -> None:
    outcome = found(Problem(CYCLE))
    assert not outcome.infeasible
    assert peak_of(Problem(CYCLE)) == outcome.bound == 3


@pytest.mark.parametrize(
    ("buffers", "least"),
    [
        ((buffer("fixed", 0, 9, 10, offset=6), buffer("below", 0, 9, 6)), 16),
        ((buffer("fixed", 0, 9, 10, offset=6), buffer("above", 0, 9, 7)), 23),
        ((buffer("a", 0, 9, 5, alignment=16), buffer("b", 0, 9, 5, alignment=16)), 21),
        ((Buffer("gaps", ((0, 2), (6, 9)), 6), buffer("between", 2, 6, 6)), 6),
        ((Buffer("window", ((0, 4), (4, 9)), 8, windows=((0, 8), (0, 4))), buffer("late", 4, 9, 4)), 8),
        ((Buffer("window", ((0, 4), (4, 9)), 8, windows=((0, 8), (2, 6))), buffer("late", 4, 9, 4)), 10),
        ((Buffer("a", ((0, 9),), 8, banks=(2, 3)), Buffer("b", ((0, 9),), 10, banks=(2, 3))), 56),
        ((Buffer("a", ((0, 9),), 8, 12, banks=(1, 2)),), 32),
    ],
)
def test_every_rule_of_a_problem_is_kept(buffers: tuple[Buffer, ...], least: int) -> None:
    problem = Problem(buffers, bank_size=16)
    assert peak_of(problem) == found(problem).bound == least


def test_the_unit_is_what_places_of_some_lowest_plan_are_multiples_of() -> None:
    assert unit_of(Problem(())) == 1
    assert unit_of(Problem((buffer("a", 0, 1, 0),))) == 1
    assert unit_of(Problem((buffer("a", 0, 1, 48), buffer("b", 0, 1, 64)))) == 16
    assert unit_of(Problem((buffer("a", 0, 1, 48, alignment=64), buffer("b", 0, 1, 96)))) == 16
    assert unit_of(Problem((buffer("a", 0, 1, 48, alignment=4),))) == 48
    assert unit_of(Problem((buffer("a", 0, 1, 48, offset=8),))) == 8
    assert unit_of(Problem((Buffer("a", ((0, 1),), 48, windows=((0, 12),)),))) == 12
    assert unit_of(Problem((Buffer("a", ((0, 1),), 48, banks=(1,)),), bank_size=64)) == 16
    # 32 divides neither 48 nor is divided by it; 8 divides 16.
    assert unit_of(Problem((buffer("a", 0, 1, 48, alignment=32), buffer("b", 0, 1, 48, alignment=8)))) == 16


def test_the_same_seed_and_steps_give_the_same_plan() -> None:
    problem = Problem(CYCLE)
    assert found(problem, Limits(steps=500, seed=3)) == found(problem, Limits(steps=50, seed=3))


def test_a_plan_that_is_good_enough_is_not_improved() -> None:
    outcome = found(Problem(TIGHT), Limits(good_enough=1000))
    assert outcome.steps == 0


def test_nothing_is_planned_at_once() -> None:
    outcome = found(Problem(()))
    assert (outcome.plan is not None, outcome.bound, outcome.infeasible) == (True, 0, False)


def test_without_ortools_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(UserError, match="needs OR-Tools, which is not installed") as caught:
        solve(Problem(TIGHT), "cp-sat")
    assert "pip install 'penstock-compiler[solver]'" in caught.value.notes
