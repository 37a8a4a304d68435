"""The buffers of one function in one scope as a planning problem, and the fault of a plan that does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import func

from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp
from penstock.passes.loop.liveness import TimeLine
from penstock.passes.planning.problem import Buffer, Plan, Problem, alive_at, height, lower_bound, peak
from penstock.passes.planning.registry import planner_names, solve


@dataclass(frozen=True)
class ScopeProblem:
    """A planning problem and the op behind each of its buffers."""

    function: str
    scope: str
    problem: Problem
    ops: dict[str, BufferOp | RingOp]
    """By the id of the buffer."""

    def describe(self, buffer: Buffer) -> str:
        """A buffer as a person knows it."""
        return f"{buffer.id.split(' ', 1)[1]} : {self.ops[buffer.id].storage.type}, {buffer.size} bytes"


def scope_problems(function: func.FuncOp, target: TargetOp | None) -> list[ScopeProblem]:
    """
    A problem for each scope that `function` has buffers in, in the order of the machine.

    Sizes are whole granules, row pitch included; offsets are multiples of the granule, save those given by hand,
    which are taken as they are and checked. Raises UserError for a scope that the machine lacks.
    """
    by_scope: dict[str, list[BufferOp | RingOp]] = {}
    for op in function.walk():
        if isinstance(op, BufferOp | RingOp) and (scope := op.scope) is not None:
            by_scope.setdefault(scope, []).append(op)
    scopes = {} if target is None else target.scopes()
    for scope, ops in by_scope.items():
        if scope not in scopes:
            near = did_you_mean(scope, scopes)
            notes = ["the module has no machine.target"] if target is None else [near] if near else []
            raise UserError(f'there is no scope "{scope}"', loc=location_of(ops[0]), notes=notes)
    line = TimeLine(function) if by_scope else None
    problems: list[ScopeProblem] = []
    for name, scope in scopes.items():
        ops = by_scope.get(name)
        if ops is None or line is None:
            continue
        granule = scope.granule_bytes
        buffers: list[Buffer] = []
        of: dict[str, BufferOp | RingOp] = {}
        for number, op in enumerate(ops):
            id = f"{number} %{op.storage.name_hint or f'buffer {number}'}"
            of[id] = op
            size = -(-op.size_in_bytes // granule) * granule
            buffers.append(Buffer(id, (line.lifetime(op.storage),), size, granule, op.byte_offset))
        problems.append(ScopeProblem(function.sym_name.data, name, Problem(tuple(buffers), scope.size_bytes), of))
    return problems


def overflow(scoped: ScopeProblem, plan: Plan, planner: str) -> UserError:
    """The error for a plan that needs more than its scope has: who is alive at the peak, and what would do."""
    problem = scoped.problem
    needed, bound, capacity = height(problem, plan), lower_bound(problem), problem.capacity
    time, at_once = peak(problem)
    alive = alive_at(problem, time)
    others = {name: height(problem, solve(problem, name)) for name in planner_names() if name != planner}
    least = min([needed, *others.values()])
    notes = [f"{at_once} bytes are alive at once:", *(f"  {scoped.describe(buffer)}" for buffer in alive)]
    fitting = [name for name, other in others.items() if capacity is not None and other <= capacity]
    if fitting:
        notes.append(f'the planner "{fitting[0]}" finds a plan of {others[fitting[0]]} bytes, which fits')
    elif least == bound:
        notes.append(f"the least capacity that would do is {least} bytes")
    else:
        notes.append(f"a capacity of {least} bytes would do; no less than {bound} can")
    largest = max(alive, key=lambda buffer: buffer.size)
    return UserError(
        f'@{scoped.function} does not fit scope "{scoped.scope}": '
        f'the plan of "{planner}" takes {needed} bytes, the scope has {capacity}',
        loc=location_of(scoped.ops[largest.id]),
        notes=notes,
    )
