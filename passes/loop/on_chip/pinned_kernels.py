# SPDX-License-Identifier: Apache-2.0
"""Places for the buffers of kernels beside what stays in a scope."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, i64
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.memory.memory_problems import bytes_taken, function_problems, memory_problems
from penstock.passes.loop.mem_plan import find_plan
from penstock.passes.loop.on_chip.choice import KERNEL_LIMITS
from penstock.passes.loop.on_chip.decision import Decision
from penstock.passes.planning.problem import Limits, height
from penstock.passes.planning.registry import DEFAULT_PLANNER, solve


def ensure_plan(module: ModuleOp, decision: Decision, steps: Sequence[Operation]) -> bool:
    """
    Leave the buffers of kernels to the planner if it finds room for them around what stays in the scope.

    Otherwise each kernel gets its places in the block that the strategy has found for it at each of its calls; one
    for which these differ is copied: a kernel that is called around different residents may have no place that is
    free at all of its calls. Returns whether that was needed.
    """
    for memory in memory_problems(module):
        if memory.scope == decision.scope:
            outcome = find_plan(memory, DEFAULT_PLANNER, Limits())
            capacity = memory.problem.capacity
            if outcome.plan is not None and (capacity is None or height(memory.problem, outcome.plan) <= capacity):
                continue
            if _all_fit_alone(module, decision.scope):
                _pin(module, decision, steps)
                return True
    return False


def _all_fit_alone(module: ModuleOp, scope: str) -> bool:
    """Whether each kernel has a plan by itself; where one has none, the planner will say so."""
    target, kernels = machine_kernels(module)
    assert target is not None
    taken = (bytes_taken(kernel, target, scope, DEFAULT_PLANNER, KERNEL_LIMITS) or 0 for kernel in kernels)
    return all(count <= target.scope(scope).size_bytes for count in taken)


def _pin(module: ModuleOp, decision: Decision, steps: Sequence[Operation]) -> None:
    target, found = machine_kernels(module)
    assert target is not None
    kernels = {kernel.sym_name.data: kernel for kernel in found}
    bases: dict[str, dict[int, func.FuncOp]] = {}
    for step, op in enumerate(steps):
        base = decision.allocation.workspace.get(step, 0)
        for call in [inner for inner in op.walk() if isinstance(inner, func.CallOp)]:
            name = call.callee.string_value()
            if (kernel := kernels.get(name)) is None:
                continue
            at = bases.setdefault(name, {})
            if base not in at:
                at[base] = kernel if not at else _copy_of(kernel, f"{name}_at_{base}")
            call.callee = SymbolRefAttr(at[base].sym_name.data)
    for at in bases.values():
        for base, kernel in at.items():
            _place(kernel, target, decision.scope, base)


def _copy_of(kernel: func.FuncOp, name: str) -> func.FuncOp:
    copy = kernel.clone()
    copy.sym_name = StringAttr(name)
    Rewriter.insert_op(copy, InsertPoint.after(kernel))
    return copy


def _place(kernel: func.FuncOp, target: TargetOp, scope: str, base: int) -> None:
    """Give the buffers of a kernel the places of its own plan, from `base` on."""
    for memory in function_problems(kernel, target):
        plan = solve(memory.problem, limits=KERNEL_LIMITS).plan if memory.scope == scope else None
        if plan is None:
            continue
        for id, op in memory.ops.items():
            assert isinstance(op, ScopedAllocation)
            op.offset = IntegerAttr(base + plan.offsets[id], i64)
