"""
How passes decide: each writes its part of a section of a kernel's schedule, unless the section is given.

The handles that one pass has made are there for the next one of the section.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

from xdsl.context import Context
from xdsl.dialects import func, transform
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError, location_of, nearest_or_all
from penstock.dialects.machine import TargetOp
from penstock.dialects.schedule import Schedules
from penstock.passes.analysis.kernels import kernels
from penstock.passes.isomorphic_kernels import structure_of
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.scope_offsets import Kept
from penstock.passes.schedule.sections import START, decides, kernel_in, new_sequence, section_begun_by, section_of

KERNEL_TYPE = "schedule.kernel"
"""The attribute of a schedule with the type of the kernel that it was written for, where that is known."""


def schedules_of(ctx: Context) -> Schedules:
    """The schedules that a driver carries; none for one of another driver."""
    return ctx.schedules if isinstance(ctx, PenstockContext) else Schedules()


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
    kept: Kept | None = None,
) -> None:
    """
    Apply what is given as a section of a kernel's schedule; where nothing is, let `decide` write and apply it.

    The first pass of a section `leads`: it begins it, and applies all that is given. The other passes of the section
    only decide. `kept` is what callers of the kernel hold in scopes, if that is known already.
    """
    given = schedules_of(ctx).given.get(kernel.sym_name.data)
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
    schedule.state.resume()
    return schedule


def _require_type(given: transform.NamedSequenceOp, sequence: transform.NamedSequenceOp, section: str) -> None:
    """Raise UserError for a section that was written for a kernel of another type."""
    wanted, known = given.attributes.get(KERNEL_TYPE), sequence.attributes.get(KERNEL_TYPE)
    if section_of(given, section) and wanted not in (None, known):
        raise UserError(
            f"this is the schedule of another kernel @{given.sym_name.data}, of type {wanted}",
            loc=location_of(given),
            notes=[f"the program has one of type {known}"],
        )


def has_section(ctx: Context, kernel: func.FuncOp, section: str) -> bool:
    """Whether a pass has begun a section of a kernel's schedule."""
    return any(section_begun_by(op) == section for op in sequence_of(ctx, kernel).body.block.ops)


def given_key(ctx: Context, kernel: func.FuncOp) -> Hashable:
    """What kernels have in common for which schedules are given that say the same; None where none is given."""
    given = schedules_of(ctx).given.get(kernel.sym_name.data)
    return None if given is None else structure_of(given.body, names=False, located=False)[0]


def copy_section(ctx: Context, section: str, source: func.FuncOp, kernel: func.FuncOp) -> None:
    """Write down a section of the schedule of `source` for a kernel that became what `source` did."""
    copied = sequence_of(ctx, source)
    schedule = Schedule(kernel, None, sequence_of(ctx, kernel))
    schedule.enter(section)
    values: dict[SSAValue, SSAValue] = {kernel_in(copied, section): schedule.kernel}
    for op in section_of(copied, section):
        schedule.sequence.body.block.add_op(op.clone(values))


def note_of_missing(name: str, known: Collection[str]) -> str:
    """What helps where there is no kernel of a name: where it went, the nearest one, or all."""
    on_chip, off_chip = f"{name}_on_chip", name.removesuffix("_on_chip")
    if on_chip in known:
        return f'it reads or writes what "mem-promote" keeps on chip: what follows is said in a schedule of @{on_chip}'
    if off_chip != name and off_chip in known:
        return (
            f'"mem-promote" keeps nothing of @{off_chip} on chip now: say what follows in the schedule of that kernel'
        )
    return nearest_or_all(name, known, "kernels")


def require_kernels(
    ctx: Context, module: ModuleOp, section: str, on_machine: Collection[func.FuncOp] | None = None
) -> None:
    """
    Raise UserError for a schedule that is given, with ops of this section, and whose kernel is not there; nor, where
    the section is about them alone, one of the kernels `on_machine`.
    """
    known = {kernel.sym_name.data: kernel for kernel in kernels(module)}
    for name, sequence in schedules_of(ctx).given.items():
        if not section_of(sequence, section):
            continue
        if name not in known:
            raise UserError(
                f"the program has no kernel @{name}",
                loc=location_of(sequence),
                notes=[note_of_missing(name, known)],
            )
        if on_machine is not None and known[name] not in on_machine:
            raise UserError(
                f'kernel @{name} runs on the host, which has no scopes: what is after "{section}" is not for it',
                loc=location_of(sequence),
            )
