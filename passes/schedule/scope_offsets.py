# SPDX-License-Identifier: Apache-2.0
"""Offsets for the buffers of a kernel whose commands are about to be ordered anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp, find_target
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.analysis.loops import loops_around
from penstock.passes.analysis.memory.liveness import ProgramTime
from penstock.passes.analysis.memory.memory_problems import (
    MemoryProblem,
    function_problems,
    written_plan,
)
from penstock.passes.planning.banks import apart
from penstock.passes.planning.problem import Buffer, Interval, Limits, Plan, Problem, conflicts, height, merge_intervals
from penstock.passes.planning.registry import solve

_MAX_STEPS = 2_000
"""Steps that a planner may take to find a plan that fits."""

_ALWAYS: Interval = (0, 1 << 40)
_KEPT = "kept "
"""What the ids of bytes begin with that others hold, where no name of a buffer has a space."""

Kept = Mapping[str, Sequence[tuple[int, int]]]
"""Of each scope the bytes, from and to, that others hold while a kernel runs."""

_Offsets = list[tuple[ScopedAllocation, IntegerAttr | None]]


def kept_beside(module: ModuleOp) -> dict[str, Kept]:
    """By the name of each function: what is held in scopes by others, who call it, while it runs."""
    target = find_target(module)
    if target is None or not any(_calls_and_keeps(op) for op in module.ops):
        return {}
    time = ProgramTime(module)
    kept = [op for each in time.functions() if time.calls_others(each) for op in _placed(each)]
    alive = {op: time.lifetime(op.results[0]) for op in kept}
    found: dict[str, dict[str, list[Interval]]] = {}
    for function in time.functions():
        runs = time.spans(function)
        for op, moments in alive.items():
            if function.is_ancestor(op) or not any(a < end and start < b for a, b in moments for start, end in runs):
                continue
            offset, scope = op.byte_offset or 0, op.scope or ""
            size = -(-op.size_in_bytes // (granule := target.scope(scope).granule_bytes)) * granule
            found.setdefault(function.sym_name.data, {}).setdefault(scope, []).append((offset, offset + size))
    return {name: {scope: merge_intervals(held[scope]) for scope in held} for name, held in found.items()}


def _placed(function: Operation) -> list[ScopedAllocation]:
    """The buffers in scopes that a function makes, and that have an offset."""
    made = (op for op in function.walk() if isinstance(op, ScopedAllocation))
    return [op for op in made if op.scope is not None and op.byte_offset is not None]


def _calls_and_keeps(function: Operation) -> bool:
    """Whether a function that calls others has buffers in scopes: only these stay there while others run."""
    return any(isinstance(op, func.CallOp) for op in function.walk()) and bool(_placed(function))


class NoRoom(UserError):
    """A scope is too small."""

    def __init__(
        self,
        message: str,
        *,
        fitting: tuple[int, ...] = (),
        skewed: bool = False,
        loc: str | None = None,
        notes: Sequence[str] = (),
    ):
        super().__init__(message, loc=loc, notes=notes)
        self.fitting = fitting
        """The slots that there is room for of each buffer that was to be a ring, 1 where it has to stay as it is."""
        self.skewed = skewed
        """Whether there is room without skewed loops."""


class ScopeOffsets:
    """The offsets of one kernel's buffers in scopes, of which others hold the bytes `kept`."""

    def __init__(self, function: func.FuncOp, target: TargetOp, kept: Kept, *, in_flight: bool = False):
        self.function, self.target = function, target
        self._kept = kept
        self._problems: list[MemoryProblem] | None = self._find() if in_flight else None
        """Of each scope, if each command is complete before the next begins, or while it may be in flight."""

    def changed(self) -> None:
        """The ops of the kernel, or the sizes of its buffers, are no longer what they were."""
        self._problems = None

    def has_room(self, scope: str) -> bool:
        """Whether a plan for the buffers in a scope is found soon."""
        size = self.target.scope(scope).size_bytes
        # Most kernels need no plan to see that: all of their buffers fit side by side.
        ends = [0, *(end for held in self._kept.get(scope, ()) for end in held), size]
        gap = max(end - start for start, end in zip(ends[::2], ends[1::2], strict=True))
        return self._taken(scope) <= gap or all(
            _plan(memory.problem) is not None for memory in self._find() if memory.scope == scope
        )

    def _taken(self, scope: str) -> int:
        granule = self.target.scope(scope).granule_bytes
        inside = (op for op in self.function.walk() if isinstance(op, ScopedAllocation) and op.scope == scope)
        return sum(-(-op.size_in_bytes // granule) * granule for op in inside)

    def replan(self, *, move: bool = True) -> str | None:
        """
        Find offsets for the buffers in scopes that have none, moving the others of the kernel where that is needed, if
        they may `move`; if one of the scopes is too small nothing is changed, and it is returned.

        Whatever is alive at once keeps apart, as in the order of the text: the order of what shares bytes is made
        after.
        """
        before = self._offsets()
        if (full := self._place()) is None or not move:
            return full
        scopes = {op.scope for op, offset in before if offset is None}
        for op, _ in before:
            if op.scope in scopes:
                op.offset = None
        if (full := self._place()) is not None:
            _restore(before)
        return full

    def keep_apart(self) -> bool:
        """Let no two buffers that are alive at once share bytes; False where a scope is too small for that."""
        if self._is_plan(self._in_program_order()):
            return True
        before = self._offsets()
        for op, _ in before:
            op.offset = None
        if self._place() is None:
            return True
        _restore(before)
        return False

    def spread(self) -> None:
        """
        Where a scope is large enough, let no two buffers of a nest share bytes, whenever in an iteration they are
        alive: iterations that overlap would wait for each other there. Then, buffer by buffer as far as there is room,
        let one share no bytes with those of the nest before either, so that it may be filled while that still runs.
        """
        for memory in self._in_program_order():
            nests = [memory.time.spans(op)[0] for op in self.function.body.block.ops if isinstance(op, scf.ForOp)]
            buffers = list(memory.problem.buffers)
            wide: list[Buffer] = []
            for buffer in buffers:
                loops = loops_around(memory.ops[buffer.id]) if buffer.id in memory.ops else ()
                during = memory.time.spans(loops[0]) if loops else ()
                wide.append(replace(buffer, intervals=merge_intervals((*buffer.intervals, *during))))
            if self._move(memory, wide):
                buffers = wide
            for number, buffer in enumerate(buffers):
                before = [span for span in nests if span[1] <= buffer.intervals[0][0]]
                if buffer.id in memory.ops and before:
                    ahead = replace(buffer, intervals=merge_intervals((*buffer.intervals, before[-1])))
                    if self._move(memory, trial := [*buffers[:number], ahead, *buffers[number + 1 :]]):
                        buffers = trial

    def _move(self, memory: MemoryProblem, wanted: Sequence[Buffer]) -> bool:
        """Find offsets with which buffers of other lifetimes do not share bytes; False if there may be none."""
        offsets = written_plan(memory).offsets
        held = (each if each.id.startswith(_KEPT) else replace(each, offset=offsets[each.id]) for each in wanted)
        if self._is_plan([replace(memory, problem=replace(memory.problem, buffers=tuple(held)))]):
            return True
        free = (each if each.id.startswith(_KEPT) else replace(each, offset=None) for each in wanted)
        if (plan := _plan(replace(memory.problem, buffers=tuple(free)))) is None:
            return False
        _write(memory, plan)
        return True

    def is_planned(self) -> bool:
        """Whether the offsets of the kernel's buffers are a plan, as the commands and tokens stand."""
        return self._is_plan(self._find())

    def _is_plan(self, problems: Sequence[MemoryProblem]) -> bool:
        for memory in problems:
            held = {each.id: each.offset for each in memory.problem.buffers if each.id.startswith(_KEPT)}
            plan = Plan({**written_plan(memory).offsets, **{id: at for id, at in held.items() if at is not None}})
            if next(conflicts(memory.problem, plan), None) is not None:
                return False
        return True

    def _in_program_order(self) -> list[MemoryProblem]:
        """The problems, with the offsets that the buffers have now, if each command ends before the next begins."""
        if self._problems is None:
            self._problems = self._find(race_free=True)
        found: list[MemoryProblem] = []
        for memory in self._problems:
            offsets = written_plan(memory).offsets
            buffers = (
                each if each.id.startswith(_KEPT) else replace(each, offset=offsets.get(each.id))
                for each in memory.problem.buffers
            )
            found.append(replace(memory, problem=replace(memory.problem, buffers=tuple(buffers))))
        return found

    def _find(self, *, race_free: bool = False) -> list[MemoryProblem]:
        """
        Of each scope the kernel's buffers, and what others hold there; if `race_free`, no command in flight keeps a
        buffer alive.
        """
        found: list[MemoryProblem] = []
        for memory in function_problems(self.function, self.target, race_free=race_free):
            held = tuple(
                Buffer(f"{_KEPT}{low}", (_ALWAYS,), high - low, offset=low)
                for low, high in self._kept.get(memory.scope or "", ())
            )
            problem = replace(memory.problem, buffers=(*memory.problem.buffers, *held))
            found.append(replace(memory, problem=problem))
        return found

    def _offsets(self) -> _Offsets:
        ops = [op for op in self.function.walk() if isinstance(op, ScopedAllocation) and op.scope is not None]
        return [(op, op.offset) for op in ops]

    def _place(self) -> str | None:
        """Plan what has no offset in each scope, all or nothing; returns the scope that is too small."""
        before = self._offsets()
        for memory in self._in_program_order():
            if all(isinstance(op, ScopedAllocation) and op.offset is not None for op in memory.ops.values()):
                continue
            plan = _plan(memory.problem)
            if plan is None:
                _restore(before)
                return memory.scope
            _write(memory, plan)
        return None


def _restore(offsets: _Offsets) -> None:
    for op, offset in offsets:
        op.offset = offset


def _write(memory: MemoryProblem, plan: Plan) -> None:
    for id, op in memory.ops.items():
        if isinstance(op, ScopedAllocation):
            op.offset = IntegerAttr(plan.offsets[id], i64)


def _plan(problem: Problem) -> Plan | None:
    capacity = problem.capacity
    assert capacity is not None
    plan = solve(problem, limits=Limits(steps=_MAX_STEPS, good_enough=capacity)).plan
    return apart(problem, plan) if plan is not None and height(problem, plan) <= capacity else None
