# SPDX-License-Identifier: Apache-2.0
"""
How passes decide: each writes its part of a section of a kernel's schedule, unless the section is given.

The handles that one pass has made are there for the next one of the section.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

from xdsl.context import Context
from xdsl.dialects import func, transform
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError, did_you_mean, location_of, warn_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.schedule import Schedules
from penstock.passes.analysis.kernels import (
    REMARK,
    TILING,
    add_remark,
    device_of,
    is_mover,
    kernels,
    machine_of,
    origin_of,
    version_of,
)
from penstock.passes.isomorphic_kernels import structure_of
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.scope_offsets import Kept
from penstock.passes.schedule.sections import (
    COMMANDS,
    LOOPS,
    ON_CHIP,
    START,
    decides,
    kernel_in,
    last_kernel,
    new_sequence,
    section_begun_by,
    section_of,
)

LEFT = "no further"
"""How the remark begins about a kernel that is not cut as the compiler wants it."""

KERNEL_TYPE = "schedule.kernel"
"""The attribute of a schedule with the type of the kernel that it was written for, where that is known."""


def schedules_of(ctx: Context) -> Schedules:
    """The schedules that a driver carries; none for one of another driver."""
    return ctx.schedules if isinstance(ctx, PenstockContext) else Schedules()


def given_for(schedules: Schedules, applied: transform.NamedSequenceOp) -> transform.NamedSequenceOp | None:
    """
    The schedule that is given for the kernel of a schedule that is being applied: that of its name, else that of the
    kernel that `mem-promote` made it of. What `mem-promote` makes has other types when it decides otherwise: a schedule
    of its name for those is not meant.
    """
    name = applied.sym_name.data
    given = schedules.given.get(name)
    if given is None or (_is_made(name) and not _has_type(given, applied)):
        given = schedules.given.get(origin_of(name)) if origin_of(name) != name else None
    return given


def _is_made(name: str) -> bool:
    """Whether a kernel is called as those that `mem-promote` makes."""
    return is_mover(name) or origin_of(name) != name


def _has_type(given: transform.NamedSequenceOp, applied: transform.NamedSequenceOp) -> bool:
    """Whether a schedule is for the type of kernel that `applied` is for, or for any."""
    return given.attributes.get(KERNEL_TYPE) in (None, applied.attributes.get(KERNEL_TYPE))


def sequence_of(ctx: Context, kernel: func.FuncOp) -> transform.NamedSequenceOp:
    """What has been applied to a kernel; an empty schedule at first."""
    applied, name = schedules_of(ctx).applied, kernel.sym_name.data
    if name not in applied:
        applied[name] = new_sequence(name)
        applied[name].attributes[KERNEL_TYPE] = kernel.function_type
    return applied[name]


def run_section(
    ctx: Context,
    kernel: func.FuncOp,
    target: TargetOp | None,
    section: str,
    decide: Callable[[Schedule], None],
    *,
    leads: bool = True,
    is_optional: bool = False,
    kept: Kept | None = None,
) -> None:
    """
    Apply what is given as a section of a kernel's schedule; where nothing is, let `decide` write and apply it.

    The first pass of a section `leads`: it begins it, and applies all that is given. The other passes of the section
    only decide. Where that is optional, as it only makes a kernel faster, it ends at what a primitive refuses: nobody
    wrote that, and `tiling` of the kernel says it. `kept` is what callers of the kernel hold in scopes, if that is
    known already.
    """
    given = given_for(schedules_of(ctx), sequence_of(ctx, kernel))
    schedule = _begin(ctx, kernel, target, section) if leads else _resume(ctx, kernel, target)
    if kept is not None:
        schedule.state.kept = kept
    if given is not None and leads:
        _require_type(given, schedule.sequence, section)
        schedule.replay(given, section)
    if given is not None and decides(given, section):
        return
    try:
        decide(schedule)
    except UserError as error:
        if is_optional:
            add_remark(kernel, TILING, [f"{LEFT}: {error.message}"], "missed")
            return schedule.drop_unused()
        if given is None:
            raise
        where = f"after {section}" if section != START else "of the tensor level"
        note = f"the schedule at {location_of(given)} leaves the section {where} to the compiler"
        place = error.loc or location_of(given)
        raise UserError(error.message, loc=place, notes=[*error.notes, note], status=error.status) from None
    schedule.drop_unused()


def _begin(ctx: Context, kernel: func.FuncOp, target: TargetOp | None, section: str) -> Schedule:
    schedule = Schedule(kernel, target, sequence_of(ctx, kernel))
    schedule.enter(section)
    schedules_of(ctx).open[kernel.sym_name.data] = schedule
    return schedule


def _resume(ctx: Context, kernel: func.FuncOp, target: TargetOp | None) -> Schedule:
    """Go on with the section that another pass has begun, and with its handles."""
    sequence, schedule = sequence_of(ctx, kernel), schedules_of(ctx).open.get(kernel.sym_name.data)
    if not isinstance(schedule, Schedule) or schedule.sequence is not sequence or schedule.state.kernel is not kernel:
        return Schedule(kernel, target, sequence)
    if schedule.kernel is not last_kernel(sequence):
        # This section is a copy of another kernel's.
        return Schedule(kernel, target, sequence)
    schedule.state.resume()
    return schedule


def _require_type(given: transform.NamedSequenceOp, sequence: transform.NamedSequenceOp, section: str) -> None:
    """Raise UserError for a section that was written for a kernel of another type."""
    is_own = given.sym_name == sequence.sym_name
    if is_own and section_of(given, section) and not _has_type(given, sequence):
        raise UserError(
            f"this is the schedule of another kernel @{given.sym_name.data}, of type {given.attributes[KERNEL_TYPE]}",
            loc=location_of(given),
            notes=[f"the program has one of type {sequence.attributes[KERNEL_TYPE]}"],
        )


def has_section(ctx: Context, kernel: func.FuncOp, section: str) -> bool:
    """Whether a pass has begun a section of a kernel's schedule."""
    return any(section_begun_by(op) == section for op in sequence_of(ctx, kernel).body.block.ops)


def given_key(ctx: Context, kernel: func.FuncOp) -> Hashable:
    """What kernels have in common for which schedules are given that say the same; None where none is given."""
    given = given_for(schedules_of(ctx), sequence_of(ctx, kernel))
    return None if given is None else structure_of(given.body, names=False, located=False)[0]


def written_section(ctx: Context, section: str, kernel: func.FuncOp) -> transform.NamedSequenceOp:
    """A section of the schedule that has been applied to a kernel, by itself."""
    applied = sequence_of(ctx, kernel)
    copied = new_sequence(kernel.sym_name.data)
    values: dict[SSAValue, SSAValue] = {kernel_in(applied, section): copied.body.block.args[0]}
    for op in section_of(applied, section):
        copied.body.block.add_op(op.clone(values))
    return copied


def copy_section(ctx: Context, section: str, written: transform.NamedSequenceOp, kernel: func.FuncOp) -> None:
    """Write down a section of the schedule of another kernel for one that became what that did."""
    schedule = Schedule(kernel, None, sequence_of(ctx, kernel))
    schedule.enter(section)
    values: dict[SSAValue, SSAValue] = {written.body.block.args[0]: schedule.kernel}
    for op in written.body.block.ops:
        schedule.sequence.body.block.add_op(op.clone(values))


def require_kernels(ctx: Context, module: ModuleOp, section: str) -> None:
    """
    Raise UserError for a schedule that is given, with ops of this section, and whose kernel is not there; without any,
    too, as long as it is known which kernels there are; and for one of a kernel on the host with ops of a section that
    is about scopes.

    Versions of a kernel are there from `tensor-to-loop` on. Which kernels there are after `mem-promote` depends on what
    it decides. What a schedule says after it of a kernel that is not there now is left to the compiler, with an
    InputWarning.
    """
    schedules, known = schedules_of(ctx), {kernel.sym_name.data: kernel for kernel in kernels(module)}
    for name, sequence in schedules.given.items():
        is_checked = decides(sequence, section) or (section in (START, LOOPS) and not _is_made(name))
        if not is_checked or name in schedules.left_out:
            continue
        place = location_of(sequence)
        taking = [each for each in known.values() if given_for(schedules, sequence_of(ctx, each)) is sequence]
        for kernel in taking:
            _require_scopes(module, kernel, sequence)
        if taking or (section == START and version_of(name) in known and not decides(sequence, START)):
            continue
        origin = origin_of(name)
        if section not in (ON_CHIP, COMMANDS):
            notes = [_meant(name, known, schedules)]
            if (origin in known and origin != name) or is_mover(name):
                notes = [f'"{ON_CHIP}" makes it, and a schedule of it begins after that']
            raise UserError(f"the program has no kernel @{name}", loc=place, notes=notes)
        made = [each for each in known if origin_of(each) == origin]
        if not made and not is_mover(name):
            notes = [_meant(name, known, schedules)]
            raise UserError(f"the program has no kernel @{name}", loc=place, notes=notes)
        schedules.left_out.add(name)
        now = f"there {'are' if len(made) > 1 else 'is'} {', '.join(f'@{each}' for each in made)}" if made else ""
        if name in known and KERNEL_TYPE in (applied := sequence_of(ctx, known[name])).attributes:
            now = f"there is @{name}, of another type: {applied.attributes[KERNEL_TYPE]}"
        warn_of(
            [
                f'what the schedule of @{name} says after "{ON_CHIP}" is left to the compiler: that pass keeps other '
                "tensors on chip now, and makes no such kernel",
                *([now] if now else []),
            ],
            place,
        )


def _meant(name: str, known: Collection[str], schedules: Schedules) -> str:
    """A note for the name of a kernel that is not there: the nearest without a schedule, or else all kernels."""
    if near := did_you_mean(name, [each for each in known if each not in schedules.given]):
        return near
    return f"kernels: {', '.join(known) or 'none'}; is this the schedule of another program, or for another machine?"


def _require_scopes(module: ModuleOp, kernel: func.FuncOp, sequence: transform.NamedSequenceOp) -> None:
    """Raise UserError for a schedule with ops of a section about scopes if its kernel runs on the host."""
    target = machine_of(module)
    if target is not None and device_of(kernel) == target.sym_name.data:
        return
    for section in (ON_CHIP, COMMANDS):
        if decides(sequence, section):
            remark = kernel.attributes.get(REMARK)
            raise UserError(
                f'kernel @{kernel.sym_name.data} runs on the host, which has no scopes: what is after "{section}" is '
                "not for it",
                loc=location_of(sequence),
                notes=[f"because {remark.data}"]
                if isinstance(remark, StringAttr)
                else ["a schedule for a machine is applied with --machine NAME"],
            )
