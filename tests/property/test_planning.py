# SPDX-License-Identifier: Apache-2.0
"""Random problems with every feature: the validator misses nothing, planners keep every rule, CSV loses nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning.minimalloc_csv import parse_csv, write_csv
from penstock.passes.planning.online import at_sizes, settled
from penstock.passes.planning.problem import (
    Buffer,
    Interval,
    Limits,
    Plan,
    PlanError,
    Problem,
    Window,
    conflicts,
    height,
    live_sums,
    lower_bound,
    merge_intervals,
    validate,
)
from penstock.passes.planning.registry import planner_names, solve

BANK = 64
END = 27
"""No buffer of these problems is alive later."""


@st.composite
def buffers(draw: st.DrawFn, number: int, *, banks: bool, windows: bool) -> Buffer:
    spans = draw(
        st.lists(
            st.tuples(st.integers(0, 20), st.integers(1, 6)).map(lambda span: (span[0], span[0] + span[1])),
            min_size=1,
            max_size=3,
        )
    )
    intervals = merge_intervals(spans)
    size = draw(st.integers(1, 40))
    found: tuple[Window, ...] = ()
    if windows and draw(st.booleans()):
        intervals = cut(intervals, draw(st.integers(0, END)))
        found = tuple(draw(st.sampled_from([(0, size), (0, -(-size // 2)), (size // 2, size)])) for _ in intervals)
        intervals, found = joined(intervals, found, size)
    return Buffer(
        str(number),
        intervals,
        size,
        draw(st.sampled_from([1, 4, 16])),
        windows=found,
        banks=draw(st.sampled_from([None, (0, 2), (1,)])) if banks else None,
        hint=draw(st.sampled_from([None, 0, 16])),
    )


def cut(intervals: tuple[Interval, ...], time: int) -> tuple[Interval, ...]:
    """The same moments, the interval around `time` as two that touch."""
    parts: list[Interval] = []
    for lower, upper in intervals:
        parts += [(lower, time), (time, upper)] if lower < time < upper else [(lower, upper)]
    return tuple(parts)


def joined(
    intervals: tuple[Interval, ...], windows: tuple[Window, ...], size: int
) -> tuple[tuple[Interval, ...], tuple[Window, ...]]:
    """In the one form that a CSV is read in: touching intervals differ in their windows, and not all are whole."""
    found: list[tuple[Interval, Window]] = []
    for interval, window in zip(intervals, windows, strict=True):
        if found and found[-1][0][1] == interval[0] and found[-1][1] == window:
            found[-1] = ((found[-1][0][0], interval[1]), window)
        else:
            found.append((interval, window))
    whole = all(window == (0, size) for _, window in found)
    return tuple(each[0] for each in found), () if whole else tuple(each[1] for each in found)


@st.composite
def problems(draw: st.DrawFn, *, banks: bool = True, windows: bool = True, most: int = 10) -> Problem:
    count = draw(st.integers(0, most))
    made = tuple(draw(buffers(number, banks=banks, windows=windows)) for number in range(count))
    return Problem(made, bank_size=BANK if banks else None)


@st.composite
def placed(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """A problem and offsets that may break any rule."""
    problem = draw(problems(most=6))
    offsets: dict[str, int] = {}
    held: list[Buffer] = []
    for buffer in problem.buffers:
        step = draw(st.sampled_from([buffer.alignment, 1]))
        offsets[buffer.id] = draw(st.integers(0, 160 // step)) * step
        held.append(replace(buffer, offset=draw(st.sampled_from([None, None, offsets[buffer.id], 0]))))
    return replace(problem, buffers=tuple(held), capacity=draw(st.sampled_from([None, 128]))), Plan(offsets)


def cells(buffer: Buffer, offset: int) -> set[tuple[int, int]]:
    """Every moment with every byte of the memory that the buffer has then."""
    return {
        (time, offset + byte)
        for (lower, upper), (low, high) in buffer.pieces
        for time in range(lower, upper)
        for byte in range(low, high)
    }


def breaks_a_rule(problem: Problem, buffer: Buffer, offset: int) -> bool:
    """Whether a buffer breaks a rule by itself, byte by byte."""
    taken = set(range(offset, offset + buffer.size))
    if offset % buffer.alignment or buffer.offset not in (None, offset):
        return True
    if problem.capacity is not None and not taken <= set(range(problem.capacity)):
        return True
    return buffer.banks is not None and not any(
        taken <= set(range(bank * BANK, bank * BANK + BANK)) for bank in buffer.banks
    )


@given(placed())
def test_the_validator_agrees_with_a_check_of_every_byte_and_moment(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    filled = {b.id: cells(b, plan.offsets[b.id]) for b in problem.buffers}
    alone = {b.id for b in problem.buffers if breaks_a_rule(problem, b, plan.offsets[b.id])}
    clashes = {
        (left.id, right.id)
        for number, right in enumerate(problem.buffers)
        for left in problem.buffers[:number]
        if filled[left.id] & filled[right.id]
    }
    found = list(conflicts(problem, plan))
    assert {each.buffers[0] for each in found if each.rule != "overlap"} == alone
    assert {each.buffers for each in found if each.rule == "overlap"} == clashes
    for each in found:
        if each.rule == "overlap":
            assert each.time is not None
            assert each.bytes is not None
            shared = {(time, byte) for time in range(*each.time) for byte in range(*each.bytes)}
            assert shared
            assert shared <= filled[each.buffers[0]] & filled[each.buffers[1]]
    if found:
        with pytest.raises(PlanError):
            validate(problem, plan)
    else:
        validate(problem, plan)


def overlaps(problem: Problem, plan: Plan) -> list[tuple[tuple[str, str], Interval, tuple[int, int]]]:
    """All pairs of buffers that share bytes: their ids, and the first moments and the bytes; every pair is compared."""
    found: list[tuple[tuple[str, str], Interval, tuple[int, int]]] = []
    for number, right in enumerate(problem.buffers):
        for left in problem.buffers[:number]:
            if left.id not in plan.offsets or right.id not in plan.offsets:
                continue
            at, to = plan.offsets[left.id], plan.offsets[right.id]
            for (one, two), (three, four) in product(left.pieces, right.pieces):
                time = max(one[0], three[0]), min(one[1], three[1])
                bytes = max(at + two[0], to + four[0]), min(at + two[1], to + four[1])
                if time[0] < time[1] and bytes[0] < bytes[1]:
                    found.append(((left.id, right.id), time, bytes))
                    break
    return found


def sparse(seed: int) -> tuple[Problem, Plan]:
    """A larger problem of every feature, and a plan in which a few buffers or many overlap, or none have a place."""
    random = Random(seed)
    buffers: list[Buffer] = []
    for number in range(random.randint(0, 40)):
        edges = sorted(random.sample(range(40), 2 * random.randint(1, 4)))
        intervals = tuple(zip(edges[::2], edges[1::2], strict=True))
        size = random.choice([0, 1, 3, 8, 17])
        windows: tuple[Window, ...] = ()
        if size and random.random() < 0.4:
            cuts = [sorted(random.sample(range(size + 1), 2)) for _ in intervals]
            windows = tuple((low, high) for low, high in cuts)
        banks = random.choice([None, None, (0, 3)])
        fixed = random.choice([None, None, None, 8])
        buffers.append(Buffer(f"b{number}", intervals, size, random.choice([1, 4]), fixed, windows, banks))
    reach = random.choice([20, 200, 2000])
    offsets = {b.id: random.randint(-2, reach) // 4 * 4 for b in buffers if random.random() < 0.98}
    random.shuffle(buffers)
    return Problem(tuple(buffers), random.choice([None, reach]), bank_size=64), Plan(offsets)


def overlaps_agree(problem: Problem, plan: Plan) -> int:
    """Hold the validator against every pair, the order of what it says included; returns how many overlap."""
    found = [(each.buffers, each.time, each.bytes) for each in conflicts(problem, plan) if each.rule == "overlap"]
    expected = overlaps(problem, plan)
    assert found == expected
    return len(expected)


@given(placed())
def test_the_validator_says_of_overlaps_what_comparing_every_pair_says(case: tuple[Problem, Plan]) -> None:
    overlaps_agree(*case)


def test_the_validator_agrees_with_every_pair_on_larger_problems() -> None:
    counts = [overlaps_agree(*sparse(seed)) for seed in range(150)]
    # Valid plans, plans with few faults and plans with many.
    assert counts.count(0) > 10
    assert sum(0 < count < 4 for count in counts) > 10
    assert sum(count > 40 for count in counts) > 10


@given(
    problems(banks=False),
    st.sampled_from([None, 0, 16, 80]),
    st.sampled_from([n for n in planner_names() if n != "cp-sat"]),
)
@examples(60)
def test_a_plan_is_valid_and_not_below_the_bound(problem: Problem, fixed: int | None, name: str) -> None:
    held = tuple(replace(buffer, offset=fixed) for buffer in problem.buffers[:1])
    problem = replace(problem, buffers=held + problem.buffers[1:])
    outcome = solve(problem, name, Limits(steps=200))
    assert outcome.plan is not None
    taken = height(problem, outcome.plan)
    assert lower_bound(problem) <= outcome.bound <= taken
    validate(replace(problem, capacity=taken), outcome.plan)
    if taken:
        with pytest.raises(PlanError):
            validate(replace(problem, capacity=taken - 1), outcome.plan)


@given(problems(most=6), st.sampled_from([name for name in planner_names() if name != "cp-sat"]))
@examples(60)
def test_what_planners_find_keeps_to_the_banks(problem: Problem, name: str) -> None:
    if name.startswith("color-") and any(buffer.banks is not None for buffer in problem.buffers):
        # A partition has no bank.
        with pytest.raises(PlanError, match=name):
            solve(problem, name)
        return
    # Whatever comes back is checked; where the banks are full, nothing does.
    outcome = solve(problem, name, Limits(steps=200))
    if outcome.plan is not None:
        assert not outcome.infeasible
        assert outcome.bound <= height(problem, outcome.plan)


@given(problems(most=6), st.sampled_from([None, 0, 16, 80]))
@examples(40)
def test_two_ways_to_search_exhaustively_agree(problem: Problem, fixed: int | None) -> None:
    pytest.importorskip("ortools")
    held = tuple(replace(buffer, offset=fixed, banks=None) for buffer in problem.buffers[:1])
    problem = replace(problem, buffers=held + problem.buffers[1:])
    one, other = solve(problem, "cp-sat"), solve(problem, "exact")
    if one.plan is None or other.plan is None:
        # The banks are full, whatever the capacity.
        assert one.plan is None
        assert other.plan is None
        assert one.infeasible
        return
    assert height(problem, one.plan) == one.bound == height(problem, other.plan)
    lowest = replace(problem, capacity=one.bound)
    assert not solve(lowest, "cp-sat").infeasible
    if one.bound > lower_bound(problem):
        below = replace(problem, capacity=one.bound - 1)
        assert solve(below, "cp-sat").infeasible
        assert solve(below, "exact").infeasible


@given(problems())
def test_the_lower_bound_is_at_least_the_largest_sum_over_all_moments(problem: Problem) -> None:
    sums = [sum(len({c for c in cells(b, 0) if c[0] == time}) for b in problem.buffers) for time in range(END)]
    assert max((alive for _, alive in live_sums(problem)), default=0) == max(sums)
    assert lower_bound(problem) >= max(sums)


@given(problems(), st.data())
def test_a_problem_and_its_plan_survive_csv(problem: Problem, data: st.DataObject) -> None:
    offsets = {b.id: data.draw(st.integers(0, 9)) * b.alignment for b in problem.buffers}
    assert parse_csv(write_csv(problem, Plan(offsets)), bank_size=BANK) == (problem, Plan(offsets))
    assert parse_csv(write_csv(problem), bank_size=BANK) == (problem, Plan())


@examples(200)
@given(problems(), st.sampled_from(["first-fit-by-size", "portfolio"]), st.data())
def test_smaller_buffers_settle_into_a_valid_plan_that_ends_nowhere_higher(
    problem: Problem, name: str, data: st.DataObject
) -> None:
    plan = solve(problem, name).plan
    if plan is None:
        return
    sizes = {each.id: data.draw(st.integers(0, each.size)) for each in problem.buffers}
    smaller = at_sizes(problem, sizes)
    found = settled(problem, plan, sizes)
    validate(smaller, found)
    for each, small in zip(problem.buffers, smaller.buffers, strict=True):
        assert found.offsets[each.id] + small.size <= plan.offsets[each.id] + each.size
    larger = {each.id: each.size + 1 for each in problem.buffers}
    if larger:
        with pytest.raises(PlanError, match="has at most"):
            settled(problem, plan, larger)
