# SPDX-License-Identifier: Apache-2.0
"""Proof that a kernel is free of hazards: no timing of its units changes what it computes, or lets it stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.analysis.commands.hazards.induction import UndecidedError, commands_of, decide
from penstock.passes.analysis.commands.hazards.network import Hazard, HazardKind
from penstock.passes.analysis.commands.hazards.races import MAX_HAZARDS, check
from penstock.passes.analysis.commands.program import Program, View
from penstock.passes.analysis.commands.trace import trace, trace_calls
from penstock.passes.analysis.kernels import machine_kernels

__all__ = [
    "MAX_HAZARDS",
    "Hazard",
    "HazardKind",
    "check",
    "check_kernel",
    "distinct_calls",
    "race_free_kernels",
    "relocated",
]

MAX_COMMANDS = 1_000_000
"""The most commands that are checked one by one."""
_INDUCTION_FROM = 10_000
"""Up to so many commands checking all of them is faster than induction."""

Arguments = tuple[View | None, ...]


def check_kernel(
    function: func.FuncOp,
    target: TargetOp,
    *,
    most: int = MAX_HAZARDS,
    limit: int = MAX_COMMANDS,
    arguments: Sequence[View | None] | None = None,
) -> tuple[list[Hazard], Program]:
    """
    The hazards of a kernel at the accelerator level, and its commands, or those that stand for all others.

    Exact: all commands are checked if they are few, of long loops as many iterations as induction needs, and all
    again where that does not settle. Raises UserError, located, if these are more than `limit`, and as `trace` does.
    """
    commands = commands_of(function)
    if commands > _INDUCTION_FROM:
        try:
            return decide(function, target, most=most, arguments=arguments)
        except UndecidedError:
            if commands > limit:
                raise UserError(
                    f"whether @{function.sym_name.data} is free of hazards cannot be decided: it has {commands:,} "
                    f"commands, of which {limit:,} can be checked, and the iterations of its loops are not isomorphic",
                    loc=location_of(function),
                    notes=["they are where indices are affine in the loop counters, and in slots of rings"],
                    status=UNSUPPORTED,
                ) from None
    program = trace(function, target, limit=limit, arguments=arguments)
    return check(program, most=most), program


def race_free_kernels(module: ModuleOp) -> list[func.FuncOp]:
    """The kernels of the machine that issue commands and, called as the module calls them, have no hazard."""
    target, kernels = machine_kernels(module)
    kernels = [kernel for kernel in kernels if any(isinstance(op, DmaOp | ExecOp) for op in kernel.walk())]
    if target is None or not kernels:
        return []
    try:
        calls = [(kernel, arguments) for kernel, arguments in distinct_calls(module) if kernel in kernels]
    except UserError:
        return []
    hazardous = {kernel for kernel, arguments in calls if not _is_race_free(kernel, target, arguments)}
    return [kernel for kernel in kernels if kernel not in hazardous]


def _is_race_free(kernel: func.FuncOp, target: TargetOp, arguments: Arguments | None) -> bool:
    try:
        return not check_kernel(kernel, target, most=1, arguments=arguments)[0]
    except UserError:
        return False


def distinct_calls(module: ModuleOp) -> Iterator[tuple[func.FuncOp, Arguments | None]]:
    """
    The kernels of the machine, each with where its arguments lie in a call: None for one that shares no byte off chip
    with others. Arguments of a kernel without calls do not overlap; calls that hazards cannot distinguish come once.
    """
    _, kernels = machine_kernels(module)
    if not kernels:
        return
    seen: dict[func.FuncOp, dict[Arguments | None, None]] = {kernel: {} for kernel in kernels}
    for call in trace_calls(module):
        if call.function in seen:
            seen[call.function].setdefault(relocated(call.arguments))
    for kernel, arguments in seen.items():
        for each in arguments or (None,):
            yield kernel, each


def relocated(arguments: Arguments) -> Arguments:
    """
    Arguments in a scope as they are, and those off chip that overlap in a storage of their own: all that hazards, and
    the time of a kernel, depend on.
    """
    off_chip = {number: view for number, view in enumerate(arguments) if view is not None and view.space == DRAM}
    groups: list[list[int]] = []
    for number, view in off_chip.items():
        near = [group for group in groups if any(_overlap(view, off_chip[other]) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), number])
    found: list[View | None] = list(arguments)
    for group in groups:
        start = min(off_chip[number].start for number in group)
        for number in group:
            view = off_chip[number]
            shared = replace(view, storage=min(group) + 1, start=view.start - start)
            found[number] = shared if len(group) > 1 else None
    return tuple(found)


def _overlap(one: View, other: View) -> bool:
    return one.storage == other.storage and one.start < other.end and other.start < one.end
