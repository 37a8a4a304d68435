# SPDX-License-Identifier: Apache-2.0
"""What the primitives that place data in scopes share: buffers and copies there, and what refuses them before."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.builder import Builder
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, ScopedAllocation, memref_of, scope_of, span_in_bytes
from penstock.dialects.schedule_memory import InScopeOp
from penstock.passes.analysis.memory.storage import in_scope, reads_and_writes, storage_of, uses_through
from penstock.passes.analysis.scope_paths import no_path, scope_path
from penstock.passes.index_builder import Index, erase_unused
from penstock.passes.schedule.footprint import Footprint, footprint, source_of, whole
from penstock.passes.schedule.state import TransformState


def place_of(value: SSAValue) -> str:
    """The scope that a memref lives in, "dram" off chip."""
    return scope_of(value.type) or DRAM


def writers_of(value: SSAValue) -> list[Operation]:
    """The ops that may write bytes of a memref, through whatever view."""
    return [use.operation for use in uses_through(storage_of(value)) if reads_and_writes(use)[1]]


def has_known_storage(value: SSAValue, aliased: Collection[SSAValue]) -> bool:
    """
    Whether all views of the bytes of a memref are known: it is an allocation's, or that of an argument of the kernel
    which is not one of the `aliased_arguments`.
    """
    storage = storage_of(value)
    if isinstance(storage, BlockArgument):
        return isinstance(storage.owner.parent_op(), func.FuncOp) and storage not in aliased
    return isinstance(storage.owner, ScopedAllocation | memref.AllocOp)


def after_definition(value: SSAValue) -> InsertPoint:
    """The first place where a value is known."""
    owner = value.owner
    return InsertPoint.at_start(owner) if isinstance(owner, Block) else InsertPoint.after(owner)


# what is read


def read_by(
    reader: CopyOp | GenericOp, number: int, loop: scf.ForOp | None, aliased: Collection[SSAValue]
) -> Footprint | str:
    """
    What the runs of `loop` (of the op itself, if None) read through an operand, or why it cannot be copied before.
    """
    operand = reader.operands[number]
    if loop is None and isinstance(reader, GenericOp):
        return whole(operand)
    if loop is not None:
        if isinstance(reader, CopyOp) and reader.window_side == "dest":
            return "its destination is a window, and only one side of a mem.copy can be one"
        if not has_known_storage(operand, aliased):
            return "its bytes may be written by another name: another argument, or where it comes from"
        inside = [writer for writer in writers_of(operand) if loop.is_ancestor(writer)]
        if inside:
            return f"it is written in the loop ({location_of(inside[0])})"
    held = footprint(source_of(reader, number), loop)
    return "it is no static box that is known before the loop" if held is None else held


# guards


def require_machine(state: TransformState) -> TargetOp:
    """The machine of the kernel; raises UserError for a kernel of the host."""
    if state.target is None:
        raise UserError(
            "the kernel runs on the host, which has no scopes and no intrinsics",
            notes=["a schedule for a machine is applied with --machine NAME, to kernels that run on it"],
        )
    return state.target


def require_operand(op: GenericOp | CopyOp, number: int) -> SSAValue:
    """An operand of an op, which is a static memref; raises UserError where there is none."""
    count = len(op.operands)
    if not 0 <= number < count:
        raise UserError(f"{op.name} has {count} operands: there is no operand {number}", loc=location_of(op))
    value = op.operands[number]
    if not isinstance(value.type, MemRefType):
        raise UserError(
            f"operand {number} is no memref, and only a memref is staged",
            loc=location_of(op),
            notes=['tensors become memrefs in the pass "tensor-to-loop", after which this is possible'],
        )
    if not memref_of(value).has_static_shape():
        raise UserError(f"operand {number} is a {memref_of(value)}: what is in a scope is static", loc=location_of(op))
    return value


def require_path(target: TargetOp, start: str, end: str, op: Operation) -> None:
    """Raise UserError where no engines move data from one scope to another; on the host, code does."""
    if not target.is_host and scope_path(target, start, end) is None:
        raise no_path(target, start, end, op)


def require_room(
    value: SSAValue, target: TargetOp, op: InScopeOp, shape: Sequence[int] | None = None
) -> MemRefType[Attribute]:
    """
    The type of a buffer for a memref, or for a box of it of this shape, where `op` says.

    Raises UserError for a scope that the machine lacks, and where the buffer alone is larger.
    """
    type, scope = memref_of(value), op.scope.data
    if shape is not None and tuple(shape) != type.get_shape():
        type = MemRefType(type.element_type, shape)
    type = in_scope(type, target, scope, op.contiguous.value.data)
    if scope != DRAM and (size := span_in_bytes(type)) > (most := target.scope(scope).size_bytes):
        raise UserError(
            f'a buffer of {size:,} bytes is larger than "{scope}", which has {most:,}',
            notes=[f"it is a {type}", "smaller tiles, or a stage in a loop further inside, take less"],
        )
    return type


# rewrites


def insert_buffer(builder: Builder, type: MemRefType[Attribute], like: SSAValue, op: Operation) -> SSAValue:
    """A buffer for what `op` uses, called as `like` is."""
    buffer = builder.insert(BufferOp(type))
    buffer.location = op.location
    buffer.memref.name_hint = like.name_hint
    return buffer.memref


def insert_copy(builder: Builder, source: SSAValue, dest: SSAValue, op: Operation) -> CopyOp:
    """A copy of all of a memref, for `op`."""
    copy = builder.insert(CopyOp(source, dest))
    copy.location = op.location
    return copy


def insert_fill(
    builder: Builder, type: MemRefType[Attribute], held: Footprint, like: SSAValue, op: Operation
) -> tuple[CopyOp, list[Index]]:
    """The copy of a footprint of what `op` reads to a buffer of `type`, and where the footprint begins."""
    buffer = insert_buffer(builder, type, like, op)
    origins = held.build_origins(builder)
    is_all = held.extents == held.source.shape
    fill = builder.insert(CopyOp(held.source.memref, buffer, source_offsets=() if is_all else origins))
    fill.location = op.location
    return fill, origins


def split_copy(copy: CopyOp, type: MemRefType[Attribute], held: Footprint, loop: scf.ForOp | None) -> list[CopyOp]:
    """
    Make a copy through a buffer of `type`, which holds a footprint of its source, and is filled before `loop`.

    Returns the copies into the buffer and from it, which takes the place of `copy`.
    """
    outside = Builder(InsertPoint.before(copy if loop is None else loop))
    like = copy.source if copy.source.name_hint else copy.dest
    fill, origins = insert_fill(outside, type, held, like, copy)
    inside = Builder(InsertPoint.before(copy))
    offsets = held.build_offsets(inside, origins)
    is_window = held.extents != copy.box or any(offset != 0 for offset in offsets)
    rest = inside.insert(
        CopyOp(
            fill.dest,
            copy.dest,
            source_offsets=offsets if is_window else (),
            dest_offsets=copy.mixed_dest_offsets() if copy.window_side == "dest" else (),
            padding=copy.padding if is_window else None,
        )
    )
    rest.location = copy.location
    for each in (fill, rest):
        each.attributes.update(copy.attributes)
    operands = list(copy.operands)
    Rewriter.erase_op(copy)
    for operand in operands:
        erase_unused(operand)
    return [fill, rest]
