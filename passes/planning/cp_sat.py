# SPDX-License-Identifier: Apache-2.0
"""
The planner `cp-sat`: the constraint solver of OR-Tools, an optional package.

Each buffer is a rectangle in time and bytes (several where it has gaps, all at one offset) with a fixed
time, and no two overlap. All is counted in the greatest common divisor of what sizes and places are multiples of.
First the solver is asked whether some plan reaches what is wanted, the capacity and then the lower bound, which it
answers much better than how low a plan can get; what time is left goes into that. A step is a ten-thousandth of the
solver's deterministic time, about a millisecond.
"""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from typing import Any

from penstock.dialects.diagnostics import UserError, pip_install
from penstock.passes.planning.bounds import sufficient_height
from penstock.passes.planning.budget import Budget
from penstock.passes.planning.instance import common_unit
from penstock.passes.planning.one_pass import first_fit_by_size
from penstock.passes.planning.problem import AllowedOffsets, Buffer, Limits, Outcome, Plan, Problem, height, lower_bound

DEFAULT_STEPS = 2000
"""Where no limit is given."""

_STEPS_PER_UNIT = 10_000
"""Of the solver's deterministic time."""


def plan(problem: Problem, limits: Limits) -> Outcome:
    """
    The lowest plan that CP-SAT finds within the limits, one worker, and what it proves on the way.

    Raises UserError where OR-Tools is not installed.
    """
    search = _Search(problem, limits)
    first = first_fit_by_size(problem, limits).plan
    if first is not None:
        search.take(first)
    capacity = problem.capacity
    if capacity is not None and search.peak > capacity and search.bound <= capacity:
        search.reach(capacity)
    if capacity is None or search.bound <= capacity:
        search.descend()
    infeasible = search.nowhere or (capacity is not None and search.bound > capacity)
    return Outcome(search.best, search.bound, infeasible, search.budget.spent)


class _Search:
    """The best plan so far, and what is left of the limits."""

    def __init__(self, problem: Problem, limits: Limits):
        self.cp = _ortools()
        self.problem = problem
        self.limits = limits
        self.budget = Budget(limits, DEFAULT_STEPS)
        self.best: Plan | None = None
        self.bound = lower_bound(problem)
        self.unit = unit_of(problem)
        self.nowhere = False
        """Whether no plan exists, however large the memory is."""

    @property
    def peak(self) -> int:
        """Of the best plan; without one, more than any plan needs."""
        if self.best is not None:
            return height(self.problem, self.best)
        return sufficient_height(self.problem, self.bound) + 1

    @property
    def is_done(self) -> bool:
        wanted = max(self.bound, self.limits.good_enough or 0)
        return self.nowhere or (self.best is not None and self.peak <= wanted)

    def take(self, found: Plan) -> None:
        if self.best is None or height(self.problem, found) < self.peak:
            self.best = found

    def reach(self, ceiling: int) -> None:
        """Look for a plan of at most `ceiling` bytes, with one model and then with the other."""
        self._solve(ceiling, 0.5, lowest=False)
        if self.peak > ceiling >= self.bound:
            self._solve(ceiling, 1.0, lowest=False, cumulative=True)

    def descend(self) -> None:
        """Look for a plan at the lower bound, then for the lowest one."""
        if self.is_done:
            return
        # What is good enough may be far above the bound, and then found at once.
        self._solve(max(self.bound, self.limits.good_enough or 0), 0.5, lowest=False)
        if not self.is_done:
            self._solve(self.peak - 1, 1.0, lowest=True)

    def _solve(self, ceiling: int, share: float, *, lowest: bool, cumulative: bool = False) -> None:
        """Take a plan of at most `ceiling` bytes, the `lowest` if asked, within a share of what is left to do."""
        solver = self.cp.CpSolver()
        options = solver.parameters
        options.num_workers = 1
        options.random_seed = self.limits.seed % (1 << 31)
        if self.budget.over:
            return
        if (steps := self.budget.steps_left) is not None:
            options.max_deterministic_time = steps * share / _STEPS_PER_UNIT
        if (seconds := self.budget.seconds_left) is not None:
            options.max_time_in_seconds = seconds * share
        model = _Model(self.cp, self.problem, self.unit, ceiling, self.bound if lowest else None)
        if cumulative:
            model.limit_lifetimes()
        # A hint that is too high, as that of a feasibility question is, leads the search astray.
        if self.best is not None and lowest:
            model.hint(self.best)
        status = solver.solve(model.model)
        self.budget.spend(max(1, round(solver.response_proto.deterministic_time * _STEPS_PER_UNIT)))
        if status in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            self.take(model.plan(solver))
        if status == self.cp.INFEASIBLE:
            self.nowhere = self.best is None and ceiling >= self.peak - 1
        if status == self.cp.INFEASIBLE and not self.nowhere:
            self.bound = max(self.bound, min(self.peak, (ceiling // self.unit + 1) * self.unit))
        elif lowest and status in (self.cp.OPTIMAL, self.cp.FEASIBLE, self.cp.UNKNOWN):
            self.bound = max(self.bound, round(solver.best_objective_bound) * self.unit)


class _Model:
    """The problem as constraints, in units of bytes, below a ceiling."""

    def __init__(self, cp: Any, problem: Problem, unit: int, ceiling: int, floor: int | None):
        self.model = cp.CpModel()
        self.unit = unit
        self.offsets: dict[str, tuple[Any, int]] = {}
        """Of each buffer a variable, and what it is counted in."""
        self.pieces: list[tuple[int, int, Any]] = []
        """When each piece of a buffer is alive, and the interval of its bytes."""
        times: list[Any] = []
        top = ceiling // unit
        peak = None
        if floor is not None:
            peak = self.model.new_int_var(-(-floor // unit), top, "peak")
            self.model.minimize(peak)
        for buffer in problem.buffers:
            step = 1 if buffer.offset is not None else max(1, buffer.alignment // unit)
            domain = cp.Domain.from_intervals(_offsets_in_steps(buffer, problem.bank_size, step * unit, ceiling))
            number = self.model.new_int_var_from_domain(domain, buffer.id)
            self.offsets[buffer.id] = number, step * unit
            offset = number * step
            if peak is not None:
                self.model.add(offset + buffer.size // unit <= peak)
            for (lower, upper), (low, high) in buffer.pieces:
                if low < high:
                    size = (high - low) // unit
                    its = self.model.new_fixed_size_interval_var(offset + low // unit, size, "")
                    times.append(self.model.new_fixed_size_interval_var(lower, upper - lower, ""))
                    self.pieces.append((lower, upper, its))
        self.model.add_no_overlap_2d(times, [its for _, _, its in self.pieces])

    def limit_lifetimes(self) -> None:
        """
        Say again what follows from the rest: the lifetimes of what lies on one byte fit in all of the time.

        Some problems are solved much sooner with it, and others much later.
        """
        if self.pieces:
            span = max(upper for _, upper, _ in self.pieces) - min(lower for lower, _, _ in self.pieces)
            durations = [upper - lower for lower, upper, _ in self.pieces]
            self.model.add_cumulative([its for _, _, its in self.pieces], durations, span)

    def hint(self, plan: Plan) -> None:
        """Begin with the offsets of a plan."""
        for id, (number, step) in self.offsets.items():
            self.model.add_hint(number, plan.offsets[id] // step)

    def plan(self, solver: Any) -> Plan:
        return Plan({id: solver.value(number) * step for id, (number, step) in self.offsets.items()})


def _offsets_in_steps(buffer: Buffer, bank_size: int | None, step: int, ceiling: int) -> list[tuple[int, int]]:
    """The closed ranges that a buffer's offset may be in, in steps of so many bytes; one that is empty if none."""
    ranges = AllowedOffsets.of(buffer, bank_size).ranges
    ends = ((low // step, min(high, ceiling - buffer.size) // step) for low, high in ranges)
    return [(first, last) for first, last in ends if first <= last] or [(1, 0)]


def unit_of(problem: Problem) -> int:
    """
    The largest number of bytes that some lowest plan has all its places in multiples of.

    In a plan in which no buffer can move down alone, each lies at the bottom, at a fixed place, at the start of a
    bank or at the end of others, rounded up to its alignment.
    """
    numbers = [number for b in problem.buffers for number in (b.size, b.offset or 0, *chain(*b.windows))]
    if problem.bank_size is not None and any(buffer.banks is not None for buffer in problem.buffers):
        numbers.append(problem.bank_size)
    return common_unit(numbers, (buffer.alignment for buffer in problem.buffers if buffer.offset is None))


def _ortools() -> Any:
    try:
        # By name: type checkers need not have it either.
        return import_module("ortools.sat.python.cp_model")
    except ImportError:
        notes = [pip_install("solver"), "the other planners need nothing more"]
        raise UserError('the planner "cp-sat" needs OR-Tools, which is not installed', notes=notes) from None
