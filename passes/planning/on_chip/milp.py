# SPDX-License-Identifier: Apache-2.0
"""The least that has to go off chip, by integer programming: HiGHS solves the model, a planner finds the places."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, gcd, inf, isfinite
from typing import Any

from penstock.dialects.diagnostics import UserError, pip_install
from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem, RunSpans, Tensor
from penstock.passes.planning.on_chip.refine import Condition, SpaceSolution, refine
from penstock.passes.planning.on_chip.registry import Options
from penstock.passes.planning.on_chip.selection import Selection
from penstock.passes.planning.problem import PlanError

MAX_NODES = 50_000
"""After so many it returns the best that it has. Networks need a handful."""
TOLERANCE = 1e-6
"""By how much HiGHS may be off a whole number."""


Row = tuple[Mapping[int, int], float, float]
"""lower <= sum of the coefficients times their columns <= upper, as (coefficients, lower, upper)."""


@dataclass
class LinearProgram:
    """
    Minimise `constant + costs * x` over columns 0 <= x <= 1 subject to the rows.

    Costs and the rows of space are divided by what divides all of them.
    """

    problem: OnChipProblem
    costs: list[int] = field(default_factory=list[int])
    lower: list[int] = field(default_factory=list[int])
    upper: list[int] = field(default_factory=list[int])
    integral: list[bool] = field(default_factory=list[bool])
    rows: list[Row] = field(default_factory=list[Row])
    constant: int = 0
    unit: int = 1
    """Bytes of one unit of cost."""
    resident: list[list[int]] = field(default_factory=list[list[int]])
    """Of each tensor the column of each access. One that is not integral is resident where a gap beside it is kept."""
    kept: list[list[int]] = field(default_factory=list[list[int]])
    """Of each tensor the column of each gap."""

    @staticmethod
    def of(problem: OnChipProblem) -> LinearProgram:
        """The model of a problem; raises PlanError if what has to be on chip does not fit."""
        model = LinearProgram(problem)
        start = Selection(problem)  # also the check
        space: list[dict[int, int]] = [{} for _ in range(problem.steps)]
        fixed = [start.capacity - left for left in start.space]
        for tensor in problem.tensors:
            model._add(tensor, start.rounded(tensor.size), space, fixed)
        for terms, taken in zip(space, fixed, strict=True):
            left = start.capacity - taken
            negative = sum(count for count in terms.values() if count < 0)
            if sum(count for count in terms.values() if count > 0) + negative > left or negative:
                divisor = gcd(*terms.values())
                model.rows.append(({at: count // divisor for at, count in terms.items()}, -inf, left // divisor))
        model.unit = gcd(model.constant, *model.costs) or 1
        model.costs = [cost // model.unit for cost in model.costs]
        model.constant //= model.unit
        return model

    def _column(self, cost: int = 0, *, lower: bool = False, upper: bool = True, integral: bool = True) -> int:
        self.costs.append(cost)
        self.lower.append(int(lower))
        self.upper.append(int(upper))
        self.integral.append(integral)
        return len(self.costs) - 1

    def _at_least(self, terms: Mapping[int, int], bound: int) -> None:
        self.rows.append((terms, bound, inf))

    def _add(self, tensor: Tensor, size: int, space: list[dict[int, int]], fixed: list[int]) -> None:
        """The columns and rows of one tensor; what it takes goes into `space` and `fixed`."""
        accesses = tensor.accesses
        last = len(accesses) - 1
        allowed = [access.may_reside for access in accesses]
        kept = [self._column(-tensor.moved, upper=allowed[index] and allowed[index + 1]) for index in range(last)]
        writes = [tensor.writes(index) for index in range(last + 1)]
        resident: list[int] = []
        for index, access in enumerate(accesses):
            streamed = tensor.streamed(index)
            fill = tensor.moved if index > 0 or tensor.source else 0
            follows = not access.staging and access.may_stream and streamed <= tensor.moved and not any(writes[1:])
            follows = follows and (fill > 0 or last > 0 or tensor.output)
            self.constant += streamed
            column = self._column(
                fill - streamed, lower=not access.may_stream, upper=access.may_reside, integral=not follows
            )
            resident.append(column)
            for gap in range(max(index - 1, 0), min(index + 1, last)):
                self._at_least({column: 1, kept[gap]: -1}, 0)
            terms = space[access.step]
            terms[column] = terms.get(column, 0) + size - access.staging
            fixed[access.step] += access.staging
        for index, gap in enumerate(kept):
            for step in range(accesses[index].step + 1, accesses[index + 1].step):
                space[step][gap] = size
        self.resident.append(resident)
        self.kept.append(kept)
        if any(writes[1:]):
            self._write_back_each_run(tensor, writes, resident, kept)
        elif writes[0]:
            # Written once: written back unless everything is kept.
            back = self._column(tensor.moved, integral=False)
            for gap in kept:
                self._at_least({back: 1, resident[0]: -1, gap: 1}, 0)
            if tensor.output:
                self._at_least({back: 1, resident[0]: -1}, 0)

    def _write_back_each_run(self, tensor: Tensor, writes: list[bool], resident: list[int], kept: list[int]) -> None:
        """A tensor that is written more than once: each run that writes it is written back."""
        newer: int | None = None
        for index, column in enumerate(resident):
            before, newer = newer, self._column(integral=False)
            if writes[index]:
                self._at_least({newer: 1, column: -1}, 0)
            elif before is not None:
                self._at_least({newer: 1, before: -1, kept[index - 1]: -1}, -1)
            if index < len(kept) or tensor.output:
                back = self._column(tensor.moved, integral=False)
                self._at_least({back: 1, newer: -1} | ({kept[index]: 1} if index < len(kept) else {}), 0)

    def spans(self, values: Sequence[float]) -> list[RunSpans]:
        """The runs that a solution stands for, without those that save nothing."""
        found: list[RunSpans] = []
        for resident, kept in zip(self.resident, self.kept, strict=True):
            keeps = [values[column] > 0.5 for column in kept]
            beside = [
                any(keeps[max(index - 1, 0) : index + 1])
                or (values[column] > 0.5 and self.integral[column])
                or self.lower[column] == 1
                for index, column in enumerate(resident)
            ]
            spans: list[tuple[int, int]] = []
            for index, here in enumerate(beside):
                if here and index and keeps[index - 1]:
                    spans[-1] = (spans[-1][0], index)
                elif here:
                    spans.append((index, index))
            found.append(tuple(spans))
        return found


class Highs:
    """A model in HiGHS, to which rows can be added. One thread, so that the same model has the same solution."""

    def __init__(self, model: LinearProgram):
        try:
            self._highspy: Any = importlib.import_module("highspy")  # is there with the extra only, and has no types
        except ImportError:
            notes = [pip_install("milp")]
            raise UserError('the strategy "milp" needs HiGHS, which is not installed', notes=notes) from None
        highspy = self._highspy
        self._model = model
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(model.costs), len(model.rows)
        program.col_cost_ = [float(each) for each in model.costs]
        program.col_lower_ = [float(each) for each in model.lower]
        program.col_upper_ = [float(each) for each in model.upper]
        program.row_lower_ = [lower for _, lower, _ in model.rows]
        program.row_upper_ = [upper for _, _, upper in model.rows]
        program.offset_ = float(model.constant)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = list(accumulate((len(terms) for terms, _, _ in model.rows), initial=0))
        program.a_matrix_.index_ = [column for terms, _, _ in model.rows for column in terms]
        program.a_matrix_.value_ = [float(each) for terms, _, _ in model.rows for each in terms.values()]
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

    def solve(self, seconds: float | None) -> SpaceSolution:
        """The best solution, or the best in time; raises PlanError if there is none."""
        if seconds is not None:
            self._highs.setOptionValue("time_limit", self._highs.getRunTime() + seconds)
        self._highs.run()
        status, kinds = self._highs.getModelStatus(), self._highspy.HighsModelStatus
        if status == kinds.kInfeasible:
            raise PlanError("what has to be on chip does not fit")
        information = self._highs.getInfo()
        # Without an integral column HiGHS solves a linear program, which has no such bound.
        value = information.mip_dual_bound if any(self._model.integral) else information.objective_function_value
        bound = ceil(value - TOLERANCE) * self._model.unit if isfinite(value) else 0
        if information.primal_solution_status != self._highspy.SolutionStatus.kSolutionStatusFeasible:
            return SpaceSolution(None, bound)
        return SpaceSolution(self._model.spans(list(self._highs.getSolution().col_value)), bound)


def milp(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """
    The fewest bytes over the edge of the chip, by integer programming, packed and cut only where packing fails.

    See `problem.py` for the model and `refine` for what is proved. Raises UserError without HiGHS, and PlanError if
    what has to be on chip does not fit.
    """
    return refine(problem, Highs(LinearProgram.of(problem)), options)
