# SPDX-License-Identifier: Apache-2.0
"""
Whether a planner keeps to its contract, on random problems of which the answer is known.

A researcher's own test needs two lines:

```python
from penstock.passes.planning.conformance.planners import check_planner

assert check_planner(my_planner).fault is None
```

`penstock test-planner NAME` runs it on an installed one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.conformance.buffer_problems import BufferCase, random_cases, smaller_cases
from penstock.passes.planning.conformance.shrinking import Violation, smallest
from penstock.passes.planning.minimalloc_csv import write_csv
from penstock.passes.planning.problem import Limits, Outcome, PlanError, Problem, height, lower_bound, validate
from penstock.passes.planning.registry import Planner

RULES = {
    "result": "it returns an Outcome, and raises nothing but PlanError, for problems of a kind that it does not take; "
    "plain lifetimes and sizes it takes",
    "valid": "its plan is one, whatever the capacity; and of some problem it has a plan",
    "bound": "what it proves is true: no bound above a plan that is known, and nothing infeasible that has a plan",
    "deterministic": "the same problem, steps and seed give the same outcome",
    "steps": "it takes about as many steps as it may: at most a tenth more, beside those of a limit of 1",
}
"""What is checked, by the name under which a fault is reported."""
PROBLEMS = 200
"""How many problems are posed by default."""
STEPS = 2000
"""Steps that a planner may take for one."""
LEAST_STEPS = 10_000
"""Steps beside one for each buffer that no planner needs at the least, whatever it counts."""


@dataclass
class FamilyFigures:
    """What a planner did with the problems of a family."""

    problems: int = 0
    refused: int = 0
    """With PlanError."""
    planned: int = 0
    fits: int = 0
    """Of the plans, those that fit the capacity; without one all do."""
    proved: int = 0
    """Of the problems of which no plan fits, those that it proved to be so."""
    excess: float = 0.0
    """Of the plans, the sum of their heights over the best that is known, less one."""


@dataclass
class PlannerReport:
    """The figures of every family, and the first fault; None where there is none."""

    families: dict[str, FamilyFigures] = field(default_factory=dict[str, FamilyFigures])
    fault: Violation | None = None


def check_planner(
    planner: Planner,
    *,
    problems: int = PROBLEMS,
    seed: int = 0,
    steps: int = STEPS,
    begun: Callable[[int, int, str], None] = lambda number, total, what: None,
) -> PlannerReport:
    """
    Pose random problems to a planner until one shows a fault, which is then made as small as it goes. `begun` is told
    of each, with its number from 0 and how many there are.
    """
    report = PlannerReport()
    for number, case in enumerate(random_cases(problems, seed)):
        begun(number, problems, case.family)
        limits = Limits(steps=steps, seed=seed)
        found = _examine(planner, case, limits)
        if isinstance(found, Violation):
            report.fault = smallest(
                case,
                found,
                smaller_cases,
                lambda smaller: _examine(planner, smaller, limits),
                lambda smaller: problem_text(smaller.problem),
            )
            return report
        _count(report.families.setdefault(case.family, FamilyFigures()), case, found)
    if problems and not any(figures.planned for figures in report.families.values()):
        report.fault = Violation("valid", f"of {problems} problems it has a plan for none")
    return report


def problem_text(problem: Problem) -> str:
    """A problem as CSV, below a line with what is no column: it can be given to `penstock plan`."""
    capacity = "no capacity" if problem.capacity is None else f"capacity {problem.capacity}"
    banks = f", banks of {problem.bank_size} bytes" if any(b.banks for b in problem.buffers) else ""
    return f"# {capacity}{banks}\n{write_csv(problem)}"


def _examine(planner: Planner, case: BufferCase, limits: Limits) -> Outcome | PlanError | Violation:
    """The outcome on one problem, the refusal to take it, or the rule that is broken."""
    problem = case.problem
    outcome = _asked(planner, problem, limits)
    if isinstance(outcome, Violation):
        return outcome
    if isinstance(outcome, PlanError):
        plain = case.family == "plain"
        return Violation("result", f"it does not take plain lifetimes and sizes: {outcome}") if plain else outcome
    again = _asked(planner, problem, limits)
    if isinstance(again, Violation):
        return again
    if _comparable(again) != _comparable(outcome):
        return Violation(
            "deterministic", f"asked twice with seed {limits.seed} it gave two outcomes: {outcome}, {again}"
        )
    none, one = (_asked(planner, problem, replace(limits, steps=steps)) for steps in (0, 1))
    answers: tuple[Outcome | PlanError | Violation, ...] = (outcome, again, none, one)
    for each in answers:
        fault = _fault_in(case, each) if isinstance(each, Outcome) else each
        if isinstance(fault, Violation):
            return fault
    if isinstance(one, Outcome) and one.steps > len(problem.buffers) + LEAST_STEPS:
        return Violation("steps", f"it took {one.steps:,} steps, and the limit was 1")
    if isinstance(one, Outcome) and limits.steps is not None and outcome.steps > limits.steps * 1.1 + one.steps:
        return Violation("steps", f"it took {outcome.steps:,} steps, and the limit was {limits.steps:,}")
    return outcome


def _asked(
    planner: Callable[[Problem, Limits], object], problem: Problem, limits: Limits
) -> Outcome | PlanError | Violation:
    try:
        outcome = planner(problem, limits)
    except PlanError as refusal:
        return refusal
    except UserError:
        raise
    except Exception as error:
        return Violation("result", f"it raised {type(error).__name__}: {error}")
    if not isinstance(outcome, Outcome):
        return Violation("result", f"it returned a {type(outcome).__name__}, not an Outcome")
    return outcome


def _comparable(outcome: Outcome | PlanError) -> object:
    if isinstance(outcome, PlanError):
        return str(outcome)
    places = None if outcome.plan is None else dict(outcome.plan.offsets)
    return places, outcome.bound, outcome.infeasible, outcome.steps


def _fault_in(case: BufferCase, outcome: Outcome) -> Violation | None:
    """What is wrong with an outcome, whatever the steps it had."""
    problem, known = case.problem, case.witness_bytes
    if outcome.plan is not None:
        try:
            validate(Problem(problem.buffers, bank_size=problem.bank_size), outcome.plan)
        except PlanError as error:
            return Violation("valid", f"its plan is not valid: {error}")
        if outcome.bound > (taken := height(problem, outcome.plan)):
            return Violation(
                "bound", f"it proves that {outcome.bound} bytes are needed, and its own plan takes {taken}"
            )
    if known is None:
        return None
    if outcome.bound > known:
        return Violation("bound", f"it proves that {outcome.bound} bytes are needed, and a plan takes {known}")
    if outcome.infeasible:
        return Violation("bound", f"it proves that no plan fits, and one takes {known} bytes of {problem.capacity}")
    return None


def _count(figures: FamilyFigures, case: BufferCase, outcome: Outcome | PlanError) -> None:
    figures.problems += 1
    if isinstance(outcome, PlanError):
        figures.refused += 1
        return
    figures.proved += case.witness is None and outcome.infeasible
    if outcome.plan is None:
        return
    taken = height(case.problem, outcome.plan)
    best = max(lower_bound(case.problem), 1) if case.witness_bytes is None else min(case.witness_bytes, taken)
    figures.planned += 1
    figures.fits += case.problem.capacity is None or taken <= case.problem.capacity
    figures.excess += taken / max(best, 1) - 1


def figures_table(report: PlannerReport) -> list[Sequence[str]]:
    """The rows of a table for people, the head first."""
    rows: list[Sequence[str]] = [("problems", "posed", "refused", "planned", "fit", "proved", "over the known plan")]
    for family, figures in report.families.items():
        excess = f"{figures.excess / figures.planned:.1%}" if figures.planned else "-"
        counts = (figures.problems, figures.refused, figures.planned, figures.fits, figures.proved)
        rows.append((family, *map(str, counts), excess))
    return rows
