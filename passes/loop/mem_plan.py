# SPDX-License-Identifier: Apache-2.0
"""`mem-plan`: a place for every buffer, in the scopes of the machine and off chip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import memref
from xdsl.dialects.builtin import IntegerAttr, MemRefType, ModuleOp, i64
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp, ScopedAllocation
from penstock.dialects.remarks import is_listened, remark
from penstock.passes.analysis.memory.liveness import Allocation
from penstock.passes.analysis.memory.memory_problems import MemoryProblem, checked_problems
from penstock.passes.loop.repairs import overflow
from penstock.passes.planning import registry
from penstock.passes.planning.banks import apart
from penstock.passes.planning.problem import Limits, Outcome, Plan, height, lower_bound

FIRST_PLAN_STEPS = 0
"""Steps that a planner may take to improve a plan of a scope that fits already: it is the one that it starts from."""


@dataclass(frozen=True)
class MemPlanPass(ModulePass):
    """
    Give every buffer its place: a byte offset in its scope of the machine, or in the arena off chip.

    A buffer is alive as long as bytes of it that may have been written may be read, itself or through a view; see
    `liveness`. Its size runs from its first to its last element, row pitch included, and in a scope in whole
    granules. `memref.alloc` and `memref.alloca` become `mem.buffer at N`; `memref.dealloc` goes. What has an offset
    keeps it: a plan is text, edit it and run again. Kernels share a scope, since nothing stays there between two
    calls; where a function that calls others has buffers in a scope, and always in the arena, the time of all
    functions is planned as one, each kernel's buffers alive at every call of it.

    Without limits the planner takes its default number of steps, and every run makes the same plan. A scope need
    only fit: if the plan that the planner starts from does, it is taken, and otherwise the first one that does. The
    arena takes what it needs, so its plan is improved until the limits, or until it is proved that none is smaller.

    Required: the loop level, static shapes, no recursion, a `machine.target` that has the scopes. Guaranteed: every
    buffer has an offset, a multiple of its scope's granule (of 64 off chip, unless it was given by hand), and
    `mem-verify` passes. Raises UserError, located, for what does not fit (at the op where most bytes are alive, with
    the buffers and the cheapest repairs; with status 4 if it is not proved that nothing fits), for an unknown
    scope or planner, for a plan given by hand that is none, and for a buffer that a function returns.

    Before:
    ```mlir
    func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
      %a = mem.buffer : memref<16xf32, "spad">
      mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
      %b = mem.buffer : memref<16xf32, "spad">
      mem.copy %a to %b : memref<16xf32, "spad"> to memref<16xf32, "spad">
      %c = mem.buffer : memref<16xf32, "spad">
      mem.copy %b to %c : memref<16xf32, "spad"> to memref<16xf32, "spad">
      %d = memref.alloc() : memref<16xf32>
      mem.copy %c to %d : memref<16xf32, "spad"> to memref<16xf32>
      mem.copy %d to %y : memref<16xf32> to memref<16xf32>
      func.return
    }
    ```
    After (`mem-plan` on `gemmini-fp32`):
    ```mlir
    func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
      %a = mem.buffer at 0 : memref<16xf32, "spad">
      mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
      %b = mem.buffer at 64 : memref<16xf32, "spad">
      mem.copy %a to %b : memref<16xf32, "spad"> to memref<16xf32, "spad">
      %c = mem.buffer at 0 : memref<16xf32, "spad">
      mem.copy %b to %c : memref<16xf32, "spad"> to memref<16xf32, "spad">
      %d = mem.buffer at 0 : memref<16xf32>
      mem.copy %c to %d : memref<16xf32, "spad"> to memref<16xf32>
      mem.copy %d to %y : memref<16xf32> to memref<16xf32>
      func.return
    }
    ```
    """

    name = "mem-plan"

    planner: str = registry.DEFAULT_PLANNER
    """The planner that chooses the offsets."""
    time_limit: int | float | None = None
    """Seconds for each scope of a kernel, and for the arena; with it two runs may differ."""
    steps: int | None = None
    """Steps for the same; what a step is, the planner says."""
    seed: int = 0
    """Of what the planner draws at random."""

    PARTS: ClassVar = {"planner": registry.planner}
    """What finds the part that an option names."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for dealloc in list(op.walk()):
            if isinstance(dealloc, memref.DeallocOp):
                Rewriter.erase_op(dealloc)
        registry.planner(self.planner)  # raises if it is not known
        limits = self._limits()
        for memory in checked_problems(op, partial=True):
            outcome = find_plan(memory, self.planner, limits)
            plan, capacity = outcome.plan, memory.problem.capacity
            if plan is None or (capacity is not None and height(memory.problem, plan) > capacity):
                raise overflow(memory, outcome, self.planner, limits)
            for id, allocation in memory.ops.items():
                _put(allocation, plan.offsets[id])
            if is_listened():
                remark(next(iter(memory.ops.values())), "passed", _in_words(memory, plan))

    def _limits(self) -> Limits:
        if (self.time_limit or 0) < 0 or (self.steps or 0) < 0:
            raise UserError("a limit of mem-plan is negative")
        return Limits(self.time_limit, self.steps, self.seed)


def _in_words(memory: MemoryProblem, plan: Plan) -> str:
    problem = memory.problem
    where = "the arena" if memory.scope is None else f'scope "{memory.scope}"'
    capacity = "" if problem.capacity is None else f" of {problem.capacity:,}"
    peak, bound = height(problem, plan), lower_bound(problem)
    return f"{len(problem.buffers)} buffers of {where}: peak {peak:,}{capacity} bytes, lower bound {bound:,}"


def find_plan(memory: MemoryProblem, name: str, limits: Limits) -> Outcome:
    """
    The plan for one memory: in a scope the first that fits, for the arena the best within the limits. Buffers that are
    used at once are put into different banks as far as the capacity has room (`banks.apart`).

    Raises UserError, located, for what the planner refuses.
    """
    outcome = _lowest(memory, name, limits)
    return outcome if outcome.plan is None else replace(outcome, plan=apart(memory.problem, outcome.plan))


def _lowest(memory: MemoryProblem, name: str, limits: Limits) -> Outcome:
    problem, capacity = memory.problem, memory.problem.capacity
    try:
        if capacity is None:
            outcome = registry.solve(problem, name, limits)
            if outcome.plan is None:
                raise UserError(f'the planner "{name}" has no plan')
            return outcome
        outcome = registry.solve(problem, name, Limits(limits.seconds, FIRST_PLAN_STEPS, limits.seed))
        fits = outcome.plan is not None and height(problem, outcome.plan) <= capacity
        if fits or outcome.infeasible or outcome.bound > capacity:
            return outcome
        return registry.solve(problem, name, Limits(limits.seconds, limits.steps, limits.seed, good_enough=capacity))
    except UserError as error:
        first = next(iter(memory.ops.values()))
        where = location_of(first)
        raise UserError(f"{memory.place}: {error.message}", loc=where, notes=error.notes, status=error.status) from None


def _put(allocation: Allocation, offset: int) -> None:
    """Write down the place of a buffer."""
    if isinstance(allocation, ScopedAllocation):
        allocation.offset = IntegerAttr(offset, i64)
        return
    assert isa(allocation.memref.type, MemRefType)
    buffer = BufferOp(allocation.memref.type, offset)
    buffer.location = allocation.location
    buffer.attributes.update(allocation.attributes)
    Rewriter.replace_op(allocation, buffer)
