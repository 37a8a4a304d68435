# SPDX-License-Identifier: Apache-2.0
"""Random problems with every feature: all planners' plans are valid, and the exact one's is the lowest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning import color, ejection, exact, hill_climb, one_pass, portfolio
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.ejection import EjectionSearch
from penstock.passes.planning.native import is_available
from penstock.passes.planning.problem import (
    Buffer,
    Limits,
    PlanError,
    Problem,
    height,
    lower_bound,
    merge_intervals,
    validate,
)
from penstock.passes.planning.registry import Planner

ONE_PASS = [getattr(one_pass, f"{fit}_fit_{order.__name__}") for fit in ("first", "best") for order in one_pass.ORDERS]
COLOURS = [color.color_by_size, color.color_by_start, color.color_by_conflicts]
pytestmark = pytest.mark.skipif(not is_available(), reason="needs a C compiler")

SEARCHES = [hill_climb.plan, ejection.plan, portfolio.plan]
BANK = 64


@st.composite
def problems(draw: st.DrawFn, *, features: bool = True, most: int = 10) -> Problem:
    """With features: gaps, windows, alignments, banks and fixed places, which never contradict each other."""
    buffers: list[Buffer] = []
    top = 0
    for number in range(draw(st.integers(0, most))):
        pairs = st.tuples(st.integers(0, 20), st.integers(1, 6)).map(lambda span: (span[0], span[0] + span[1]))
        intervals = merge_intervals(draw(st.lists(pairs, min_size=1, max_size=3 if features else 1)))
        size = draw(st.integers(0 if features else 1, 40))
        kind = draw(st.sampled_from(["plain", "plain", "aligned", "fixed", "windows", "banks"])) if features else ""
        windows: tuple[tuple[int, int], ...] = ()
        if kind == "windows" and size:
            cuts = st.tuples(st.integers(0, size - 1), st.integers(1, size)).map(lambda w: (min(w), max(*w, w[0] + 1)))
            windows = tuple(draw(cuts) for _ in intervals)
        fixed = top if kind == "fixed" else None
        top += size if kind == "fixed" else 0
        buffers.append(
            Buffer(
                str(number),
                intervals,
                size,
                draw(st.sampled_from([2, 12, 16])) if kind == "aligned" else 1,
                fixed,
                windows,
                draw(st.sampled_from([(0, 2), (1,), (3, 1)])) if kind == "banks" else None,
            )
        )
    return Problem(tuple(buffers), bank_size=BANK)


def free(problem: Problem) -> Problem:
    """Without a capacity, which a planner may exceed."""
    return Problem(problem.buffers, bank_size=problem.bank_size)


@pytest.mark.parametrize("planner", [*ONE_PASS, *COLOURS, *SEARCHES])
@given(problem=problems())
@examples(25)
def test_a_plan_is_valid_and_a_bound_is_one(planner: Planner, problem: Problem) -> None:
    try:
        outcome = planner(problem, Limits(steps=300))
    except PlanError:
        assert planner in COLOURS
        assert any(buffer.banks for buffer in problem.buffers)
        return
    if outcome.plan is None:
        assert any(buffer.banks for buffer in problem.buffers)
        return
    validate(free(problem), outcome.plan)
    assert lower_bound(problem) <= outcome.bound <= height(problem, outcome.plan)


@given(problem=problems(most=8))
@examples(60)
def test_no_planner_gets_below_the_exact_one_nor_below_its_bound(problem: Problem) -> None:
    best = exact.plan(problem, Limits(steps=200_000))
    for planner in (*ONE_PASS, *SEARCHES):
        outcome = planner(problem, Limits(steps=300))
        if best.infeasible:
            assert outcome.plan is None
        elif outcome.plan is not None:
            assert height(problem, outcome.plan) >= best.bound
            if best.plan is not None and best.bound == height(problem, best.plan):
                assert height(problem, best.plan) <= height(problem, outcome.plan)


@given(problem=problems(features=False, most=8))
@examples(60)
def test_colours_never_take_less_than_the_exact_plan(problem: Problem) -> None:
    best = exact.plan(problem, Limits())
    assert best.plan is not None
    assert height(problem, best.plan) == best.bound
    for planner in COLOURS:
        outcome = planner(problem, Limits())
        assert outcome.plan is not None
        assert height(problem, outcome.plan) >= best.bound


@given(problem=problems(most=8))
@examples(60)
def test_the_portfolio_proves_what_the_exact_planner_proves(problem: Problem) -> None:
    best, found = exact.plan(problem, Limits()), portfolio.plan(problem, Limits())
    assert found.infeasible == best.infeasible
    if not best.infeasible:
        assert best.plan is not None
        assert found.plan is not None
        assert height(problem, found.plan) == height(problem, best.plan) == found.bound


@given(problem=problems(most=16), seed=st.integers(0, 9), cuts=st.lists(st.integers(1, 60), max_size=3))
@examples(60)
def test_ejection_search_is_the_same_however_it_is_cut(problem: Problem, seed: int, cuts: list[int]) -> None:
    conflicts = Conflicts(problem)
    start = one_pass.place_in_order(conflicts, one_pass.by_start(conflicts))
    cut, whole = (EjectionSearch(conflicts, start, lower_bound(problem), seed) for _ in range(2))
    for steps in cuts:
        cut.run(steps)
    whole.run(sum(cuts))
    assert (cut.best, cut.steps, cut.done) == (whole.best, whole.steps, whole.done)
