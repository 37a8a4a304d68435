"""
What the memory plans in a module come to, read back from the IR: for reports, and as a certificate.

Nothing is taken over from the planner: lifetimes, sizes and bounds are derived again from the loop or accel
level as it stands, and every plan is validated against them. Time is program order on both levels: that
commands in flight do not meet where bytes are used again is for the tokens to say, and for the hazard check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import find_target
from penstock.dialects.mem import BufferOp, RingOp
from penstock.passes.loop.plan_arena import arena_problem
from penstock.passes.loop.scope_problem import scope_problems
from penstock.passes.planning.problem import (
    Interval,
    Plan,
    PlanError,
    Problem,
    height,
    lower_bound,
    validate,
)

ARENA = "arena"
"""What a report calls the place of the off-chip buffers of a whole program."""


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
    """When it is alive: half-open, in steps of the function, or of the whole program in the arena."""


@dataclass(frozen=True)
class ScopePlan:
    """The plan of one function for one scope; that of the program for the arena has the function ""."""

    function: str
    scope: str
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


def plan_report(module: ModuleOp) -> list[ScopePlan]:
    """
    The plans in a module: for each function its scopes, in the order of the machine, then the arena if there is one.

    Raises UserError, located, for a buffer without an offset and for a plan that is not valid.
    """
    target = find_target(module)
    plans: list[ScopePlan] = []
    for function in module.ops:
        if isinstance(function, func.FuncOp):
            for scoped in scope_problems(function, target):
                plans.append(_plan(scoped.function, scoped.scope, scoped.problem, dict(scoped.ops)))
    arena = arena_problem(module)
    unplanned = [op for op in arena.ops.values() if not isinstance(op, BufferOp)]
    if unplanned:
        raise UserError(
            f'"{unplanned[0].name}" has no place in the arena yet',
            loc=location_of(unplanned[0]),
            notes=["run plan-arena"],
        )
    if arena.ops:
        buffers = {id: op for id, op in arena.ops.items() if isinstance(op, BufferOp)}
        plans.append(_plan("", ARENA, arena.problem, buffers))
    return plans


def _plan(function: str, scope: str, problem: Problem, ops: Mapping[str, BufferOp | RingOp]) -> ScopePlan:
    placed: list[PlacedBuffer] = []
    offsets: dict[str, int] = {}
    for buffer in problem.buffers:
        op = ops[buffer.id]
        if buffer.offset is None:
            raise UserError(
                f"{buffer.id.split(' ', 1)[1]} has no offset yet", loc=location_of(op), notes=["run plan-scopes"]
            )
        offsets[buffer.id] = buffer.offset
        name = buffer.id.split(" ", 1)[1]
        placed.append(PlacedBuffer(name, str(op.storage.type), buffer.offset, buffer.size, buffer.intervals))
    plan = Plan(offsets)
    try:
        validate(problem, plan)
    except PlanError as error:
        place = f'@{function}, scope "{scope}"' if function else scope
        first = next(iter(ops.values()))
        raise UserError(f"the plan of {place} is not valid: {error}", loc=location_of(first)) from None
    # what is fixed is no excuse: the bound is that of the buffers alone
    free = Problem(tuple(replace(buffer, offset=None) for buffer in problem.buffers), problem.capacity)
    return ScopePlan(function, scope, problem.capacity, height(problem, plan), lower_bound(free), tuple(placed))
