# SPDX-License-Identifier: Apache-2.0
"""Planners by name: those that are there, those of other packages, and what is checked of all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.problem import Buffer, Limits, Problem, height, lower_bound
from penstock.passes.planning.registry import DEFAULT_PLANNER, planner_names, solve


def buffer(id: str, lower: int, upper: int, size: int, offset: int | None = None) -> Buffer:
    return Buffer(id, ((lower, upper),), size, 1, offset)


LADDER = Problem(
    (
        buffer("a", 0, 3, 4),
        buffer("b", 2, 6, 4),
        buffer("c", 5, 9, 4),
        buffer("d", 8, 12, 4),
        buffer("e", 0, 12, 2),
    )
)
"""Four buffers of which neighbours meet, and one that meets all: 10 bytes are alive at most."""


@pytest.mark.parametrize("name", planner_names())
def test_every_planner_gives_a_plan(name: str) -> None:
    if name == "cp-sat":
        pytest.importorskip("ortools")
    outcome = solve(LADDER, name)
    assert outcome.plan is not None
    assert lower_bound(LADDER) <= outcome.bound <= height(LADDER, outcome.plan)


def test_the_default_planner_is_there() -> None:
    assert DEFAULT_PLANNER in planner_names()
    outcome = solve(LADDER)
    assert outcome.plan is not None
    assert height(LADDER, outcome.plan) == 10


def test_an_unknown_planner_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match='no planner is called "first-fit-by-sise"') as caught:
        solve(LADDER, "first-fit-by-sise")
    assert 'did you mean "first-fit-by-size"?' in caught.value.notes


def test_places_given_by_hand_that_overlap_are_the_fault_of_the_hand() -> None:
    problem = Problem((buffer("a", 0, 2, 8, offset=0), buffer("b", 1, 3, 8, offset=4), buffer("c", 0, 1, 8)))
    with pytest.raises(UserError, match="the offsets given by hand are not a plan"):
        solve(problem, "first-fit-by-size")


PACKAGE = '''
import itertools
from penstock.passes.planning.problem import Outcome, Plan

def stacked(problem, limits):
    """One on top of the other."""
    ends = itertools.accumulate((b.size for b in problem.buffers), initial=0)
    return Outcome(Plan({b.id: end for b, end in zip(problem.buffers, ends)}), steps=limits.seed)

def broken(problem, limits):
    """All at the bottom."""
    return Outcome(Plan({b.id: 0 for b in problem.buffers}))
'''

ENTRY_POINTS = """
[penstock.planners]
stacked = planners_of_a_test:stacked
broken = planners_of_a_test:broken
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers two planners."""
    about = tmp_path / "planners_of_a_test-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planners-of-a-test\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "planners_of_a_test.py").write_text(PACKAGE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()


@pytest.mark.usefixtures("plugins")
def test_a_package_can_offer_a_planner_which_gets_the_limits() -> None:
    assert "stacked" in planner_names()
    outcome = solve(LADDER, "stacked", Limits(seed=7))
    assert outcome.plan is not None
    assert (height(LADDER, outcome.plan), outcome.steps) == (18, 7)


def test_the_planners_of_a_package_that_is_gone_are_gone() -> None:
    assert "stacked" not in planner_names()


@pytest.mark.usefixtures("plugins")
def test_a_plan_that_exceeds_the_capacity_is_returned_as_the_best_there_is() -> None:
    outcome = solve(Problem(LADDER.buffers, 12), "stacked")
    assert outcome.plan is not None


@pytest.mark.usefixtures("plugins")
def test_a_plan_of_a_package_that_is_not_valid_is_refused() -> None:
    with pytest.raises(UserError, match='the planner "broken" returned a plan that is not valid: buffers a'):
        solve(LADDER, "broken")
