# SPDX-License-Identifier: Apache-2.0
"""Tensorization: prove which intrinsic each op of the machine's kernels is, and write it down."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import REGISTERS, TargetOp
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import Match, candidates
from penstock.passes.analysis.kernels import kernels, machine_kernels, processor_of
from penstock.passes.schedule.deciding import run_section
from penstock.passes.schedule.primitives.tensorize import match_named
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import LOOPS
from penstock.passes.schedule.staging import place_of


def prove(generic: GenericOp, target: TargetOp) -> Match:
    """
    The first intrinsic that `generic` is, with its operands where they are.

    Raises UserError with the reason of every intrinsic that it is not, the one that came furthest first.
    """
    access = access_of(generic)
    matches, failures = candidates(access, target) if access is not None else ([], [])
    if matches:
        return matches[0]
    failures.sort(key=lambda failure: -failure.stage)
    reasons = [f"@{failure.intrinsic}: {failure.reason}" for failure in failures]
    raise UserError(
        f"this op runs on @{target.sym_name.data}, but is none of its intrinsics",
        loc=location_of(generic),
        notes=reasons or ["it has several outputs, a dynamic domain, or needs its own index"],
    )


def prove_named(generic: GenericOp, target: TargetOp) -> Match:
    """The intrinsic that `generic` says it is; raises UserError where it says none, or is another or none."""
    hint = "a schedule with a section after tensor-to-loop has a schedule.tensorize for it"
    try:
        match = prove(generic, target)
    except UserError as error:
        raise UserError(error.message, loc=error.loc, notes=[*error.notes, hint], status=error.status) from None
    named = "no intrinsic" if generic.library_call is None else generic.library_call.data
    if named == match.intrinsic.sym_name.data:
        return match
    try:
        return match_named(generic, named, target)
    except UserError:
        raise UserError(
            f"this op says it is {named}, but it matches @{match.intrinsic.sym_name.data}",
            loc=location_of(generic),
            notes=["run `tensorize` first", hint],
        ) from None


@dataclass(frozen=True)
class TensorizePass(ModulePass):
    """
    Name the intrinsic that each `linalg.generic` of the machine's kernels is, in its `library_call`.

    Requires the loop level with operands promoted. The op stays what it is: its body says what it computes, and
    the lowering to commands proves the match again. Guarantees: every generic of a kernel on the machine has a
    `library_call` that names an intrinsic it matches in body, iterator kinds, scopes and strides. Raises UserError
    for an op that is no intrinsic; it is never moved to the host behind the user's back. See `schedule.tensorize` for
    an example.
    """

    name = "tensorize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, functions = machine_kernels(op)
        for function in functions:
            assert target is not None
            run_section(ctx, function, target, LOOPS, _write, leads=False)
        if (processor := processor_of(op)) is not None and processor.intrinsics():
            for function in kernels(op):
                run_section(ctx, function, processor, LOOPS, partial(_write_on_host, processor), leads=False)


def _write_on_host(processor: TargetOp, schedule: Schedule) -> None:
    """Name the intrinsics of the host that ops with their sums in registers are; the others stay as they are."""
    found: dict[GenericOp, Match] = {}
    for op in schedule.state.kernel.walk():
        if not isinstance(op, GenericOp) or place_of(op.outputs[0]) != REGISTERS or (access := access_of(op)) is None:
            continue
        if matches := candidates(access, processor)[0]:
            found[op] = matches[0]
    schedule.state.matches = found
    for (_, match), handle in zip(found.items(), schedule.handles(found), strict=True):
        schedule.tensorize(handle, match.intrinsic.sym_name.data)


def _write(schedule: Schedule) -> None:
    """Name the cheapest intrinsic that each op is in the schedule of the kernel."""
    kernel, target = schedule.state.kernel, schedule.state.target
    assert target is not None
    generics = [op for op in kernel.walk() if isinstance(op, GenericOp)]
    for generic, handle in zip(generics, schedule.handles(generics), strict=True):
        match = prove(generic, target)
        schedule.state.matches = {generic: match}
        schedule.tensorize(handle, match.intrinsic.sym_name.data)
