"""Planning problems as plain data: what the validator objects to, what bounds say, and what the planners do."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning import registry
from penstock.passes.planning.minimalloc_csv import parse_csv, read_csv, write_csv
from penstock.passes.planning.problem import (
    Buffer,
    Plan,
    PlanError,
    Problem,
    alive_at,
    height,
    lower_bound,
    merge_intervals,
    peak,
    validate,
)
from penstock.passes.planning.registry import Planner, planner_names, solve

LADDER = """id,lower,upper,size
a,0,3,4
b,2,6,4
c,5,9,4
d,8,12,4
e,0,12,2
"""
"""Four buffers of which neighbours meet, and one that meets all: 10 bytes are alive at most."""

COMB = """id,lower,upper,size
wide,0,10,8
one,0,2,4
two,2,4,4
three,4,6,8
tall,3,5,16
late,6,10,12
"""


def problem_of(text: str, capacity: int | None = None) -> Problem:
    return parse_csv(text, capacity)[0]


def buffer(id: str, lower: int, upper: int, size: int, alignment: int = 1, offset: int | None = None) -> Buffer:
    return Buffer(id, ((lower, upper),), size, alignment, offset)


# the validator


GOOD = Plan({"a": 2, "b": 6, "c": 2, "d": 6, "e": 0})


def test_the_validator_takes_a_plan_without_overlaps() -> None:
    validate(problem_of(LADDER, 10), GOOD)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({**GOOD.offsets, "b": 5}, "overlap while both are alive"),
        ({**GOOD.offsets, "e": 1}, "overlap while both are alive"),
        ({**GOOD.offsets, "a": -2}, "buffer a at -2"),
        ({**GOOD.offsets, "d": 7}, "buffer d ends at 11 of 10 bytes"),
        ({"a": 2, "b": 6, "c": 2, "d": 6}, "buffer e has no offset"),
        ({**GOOD.offsets, "z": 0}, "z, which is no buffer"),
    ],
)
def test_the_validator_objects_to_every_broken_rule(plan: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        validate(problem_of(LADDER, 10), Plan(plan))


def test_the_validator_objects_to_a_misaligned_and_to_a_moved_buffer() -> None:
    with pytest.raises(PlanError, match="not aligned to 16"):
        validate(Problem((buffer("a", 0, 1, 4, alignment=16),)), Plan({"a": 8}))
    with pytest.raises(PlanError, match="fixed at 32, not 0"):
        validate(Problem((buffer("a", 0, 1, 4, offset=32),)), Plan({"a": 0}))


def test_buffers_with_gaps_meet_only_while_both_are_alive() -> None:
    calls = Buffer("workspace", ((0, 2), (6, 8)), 8)
    between, during = buffer("between", 2, 6, 8), buffer("during", 5, 7, 8)
    validate(Problem((calls, between)), Plan({"workspace": 0, "between": 0}))
    with pytest.raises(PlanError, match="overlap"):
        validate(Problem((calls, during)), Plan({"workspace": 0, "during": 0}))


def test_buffers_without_bytes_share_any_place() -> None:
    validate(Problem((buffer("a", 0, 4, 8), buffer("none", 0, 4, 0))), Plan({"a": 0, "none": 4}))


@pytest.mark.parametrize(
    "make",
    [
        lambda: buffer("a", 0, 1, -1),
        lambda: buffer("a", 1, 1, 4),
        lambda: Buffer("a", (), 4),
        lambda: Buffer("a", ((0, 3), (2, 4)), 4),
        lambda: buffer("a", 0, 1, 4, alignment=0),
        lambda: buffer("a", 0, 1, 4, offset=-4),
        lambda: Problem((buffer("a", 0, 1, 4), buffer("a", 1, 2, 4))),
    ],
)
def test_problems_that_make_no_sense_are_refused(make: type[object]) -> None:
    with pytest.raises(PlanError):
        make()


# bounds


def test_the_lower_bound_is_the_most_bytes_alive_at_once() -> None:
    problem = problem_of(COMB)
    assert peak(problem) == (4, 32)
    assert lower_bound(problem) == 32
    assert [b.id for b in alive_at(problem, 4)] == ["wide", "three", "tall"]


def test_the_end_of_a_fixed_buffer_is_a_lower_bound() -> None:
    assert lower_bound(Problem((buffer("a", 0, 1, 4, offset=100),))) == 104


def test_nothing_takes_nothing() -> None:
    assert (peak(Problem(())), lower_bound(Problem(())), height(Problem(()), Plan())) == ((0, 0), 0, 0)


def test_merged_intervals_ascend_and_do_not_touch() -> None:
    assert merge_intervals([(4, 6), (0, 2), (2, 3), (5, 9)]) == ((0, 3), (4, 9))


# planners


@pytest.mark.parametrize("name", planner_names())
@pytest.mark.parametrize("text", [LADDER, COMB])
def test_every_planner_gives_a_valid_plan(name: str, text: str) -> None:
    problem = problem_of(text)
    assert height(problem, solve(problem, name)) >= lower_bound(problem)


def test_the_orders_place_buffers_where_they_are_documented_to() -> None:
    problem = problem_of(COMB)
    assert solve(problem, "greedy-by-size").offsets == {
        "tall": 0,
        "late": 0,
        "wide": 16,
        "three": 24,
        "one": 0,
        "two": 24,
    }
    assert solve(problem, "greedy-by-start").offsets == {
        "wide": 0,
        "one": 8,
        "two": 8,
        "tall": 12,
        "three": 28,
        "late": 8,
    }


def test_first_fit_takes_the_lowest_aligned_gap() -> None:
    problem = Problem(
        (
            buffer("low", 0, 9, 10, offset=0),
            buffer("high", 0, 9, 10, offset=48),
            buffer("fits", 0, 9, 16, alignment=16),
            buffer("not between", 0, 9, 20, alignment=16),
        )
    )
    plan = solve(problem)
    assert (plan.offsets["not between"], plan.offsets["fits"]) == (16, 64)


def test_an_unknown_planner_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UserError) as caught:
        solve(problem_of(LADDER), "greedy-by-sise")
    assert 'did you mean "greedy-by-size"?' in caught.value.notes


def test_places_given_by_hand_that_overlap_are_the_fault_of_the_hand() -> None:
    problem = Problem((buffer("a", 0, 2, 8, offset=0), buffer("b", 1, 3, 8, offset=4), buffer("c", 0, 1, 8)))
    with pytest.raises(UserError, match="the places given by hand are no plan"):
        solve(problem)


@dataclass(frozen=True)
class Offered:
    """An entry point of an installed package."""

    name: str
    planner: Planner

    def load(self) -> Planner:
        return self.planner


def stacked(problem: Problem) -> Plan:
    """One on top of the other."""
    ends = itertools.accumulate((b.size for b in problem.buffers), initial=0)
    return Plan({b.id: end for b, end in zip(problem.buffers, ends, strict=False)})


def broken(problem: Problem) -> Plan:
    """All at the bottom."""
    return Plan({b.id: 0 for b in problem.buffers})


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [Offered("stacked", stacked), Offered("broken", broken)]

    def entry_points(*, group: str) -> list[Offered]:
        return offered if group == "penstock.planners" else []

    monkeypatch.setattr(registry, "entry_points", entry_points)


@pytest.mark.usefixtures("plugins")
def test_a_package_can_offer_a_planner() -> None:
    assert "stacked" in planner_names()
    problem = problem_of(LADDER)
    assert height(problem, solve(problem, "stacked")) == 18


@pytest.mark.usefixtures("plugins")
def test_a_plan_of_a_package_that_is_not_valid_is_refused() -> None:
    with pytest.raises(UserError, match='the planner "broken" returned a plan that is not valid: buffers a'):
        solve(problem_of(LADDER), "broken")


# CSV


def test_a_csv_file_carries_its_capacity_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "ladder.1024.csv"
    path.write_text(LADDER)
    problem = read_csv(path)
    assert problem.capacity == 1024
    assert problem.buffers[1] == buffer("b", 2, 6, 4)
    assert read_csv(path, 12).capacity == 12


def test_other_names_of_columns_are_understood_and_end_is_inclusive() -> None:
    text = "buffer_id, size, begin, end\nx, 16, 3, 7\n"
    assert problem_of(text).buffers == (buffer("x", 3, 8, 16),)


def test_gaps_alignment_and_offsets_are_read_and_written_back() -> None:
    text = "id,lower,upper,size,alignment,gaps,offset\nx,0,12,16,4,2-4 6-9,32\ny,1,2,8,1,,0\n"
    problem, plan = parse_csv(text)
    assert problem.buffers[0].intervals == ((0, 2), (4, 6), (9, 12))
    assert plan == Plan({"x": 32, "y": 0})
    assert write_csv(problem, plan) == text
    assert write_csv(problem_of(LADDER)) == LADDER


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("id,lower,upper\na,0,1\n", "csv:1", '"size" is missing'),
        ("id,lower,size\na,0,1\n", "csv:1", '"upper" and "end"'),
        ("id,lower,upper,size,colour\na,0,1,2,red\n", "csv:1", 'no column is called "colour"'),
        ("id,lower,upper,size\na,0,1,2\nb,0,one,2\n", "csv:3", "not a buffer"),
        ("id,lower,upper,size\na,4,4,2\n", "csv:2", "not a buffer"),
        ("id,lower,upper,size\na,0,4\n", "csv:2", "not a buffer"),
        ("id,lower,upper,size,gaps\na,0,4,2,1-6\n", "csv:2", "the gap 1-6 is not within"),
        ("id,lower,upper,size,gaps\na,0,4,2,1-2@0:1\n", "csv:2", "is not supported"),
        ("id,lower,upper,size\na,0,1,2\na,0,1,2\n", "csv", "two buffers have the same id"),
    ],
)
def test_a_faulty_csv_is_refused_at_its_line(text: str, place: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_csv(text)
    assert caught.value.loc == place


def test_a_csv_file_that_is_not_there_is_the_fault_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read it"):
        read_csv(tmp_path / "none.csv")
