# SPDX-License-Identifier: Apache-2.0
"""The exact planner against a search through all offsets, on problems small enough for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning.bounds import strong_lower_bound
from penstock.passes.planning.exact import Minimiser, Search, Switches, Verdict, plan
from penstock.passes.planning.instance import compact
from penstock.passes.planning.native import is_available
from penstock.passes.planning.problem import Buffer, Interval, Limits, Problem, height

pytestmark = pytest.mark.skipif(not is_available(), reason="needs a C compiler")

MOMENTS = 5
BANK = 6
STEPS = 400_000

SWITCHES = st.builds(Switches, **{field.name: st.booleans() for field in fields(Switches)})


@st.composite
def lifetimes(draw: st.DrawFn) -> tuple[Interval, ...]:
    ends = sorted(draw(st.lists(st.integers(0, MOMENTS), min_size=2, max_size=4, unique=True)))
    return tuple(zip(ends[::2], ends[1::2], strict=False))


@st.composite
def buffers(draw: st.DrawFn, number: int) -> Buffer:
    """A buffer with any of the features."""
    intervals = draw(lifetimes())
    size = draw(st.integers(0, 5))
    alignment = draw(st.sampled_from((1, 1, 2, 3, 4)))
    banks = None
    offset = None
    windows: tuple[Interval, ...] = ()
    feature = draw(st.sampled_from(("none", "none", "fixed", "banks", "windows")))
    if feature == "fixed":
        offset = alignment * draw(st.integers(0, 3))
    elif feature == "banks":
        banks = tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)))
    elif feature == "windows" and size:
        lows = [draw(st.integers(0, size - 1)) for _ in intervals]
        windows = tuple((low, draw(st.integers(low + 1, size))) for low in lows)
    return Buffer(str(number), intervals, size, alignment, offset, windows, banks)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    count = draw(st.integers(1, 4))
    return Problem(tuple(draw(buffers(number)) for number in range(count)), bank_size=BANK)


def collide(one: Buffer, at: int, other: Buffer, there: int) -> bool:
    """By the definition: a byte that belongs to both at one moment."""
    for index, (lower, upper) in enumerate(one.intervals):
        for place, (their_lower, their_upper) in enumerate(other.intervals):
            low, high = one.windows[index] if one.windows else (0, one.size)
            their_low, their_high = other.windows[place] if other.windows else (0, other.size)
            moments = range(max(lower, their_lower), min(upper, their_upper))
            bytes_ = range(max(at + low, there + their_low), min(at + high, there + their_high))
            if moments and bytes_:
                return True
    return False


def may_lie(buffer: Buffer, at: int, memory: int) -> bool:
    banks = buffer.banks
    inside = banks is None or any(bank * BANK <= at and at + buffer.size <= (bank + 1) * BANK for bank in banks)
    fixed = buffer.offset is None or buffer.offset == at
    return inside and fixed and at % buffer.alignment == 0 and at + buffer.size <= memory


def fits(problem: Problem, memory: int, offsets: tuple[int, ...] = ()) -> bool:
    """Whether any offsets do, by trying them all."""
    if len(offsets) == len(problem.buffers):
        return True
    buffer = problem.buffers[len(offsets)]
    return any(
        fits(problem, memory, (*offsets, at))
        for at in range(memory + 1)
        if may_lie(buffer, at, memory)
        and not any(collide(buffer, at, problem.buffers[i], there) for i, there in enumerate(offsets))
    )


def is_plan(problem: Problem, offsets: Mapping[str, int], memory: int) -> bool:
    placed = [(buffer, offsets[buffer.id]) for buffer in problem.buffers]
    return all(may_lie(buffer, at, memory) for buffer, at in placed) and not any(
        collide(*one, *other) for index, one in enumerate(placed) for other in placed[:index]
    )


@examples(80)
@given(problems(), SWITCHES, st.integers(0, 3), st.integers(0, 14))
def test_it_finds_a_plan_if_and_only_if_there_is_one(
    problem: Problem, switches: Switches, seed: int, memory: int
) -> None:
    search = Search(compact(problem), memory, switches, seed)
    verdict = search.advance(STEPS)
    assert verdict is (Verdict.FOUND if fits(problem, memory) else Verdict.IMPOSSIBLE)
    if verdict is Verdict.FOUND:
        assert is_plan(problem, search.plan.offsets, memory)


@examples(60)
@given(problems())
def test_its_peak_is_the_least_and_no_bound_is_above_it(problem: Problem) -> None:
    least = next((memory for memory in range(26) if fits(problem, memory)), None)
    outcome = plan(problem, Limits(steps=STEPS))
    if least is None:
        assert outcome.infeasible
        assert outcome.plan is None
        return
    assert outcome.plan is not None
    assert height(problem, outcome.plan) == outcome.bound == least
    assert strong_lower_bound(problem, compact(problem)) <= least
    assert not plan(replace(problem, capacity=least), Limits(steps=STEPS)).infeasible
    if least:
        assert plan(replace(problem, capacity=least - 1), Limits(steps=STEPS)).infeasible


@examples(60)
@given(problems(), SWITCHES, st.integers(0, 3), st.integers(0, 3), st.integers(1, 40))
def test_slices_do_not_change_what_is_found(
    problem: Problem, switches: Switches, seed: int, above: int, slice: int
) -> None:
    instance = compact(problem)
    memory = strong_lower_bound(problem, instance) + above
    sliced, whole = (Search(instance, memory, switches, seed) for _ in range(2))
    for _ in range(30):
        sliced.advance(slice)
    while whole.verdict is Verdict.OPEN and whole.steps < sliced.steps:
        whole.advance(sliced.steps - whole.steps)
    seen = [(search.verdict, search.steps, search.nodes, search.runs) for search in (sliced, whole)]
    assert seen[0] == seen[1]
    if sliced.verdict is Verdict.FOUND:
        assert sliced.plan == whole.plan


@examples(30)
@given(problems(), SWITCHES)
def test_no_switch_changes_the_answer(problem: Problem, switches: Switches) -> None:
    limits = Limits(steps=STEPS)
    usual, other = Minimiser(problem, limits).run(), Minimiser(problem, limits, switches).run()
    assert (usual.bound, usual.infeasible) == (other.bound, other.infeasible)
    assert (usual.plan is None) == (other.plan is None)
