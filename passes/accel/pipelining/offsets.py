"""Places for the buffers of a kernel whose commands are about to be ordered anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp
from penstock.passes.accel.ordering.accesses import CommandOp
from penstock.passes.analysis.loops import loops_around
from penstock.passes.analysis.memory.liveness import ProgramTime
from penstock.passes.analysis.memory.memory_problems import MemoryProblem, function_problems, memory_problems
from penstock.passes.analysis.memory.plan_faults import written_plan
from penstock.passes.planning.problem import Buffer, Interval, Limits, Plan, Problem, conflicts, height, merge_intervals
from penstock.passes.planning.registry import solve

STEPS = 2_000
"""Steps that a planner may take to find room."""

ALWAYS: Interval = (0, 1 << 40)
KEPT = "kept "
"""What the ids of bytes begin with that others hold, where no name of a buffer has a space."""

Kept = Mapping[str, Sequence[tuple[int, int]]]
"""Of each scope the bytes, from and to, that others hold while a kernel runs."""


def kept_beside(module: ModuleOp) -> dict[str, Kept]:
    """By the name of each function: what is held in scopes by others, who call it, while it runs."""
    found: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for memory in memory_problems(module):
        if memory.scope is None or not isinstance(memory.time, ProgramTime):
            continue
        plan = written_plan(memory)
        for function in memory.time.functions():
            runs = memory.time.spans(function)
            bytes_held = [
                (plan.offsets[buffer.id], plan.offsets[buffer.id] + buffer.size)
                for buffer in memory.problem.buffers
                if buffer.id in plan.offsets and not function.is_ancestor(memory.ops[buffer.id])
                if any(low < end and start < high for low, high in buffer.intervals for start, end in runs)
            ]
            found.setdefault(function.sym_name.data, {})[memory.scope] = list(merge_intervals(bytes_held))
    return dict(found)


@dataclass(frozen=True)
class Room:
    """The scopes as one kernel has them."""

    function: func.FuncOp
    target: TargetOp
    kept: Kept

    def replan(self) -> str | None:
        """
        Find places for the buffers in scopes that have none, moving the others of the kernel where that is needed;
        where there is no room nothing is changed, and the scope that has none is returned.

        Whatever is alive at once keeps apart, as in the order of the text: the order of what shares bytes is made
        after.
        """
        before = self._offsets()
        barriers = _barriers(self.function)
        try:
            if self._place() is None:
                return None
            scopes = {op.scope for op, offset in before if offset is None}
            for op, _ in before:
                if op.scope in scopes:
                    op.offset = None
            if (full := self._place()) is not None:
                _restore(before)
            return full
        finally:
            for barrier in barriers:
                Rewriter.erase_op(barrier)

    def keep_apart(self) -> bool:
        """See to it that no two buffers that are alive at once share bytes; False where there is no room for that."""
        barriers = _barriers(self.function)
        try:
            if self.is_planned():
                return True
            before = self._offsets()
            for op, _ in before:
                op.offset = None
            if self._place() is None:
                return True
            _restore(before)
            return False
        finally:
            for barrier in barriers:
                Rewriter.erase_op(barrier)

    def spread(self) -> None:
        """
        Where a scope has room for it, let no two buffers of a nest share bytes, whenever in a round they are alive:
        rounds that overlap would wait for each other there.
        """
        barriers = _barriers(self.function)
        problems = self._problems()
        for barrier in barriers:
            Rewriter.erase_op(barrier)
        for memory in problems:
            wide: list[Buffer] = []
            for buffer in memory.problem.buffers:
                loops = loops_around(memory.ops[buffer.id]) if buffer.id in memory.ops else ()
                during = memory.time.spans(loops[0]) if loops else ()
                wide.append(replace(buffer, intervals=merge_intervals((*buffer.intervals, *during))))
            problem = Problem(tuple(wide), memory.problem.capacity)
            if next(conflicts(problem, self._written(memory)), None) is None:
                continue
            free = (buffer if buffer.id.startswith(KEPT) else replace(buffer, offset=None) for buffer in wide)
            plan = _plan(Problem(tuple(free), memory.problem.capacity))
            if plan is not None:
                _write(memory, plan)

    def is_planned(self) -> bool:
        """Whether the places of the kernel's buffers are a plan, as the commands and tokens stand."""
        return all(next(conflicts(each.problem, self._written(each)), None) is None for each in self._problems())

    def _problems(self) -> list[MemoryProblem]:
        """Of each scope the kernel's buffers, and what others hold there."""
        found: list[MemoryProblem] = []
        for memory in function_problems(self.function, self.target):
            held = tuple(
                Buffer(f"{KEPT}{low}", (ALWAYS,), high - low, offset=low)
                for low, high in self.kept.get(memory.scope or "", ())
            )
            problem = Problem((*memory.problem.buffers, *held), memory.problem.capacity)
            found.append(replace(memory, problem=problem))
        return found

    def _written(self, memory: MemoryProblem) -> Plan:
        held = {each.id: each.offset for each in memory.problem.buffers if each.id.startswith(KEPT)}
        return Plan({**written_plan(memory).offsets, **{id: at for id, at in held.items() if at is not None}})

    def _offsets(self) -> list[tuple[BufferOp | RingOp, IntegerAttr | None]]:
        ops = [op for op in self.function.walk() if isinstance(op, BufferOp | RingOp) and op.scope is not None]
        return [(op, op.offset) for op in ops]

    def _place(self) -> str | None:
        """Plan what has no place in each scope, all or nothing; returns the scope that has no room."""
        before = self._offsets()
        for memory in self._problems():
            if all(isinstance(op, BufferOp | RingOp) and op.offset is not None for op in memory.ops.values()):
                continue
            plan = _plan(memory.problem)
            if plan is None:
                _restore(before)
                return memory.scope
            _write(memory, plan)
        return None


def _restore(offsets: Sequence[tuple[BufferOp | RingOp, IntegerAttr | None]]) -> None:
    for op, offset in offsets:
        op.offset = offset


def _write(memory: MemoryProblem, plan: Plan) -> None:
    for id, op in memory.ops.items():
        if isinstance(op, BufferOp | RingOp):
            op.offset = IntegerAttr(plan.offsets[id], i64)


def _barriers(function: func.FuncOp) -> list[BarrierOp]:
    """Let each command be complete before the next begins."""
    made: list[BarrierOp] = []
    for op in list(function.walk()):
        if isinstance(op, CommandOp):
            made.append(BarrierOp())
            Rewriter.insert_op(made[-1], InsertPoint.after(op))
    return made


def _plan(problem: Problem) -> Plan | None:
    capacity = problem.capacity
    assert capacity is not None
    plan = solve(problem, limits=Limits(steps=STEPS, good_enough=capacity)).plan
    return plan if plan is not None and height(problem, plan) <= capacity else None
