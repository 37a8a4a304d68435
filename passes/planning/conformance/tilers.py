# SPDX-License-Identifier: Apache-2.0
"""
Whether a tiler keeps to its contract, on kernels of networks and on random problems.

A researcher's own test needs two lines:

```python
from penstock.passes.planning.conformance.tilers import check_tiler

assert check_tiler(my_tiler).fault is None
```

`penstock test-tiler NAME` runs it on an installed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.conformance.shrinking import Violation, smallest
from penstock.passes.planning.conformance.tile_problems import (
    least_bytes,
    least_cycles,
    network_problems,
    problem_text,
    random_problems,
    smaller_problems,
)
from penstock.passes.planning.tile_problem import NoTile, TileOperand, TileProblem, tile_sizes
from penstock.passes.planning.tile_validation import TilePlanError, checked_plan
from penstock.passes.planning.tilers.registry import DEFAULT_TILER, Tiler, plan_tile
from penstock.passes.planning.tiling import DoesNotFit, TilePlan, overflow

RULES = {
    "result": "it returns a TilePlan, and raises nothing but DoesNotFit and NoTile, for what it has no plan for",
    "valid": "its plan is one: legal sizes, loops in a legal order, and what fits the scopes with its slots",
    "refusal": "what no tile fits it says so of; and it has a plan for some problem",
    "deterministic": "for equal problems it returns equal plans, whatever their operands are called",
    "pure": "it leaves the problem as it is",
}
"""What is checked, by the name under which a fault is reported."""
RANDOM_PROBLEMS = 60
"""How many random problems are posed by default."""

Refusal = DoesNotFit | NoTile


@dataclass(frozen=True)
class TilerFigures:
    """A problem, and the plans for it; None where there is none."""

    name: str
    plan: TilePlan | None
    usual: TilePlan | None
    """That of the tiler that is used by default."""
    least_cycles: int
    least_bytes: int


@dataclass
class TilerReport:
    """The figures of every problem that is no random one, how many were posed in all, and the first fault, if any."""

    figures: list[TilerFigures] = field(default_factory=list[TilerFigures])
    posed: int = 0
    planned: int = 0
    fault: Violation | None = None


def check_tiler(
    tiler: Tiler,
    *,
    problems: Iterable[tuple[str, TileProblem]] | None = None,
    random: int = RANDOM_PROBLEMS,
    seed: int = 0,
    begun: Callable[[int, int, str], None] = lambda number, total, what: None,
) -> TilerReport:
    """
    Pose problems to a tiler, each with a name, by default those of `network_problems`, and random ones, until one shows
    a fault, which is then made as small as it goes. `begun` is told of each, with its number from 0 and how many there
    are.
    """
    report = TilerReport()
    named = [*(network_problems() if problems is None else problems)]
    for number, (name, problem) in enumerate([*named, *random_problems(random, seed)]):
        begun(number, len(named) + random, name)
        found = examine(tiler, problem)
        if isinstance(found, Violation):
            report.fault = smallest(problem, found, smaller_problems, partial(examine, tiler), problem_text)
            return report
        report.posed += 1
        report.planned += isinstance(found, TilePlan)
        if number < len(named):
            plan, usual = (each if isinstance(each, TilePlan) else None for each in (found, _usual(problem)))
            report.figures.append(TilerFigures(name, plan, usual, least_cycles(problem), least_bytes(problem)))
    if report.posed and not report.planned:
        report.fault = Violation("refusal", f"of {report.posed} problems it has a plan for none")
    return report


def _usual(problem: TileProblem) -> TilePlan | None:
    try:
        return plan_tile(problem, DEFAULT_TILER)
    except (DoesNotFit, NoTile):
        return None


def examine(tiler: Tiler, problem: TileProblem) -> TilePlan | Refusal | Violation:
    """The plan for one problem, the refusal, or the rule that is broken."""
    capacity, named = dict(problem.capacity), replace(problem, operands=_renamed(problem))
    found, again = _asked(tiler, problem), _asked(tiler, named)
    if isinstance(found, Violation):
        return found
    if dict(problem.capacity) != capacity:
        return Violation("pure", "it changes the bytes of the scopes in the problem")
    if isinstance(found, TilePlan) and (obstacle := _obstacle(problem)) is not None:
        return Violation("refusal", f"it has a plan where {obstacle}")
    if (one := _comparable(found)) != (other := _comparable(again)):
        return Violation("deterministic", f"asked twice it gave two answers: {one}, {other}")
    return found


def _asked(tiler: Tiler, problem: TileProblem) -> TilePlan | Refusal | Violation:
    try:
        return checked_plan(problem, tiler(problem))
    except (DoesNotFit, NoTile) as refusal:
        return refusal
    except TilePlanError as error:
        return Violation("valid", str(error))
    except UserError:
        raise
    except Exception as error:
        return Violation("result", f"it raised {type(error).__name__}: {error}")


def _renamed(problem: TileProblem) -> tuple[TileOperand, ...]:
    return tuple(replace(operand, name=f"other {number}") for number, operand in enumerate(problem.operands))


def _comparable(found: TilePlan | Refusal | Violation) -> object:
    if isinstance(found, TilePlan):
        return found.tile, found.order, dict(found.depths)
    return f"{type(found).__name__}: {found}"


def _obstacle(problem: TileProblem) -> str | None:
    """Why it is proved that no tile fits: the smallest one of every dim does not."""
    try:
        smallest = [min(tile_sizes(dim, number)) for number, dim in enumerate(problem.dims)]
        raise overflow(replace(problem, depth=None), smallest)
    except (DoesNotFit, NoTile) as fault:
        return str(fault)
    except ValueError:
        return None


def figures_table(report: TilerReport) -> list[Sequence[str]]:
    """The rows of a table for people, the head first: modelled cycles and bytes beside the least and the usual ones."""
    head = ("kernel", "tile", "cycles", "over least", "than usual", "bytes", "over least", "than usual")
    rows: list[Sequence[str]] = [head]
    for each in report.figures:
        if each.plan is None or each.plan.time is None:
            rows.append((each.name, "none", *["-"] * 6))
            continue
        cycles, usual = each.plan.time.cycles, each.usual.time if each.usual is not None else None
        by = each.usual.bytes_moved if each.usual is not None else None
        rows.append(
            (
                each.name,
                "x".join(map(str, each.plan.tile)),
                f"{cycles:,}",
                _ratio(cycles, each.least_cycles),
                _ratio(cycles, None if usual is None else usual.cycles),
                f"{each.plan.bytes_moved:,}",
                _ratio(each.plan.bytes_moved, each.least_bytes),
                _ratio(each.plan.bytes_moved, by),
            )
        )
    return rows


def _ratio(taken: int, of: int | None) -> str:
    return f"{taken / of:.2f}x" if of else "-"
