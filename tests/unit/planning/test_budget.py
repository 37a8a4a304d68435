# SPDX-License-Identifier: Apache-2.0
"""Steps and seconds, handed out in slices."""

from __future__ import annotations

import pytest

from penstock.passes.planning import budget
from penstock.passes.planning.budget import Budget
from penstock.passes.planning.problem import Limits


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(budget, "perf_counter", found)
    return found


def test_steps_are_handed_out_until_none_are_left() -> None:
    limited = Budget(Limits(steps=25), default=100)
    slices: list[int] = []
    while not limited.over:
        slices.append(limited.slice(10))
        limited.spend(slices[-1])
    assert slices == [10, 10, 5]
    assert (limited.slice(10), limited.spent) == (0, 25)


def test_the_default_counts_only_without_any_limit() -> None:
    assert Budget(Limits(), default=7).slice(10) == 7
    assert Budget(Limits(steps=9), default=7).slice(10) == 9
    assert Budget(Limits(seconds=60.0), default=7).steps is None
    assert Budget(Limits(steps=0), default=7).over


def test_slices_are_cut_to_the_time_that_is_left(clock: Clock) -> None:
    limited = Budget(Limits(seconds=1.0), default=7)
    assert limited.slice(10**9) == budget.FIRST_TIMED_SLICE
    limited.spend(1_000_000)
    clock.now = 0.5
    assert limited.slice(10**9) == 2_000_000 * budget.SLICE_SECONDS
    clock.now = 0.99
    assert limited.slice(10**9) == pytest.approx(1_000_000 / 0.99 * 0.01, rel=0.01)
    clock.now = 1.0
    assert limited.over
    assert limited.slice(10) == 0


def test_a_slice_is_never_empty_while_something_is_left(clock: Clock) -> None:
    limited = Budget(Limits(seconds=1.0), default=7)
    limited.spend(1)
    clock.now = 0.9
    assert limited.slice(10) == 1
