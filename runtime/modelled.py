# SPDX-License-Identifier: Apache-2.0
"""How long a program of the loop level takes, as the machine's file tells: without lowering or simulating it."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, Region

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import ProcessorOp, find_target
from penstock.passes.analysis.commands.traffic import executions
from penstock.passes.analysis.kernels import ENTRY, machine_kernels
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.work import kernel_cycles, op_cycles
from penstock.passes.loop.on_chip.times import has_times, kernel_time


def modelled_cycles(module: ModuleOp) -> int | None:
    """
    The cycles of one run of `@main`, one call after the other: those of kernels of the machine as `mem-promote` times
    them, those of the host as `assign-devices` weighs them.

    None without a machine, for one whose file does not say how fast it is, and where how often something runs is not
    known.
    """
    target = find_target(module)
    processor = None if target is None else target.processor()
    _, found = machine_kernels(module)
    kernels = set(found)
    if target is None or (kernels and not has_times(target)):
        return None
    try:
        runs = list(executions(module))
        total = Fraction(sum(times * kernel_time(each, target) for each, times in runs if each in kernels))
    except UserError:
        return None
    for function, times in runs:
        if function in kernels:
            continue
        if processor is None:
            return None
        is_entry = function.sym_name.data == ENTRY
        own = _region_cycles(function.body, processor) if is_entry else kernel_cycles(function, processor)
        if own is None:
            return None
        total += times * own
    return ceil(total)


def _region_cycles(region: Region, processor: ProcessorOp) -> Fraction | None:
    found = [_own_cycles(op, processor) for block in region.blocks for op in block.ops]
    return None if None in found else sum((each or Fraction(0) for each in found), Fraction(0))


def _own_cycles(op: Operation, processor: ProcessorOp) -> Fraction | None:
    """The cycles of an op of `@main` as `op_cycles` weighs it, without what it calls; None where they are not known."""
    if not any(isinstance(each, func.CallOp) for each in op.walk()):
        return op_cycles(op, processor)
    inside = [_region_cycles(region, processor) for region in op.regions]
    if None in inside:
        return None
    cycles = [each or Fraction(0) for each in inside]
    match op:
        case func.CallOp():
            return Fraction(0)
        case scf.ForOp() if (trips := trip_count(op)) is not None:
            return trips * (sum(cycles) + processor.cycles_per_op)
        case scf.IfOp():
            return max(cycles) + processor.cycles_per_op
        case _:
            return None
