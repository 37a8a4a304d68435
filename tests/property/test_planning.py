"""Random problems: every plan is valid and never below the bound, and the validator misses nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.passes.planning.minimalloc_csv import parse_csv, write_csv
from penstock.passes.planning.problem import (
    Buffer,
    Plan,
    PlanError,
    Problem,
    height,
    lower_bound,
    merge_intervals,
    validate,
)
from penstock.passes.planning.registry import planner_names, solve


@st.composite
def buffers(draw: st.DrawFn, number: int) -> Buffer:
    spans = draw(
        st.lists(
            st.tuples(st.integers(0, 20), st.integers(1, 6)).map(lambda span: (span[0], span[0] + span[1])),
            min_size=1,
            max_size=3,
        )
    )
    alignment = draw(st.sampled_from([1, 4, 16]))
    return Buffer(str(number), merge_intervals(spans), draw(st.integers(0, 40)), alignment)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    return Problem(tuple(draw(buffers(number)) for number in range(draw(st.integers(0, 12)))))


def overlaps(left: Buffer, right: Buffer) -> bool:
    """Whether two buffers are alive at one moment, moment by moment."""
    moments = {t for lower, upper in left.intervals for t in range(lower, upper)}
    return any(t in moments for lower, upper in right.intervals for t in range(lower, upper))


@given(problems(), st.sampled_from(planner_names()))
def test_a_plan_is_valid_and_not_below_the_bound(problem: Problem, name: str) -> None:
    plan = solve(problem, name)
    taken = height(problem, plan)
    assert taken >= lower_bound(problem)
    validate(Problem(problem.buffers, taken), plan)
    if taken:
        with pytest.raises(PlanError):
            validate(Problem(problem.buffers, taken - 1), plan)


@given(problems(), st.data())
def test_the_validator_agrees_with_a_check_of_every_byte_and_moment(problem: Problem, data: st.DataObject) -> None:
    offsets = {b.id: data.draw(st.integers(0, 6)) * b.alignment for b in problem.buffers}
    clash = any(
        overlaps(left, right)
        and {*range(offsets[left.id], offsets[left.id] + left.size)}
        & {*range(offsets[right.id], offsets[right.id] + right.size)}
        for number, left in enumerate(problem.buffers)
        for right in problem.buffers[:number]
    )
    if clash:
        with pytest.raises(PlanError, match="overlap"):
            validate(problem, Plan(offsets))
    else:
        validate(problem, Plan(offsets))


@given(problems())
def test_the_lower_bound_is_the_largest_sum_over_all_moments(problem: Problem) -> None:
    sums = [
        sum(b.size for b in problem.buffers if any(lower <= t < upper for lower, upper in b.intervals))
        for t in range(27)
    ]
    assert lower_bound(problem) == max(sums)


@given(problems())
def test_a_problem_and_its_plan_survive_csv(problem: Problem) -> None:
    plan = solve(problem)
    assert parse_csv(write_csv(problem, plan)) == (problem, plan)
