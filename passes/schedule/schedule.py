"""
A schedule of one kernel: a method for each primitive, which appends an op to the schedule's text and applies it.

Passes decide with it, `--schedule` replays text through it, and people call it from Python. The text is a
`transform.named_sequence` with the name of the kernel. Where it says `transform.apply_registered_pass "tensor-to-loop"`
it goes on after the compiler has run that pass on the whole program: what is before it is one section, what is after
it another. A section without ops is the compiler's to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from xdsl.context import Context
from xdsl.dialects import func, scf, transform
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError, location_of, nearest_or_all, warn_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import CopyOp
from penstock.dialects.schedule import Schedules, TileAndFuseOp
from penstock.dialects.schedule_accel import MultiBufferOp, PipelineOp, VirtualThreadOp
from penstock.dialects.schedule_loops import (
    DistributeOp,
    FuseLoopsOp,
    ReorderOp,
    SplitOp,
    StorageAlignOp,
    VectorizeOp,
)
from penstock.dialects.schedule_memory import SetScopeOp, StageInOp, StageOutOp, TensorizeOp
from penstock.dialects.schedule_parallel import BindOp, CooperateOp, InsertBarriersOp, ParallelizeOp
from penstock.dialects.schedule_tensor import ComputeAtOp, InlineOp, ReverseComputeAtOp, RfactorOp
from penstock.dialects.upstream.gpu import DeviceMappingAttr
from penstock.dialects.upstream.transform import ANY_OP, CastHandleOp, GetParentOp, SplitHandleOp
from penstock.dialects.upstream.transform_loops import ConvertToLoopsOp, InterchangeOp, LoopPeelOp, LoopUnrollOp
from penstock.dialects.upstream.transform_tune import KnobOp
from penstock.passes.analysis.kernels import REMARK, device_of, is_mover, kernels, machine_of, origin_of
from penstock.passes.isomorphic_kernels import structure_of
from penstock.passes.schedule import primitives  # noqa: F401  # pyright: ignore[reportUnusedImport]
from penstock.passes.schedule.scope_offsets import Kept
from penstock.passes.schedule.state import TransformState

START = ""
"""The section of the tensor level, with which a schedule begins."""
LOOPS, ON_CHIP, COMMANDS = "tensor-to-loop", "mem-promote", "loop-to-accel"
"""
The sections of the loop level, after what stays on chip between kernels has been decided, and after copies and ops
became commands.
"""
SECTIONS = (LOOPS, ON_CHIP, COMMANDS)
"""The passes after which another section of a schedule begins, in the order of the pipeline."""

KERNEL_TYPE = "schedule.kernel"
"""The attribute of a schedule with the type of the kernel that it was written for, where that is known."""

Op = TypeVar("Op", bound=Operation)


def new_sequence(name: str) -> transform.NamedSequenceOp:
    """An empty schedule for the kernel `name`."""
    block = Block(arg_types=[ANY_OP])
    block.args[0].name_hint = "kernel"
    read_only = DictionaryAttr({"transform.readonly": UnitAttr()})
    return transform.NamedSequenceOp(name, ([ANY_OP], []), Region(block), arg_attrs=[read_only])


class Schedule:
    """The schedule of `kernel`, at the end of `sequence`, whose earlier ops have been applied."""

    def __init__(
        self, kernel: func.FuncOp, target: TargetOp | None = None, sequence: transform.NamedSequenceOp | None = None
    ):
        self.sequence = sequence or new_sequence(kernel.sym_name.data)
        self.state = TransformState(kernel, target)
        self.kernel: SSAValue = self.sequence.body.block.args[0]
        """The handle of the kernel in this section."""
        self.state.bind(self.kernel, (kernel,))

    def append(self, op: Op) -> Op:
        """Append an op and apply it; raises UserError, and leaves schedule and kernel alone, where that is illegal."""
        try:
            op.verify()
        except VerifyException as error:
            op.erase()
            raise UserError(str(error)) from None
        self.sequence.body.block.add_op(op)
        try:
            self.state.apply(op)
        except UserError:
            op.detach()
            op.erase()
            raise
        return op

    def enter(self, section: str) -> None:
        """Begin a section: what the sequence says of it and of later ones is dropped."""
        block = self.sequence.body.block
        later = SECTIONS[SECTIONS.index(section) :] if section != START else None
        ops = list(block.ops)
        begin = next(
            (n for n, op in enumerate(ops) if later is None or (_mark(op) is not None and _mark(op) in later)), None
        )
        for op in reversed(ops[begin:] if begin is not None else []):
            op.detach()
            op.erase()
        if section == START:
            return
        mark = transform.ApplyRegisteredPassOp(section, self._last_kernel())
        mark.result.name_hint = "kernel"
        block.add_op(mark)
        self.resume()

    def resume(self) -> None:
        """Go on where the sequence ends: the kernel is what the last mark of a section returned."""
        self.kernel = self._last_kernel()
        self.state.bind(self.kernel, (self.state.kernel,))

    def _last_kernel(self) -> SSAValue:
        marks = [op for op in self.sequence.body.block.ops if _mark(op) is not None]
        return marks[-1].results[0] if marks else self.sequence.body.block.args[0]

    def replay(self, given: transform.NamedSequenceOp, section: str) -> None:
        """Append the ops of a section of another schedule, and apply them."""
        # Handles of other sections stand for nothing any more: whoever uses one is told so.
        begin = next((op.results[0] for op in given.body.block.ops if _mark(op) == section), given.body.block.args[0])
        values: dict[SSAValue, SSAValue] = {begin: self.kernel}
        for op in section_of(given, section):
            self.append(op.clone(values))

    # handles

    def match(self, *names: str, within: SSAValue | None = None) -> tuple[SSAValue, ...]:
        """A handle for each op of these names, in program order."""
        op = self.append(transform.MatchOp(self.kernel if within is None else within, names))
        payload = self.state.payload(op.result)
        if len(payload) < 2:
            _name(op.result, payload[0] if payload else None)
            return (op.result,) * len(payload)
        split = self.append(SplitHandleOp(op.result, len(payload)))
        for result, matched in zip(split.results, payload, strict=True):
            _name(result, matched)
        return tuple(split.results)

    def parent(self, handle: SSAValue, name: str, nth: int = 1) -> SSAValue:
        """The handle of the op around, of that name, the nth one from inside."""
        return self.append(GetParentOp(handle, name, nth)).parent_result

    def op(self, handle: SSAValue) -> Operation:
        """The operation that a handle stands for."""
        return self.state.one(handle)

    # primitives

    def tile(
        self,
        target: SSAValue,
        sizes: Sequence[int | SSAValue],
        *,
        fusing: Sequence[SSAValue] = (),
        interchange: Sequence[int] | None = None,
        edges: Sequence[str] | None = None,
        unpadded: Sequence[int] = (),
        slots: Mapping[str, int] | None = None,
        remark: str = "",
    ) -> TileAndFuseOp:
        """`schedule.tile`; see the op."""
        op = TileAndFuseOp(
            target,
            fusing,
            sizes,
            interchange=interchange,
            edges=edges,
            unpadded=unpadded,
            slots=slots,
            remark=remark,
        )
        for handle, old in zip(op.handles, (target, *fusing), strict=False):
            handle.name_hint = f"{old.name_hint or 'op'}_tile"
        for handle in op.loops:
            handle.name_hint = "loop"
        return self.append(op)

    def knob(self, name: str, options: Sequence[int], selected: int) -> SSAValue:
        """`transform.tune.knob`: returns a parameter, which may be the size of a tile."""
        return self.append(KnobOp(name, options, selected)).result

    # structured ops on tensors

    def compute_at(self, producer: SSAValue, loop: SSAValue) -> SSAValue:
        """`schedule.compute_at`: returns the handle of what computes it in the loop."""
        return self.append(ComputeAtOp(producer, loop)).tiles

    def reverse_compute_at(self, consumer: SSAValue, loop: SSAValue) -> SSAValue:
        """`schedule.reverse_compute_at`: returns the handle of what computes it in the loop."""
        return self.append(ReverseComputeAtOp(consumer, loop)).tile

    def inline(self, producer: SSAValue) -> SSAValue:
        """`schedule.inline`: returns the handle of what reads the producer's operands now."""
        return self.append(InlineOp(producer)).merged

    def rfactor(self, target: SSAValue, dim: int, factor: int) -> RfactorOp:
        """`schedule.rfactor`; see the op."""
        return self.append(RfactorOp(target, dim, factor))

    # loops and buffers of the loop level

    def split(self, loop: SSAValue, factor: int | SSAValue) -> SplitOp:
        """`schedule.split`; see the op."""
        return self.append(SplitOp(loop, factor))

    def fuse(self, outer: SSAValue, inner: SSAValue) -> SSAValue:
        """`schedule.fuse`: returns the handle of the one loop."""
        return self.append(FuseLoopsOp(outer, inner)).fused

    def reorder(self, *loops: SSAValue, reassociate: bool = False) -> None:
        """`schedule.reorder`: the loops, the outermost first."""
        self.append(ReorderOp(loops, reassociate=reassociate))

    def unroll(self, loop: SSAValue, factor: int) -> None:
        """`transform.loop.unroll`; no loop is left where it has no more iterations than `factor`."""
        self.append(LoopUnrollOp(loop, factor))

    def peel(self, loop: SSAValue, *, front: bool = False) -> LoopPeelOp:
        """`transform.loop.peel`, on a handle that is cast to what upstream demands of it."""
        return self.append(LoopPeelOp(self._cast(loop, scf.ForOp.name), peel_front=front))

    def distribute(self, loop: SSAValue, op: SSAValue) -> DistributeOp:
        """`schedule.distribute`: what is before `op` in a loop, and the rest, in loops of their own."""
        return self.append(DistributeOp(loop, op))

    def vectorize(self, loop: SSAValue) -> None:
        """`schedule.vectorize`; see the op."""
        self.append(VectorizeOp(loop))

    def storage_align(self, buffer: SSAValue, dim: int, factor: int, offset: int = 0) -> None:
        """`schedule.storage_align`; see the op."""
        self.append(StorageAlignOp(buffer, dim, factor, offset))

    def interchange(self, target: SSAValue, order: Sequence[int]) -> SSAValue:
        """`transform.structured.interchange`: dim `order[n]` of a structured op becomes dim n."""
        return self.append(InterchangeOp(target, order)).transformed

    # iterations that run at once

    def parallel(self, *loops: SSAValue) -> SSAValue:
        """`schedule.parallel`: returns the handle of the `scf.forall`."""
        return self.append(ParallelizeOp(loops)).forall

    def bind(self, *loops: SSAValue, to: Sequence[DeviceMappingAttr]) -> SSAValue:
        """`schedule.bind`: returns the handle of the `scf.forall`."""
        return self.append(BindOp(loops, to)).forall

    def cooperate(self, copy: SSAValue) -> SSAValue:
        """`schedule.cooperate`: returns the handle of the copy of a part."""
        return self.append(CooperateOp(copy)).part

    def insert_barriers(self, forall: SSAValue) -> None:
        """`schedule.insert_barriers`; see the op."""
        self.append(InsertBarriersOp(forall))

    def convert_to_loops(self, target: SSAValue) -> Sequence[SSAValue]:
        """`transform.structured.convert_to_loops`: returns a handle for each of the loops, outermost first."""
        loops = self.append(ConvertToLoopsOp(target)).result
        count = len(self.state.payload(loops))
        return self.append(SplitHandleOp(loops, count)).results if count else ()

    def _cast(self, handle: SSAValue, name: str) -> SSAValue:
        type = transform.OperationType(name)
        if handle.type == type:
            return handle
        return self.append(CastHandleOp(handle, type)).output

    # what lives in which scope, and which intrinsic computes it

    def stage_in(
        self, reader: SSAValue, operand: int, scope: str, *, at: SSAValue | None = None, contiguous: int = 1
    ) -> SSAValue:
        """`schedule.stage_in`; see the op. Returns the handle of the copy."""
        op = StageInOp(reader, operand, scope, at=at, contiguous=contiguous)
        op.transfer.name_hint = f"{reader.name_hint or 'op'}_in"
        return self.append(op).transfer

    def stage_out(self, writer: SSAValue, operand: int, scope: str, *, contiguous: int = 1) -> SSAValue:
        """`schedule.stage_out`; see the op. Returns the handle of the copy."""
        op = StageOutOp(writer, operand, scope, contiguous=contiguous)
        op.transfer.name_hint = f"{writer.name_hint or 'op'}_out"
        return self.append(op).transfer

    def set_scope(self, allocation: SSAValue, scope: str, *, contiguous: int = 1) -> None:
        """`schedule.set_scope`; see the op."""
        self.append(SetScopeOp(allocation, scope, contiguous=contiguous))

    def tensorize(self, target: SSAValue, intrinsic: str) -> None:
        """`schedule.tensorize`; see the op."""
        self.append(TensorizeOp(target, intrinsic))

    # buffers in scopes, and commands

    def multi_buffer(self, buffer: SSAValue, slots: int) -> SSAValue:
        """`schedule.multi_buffer`; see the op."""
        op = MultiBufferOp(buffer, slots)
        op.ring.name_hint = f"{buffer.name_hint or 'buffer'}_ring"
        return self.append(op).ring

    def pipeline(
        self,
        slots: Sequence[tuple[SSAValue, int]] = (),
        skewing: Sequence[SSAValue] = (),
        *,
        wanted: Sequence[int] | None = None,
        where_possible: bool = False,
        fixed_offsets: bool = False,
        remark: str = "",
    ) -> PipelineOp:
        """`schedule.pipeline` of the kernel; see the op."""
        op = PipelineOp(
            self.kernel,
            slots,
            skewing,
            wanted=wanted,
            where_possible=where_possible,
            fixed_offsets=fixed_offsets,
            remark=remark,
        )
        return self.append(op)

    def virtual_thread(self, loop: SSAValue, threads: int) -> None:
        """`schedule.virtual_thread`; see the op."""
        self.append(VirtualThreadOp(loop, threads))

    def drop_unused(self, handles: Sequence[SSAValue]) -> None:
        """Take away the ops that match what turned out to be of no use."""
        for op in dict.fromkeys(handle.owner for handle in handles):
            while isinstance(op, SplitHandleOp | transform.MatchOp) and not any(result.uses for result in op.results):
                matched = op.operands[0].owner
                op.detach()
                op.erase()
                op = matched


def _name(handle: SSAValue, matched: Operation | None) -> None:
    if matched is not None:
        # Ops on memrefs are called by what they write.
        values = matched.results or [*matched.operands[-1:]]
        if isinstance(matched, CopyOp):
            values = [matched.dest, matched.source]
        elif isinstance(matched, scf.ForOp):
            values = matched.body.block.args[:1]
        named = next((value.name_hint for value in values if value.name_hint), None)
        handle.name_hint = named or matched.name.rpartition(".")[2]


def _mark(op: Operation) -> str | None:
    """The section that begins with this op of a schedule."""
    if isinstance(op, transform.ApplyRegisteredPassOp) and op.pass_name.data in SECTIONS:
        return op.pass_name.data
    return None


def section_of(sequence: transform.NamedSequenceOp, section: str) -> list[Operation]:
    """The ops of a section of a schedule."""
    current, found = START, list[Operation]()
    for op in sequence.body.block.ops:
        if (begins := _mark(op)) is not None:
            current = begins
        elif current == section and not isinstance(op, transform.YieldOp):
            found.append(op)
    return found


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
    kept: Kept | None = None,
) -> None:
    """
    Apply what is given as a section of a kernel's schedule; where nothing is, let `decide` write and apply it.

    The first pass of a section `leads`: it begins it, and applies all that is given. The other passes of the section
    only decide. `kept` is what callers of the kernel hold in scopes, if that is known already.
    """
    name = kernel.sym_name.data
    sequence = sequence_of(ctx, kernel)
    given = given_for(schedules_of(ctx), sequence)
    schedule = Schedule(kernel, target, sequence)
    if kept is not None:
        schedule.state.kept = kept
    if leads:
        schedule.enter(section)
    else:
        schedule.resume()
    if given is None:
        decide(schedule)
    elif not section_of(given, section):
        try:
            decide(schedule)
        except UserError as error:
            where = f"after {section}" if section != START else "of the tensor level"
            note = f"the schedule at {location_of(given)} leaves the section {where} to the compiler"
            place = error.loc or location_of(given)
            raise UserError(error.message, loc=place, notes=[*error.notes, note], status=error.status) from None
    elif leads:
        if given.sym_name.data == name and not _has_type(given, sequence):
            raise UserError(
                f"this is the schedule of another kernel @{name}, of type {given.attributes[KERNEL_TYPE]}",
                loc=location_of(given),
                notes=[f"the program has one of type {sequence.attributes[KERNEL_TYPE]}"],
            )
        schedule.replay(given, section)


def has_section(ctx: Context, kernel: func.FuncOp, section: str) -> bool:
    """Whether a pass has begun a section of a kernel's schedule."""
    return any(_mark(op) == section for op in sequence_of(ctx, kernel).body.block.ops)


def given_key(ctx: Context, kernel: func.FuncOp) -> Hashable:
    """What kernels have in common for which schedules are given that say the same; None where none is given."""
    given = given_for(schedules_of(ctx), sequence_of(ctx, kernel))
    return None if given is None else structure_of(given.body, names=False, located=False)[0]


def copy_section(ctx: Context, section: str, source: func.FuncOp, kernel: func.FuncOp) -> None:
    """Write down a section of the schedule of `source` for a kernel that became what `source` did."""
    copied = sequence_of(ctx, source)
    schedule = Schedule(kernel, None, sequence_of(ctx, kernel))
    schedule.enter(section)
    begin = next(op for op in copied.body.block.ops if _mark(op) == section)
    values: dict[SSAValue, SSAValue] = {begin.results[0]: schedule.kernel}
    for op in section_of(copied, section):
        schedule.sequence.body.block.add_op(op.clone(values))


def require_kernels(ctx: Context, module: ModuleOp, section: str) -> None:
    """
    Raise UserError for a schedule that is given, with ops of this section, and whose kernel is not there; without any,
    too, as long as it is known which kernels there are; and for one of a kernel on the host with ops of a section that
    is about scopes.

    Which kernels there are after `mem-promote` depends on what it decides. What a schedule says after it of a kernel
    that is not there now is left to the compiler, with an InputWarning.
    """
    schedules, known = schedules_of(ctx), {kernel.sym_name.data: kernel for kernel in kernels(module)}
    for name, sequence in schedules.given.items():
        is_checked = section_of(sequence, section) or (section in (START, LOOPS) and not _is_made(name))
        if not is_checked or name in schedules.left_out:
            continue
        place = location_of(sequence)
        taking = [each for each in known.values() if given_for(schedules, sequence_of(ctx, each)) is sequence]
        for kernel in taking:
            _require_scopes(module, kernel, sequence)
        if taking:
            continue
        origin = origin_of(name)
        if section not in (ON_CHIP, COMMANDS):
            notes = [nearest_or_all(name, known, "kernels")]
            if (origin in known and origin != name) or is_mover(name):
                notes = [f'"{ON_CHIP}" makes it, and a schedule of it begins after that']
            raise UserError(f"the program has no kernel @{name}", loc=place, notes=notes)
        made = [each for each in known if origin_of(each) == origin]
        if not made and not is_mover(name):
            notes = [nearest_or_all(name, known, "kernels")]
            raise UserError(f"the program has no kernel @{name}", loc=place, notes=notes)
        schedules.left_out.add(name)
        now = f"there {'are' if len(made) > 1 else 'is'} {', '.join(f'@{each}' for each in made)}" if made else ""
        warn_of(
            [
                f'what the schedule of @{name} says after "{ON_CHIP}" is left to the compiler: that pass keeps other '
                "tensors on chip now, and makes no such kernel",
                *([now] if now else []),
            ],
            place,
        )


def _require_scopes(module: ModuleOp, kernel: func.FuncOp, sequence: transform.NamedSequenceOp) -> None:
    """Raise UserError for a schedule with ops of a section about scopes if its kernel runs on the host."""
    target = machine_of(module)
    if target is not None and device_of(kernel) == target.sym_name.data:
        return
    for section in (ON_CHIP, COMMANDS):
        if section_of(sequence, section):
            remark = kernel.attributes.get(REMARK)
            raise UserError(
                f'kernel @{kernel.sym_name.data} runs on the host, which has no scopes: what is after "{section}" is '
                "not for it",
                loc=location_of(sequence),
                notes=[f"because {remark.data}"]
                if isinstance(remark, StringAttr)
                else ["a schedule for a machine is applied with --machine NAME"],
            )
