"""Buffers that a ring may take the place of, and putting it there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import NoMemoryEffect
from xdsl.utils.hints import isa

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, SlotOp, element_bytes, memref_of, scope_of, span_in_bytes
from penstock.passes.loop.ranges import constant_of, trip_count


def _uses(value: SSAValue) -> Iterator[Use]:
    """The uses of a memref, itself and through views, that are no views."""
    for use in value.uses:
        views = [result for result in use.operation.results if isinstance(result.type, MemRefType)]
        if views and use.operation.has_trait(NoMemoryEffect):
            for view in views:
                yield from _uses(view)
        else:
            yield use


def _loop_around(op: Operation) -> scf.ForOp | None:
    """The innermost loop around `op`; None where something else, of which rounds cannot be counted, is nearer."""
    parent = op.parent_op()
    while isinstance(parent, scf.IfOp):
        parent = parent.parent_op()
    return parent if isinstance(parent, scf.ForOp) else None


def _crosses(use: Use, scope: str) -> bool:
    """Whether this use moves data between `scope` and the outside: a copy, or an intrinsic that transfers."""
    op = use.operation
    if isinstance(op, CopyOp):
        return scope_of(op.source.type) != scope_of(op.dest.type)
    return isinstance(op, GenericOp) and any(
        isa(value.type, MemRefType) and scope_of(value.type) is None for value in op.operands
    )


def _overwrites(op: Operation, buffer: SSAValue) -> bool:
    """Whether `op` writes every element of `buffer` and reads none."""
    if isinstance(op, CopyOp):
        return op.dest is buffer and op.source is not buffer and op.window_side != "dest"
    if not isinstance(op, GenericOp) or buffer in op.inputs:
        return False
    maps = [map.data for map in op.indexing_maps][len(op.inputs) :]
    initial = op.body.block.args[len(op.inputs) :]
    # Where each dim of the buffer is a dim of the domain, the domain has its extents.
    return any(
        output is buffer and not arg.uses and map.is_projected_permutation()
        for output, map, arg in zip(op.outputs, maps, initial, strict=True)
    )


def _is_written_first(buffer: BufferOp, users: set[Operation]) -> bool:
    """Whether a round writes all of the buffer before anything in it reads some."""
    op = buffer.next_op
    while op is not None:
        if any(inner in users for inner in op.walk()):
            return _overwrites(op, buffer.memref)
        op = op.next_op
    return False


@dataclass(frozen=True)
class Candidate:
    """A buffer whose rounds do not need the bytes of each other, and the loop that has the rounds."""

    buffer: BufferOp
    loop: scf.ForOp
    depth: int


def candidate(buffer: BufferOp, depth: int) -> Candidate | None:
    """What can be made of a buffer in a scope; None where nothing is won by several, or it may not be done."""
    loop, scope = _loop_around(buffer), buffer.scope
    if loop is None or scope is None or buffer.byte_offset is not None:
        return None
    rounds = trip_count(loop)
    depth = depth if rounds is None else min(depth, rounds)
    uses = list(_uses(buffer.memref))
    # What else may keep a buffer, a yield above all, may hand it to the next round.
    if depth < 2 or not all(isinstance(use.operation, CopyOp | GenericOp) for use in uses):
        return None
    if not any(_crosses(use, scope) for use in uses) or not _is_written_first(buffer, {use.operation for use in uses}):
        return None
    return Candidate(buffer, loop, depth)


def number_of_round(loop: scf.ForOp) -> SSAValue:
    """The number of the round, from 0, computed where the body begins."""
    counter = loop.body.block.args[0]
    builder = Builder(InsertPoint.at_start(loop.body.block))
    if constant_of(loop.lb) != 0:
        counter = builder.insert(arith.SubiOp(counter, loop.lb)).result
        counter.name_hint = "distance"
    if constant_of(loop.step) != 1:
        counter = builder.insert(arith.DivUIOp(counter, loop.step)).result
        counter.name_hint = "round"
    return counter


def remove_unused(value: SSAValue) -> None:
    """Erase what computes the number of a round if nothing counts by it."""
    while isinstance(value.owner, arith.SubiOp | arith.DivUIOp) and not value.uses:
        op, value = value.owner, value.owner.lhs
        Rewriter.erase_op(op)


def rotate(found: Candidate, turn: SSAValue, target: TargetOp) -> RingOp:
    """Put a ring in the place of the buffer; `turn` is the number of the round."""
    buffer, type = found.buffer, memref_of(found.buffer.memref)
    span = span_in_bytes(type)
    assert buffer.scope is not None
    granule = target.scope(buffer.scope).granule_bytes
    pitch = -(-span // granule) * granule
    # A pitch of whole granules may be no whole number of elements, in which case the slots are as they come.
    ring = RingOp(found.depth, type, pitch=None if pitch == span or pitch % element_bytes(type) else pitch)
    slot = SlotOp(ring.ring, turn)
    ring.location = slot.location = buffer.location
    hint = buffer.memref.name_hint
    ring.ring.name_hint = f"{hint}_ring" if hint else None
    Rewriter.insert_op(ring, InsertPoint.before(found.loop))
    Rewriter.replace_op(buffer, slot)
    slot.memref.name_hint = hint
    return ring


def restore(ring: RingOp) -> None:
    """Undo `rotate`."""
    (use,) = ring.ring.uses
    slot = use.operation
    assert isinstance(slot, SlotOp)
    buffer = BufferOp(ring.slot_type)
    buffer.location, hint = ring.location, slot.memref.name_hint
    Rewriter.replace_op(slot, buffer)
    buffer.memref.name_hint = hint
    Rewriter.erase_op(ring)
