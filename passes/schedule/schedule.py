"""
A schedule of one kernel: a method for each primitive, which appends an op to the schedule's text and applies it.

Passes decide with it, `--schedule` replays text through it, and people call it from Python. The text is a
`transform.named_sequence` with the name of the kernel. Where it says `transform.apply_registered_pass "tensor-to-loop"`
it goes on after the compiler has run that pass on the whole program: what is before it is one section, what is after
it another. A section without ops is the compiler's to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from xdsl.context import Context
from xdsl.dialects import func, scf, transform
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError, location_of, nearest_or_all
from penstock.dialects.machine import TargetOp
from penstock.dialects.schedule import Schedules, TileOp
from penstock.dialects.schedule_loops import (
    DistributeOp,
    FuseLoopsOp,
    ReorderOp,
    SplitOp,
    StorageAlignOp,
    VectorizeOp,
)
from penstock.dialects.schedule_tensor import ComputeAtOp, InlineOp, ReverseComputeAtOp, RfactorOp
from penstock.dialects.upstream.transform import ANY_OP, GetParentOp, SplitHandleOp
from penstock.dialects.upstream.transform_loops import InterchangeOp, LoopPeelOp, LoopUnrollOp
from penstock.dialects.upstream.transform_tune import KnobOp
from penstock.passes.analysis.kernels import kernels
from penstock.passes.schedule import primitives  # noqa: F401  # pyright: ignore[reportUnusedImport]
from penstock.passes.schedule.state import TransformState

START = ""
"""The section of the tensor level, with which a schedule begins."""
SECTIONS = ("tensor-to-loop", "mem-promote", "loop-to-accel")
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
        block = self.sequence.body.block
        block.add_op(op)
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
        values: dict[SSAValue, SSAValue] = {given.body.block.args[0]: self.kernel}
        for op in given.body.block.ops:
            if _mark(op) is not None:
                values[op.results[0]] = self.kernel
        for op in section_of(given, section):
            copy = self.append(op.clone(values))
            for old, new in zip(op.results, copy.results, strict=True):
                values[old] = new

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
    ) -> TileOp:
        """`schedule.tile`; see the op."""
        op = TileOp(
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

    def split(self, loop: SSAValue, factor: int) -> SplitOp:
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

    def _cast(self, handle: SSAValue, name: str) -> SSAValue:
        type = transform.OperationType(name)
        if handle.type == type:
            return handle
        return self.append(transform.CastOp.create(operands=[handle], result_types=[type])).results[0]


def _name(handle: SSAValue, matched: Operation | None) -> None:
    if matched is not None:
        named = next((result.name_hint for result in matched.results if result.name_hint), None)
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


def run_section(
    ctx: Context,
    kernel: func.FuncOp,
    target: TargetOp | None,
    section: str,
    decide: Callable[[Schedule], None],
    *,
    leads: bool = True,
) -> None:
    """
    Apply what is given as a section of a kernel's schedule; where nothing is, let `decide` write and apply it.

    The first pass of a section `leads`: it begins it, and applies all that is given. The other passes of the section
    only decide.
    """
    schedules = schedules_of(ctx)
    name = kernel.sym_name.data
    given = schedules.given.get(name)
    if name not in schedules.applied:
        schedules.applied[name] = new_sequence(name)
        schedules.applied[name].attributes[KERNEL_TYPE] = kernel.function_type
    sequence = schedules.applied[name]
    schedule = Schedule(kernel, target, sequence)
    if leads:
        schedule.enter(section)
    else:
        schedule.resume()
    if given is None or not section_of(given, section):
        decide(schedule)
    elif leads:
        wanted = given.attributes.get(KERNEL_TYPE)
        if wanted not in (None, sequence.attributes.get(KERNEL_TYPE)):
            raise UserError(
                f"this is the schedule of another kernel @{name}, of type {wanted}",
                loc=location_of(given),
                notes=[f"the program has one of type {sequence.attributes[KERNEL_TYPE]}"],
            )
        schedule.replay(given, section)


def require_kernels(ctx: Context, module: ModuleOp, section: str) -> None:
    """Raise UserError for a schedule that is given, with ops of this section, and whose kernel is not there."""
    known = [kernel.sym_name.data for kernel in kernels(module)]
    for name, sequence in schedules_of(ctx).given.items():
        if name not in known and section_of(sequence, section):
            raise UserError(
                f"the program has no kernel @{name}",
                loc=location_of(sequence),
                notes=[nearest_or_all(name, known, "kernels")],
            )
