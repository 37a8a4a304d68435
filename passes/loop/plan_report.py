"""
What the memory plans in a module come to, read back from the IR: for reports, and as a certificate.

Nothing is taken over from the planner: lifetimes, sizes and bounds are derived again from the loop or accel
level as it stands, and every plan is checked against them as `mem-verify` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp

from penstock.passes.analysis.memory.memory_problems import ARENA, MemoryProblem, memory_problems, storage
from penstock.passes.analysis.memory.plan_faults import check_plan, written_plan
from penstock.passes.planning.bounds import strong_lower_bound
from penstock.passes.planning.instance import compact
from penstock.passes.planning.problem import Interval, Problem, height, lower_bound


@dataclass(frozen=True)
class PlacedBuffer:
    """One buffer of a plan."""

    name: str
    type: str
    offset: int
    """Bytes from the start of the scope."""
    size: int
    """Bytes, in whole granules."""
    intervals: tuple[Interval, ...]
    """When it is alive: half-open, in steps of the function, or of the whole program."""


@dataclass(frozen=True)
class ScopePlan:
    """The plan of one function for one scope; one that the whole program shares has the function ""."""

    function: str
    scope: str
    """ARENA for what is off chip."""
    capacity: int | None
    """Bytes of the scope; None for the arena, which takes what it needs."""
    peak: int
    """Bytes that the plan takes: the highest end of any buffer."""
    lower_bound: int
    """Bytes that no plan can do without. A plan whose peak is that is proved optimal."""
    buffers: tuple[PlacedBuffer, ...]

    @property
    def is_optimal(self) -> bool:
        return self.peak == self.lower_bound

    @property
    def gap(self) -> float:
        """By how much of the lower bound the peak exceeds it; 0 for a plan that is optimal."""
        return self.peak / self.lower_bound - 1 if self.lower_bound else 0.0


def plan_report(module: ModuleOp) -> list[ScopePlan]:
    """
    The plans in a module, in the order of `memory_problems`: those of functions, then those of the whole program.

    Raises UserError, located, for a buffer without an offset and for a plan that is not valid.
    """
    return [_plan(memory) for memory in memory_problems(module)]


def _plan(memory: MemoryProblem) -> ScopePlan:
    check_plan(memory)
    problem, plan = memory.problem, written_plan(memory)
    placed = tuple(
        PlacedBuffer(
            buffer.id,
            str(storage(memory.ops[buffer.id]).type),
            plan.offsets[buffer.id],
            buffer.size,
            buffer.intervals,
        )
        for buffer in problem.buffers
    )
    peak = height(problem, plan)
    return ScopePlan(
        memory.function,
        memory.scope or ARENA,
        problem.capacity,
        peak,
        _bound(memory, peak),
        placed,
    )


def _bound(memory: MemoryProblem, peak: int) -> int:
    """The bytes that no plan can do without, as a planner would see it: what is fixed by now is no excuse."""
    buffers = tuple(replace(buffer, offset=None) for buffer in memory.problem.buffers)
    bound = lower_bound(Problem(buffers, memory.problem.capacity))
    if peak <= bound:
        return bound
    # Only here can what alignment takes be the difference. Places written by hand need not be aligned off chip.
    problem = memory.unplaced()
    return min(peak, strong_lower_bound(problem, compact(problem)))
