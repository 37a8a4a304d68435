# SPDX-License-Identifier: Apache-2.0
"""Conflicts of buffers as arrays, and the planners that place each buffer once."""

from __future__ import annotations

import pytest

from penstock.passes.planning import one_pass
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.one_pass import (
    best_fit,
    best_fit_by_size,
    best_fit_by_start,
    by_area,
    by_conflicts,
    by_hint,
    by_size,
    by_start,
    by_urgency,
    first_fit,
    first_fit_by_size,
    first_fit_by_start,
    hinted_fit,
    place_in_order,
)
from penstock.passes.planning.problem import FAR, AllowedOffsets, Buffer, Limits, Plan, PlanError, Problem, validate


def buffer(id: str, lower: int, upper: int, size: int, alignment: int = 1, offset: int | None = None) -> Buffer:
    return Buffer(id, ((lower, upper),), size, alignment, offset)


COMB = Problem(
    (
        buffer("wide", 0, 10, 8),
        buffer("one", 0, 2, 4),
        buffer("two", 2, 4, 4),
        buffer("three", 4, 6, 8),
        buffer("tall", 3, 5, 16),
        buffer("late", 6, 10, 12),
    )
)
"""32 bytes are alive at time 4."""


def names(problem: Problem, order: list[int]) -> list[str]:
    return [problem.buffers[number].id for number in order]


# conflicts


def test_two_buffers_conflict_where_their_bytes_would_be_the_same() -> None:
    conflicts = Conflicts(Problem((buffer("a", 0, 4, 10), buffer("b", 2, 6, 6), buffer("c", 4, 8, 3))))
    assert conflicts.spans == [[(1, -10, 6)], [(0, -6, 10), (2, -6, 3)], [(1, -3, 6)]]


def test_buffers_conflict_only_while_both_are_alive_and_once_for_all_the_times_they_meet() -> None:
    calls = Buffer("workspace", ((0, 2), (6, 8), (10, 12)), 8)
    conflicts = Conflicts(Problem((calls, buffer("between", 2, 6, 5), buffer("always", 0, 12, 3))))
    assert conflicts.spans[0] == [(2, -8, 3)]
    assert conflicts.degrees == [1, 1, 2]


def test_windows_conflict_each_by_itself() -> None:
    halves = Buffer("halves", ((0, 4), (4, 8)), 10, windows=((0, 5), (5, 10)))
    conflicts = Conflicts(Problem((halves, buffer("early", 0, 4, 2), buffer("all", 0, 8, 3))))
    assert conflicts.spans[0] == [(1, -5, 2), (2, -10, -2), (2, -5, 3)]
    assert conflicts.degrees[0] == 2


def test_buffers_without_bytes_conflict_with_nothing() -> None:
    assert Conflicts(Problem((buffer("a", 0, 4, 8), buffer("none", 0, 4, 0)))).spans == [[], []]
    assert Conflicts(Problem(())).spans == []


@pytest.mark.parametrize(
    "huge",
    [
        buffer("huge", 0, 1, 1 << 60),
        buffer("huge", 0, 1 << 61, 1),
        buffer("huge", 0, 1, 4, alignment=1 << 60),
        buffer("huge", 0, 1, 4, offset=1 << 60),
    ],
)
def test_numbers_that_64_bits_do_not_hold_are_refused(huge: Buffer) -> None:
    with pytest.raises(PlanError, match=r"with buffer huge the numbers of the problem exceed 2 \*\* 60"):
        Conflicts(Problem((buffer("a", 0, 4, 10), huge)))


@pytest.mark.parametrize(
    ("buffer", "offset", "lowest"),
    [
        (buffer("free", 0, 1, 4), 7, 7),
        (buffer("aligned", 0, 1, 4, alignment=6), 7, 12),
        (buffer("fixed", 0, 1, 4, offset=20), 7, 20),
        (buffer("fixed", 0, 1, 4, offset=20), 21, FAR),
        (Buffer("banked", ((0, 1),), 4, banks=(3, 1)), 7, 10),
        (Buffer("banked", ((0, 1),), 4, banks=(3, 1)), 17, 30),
        (Buffer("banked", ((0, 1),), 4, banks=(3, 1)), 99, FAR),
        (Buffer("both", ((0, 1),), 4, 7, banks=(3, 1)), 11, 14),
        (Buffer("both", ((0, 1),), 4, 7, banks=(3, 1)), 15, 35),
        (Buffer("too large", ((0, 1),), 11, banks=(3, 1)), 0, FAR),
    ],
)
def test_the_lowest_offset_honours_alignment_banks_and_what_is_fixed(buffer: Buffer, offset: int, lowest: int) -> None:
    assert AllowedOffsets.of(buffer, bank_size=10).lowest(offset) == lowest


# orders


def test_the_orders_rank_by_what_they_are_called() -> None:
    conflicts = Conflicts(COMB)
    assert names(COMB, by_size(conflicts)) == ["tall", "late", "wide", "three", "one", "two"]
    assert names(COMB, by_start(conflicts)) == ["wide", "one", "two", "tall", "three", "late"]
    assert names(COMB, by_conflicts(conflicts)) == ["wide", "tall", "three", "two", "late", "one"]
    assert names(COMB, by_area(conflicts)) == ["wide", "late", "tall", "three", "one", "two"]
    assert names(COMB, by_urgency(conflicts)) == ["wide", "tall", "three", "two", "late", "one"]


def test_urgency_looks_at_every_interval_of_a_lifetime() -> None:
    twice = Buffer("twice", ((0, 1), (8, 9)), 2)
    problem = Problem((buffer("first", 0, 2, 4), twice, buffer("last", 8, 9, 6)))
    assert names(problem, by_urgency(Conflicts(problem))) == ["twice", "last", "first"]


# fits


def test_first_fit_takes_the_lowest_gap_and_best_fit_the_smallest() -> None:
    problem = Problem(
        (
            buffer("low", 0, 9, 10, offset=20),
            buffer("high", 0, 9, 10, offset=36),
            buffer("new", 0, 9, 6),
        )
    )
    conflicts = Conflicts(problem)
    assert first_fit(conflicts, 2, (20, 36, -1)) == 0
    assert best_fit(conflicts, 2, (20, 36, -1)) == 30


def test_a_gap_has_to_hold_a_buffer_after_it_is_aligned() -> None:
    problem = Problem(
        (
            buffer("low", 0, 9, 10, offset=0),
            buffer("high", 0, 9, 10, offset=48),
            buffer("fits", 0, 9, 16, alignment=16),
            buffer("not between", 0, 9, 20, alignment=16),
        )
    )
    for fit in (first_fit, best_fit):
        assert place_in_order(Conflicts(problem), [3, 2], fit) == [0, 48, 64, 16]


def test_the_planners_place_where_they_are_documented_to() -> None:
    assert first_fit_by_size(COMB, Limits()).plan == Plan(
        {"tall": 0, "late": 0, "wide": 16, "three": 24, "one": 0, "two": 24}
    )
    assert first_fit_by_start(COMB, Limits()).plan == Plan(
        {"wide": 0, "one": 8, "two": 8, "tall": 12, "three": 28, "late": 8}
    )
    outcome = best_fit_by_start(COMB, Limits())
    assert (outcome.bound, outcome.steps, outcome.infeasible) == (32, 6, False)


def test_a_buffer_lies_in_one_of_its_banks_and_nowhere_where_they_are_full() -> None:
    full = Buffer("full", ((0, 4),), 10, banks=(0,))
    other = Buffer("other", ((2, 6),), 4, banks=(0, 1))
    problem = Problem((full, other), bank_size=10)
    assert first_fit_by_size(problem, Limits()).plan == Plan({"full": 0, "other": 10})
    third = Buffer("third", ((3, 4),), 8, banks=(1,))
    assert first_fit_by_size(Problem((full, other, third), bank_size=10), Limits()).plan is None
    assert best_fit_by_size(Problem((full, other, third), bank_size=10), Limits()).plan is None


def test_windows_that_are_never_alive_together_may_share_bytes() -> None:
    ring = Buffer("ring", ((0, 4), (4, 8)), 8, windows=((0, 4), (4, 8)))
    problem = Problem((ring, buffer("early", 0, 4, 4), buffer("late", 4, 8, 4)))
    shared = Plan({"ring": 0, "early": 4, "late": 0})
    assert first_fit_by_size(problem, Limits()).plan == shared
    validate(Problem(problem.buffers, 8), shared)


def test_hints_are_followed_where_they_are_free() -> None:
    problem = Problem(
        (
            Buffer("unhinted", ((0, 4),), 30),
            Buffer("high", ((0, 4),), 10, hint=50),
            Buffer("low", ((0, 4),), 10, hint=40),
            Buffer("taken", ((0, 4),), 10, hint=45),
            Buffer("misaligned", ((0, 4),), 10, 16, hint=72),
        )
    )
    conflicts = Conflicts(problem)
    order = by_hint(conflicts)
    assert names(problem, order) == ["low", "taken", "high", "misaligned", "unhinted"]
    assert place_in_order(conflicts, order, hinted_fit) == [60, 50, 40, 0, 16]


def test_every_order_has_both_planners() -> None:
    for order in one_pass.ORDERS:
        for fit in ("first_fit", "best_fit"):
            outcome = getattr(one_pass, f"{fit}_{order.__name__}")(COMB, Limits())
            validate(COMB, outcome.plan)
