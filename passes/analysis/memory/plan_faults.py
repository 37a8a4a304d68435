"""What is wrong with a memory plan, in the words of the program: which buffers, which bytes, at which step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.memory.memory_problems import ARENA, MemoryProblem, memory_problems, offset_of
from penstock.passes.planning.bounds import strong_lower_bound
from penstock.passes.planning.instance import compact
from penstock.passes.planning.problem import (
    Conflict,
    Interval,
    Plan,
    Problem,
    conflicts,
    height,
    lower_bound,
    span_text,
)


def written_plan(memory: MemoryProblem) -> Plan:
    """The offsets written in the IR; buffers without one are left out."""
    places = {id: offset_of(op) for id, op in memory.ops.items()}
    return Plan({id: offset for id, offset in places.items() if offset is not None})


def check_plan(memory: MemoryProblem) -> None:
    """Raise UserError where a buffer has no place, or where the places of all break a rule."""
    plan = written_plan(memory)
    for conflict in conflicts(memory.problem, plan):
        raise fault_of(memory, plan, conflict)


def check_given(memory: MemoryProblem) -> None:
    """Raise UserError where the places that are written already break a rule among themselves."""
    plan = written_plan(memory)
    fixed = tuple(buffer for buffer in memory.problem.buffers if buffer.id in plan.offsets)
    for conflict in conflicts(Problem(fixed, memory.problem.capacity), plan):
        fault = fault_of(memory, plan, conflict)
        note = "what has an offset keeps it: change one, or leave it to the planner"
        raise UserError(fault.message, loc=fault.loc, notes=[*fault.notes, note])


def fault_of(memory: MemoryProblem, plan: Plan, conflict: Conflict) -> UserError:
    """The fault of a program whose buffers lie as in `plan`, at the op that creates the last buffer concerned."""
    ids, place = conflict.buffers, memory.place
    by_id = {buffer.id: buffer for buffer in memory.problem.buffers}
    ends = {id: (plan.offsets[id], plan.offsets[id] + by_id[id].size) for id in ids if id in plan.offsets}
    loc = location_of(memory.ops[ids[-1]])
    if conflict.rule == "missing":
        return UserError(f"{ids[0]} has no offset in {place} yet", loc=loc, notes=["run mem-plan"])
    if conflict.rule != "overlap" or conflict.time is None or conflict.bytes is None:
        return UserError(f"{place}: {conflict.message}", loc=loc)
    first, second = ids
    at = op_in(memory, conflict.time, ids)
    return UserError(
        f"{place}: {first} {span_text(ends[first])} and {second} {span_text(ends[second])} share bytes "
        f"{span_text(conflict.bytes)} while both are alive, in steps {span_text(conflict.time)}",
        loc=loc,
        notes=[
            f"{memory.describe(by_id[first])}: alive in steps {_steps(by_id[first].intervals)}",
            f"{memory.describe(by_id[second])}: alive in steps {_steps(by_id[second].intervals)}",
            f"in these steps runs {at.name}, {location_of(at)}",
        ],
    )


def op_in(memory: MemoryProblem, span: Interval, ids: Sequence[str]) -> Operation:
    """Of the ops that run in a span of time the first that touches one of these buffers; else the first."""
    touching = [
        (begin, user)
        for id in ids
        for user in memory.time.accesses(memory.ops[id].results[0])
        for begin, _ in memory.time.spans(user)
        if span[0] <= begin < span[1]
    ]
    return min(touching, key=lambda each: each[0])[1] if touching else memory.time.op_at(span[0])


def _steps(intervals: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(span_text(interval) for interval in intervals)


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
            str(memory.ops[buffer.id].results[0].type),
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
