# SPDX-License-Identifier: Apache-2.0
"""Static partitions by colours."""

from __future__ import annotations

import pytest

from penstock.passes.planning.color import color_by_conflicts, color_by_size, color_by_start, partitions
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.one_pass import by_size
from penstock.passes.planning.problem import Buffer, Limits, Plan, PlanError, Problem, height, validate
from penstock.passes.planning.registry import Planner

PLANNERS = [color_by_size, color_by_start, color_by_conflicts]


def buffer(id: str, lower: int, upper: int, size: int, alignment: int = 1, offset: int | None = None) -> Buffer:
    return Buffer(id, ((lower, upper),), size, alignment, offset)


LADDER = Problem(
    (
        buffer("a", 0, 3, 6),
        buffer("b", 2, 6, 4),
        buffer("c", 5, 9, 5),
        buffer("d", 8, 12, 3),
    )
)


@pytest.mark.parametrize("planner", PLANNERS)
def test_buffers_of_one_colour_share_a_partition_as_large_as_the_largest(planner: Planner) -> None:
    outcome = planner(LADDER, Limits())
    assert outcome.plan is not None
    assert height(LADDER, outcome.plan) == 6 + 4
    assert outcome.plan.offsets["a"] == outcome.plan.offsets["c"]
    assert outcome.plan.offsets["b"] == outcome.plan.offsets["d"]
    assert outcome.bound == 10


def test_partitions_are_larger_than_offsets_need_to_be() -> None:
    problem = Problem((buffer("a", 0, 2, 8), buffer("b", 2, 4, 4), buffer("c", 2, 4, 4)))
    plan = color_by_size(problem, Limits()).plan
    expected = Plan({"a": 0, "b": 0, "c": 8})
    assert plan == expected
    assert height(problem, expected) == 12


def test_a_buffer_takes_the_colour_whose_partition_grows_least() -> None:
    problem = Problem((buffer("small", 0, 2, 2), buffer("large", 0, 2, 9), buffer("later", 2, 4, 8)))
    plan = color_by_start(problem, Limits()).plan
    assert plan is not None
    assert plan.offsets["later"] == plan.offsets["large"]
    assert height(problem, plan) == 11


def test_a_partition_is_aligned_for_all_of_its_buffers() -> None:
    problem = Problem((buffer("odd", 0, 9, 5), buffer("a", 0, 2, 4, alignment=4), buffer("b", 2, 4, 4, alignment=6)))
    plan = color_by_size(problem, Limits()).plan
    assert plan == Plan({"odd": 0, "a": 12, "b": 12})
    assert [p.alignment for p in partitions(Conflicts(problem), by_size)] == [1, 12]


def test_what_is_fixed_keeps_its_bytes_for_ever() -> None:
    problem = Problem((buffer("fixed", 0, 1, 4, offset=4), buffer("a", 5, 9, 4), buffer("b", 5, 9, 6)))
    plan = color_by_size(problem, Limits()).plan
    assert plan == Plan({"fixed": 4, "a": 0, "b": 8})


def test_gaps_in_a_lifetime_are_taken_by_others_of_the_colour() -> None:
    problem = Problem((Buffer("calls", ((0, 2), (6, 8)), 8), buffer("between", 2, 6, 8)))
    shared = Plan({"calls": 0, "between": 0})
    assert color_by_size(problem, Limits()).plan == shared
    validate(problem, shared)


def test_banks_are_refused_by_name() -> None:
    problem = Problem((Buffer("a", ((0, 1),), 4, banks=(0,)),), bank_size=16)
    with pytest.raises(PlanError, match="the planner color-by-size knows no banks, and buffer a has to lie in one"):
        color_by_size(problem, Limits())
