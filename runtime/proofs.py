# SPDX-License-Identifier: Apache-2.0
"""What is proved of a program without running it: its intrinsics, its memory plan, and the order of its commands."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.accel import Accel
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.memory.aliases import Allocation
from penstock.passes.analysis.memory.memory_problems import checked_problems
from penstock.passes.analysis.thread_safety import prove_threads


def prove(module: ModuleOp, *, plan: bool = True, hazards: bool = True) -> None:
    """
    Prove that a program is safe: every op that names an intrinsic is that intrinsic; with `plan` the offsets that are
    written are aligned, inside their scopes, and give no byte to two live buffers; and, with `hazards`, its kernels are
    free of races, deadlocks, leaks and overflows and within the machine's limits. Iterations that several threads run
    are independent.

    Required: a module that verifies; above the loop level there is nothing to prove, and buffers without an offset are
    left out. That the program computes what its author meant is not proved. Raises UserError, at an op, for what does
    not hold.
    """
    # What proves something of a machine is imported for a program that has one.
    target, kernels = machine_kernels(module)
    for kernel in kernels:
        assert target is not None
        from penstock.passes.loop.tensorize import prove_named

        for op in kernel.walk():
            if isinstance(op, GenericOp) and op.library_call is not None:
                prove_named(op, target)
    if plan and any(isinstance(op, Allocation) for op in module.walk()):
        checked_problems(module, placed_only=True, partial=True)
    prove_threads(module)
    if hazards and any(type(op) in _COMMANDS for op in module.walk()):
        from penstock.passes.accel.accel_check_hazards import check_hazards

        check_hazards(module)


_COMMANDS = frozenset(Accel.operations)
