"""The least that has to go off chip, by integer programming: HiGHS solves the model, a planner finds the places."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from math import ceil, isfinite
from typing import Any

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.on_chip.model import Model
from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem
from penstock.passes.planning.on_chip.refine import Condition, Found, refine
from penstock.passes.planning.on_chip.registry import Options
from penstock.passes.planning.problem import PlanError

MAX_NODES = 50_000
"""After so many it returns the best that it has. Networks need a handful."""
TOLERANCE = 1e-6
"""By how much HiGHS may be off a whole number."""


class Highs:
    """A model in HiGHS, to which rows can be added. One thread, so that the same model has the same solution."""

    def __init__(self, model: Model, *, relaxed: bool = False):
        try:
            self._highspy: Any = importlib.import_module("highspy")  # is there with the extra only, and has no types
        except ImportError:
            raise UserError(
                'the strategy "milp" needs HiGHS, which is not installed',
                notes=["pip install 'penstock[milp]'"],
            ) from None
        highspy = self._highspy
        self._model, self._relaxed = model, relaxed
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(model.costs), len(model.rows)
        program.col_cost_ = [float(each) for each in model.costs]
        program.col_lower_ = [float(each) for each in model.lower]
        program.col_upper_ = [float(each) for each in model.upper]
        program.row_lower_ = [row.lower for row in model.rows]
        program.row_upper_ = [row.upper for row in model.rows]
        program.offset_ = float(model.constant)
        starts = [0]
        for row in model.rows:
            starts.append(starts[-1] + len(row.terms))
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = starts
        program.a_matrix_.index_ = [column for row in model.rows for column in row.terms]
        program.a_matrix_.value_ = [float(each) for row in model.rows for each in row.terms.values()]
        if not relaxed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            program.integrality_ = [kinds[each] for each in model.integral]
        self._highs: Any = highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.5),
            ("mip_max_nodes", MAX_NODES),
        ):
            self._highs.setOptionValue(name, value)
        self._highs.passModel(program)

    def forbid(self, conditions: Sequence[Condition]) -> None:
        """Add a row: not all of these hold."""
        columns = [
            (self._model.kept if each.what == "kept" else self._model.resident)[each.tensor][each.index]
            for each in conditions
        ]
        coefficients = [-1.0 if each.what == "streamed" else 1.0 for each in conditions]
        limit = sum(each.what != "streamed" for each in conditions) - 1.0
        self._highs.addRow(-self._highs.getInfinity(), limit, len(columns), columns, coefficients)

    def solve(self, seconds: float | None) -> Found:
        """The best solution, or the best in time; raises PlanError if there is none."""
        if seconds is not None:
            self._highs.setOptionValue("time_limit", self._highs.getRunTime() + seconds)
        self._highs.run()
        status, kinds = self._highs.getModelStatus(), self._highspy.HighsModelStatus
        if status == kinds.kInfeasible:
            raise PlanError("what has to be on chip does not fit")
        information = self._highs.getInfo()
        # Without an integral column HiGHS solves a linear program, which has no such bound.
        linear = self._relaxed or not any(self._model.integral)
        value = information.objective_function_value if linear else information.mip_dual_bound
        bound = ceil(value - TOLERANCE) * self._model.unit if isfinite(value) else 0
        if self._relaxed or information.primal_solution_status != self._highspy.SolutionStatus.kSolutionStatusFeasible:
            return Found(None, bound)
        return Found(self._model.spans(list(self._highs.getSolution().col_value)), bound)


def relaxed_bound(problem: OnChipProblem) -> int:
    """The bytes that no answer can do without, by the linear relaxation of the model."""
    return Highs(Model.of(problem), relaxed=True).solve(None).bound


def milp(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """
    The fewest bytes over the edge of the chip, by integer programming, packed and cut only where packing fails.

    See `problem.py` for the model and `refine` for what is proved. Raises UserError without HiGHS, and PlanError if
    what has to be on chip does not fit.
    """
    return refine(problem, Highs(Model.of(problem)), options)
