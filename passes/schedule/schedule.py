# SPDX-License-Identifier: Apache-2.0
"""
A schedule of one kernel: a method for each primitive, which appends an op to the schedule's text and applies it.

Passes decide with it, `--schedule` replays text through it, and people call it from Python. The text is a
`transform.named_sequence` with the name of the kernel, in sections (`passes/schedule/sections.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from xdsl.dialects import func, scf, transform
from xdsl.dialects.builtin import ArrayAttr, BoolAttr, FloatAttr, IntegerAttr, SymbolRefAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UnknownName, UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.schedule import TileAndFuseOp
from penstock.dialects.schedule_accel import MultiBufferOp, PipelineOp, VirtualThreadOp
from penstock.dialects.schedule_loops import (
    DistributeOp,
    FuseLoopsOp,
    ReorderOp,
    SplitOp,
    StorageAlignOp,
    VectorizeOp,
)
from penstock.dialects.schedule_memory import LayoutOp, SetScopeOp, StageInOp, StageOutOp, TensorizeOp
from penstock.dialects.schedule_parallel import BindOp, CooperateOp, InsertBarriersOp, ParallelizeOp
from penstock.dialects.schedule_tensor import ComputeAtOp, InlineOp, MaterializeOp, ReverseComputeAtOp, RfactorOp
from penstock.dialects.upstream.gpu import DeviceMappingAttr
from penstock.dialects.upstream.handle_ops import ANY_OP, split_sizes
from penstock.dialects.upstream.transform import CastHandleOp, GetParentOp, SplitHandleOp
from penstock.dialects.upstream.transform_loops import ConvertToLoopsOp, InterchangeOp, LoopPeelOp, LoopUnrollOp
from penstock.dialects.upstream.transform_structured import PadStructuredOp, TileUsingForallOp
from penstock.dialects.upstream.transform_tune import KnobOp
from penstock.passes.schedule import primitives  # noqa: F401  # pyright: ignore[reportUnusedImport]
from penstock.passes.schedule.handle_names import name_of
from penstock.passes.schedule.sections import (
    SECTIONS,
    START,
    changes,
    kernel_in,
    last_kernel,
    new_sequence,
    section_begun_by,
    section_of,
)
from penstock.passes.schedule.state import TransformState

Op = TypeVar("Op", bound=Operation)


class Schedule:
    """The schedule of `kernel`, at the end of `sequence`, whose earlier ops have been applied."""

    def __init__(
        self, kernel: func.FuncOp, target: TargetOp | None = None, sequence: transform.NamedSequenceOp | None = None
    ):
        self.sequence = sequence or new_sequence(kernel.sym_name.data)
        self.state = TransformState(kernel, target)
        self.kernel: SSAValue = last_kernel(self.sequence)
        """The handle of the kernel in this section."""
        self.state.bind(self.kernel, (kernel,))

    def append(self, op: Op) -> Op:
        """Append an op and apply it; raises UserError, and leaves schedule and kernel alone, where that is illegal."""
        try:
            op.verify()
        except VerifyException as error:
            notes = [error.note] if isinstance(error, UnknownName) else []
            op.erase()
            raise UserError(f"{op.name}: {error}", notes=notes) from None
        if not all(self.sequence.is_ancestor(value.owner) for value in op.operands):
            op.erase()
            raise UserError(
                f"{op.name} is given a value that is no handle of this schedule",
                notes=["its methods return handles, those of match() for instance; another schedule has its own"],
            )
        return self._add(op)

    def _add(self, op: Op) -> Op:
        """Append an op that is verified, and apply it."""
        self.sequence.body.block.add_op(op)
        try:
            self.state.apply(op)
        except UserError:
            op.detach()
            op.erase()
            raise
        for result in op.results:
            if result.name_hint is None and (matched := self.state.only(result)) is not None:
                result.name_hint = name_of(matched)
        return op

    def enter(self, section: str) -> None:
        """Begin a section: what the sequence says of it and of later ones is dropped."""
        ops = list(self.sequence.body.block.ops)
        if section != START:
            later = SECTIONS[SECTIONS.index(section) :]
            ops = ops[next((n for n, op in enumerate(ops) if section_begun_by(op) in later), len(ops)) :]
        for op in reversed(ops):
            self._drop(op)
        self.kernel = last_kernel(self.sequence)
        if section != START:
            mark = transform.ApplyRegisteredPassOp(section, self.kernel)
            mark.result.name_hint = "kernel"
            self.sequence.body.block.add_op(mark)
            self.kernel = mark.result
        self.state.bind(self.kernel, (self.state.kernel,))

    def replay(self, given: transform.NamedSequenceOp, section: str) -> None:
        """Append the ops of a section of another schedule, and apply them."""
        # Handles of other sections stand for nothing any more; using one is refused.
        values: dict[SSAValue, SSAValue] = {kernel_in(given, section): self.kernel}
        for op in section_of(given, section):
            self._add(op.clone(values))

    # handles

    def match(self, *names: str, within: SSAValue | None = None) -> tuple[SSAValue, ...]:
        """A handle for each op of these names, in program order: the one that it has already, or else a new one."""
        live = self._live()
        op = self._add(transform.MatchOp(self.kernel if within is None else within, names))
        payload = self.state.payload(op.result)
        if all(each in live for each in payload):
            self._drop(op)
            return tuple(live[each] for each in payload)
        if len(payload) == 1:
            return (op.result,)
        return tuple(self._add(SplitHandleOp(op.result, handles=len(payload))).results)

    def handles(self, ops: Iterable[Operation]) -> list[SSAValue]:
        """A handle for each of some operations of the kernel: what it has already, or else a match of its name."""
        wanted, live = list(ops), self._live()
        for name in dict.fromkeys(op.name for op in wanted if op not in live):
            self.match(name)
        live = self._live()
        return [live[op] for op in wanted]

    def parent(self, handle: SSAValue, name: str, nth: int = 1) -> SSAValue:
        """The handle of the op around, of that name, the nth one from inside."""
        live = self._live()
        op = self._add(GetParentOp(handle, op_name=name, nth_parent=nth if nth != 1 else None))
        if (known := live.get(self.state.only(op.parent_result) or op)) is not None:
            self._drop(op)
            return known
        return op.parent_result

    def op(self, handle: SSAValue) -> Operation:
        """The operation that a handle stands for."""
        return self.state.one(handle)

    def drop_unused(self) -> None:
        """Take away the ops of this section that found operations, and whose handles turned out to be of no use."""
        op = self.sequence.body.block.last_op
        while op is not None and op is not self.kernel.owner:
            before = op.prev_op
            if not changes(op) and not any(result.uses for result in op.results):
                self._drop(op)
            op = before

    def _live(self) -> dict[Operation, SSAValue]:
        """The operations that have a handle of their own here, and the first one of each."""
        block, found = self.sequence.body.block, dict[Operation, SSAValue]()
        for handle, payload in self.state.payloads():
            place = handle.owner if isinstance(handle.owner, Block) else handle.owner.parent
            if len(payload) == 1 and place is block and handle.type == ANY_OP:
                found.setdefault(payload[0], handle)
        return found

    def _drop(self, op: Operation) -> None:
        self.state.forget(op.results)
        op.detach()
        op.erase()

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
            unpadded=unpadded or None,
            slots=slots or None,
            remark=remark or None,
        )
        for handle, old in zip(op.handles, (op.target, *op.fused), strict=False):
            handle.name_hint = f"{old.name_hint or 'op'}_tile"
        for handle, dim in zip(op.loops, op.looped_dims, strict=False):
            handle.name_hint = f"loop_d{dim}"
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

    def materialize(self, pad: SSAValue) -> None:
        """`schedule.materialize`; see the op."""
        self.append(MaterializeOp(pad))

    def tile_using_forall(
        self,
        target: SSAValue,
        sizes: Sequence[int | SSAValue] = (),
        *,
        num_threads: Sequence[int | SSAValue] = (),
        mapping: Sequence[DeviceMappingAttr] = (),
    ) -> TileUsingForallOp:
        """`transform.structured.tile_using_forall`: into tiles of these sizes, or into so many for each dim."""
        threads, dynamic_threads = split_sizes(num_threads)
        static, dynamic = split_sizes(sizes)
        op = TileUsingForallOp(
            target,
            dynamic_threads,
            dynamic,
            static_num_threads=threads or None,
            static_tile_sizes=static or None,
            mapping=ArrayAttr(mapping) if mapping else None,
        )
        return self.append(op)

    def pad(
        self, target: SSAValue, multiples: Mapping[int, int], values: Sequence[FloatAttr | IntegerAttr]
    ) -> PadStructuredOp:
        """`transform.structured.pad`: each of these dims up to a multiple, each operand with its value."""
        op = PadStructuredOp(
            target,
            static_pad_to_multiple_of=list(multiples.values()),
            padding_dimensions=ArrayAttr([IntegerAttr(dim, i64) for dim in multiples]),
            padding_values=ArrayAttr(values),
            copy_back_op="none",
        )
        return self.append(op)

    def rfactor(self, target: SSAValue, dim: int, factor: int, *, strided: bool = False) -> RfactorOp:
        """`schedule.rfactor`; see the op."""
        return self.append(RfactorOp(target, dim=dim, factor=factor, strided=strided))

    # loops and buffers of the loop level

    def split(self, loop: SSAValue, factor: int | SSAValue) -> SplitOp:
        """`schedule.split`; see the op."""
        parameter, number = (factor, None) if isinstance(factor, SSAValue) else (None, factor)
        op = SplitOp(loop, parameter, factor=number)
        for handle, place in zip(op.results, ("outer", "inner", "tail"), strict=True):
            handle.name_hint = f"{loop.name_hint or 'loop'}_{place}"
        return self.append(op)

    def fuse(self, outer: SSAValue, inner: SSAValue) -> SSAValue:
        """`schedule.fuse`: returns the handle of the one loop."""
        return self.append(FuseLoopsOp(outer, inner)).fused

    def reorder(self, *loops: SSAValue, reassociate: bool = False) -> None:
        """`schedule.reorder`: the loops, the outermost first."""
        self.append(ReorderOp(loops, reassociate=reassociate))

    def unroll(self, loop: SSAValue, factor: int) -> None:
        """`transform.loop.unroll`; no loop is left where it has no more iterations than `factor`."""
        self.append(LoopUnrollOp(loop, factor=factor))

    def peel(self, loop: SSAValue, *, front: bool = False) -> LoopPeelOp:
        """`transform.loop.peel`, on a handle that is cast to what upstream demands of it."""
        return self.append(
            LoopPeelOp(self._cast(loop, scf.ForOp.name), peel_front=BoolAttr.from_bool(True) if front else None)
        )

    def distribute(self, loop: SSAValue, op: SSAValue) -> DistributeOp:
        """`schedule.distribute`: what is before `op` in a loop, and the rest, in loops of their own."""
        return self.append(DistributeOp(loop, op))

    def vectorize(self, loop: SSAValue) -> None:
        """`schedule.vectorize`; see the op."""
        self.append(VectorizeOp(loop))

    def storage_align(self, buffer: SSAValue, dim: int, factor: int, offset: int = 0) -> None:
        """`schedule.storage_align`; see the op."""
        self.append(StorageAlignOp(buffer, dim=dim, factor=factor, offset=offset))

    def interchange(self, target: SSAValue, order: Sequence[int]) -> SSAValue:
        """`transform.structured.interchange`: dim `order[n]` of a structured op becomes dim n."""
        return self.append(InterchangeOp(target, iterator_interchange=order)).transformed

    # iterations that run at once

    def parallel(self, *loops: SSAValue) -> SSAValue:
        """`schedule.parallel`: returns the handle of the `scf.forall`."""
        return self.append(ParallelizeOp(loops)).forall

    def bind(self, *loops: SSAValue, to: Sequence[DeviceMappingAttr]) -> SSAValue:
        """`schedule.bind`: returns the handle of the `scf.forall`."""
        return self.append(BindOp(loops, mapping=ArrayAttr(to))).forall

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
        return self.append(SplitHandleOp(loops, handles=count)).results if count else ()

    def _cast(self, handle: SSAValue, name: str) -> SSAValue:
        type = transform.OperationType(name)
        if handle.type == type:
            return handle
        return self.append(CastHandleOp(handle, type)).output

    # what lives in which scope, and which intrinsic computes it

    def stage_in(
        self,
        reader: SSAValue,
        operand: int,
        scope: str,
        *,
        at: SSAValue | None = None,
        contiguous: int = 1,
        slots: int = 1,
    ) -> SSAValue:
        """`schedule.stage_in`; see the op. Returns the handle of the copy."""
        op = StageInOp(reader, at, operand_number=operand, scope=scope, contiguous=contiguous, slots=slots)
        op.transfer.name_hint = f"{reader.name_hint or 'op'}_in"
        return self.append(op).transfer

    def stage_out(self, writer: SSAValue, operand: int, scope: str, *, contiguous: int = 1, slots: int = 1) -> SSAValue:
        """`schedule.stage_out`; see the op. Returns the handle of the copy."""
        op = StageOutOp(writer, operand_number=operand, scope=scope, contiguous=contiguous, slots=slots)
        op.transfer.name_hint = f"{writer.name_hint or 'op'}_out"
        return self.append(op).transfer

    def set_scope(self, allocation: SSAValue, scope: str, *, contiguous: int = 1, slots: int = 1) -> None:
        """`schedule.set_scope`; see the op."""
        self.append(SetScopeOp(allocation, scope=scope, contiguous=contiguous, slots=slots))

    def layout(self, buffer: SSAValue, order: Sequence[int]) -> None:
        """`schedule.layout`; see the op."""
        self.append(LayoutOp(buffer, order=list(order)))

    def tensorize(self, target: SSAValue, intrinsic: str, *, remark: str = "") -> None:
        """`schedule.tensorize`; see the op."""
        self.append(TensorizeOp(target, intrinsic=SymbolRefAttr(intrinsic), remark=remark or None))

    # buffers in scopes, and commands

    def multi_buffer(self, buffer: SSAValue, slots: int) -> SSAValue:
        """`schedule.multi_buffer`; see the op."""
        op = MultiBufferOp(buffer, slots=slots)
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
        counts = [count for _, count in slots]
        op = PipelineOp(
            self.kernel,
            [buffer for buffer, _ in slots],
            skewing,
            slots=counts,
            wanted=wanted if wanted and list(wanted) != counts else None,
            where_possible=where_possible,
            fixed_offsets=fixed_offsets,
            remark=remark or None,
        )
        return self.append(op)

    def virtual_thread(self, loop: SSAValue, threads: int) -> None:
        """`schedule.virtual_thread`; see the op."""
        self.append(VirtualThreadOp(loop, threads=threads))
