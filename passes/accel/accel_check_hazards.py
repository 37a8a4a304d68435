# SPDX-License-Identifier: Apache-2.0
"""`accel-check-hazards`: kernels proved free of deadlocks, leaks, overflows and races."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.hazards import Arguments, check_kernel, distinct_calls
from penstock.passes.analysis.commands.limits import limit_faults
from penstock.passes.analysis.kernels import machine_of
from penstock.passes.isomorphic_kernels import structure_of

_NAMED = 4
"""How many hazards one error names."""


@dataclass(frozen=True)
class AccelCheckHazardsPass(ModulePass):
    """
    Prove that every kernel of the machine is free of hazards, in all timings of its units; change nothing.

    Checked are, on the commands that a kernel issues: the limits of the machine; that there is no deadlock and no
    token that is never signalled; that queues end with as many tokens as they began with and always have room
    for a push where a full queue is an error; and that of every two accesses to a common byte, in a scope or off chip,
    one of which writes, one is complete before the other starts. Loops of many iterations are decided by induction.

    Required: a module at the accelerator level; one without kernels of a machine passes. Guaranteed: the kernels
    compute what program order says, whatever takes how long. Raises UserError, at an op, for what is wrong, and for
    a kernel that cannot be decided. Kernels are checked as `@main` calls them.

    Before:
    ```mlir
    machine.target @small frequency 100 {
      machine.scope @spad size 128 granule 16 dtypes [f32]
      machine.unit @load
      machine.unit @store
      machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding 4
      machine.dma @mvout unit @store from [@spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
    }
    func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @small} {
      %a = mem.buffer at 64 : memref<16xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<16xf32> to memref<16xf32, "spad">
      %u = accel.dma %a to %y on "mvout" after (%t) : memref<16xf32, "spad"> to memref<16xf32>
      accel.barrier
      func.return
    }
    ```
    After (`accel-check-hazards`):
    ```mlir
    machine.target @small frequency 100 {
      machine.scope @spad size 128 granule 16 dtypes [f32]
      machine.unit @load
      machine.unit @store
      machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding 4
      machine.dma @mvout unit @store from [@spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
    }
    func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @small} {
      %a = mem.buffer at 64 : memref<16xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<16xf32> to memref<16xf32, "spad">
      %u = accel.dma %a to %y on "mvout" after (%t) : memref<16xf32, "spad"> to memref<16xf32>
      accel.barrier
      func.return
    }
    ```
    """

    name = "accel-check-hazards"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        check_hazards(op)


def check_hazards(module: ModuleOp) -> None:
    """Raise UserError, located, where a kernel of the machine is not free of hazards; what the pass does."""
    target = machine_of(module)
    if target is None:
        return
    free = set[Hashable]()
    for kernel, arguments in distinct_calls(module):
        structure, _ = structure_of(kernel, names=False)
        if (structure, arguments) not in free:
            _check(kernel, target, arguments)
            free.add((structure, arguments))


def _check(kernel: func.FuncOp, target: TargetOp, arguments: Arguments | None) -> None:
    hazards, program = check_kernel(kernel, target, most=_NAMED, arguments=arguments)
    for fault in limit_faults(program, target):
        raise fault.error()
    if hazards:
        first = hazards[0].error()
        notes = [*first.notes]
        for hazard in hazards[1:]:
            error = hazard.error()
            notes += [f"and {error.loc}: {error.message}" if error.loc else f"and {error.message}", *error.notes]
        raise UserError(first.message, loc=first.loc, notes=notes)
