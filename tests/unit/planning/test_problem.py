# SPDX-License-Identifier: Apache-2.0
"""Planning problems as plain data: what the validator objects to and why, and what bounds say."""

from __future__ import annotations

import pytest

from penstock.passes.planning.problem import (
    Buffer,
    Conflict,
    Plan,
    PlanError,
    Problem,
    alive_at,
    bytes_alive,
    conflicts,
    height,
    live_sums,
    lower_bound,
    merge_intervals,
    peak,
    validate,
)


def buffer(id: str, lower: int, upper: int, size: int, alignment: int = 1, offset: int | None = None) -> Buffer:
    return Buffer(id, ((lower, upper),), size, alignment, offset)


LADDER = Problem(
    (
        buffer("a", 0, 3, 4),
        buffer("b", 2, 6, 4),
        buffer("c", 5, 9, 4),
        buffer("d", 8, 12, 4),
        buffer("e", 0, 12, 2),
    ),
    10,
)
"""Four buffers of which neighbours meet, and one that meets all: 10 bytes are alive at most."""

GOOD = Plan({"a": 2, "b": 6, "c": 2, "d": 6, "e": 0})

HALVES = Buffer("x", ((0, 4), (4, 8)), 16, windows=((0, 16), (0, 8)))
"""All of it is alive at first, and then its lower half."""


def refused(problem: Problem, offsets: dict[str, int]) -> Conflict:
    """What the validator says of a plan that it does not take."""
    with pytest.raises(PlanError) as caught:
        validate(problem, Plan(offsets))
    assert caught.value.conflict is not None
    assert caught.value.conflict.message == str(caught.value)
    return caught.value.conflict


# the validator


def test_the_validator_takes_a_plan_without_overlaps() -> None:
    validate(LADDER, GOOD)
    assert list(conflicts(LADDER, GOOD)) == []


@pytest.mark.parametrize(
    ("change", "rule", "message"),
    [
        ({"b": 5}, "overlap", "overlap while both are alive"),
        ({"e": 1}, "overlap", "overlap while both are alive"),
        ({"a": -1}, "capacity", "buffer a at -1 begins before the memory does"),
        ({"d": 7}, "capacity", "buffer d ends at 11 of 10 bytes"),
        ({"z": 0}, "unknown", "z, which is no buffer"),
    ],
)
def test_the_validator_objects_to_every_broken_rule(change: dict[str, int], rule: str, message: str) -> None:
    conflict = refused(LADDER, {**GOOD.offsets, **change})
    assert conflict.rule == rule
    assert message in conflict.message


def test_the_validator_objects_to_a_buffer_without_an_offset() -> None:
    conflict = refused(LADDER, {"a": 2, "b": 6, "c": 2, "d": 6})
    assert (conflict.rule, conflict.buffers, conflict.message) == ("missing", ("e",), "buffer e has no offset")


def test_an_overlap_names_both_buffers_the_moments_and_the_bytes() -> None:
    conflict = refused(LADDER, {**GOOD.offsets, "b": 5})
    assert conflict == Conflict(
        "overlap",
        ("a", "b"),
        "buffers a [2, 6) and b [5, 9) overlap while both are alive: bytes [5, 6) at times [2, 3)",
        (2, 3),
        (5, 6),
    )


def test_a_buffer_outside_the_memory_is_named_with_the_bytes_that_are() -> None:
    assert refused(LADDER, {**GOOD.offsets, "d": 7}).bytes == (10, 11)
    assert refused(LADDER, {**GOOD.offsets, "a": -2}).bytes == (-2, 0)


def test_the_validator_objects_to_a_misaligned_and_to_a_moved_buffer() -> None:
    conflict = refused(Problem((buffer("a", 0, 1, 4, alignment=16),)), {"a": 8})
    assert (conflict.rule, conflict.message) == ("alignment", "buffer a at 8 is not aligned to 16")
    conflict = refused(Problem((buffer("a", 0, 1, 4, offset=32),)), {"a": 0})
    assert (conflict.rule, conflict.message) == ("fixed", "buffer a is fixed at 32, not 0")


def test_all_conflicts_of_a_plan_are_found_and_not_only_the_first() -> None:
    found = list(conflicts(LADDER, Plan({"a": 0, "b": 0, "c": 20, "d": 6, "q": 1})))
    assert [(each.rule, each.buffers) for each in found] == [
        ("overlap", ("a", "b")),
        ("capacity", ("c",)),
        ("missing", ("e",)),
        ("unknown", ("q",)),
    ]


def test_buffers_with_gaps_meet_only_while_both_are_alive() -> None:
    calls = Buffer("workspace", ((0, 2), (6, 8)), 8)
    between, during = buffer("between", 2, 6, 8), buffer("during", 5, 7, 8)
    validate(Problem((calls, between)), Plan({"workspace": 0, "between": 0}))
    assert refused(Problem((calls, during)), {"workspace": 0, "during": 0}).time == (6, 7)


def test_the_bytes_outside_a_window_are_free_while_it_lasts() -> None:
    late = buffer("late", 4, 8, 8)
    validate(Problem((HALVES, late)), Plan({"x": 0, "late": 8}))
    conflict = refused(Problem((HALVES, late)), {"x": 0, "late": 7})
    assert (conflict.time, conflict.bytes) == ((4, 8), (7, 8))
    conflict = refused(Problem((HALVES, buffer("early", 3, 8, 8))), {"x": 0, "early": 8})
    assert (conflict.time, conflict.bytes) == ((3, 4), (8, 16))


def test_all_of_a_buffer_lies_in_the_memory_even_while_only_a_window_is_alive() -> None:
    only = Buffer("x", ((0, 4),), 16, windows=((0, 8),))
    assert refused(Problem((only,), 12), {"x": 0}).bytes == (12, 16)


def test_a_buffer_lies_within_one_of_its_banks() -> None:
    problem = Problem((Buffer("x", ((0, 4),), 12, banks=(0, 2)),), bank_size=16)
    for offset in (0, 4, 32, 36):
        validate(problem, Plan({"x": offset}))
    for offset in (5, 16, 28, 37, 48):
        conflict = refused(problem, {"x": offset})
        assert (conflict.rule, conflict.bytes) == ("bank", (offset, offset + 12))
    assert "does not lie within one bank of 0, 2, of 16 bytes" in refused(problem, {"x": 16}).message


def test_buffers_without_bytes_share_any_place() -> None:
    validate(Problem((buffer("a", 0, 4, 8), buffer("none", 0, 4, 0))), Plan({"a": 0, "none": 4}))


@pytest.mark.parametrize(
    "make",
    [
        lambda: buffer("a", 0, 1, -1),
        lambda: buffer("a", 1, 1, 4),
        lambda: buffer("a", 2, 1, 4),
        lambda: Buffer("a", (), 4),
        lambda: Buffer("a", ((0, 3), (2, 4)), 4),
        lambda: buffer("a", 0, 1, 4, alignment=0),
        lambda: buffer("a", 0, 1, 4, offset=-1),
        lambda: Buffer("a", ((0, 1),), 4, hint=-1),
        lambda: Buffer("a", ((0, 1),), 4, windows=((0, 4), (0, 2))),
        lambda: Buffer("a", ((0, 1),), 4, windows=((0, 5),)),
        lambda: Buffer("a", ((0, 1),), 4, windows=((2, 2),)),
        lambda: Buffer("a", ((0, 1),), 4, banks=()),
        lambda: Buffer("a", ((0, 1),), 4, banks=(-1,)),
        lambda: Problem((buffer("a", 0, 1, 4), buffer("a", 1, 2, 4))),
        lambda: Problem((), -1),
        lambda: Problem((), bank_size=0),
        lambda: Problem((Buffer("a", ((0, 1),), 4, banks=(0,)),)),
        lambda: Problem((Buffer("a", ((0, 1),), 20, banks=(0,)),), bank_size=16),
    ],
)
def test_problems_that_make_no_sense_are_refused(make: type[object]) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert caught.value.conflict is None


# bounds

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


def test_the_lower_bound_is_the_most_bytes_alive_at_once() -> None:
    assert peak(COMB) == (4, 32)
    assert lower_bound(COMB) == 32
    assert [b.id for b in alive_at(COMB, 4)] == ["wide", "three", "tall"]


def test_only_the_window_of_a_buffer_counts_as_alive() -> None:
    problem = Problem((HALVES, buffer("late", 4, 8, 8)))
    assert live_sums(problem) == [(0, 16), (4, 16), (8, 0)]
    assert [bytes_alive(HALVES, time) for time in (0, 3, 4, 7, 8)] == [16, 16, 8, 8, 0]
    assert [b.id for b in alive_at(problem, 5)] == ["x", "late"]


def test_no_plan_is_lower_than_any_buffer_is_large() -> None:
    assert lower_bound(Problem((Buffer("x", ((0, 4),), 16, windows=((0, 8),)),))) == 16


def test_the_end_of_a_fixed_buffer_is_a_lower_bound() -> None:
    assert lower_bound(Problem((buffer("a", 0, 1, 4, offset=100),))) == 104


def test_the_lowest_place_in_the_lowest_bank_is_a_lower_bound() -> None:
    assert lower_bound(Problem((Buffer("a", ((0, 1),), 4, banks=(3, 2)),), bank_size=10)) == 24
    assert lower_bound(Problem((Buffer("a", ((0, 1),), 4, 8, banks=(3, 2)),), bank_size=10)) == 28
    assert lower_bound(Problem((Buffer("a", ((0, 1),), 4, 32, banks=(1, 3)),), bank_size=10)) == 36


def test_nothing_takes_nothing() -> None:
    assert (peak(Problem(())), lower_bound(Problem(())), height(Problem(()), Plan())) == ((0, 0), 0, 0)


def test_merged_intervals_ascend_and_do_not_touch() -> None:
    assert merge_intervals([(4, 6), (0, 2), (2, 3), (5, 9)]) == ((0, 3), (4, 9))
