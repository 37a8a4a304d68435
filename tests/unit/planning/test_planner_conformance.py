# SPDX-License-Identifier: Apache-2.0
"""The conformance suite for planners: it passes ours, and each kind of broken one is told its rule and where."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.passes.planning import one_pass
from penstock.passes.planning.conformance.buffer_problems import FAMILIES, random_case, random_cases, smaller_cases
from penstock.passes.planning.conformance.planners import RULES, check_planner, figures_table
from penstock.passes.planning.problem import Buffer, Limits, Outcome, Plan, PlanError, Problem, lower_bound, validate
from penstock.passes.planning.registry import planner

if TYPE_CHECKING:
    from tests.conftest import Command

first_fit = one_pass.first_fit_by_size


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_known_of_a_problem_is_true(family: str) -> None:
    for number in range(20):
        case = random_case(family, Random(number))
        if case.witness is None:
            assert case.problem.capacity is not None
            assert lower_bound(case.problem) > case.problem.capacity
        else:
            validate(case.problem, case.witness)
        for smaller in list(smaller_cases(case))[:40]:
            if smaller.witness is not None:
                validate(smaller.problem, smaller.witness)


def test_problems_have_the_features_of_their_families() -> None:
    buffers: dict[str, list[Buffer]] = {family: [] for family in FAMILIES}
    for case in random_cases(200):
        buffers[case.family] += case.problem.buffers
    assert any(len(b.intervals) > 1 for b in buffers["gaps"])
    assert any(b.windows for b in buffers["windows"])
    assert any(b.alignment > 1 for b in buffers["aligned"])
    assert any(b.banks for b in buffers["banks"])
    assert any(b.offset is not None for b in buffers["fixed"])
    assert any(b.hint is not None for b in buffers["hints"])
    assert [*random_cases(20, 3)] == [*random_cases(20, 3)] != [*random_cases(20, 4)]


@pytest.mark.parametrize("name", ["first-fit-by-size", "best-fit-by-start", "color-by-size", "portfolio"])
def test_ours_conform(name: str) -> None:
    report = check_planner(planner(name), problems=40)
    assert report.fault is None
    assert {family for family, figures in report.families.items() if figures.problems == 4} == {*FAMILIES}
    infeasible = report.families["infeasible"]
    assert infeasible.fits == 0
    assert infeasible.proved == (4 if name == "portfolio" else 0)
    assert figures_table(report)[1][:2] == ("plain", "4")


def on_the_floor(problem: Problem, limits: Limits) -> Outcome:
    return Outcome(Plan({buffer.id: buffer.offset or 0 for buffer in problem.buffers}))


def forgets_alignment(problem: Problem, limits: Limits) -> Outcome:
    plain = replace(problem, buffers=tuple(replace(buffer, alignment=1) for buffer in problem.buffers))
    return replace(first_fit(plain, limits), bound=0)


def boasts(problem: Problem, limits: Limits) -> Outcome:
    found = first_fit(problem, limits)
    return replace(found, bound=found.bound + 1, plan=None)


def gives_up(problem: Problem, limits: Limits) -> Outcome:
    """Says that nothing fits a memory that is small."""
    small = problem.capacity is not None and problem.capacity < 200
    return replace(first_fit(problem, limits), infeasible=small)


calls: list[Problem] = []


def wanders(problem: Problem, limits: Limits) -> Outcome:
    calls.append(problem)
    found = first_fit(problem, limits)
    return replace(found, steps=len(calls) % 2)


def goes_on(problem: Problem, limits: Limits) -> Outcome:
    return replace(first_fit(problem, limits), steps=20_000)


def ignores_the_limit(problem: Problem, limits: Limits) -> Outcome:
    return replace(first_fit(problem, limits), steps=1 if limits.steps == 1 else 5_000)


def has_nothing(problem: Problem, limits: Limits) -> Outcome:
    return Outcome(None)


def is_choosy(problem: Problem, limits: Limits) -> Outcome:
    raise PlanError("not today")


def crashes(problem: Problem, limits: Limits) -> Outcome:
    return Outcome(Plan({buffer.id: 0 for buffer in problem.buffers if buffer.windows[0]}))


def answers_with_offsets(problem: Problem, limits: Limits) -> object:
    return {buffer.id: 0 for buffer in problem.buffers}


BROKEN: list[tuple[Callable[[Problem, Limits], object], str, str, int]] = [
    (on_the_floor, "valid", "its plan is not valid: buffers b", 2),
    (forgets_alignment, "valid", "is not aligned to", 2),
    (boasts, "bound", "it proves that 1 bytes are needed, and a plan takes 0", 0),
    (gives_up, "bound", "it proves that no plan fits, and one takes", 0),
    (wanders, "deterministic", "asked twice with seed 0 it gave two outcomes", 0),
    (goes_on, "steps", "it took 20,000 steps, and the limit was 1", 0),
    (ignores_the_limit, "steps", "it took 5,000 steps, and the limit was 2,000", 0),
    (has_nothing, "valid", "of 60 problems it has a plan for none", 0),
    (is_choosy, "result", "it does not take plain lifetimes and sizes: not today", 0),
    (crashes, "result", "it raised IndexError: tuple index out of range", 1),
    (answers_with_offsets, "result", "it returned a dict, not an Outcome", 0),
]


@pytest.mark.parametrize(("broken", "rule", "message", "buffers"), BROKEN, ids=[each[0].__name__ for each in BROKEN])
def test_a_broken_planner_is_told_the_rule_and_the_smallest_problem(
    broken: Callable[[Problem, Limits], Outcome], rule: str, message: str, buffers: int
) -> None:
    fault = check_planner(broken, problems=60).fault
    assert fault is not None
    assert (fault.rule, message in fault.message) == (rule, True), fault
    assert rule in RULES
    # A line about the capacity, the head, and a line a buffer.
    assert len(fault.problem.splitlines()) == (2 + buffers if fault.problem else 0), fault.problem


def test_the_command_prints_a_table_or_the_fault(
    penstock: Command, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = penstock("test-planner", "first-fit-by-size", "--problems", "10")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[-1] == (
        '"first-fit-by-size" keeps every rule: result, valid, bound, deterministic, steps'
    )
    folder = tmp_path_factory.mktemp("plugins")
    about = folder / "planners_to_test-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planners-to-test\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[penstock.planners]\nfloor = planners_to_test:plan\n")
    (folder / "planners_to_test.py").write_text(
        "from penstock.passes.planning.problem import Outcome, Plan\n\n"
        "def plan(problem, limits):\n    return Outcome(Plan({b.id: b.offset or 0 for b in problem.buffers}))\n"
    )
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    importlib.invalidate_caches()
    done = penstock("test-planner", "floor")
    assert (done.status, done.out) == (1, "")
    assert 'error: the planner "floor" breaks the rule "valid": its plan is not valid: buffers b' in done.err
    problem = Path("problem.csv")
    problem.write_text(done.err[done.err.index("id,lower") :])
    # What is printed is a problem that `penstock plan` reads.
    assert penstock("plan", problem, "-q").status == 0


def test_each_problem_is_told_of_when_it_is_begun() -> None:
    told: list[tuple[int, int]] = []
    check_planner(
        planner("first-fit-by-size"), problems=3, begun=lambda number, total, what: told.append((number, total))
    )
    assert told == [(0, 3), (1, 3), (2, 3)]
