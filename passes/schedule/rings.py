"""Buffers that a ring may take the place of, and putting it there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.builder import Builder
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IndexType, MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, SlotOp, element_bytes, memref_of, scope_of, span_in_bytes
from penstock.passes.analysis.kernels import depths_of
from penstock.passes.analysis.loops import constant_of, trip_count
from penstock.passes.analysis.memory.storage import overwrites, reads_and_writes, uses_through
from penstock.passes.analysis.units import performer
from penstock.passes.planning.tile_problem import COMPUTED_SLOTS


def _loop_around(op: Operation) -> scf.ForOp | None:
    """The innermost loop around `op`; None where something else, of which iterations cannot be counted, is nearer."""
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


def _is_written_first(buffer: BufferOp, users: set[Operation]) -> bool:
    """Whether an iteration writes all of the buffer before anything in it reads some."""
    op = buffer.next_op
    while op is not None:
        if any(inner in users for inner in op.walk()):
            return overwrites(op, buffer.memref)
        op = op.next_op
    return False


@dataclass(frozen=True)
class Candidate:
    """A buffer whose iterations do not need the bytes of each other, and the loops that have the iterations."""

    buffer: BufferOp
    loops: tuple[scf.ForOp, ...]
    """Outermost first; the last one is the innermost loop around the buffer."""
    depth: int


def _nest_around(op: Operation) -> tuple[scf.ForOp, ...]:
    """The loops around `op` that can be counted, outermost first: all but the first have constant bounds."""
    loops: list[scf.ForOp] = []
    loop = _loop_around(op)
    while loop is not None:
        loops.insert(0, loop)
        loop = _loop_around(loop) if trip_count(loop) else None
    return tuple(loops)


def candidate(buffer: BufferOp, depth: int, target: TargetOp | None = None) -> Candidate | None:
    """
    What can be made of a buffer in a scope; None where nothing is won by several, or it may not be done.

    With a target, what several of its units use in turn is meant, too, beside what crosses the edge of the scope.
    """
    loops, scope = _nest_around(buffer), buffer.scope
    if not loops or scope is None or buffer.byte_offset is not None:
        return None
    iterations = [trip_count(loop) for loop in loops]
    depth = depth if None in iterations else min(depth, prod(count for count in iterations if count is not None))
    uses = list(uses_through(buffer.memref))
    # What else may keep a buffer, a yield above all, may hand it to the next iteration.
    if depth < 2 or not all(isinstance(use.operation, CopyOp | GenericOp) for use in uses):
        return None
    shared = target is not None and len({performer(use.operation, target)[0] for use in uses}) > 1
    crossing = [use for use in uses if _crosses(use, scope)]
    if not shared and not crossing:
        return None
    if not any(reads_and_writes(use)[1] for use in crossing):
        depth = min(depth, COMPUTED_SLOTS)
    return Candidate(buffer, loops, depth) if _is_written_first(buffer, {use.operation for use in uses}) else None


def iteration_number(loops: Sequence[scf.ForOp]) -> SSAValue:
    """
    The number of the iteration of a nest, from 0, computed where the innermost body begins; it goes on from one
    iteration of an outer loop to the next.
    """
    builder = Builder(InsertPoint.at_start(loops[-1].body.block))
    number = _own_iteration(builder, loops[0])
    for loop in loops[1:]:
        own, trips = _own_iteration(builder, loop), trip_count(loop)
        assert trips is not None
        count = builder.insert(arith.ConstantOp.from_int_and_width(trips, IndexType())).result
        before = builder.insert(arith.MuliOp(number, count)).result
        number = builder.insert(arith.AddiOp(before, own)).result
        number.name_hint = "iteration"
    return number


def _own_iteration(builder: Builder, loop: scf.ForOp) -> SSAValue:
    """The number of the iteration of one loop."""
    counter = loop.body.block.args[0]
    if constant_of(loop.lb) != 0:
        counter = builder.insert(arith.SubiOp(counter, loop.lb)).result
        counter.name_hint = "distance"
    if constant_of(loop.step) != 1:
        counter = builder.insert(arith.DivUIOp(counter, loop.step)).result
        counter.name_hint = "iteration"
    return counter


def remove_unused(value: SSAValue) -> None:
    """Erase what computes the number of an iteration if nothing counts by it."""
    op = value.owner
    if value.uses or not isinstance(op, arith.SubiOp | arith.DivUIOp | arith.MuliOp | arith.AddiOp | arith.ConstantOp):
        return
    operands = list(op.operands)
    Rewriter.erase_op(op)
    for operand in operands:
        remove_unused(operand)


def ring_of(buffer: BufferOp | memref.AllocOp | memref.AllocaOp, depth: int, target: TargetOp | None) -> RingOp:
    """A ring of `depth` buffers like this one, each of which begins at a whole granule of its scope."""
    type = memref_of(buffer.memref)
    span, pitch, scope = span_in_bytes(type), None, scope_of(type)
    if target is not None and scope is not None:
        granule = target.scope(scope).granule_bytes
        pitch = -(-span // granule) * granule
    # A pitch of whole granules may be no whole number of elements, in which case the slots are as they come.
    ring = RingOp(depth, type, pitch=None if pitch == span or (pitch or 0) % element_bytes(type) else pitch)
    ring.location = buffer.location
    hint = buffer.memref.name_hint
    ring.ring.name_hint = f"{hint}_ring" if hint else None
    return ring


def rotate(found: Candidate, turn: SSAValue, target: TargetOp) -> RingOp:
    """Put a ring in the place of the buffer, before the nest; `turn` is the number of the iteration."""
    buffer = found.buffer
    ring = ring_of(buffer, found.depth, target)
    slot = SlotOp(ring.ring, turn)
    slot.location, hint = buffer.location, buffer.memref.name_hint
    Rewriter.insert_op(ring, InsertPoint.before(found.loops[0]))
    Rewriter.replace_op(buffer, slot)
    slot.memref.name_hint = hint
    return ring


def restore(ring: RingOp) -> None:
    """Undo `rotate`."""
    (use,) = ring.ring.uses
    slot = use.operation
    assert isinstance(slot, SlotOp)
    buffer, turn = BufferOp(ring.slot_type), slot.index
    buffer.location, hint = ring.location, slot.memref.name_hint
    Rewriter.replace_op(slot, buffer)
    buffer.memref.name_hint = hint
    Rewriter.erase_op(ring)
    remove_unused(turn)


def make_rings(
    function: func.FuncOp, target: TargetOp, depths: Mapping[str, int], scopes: Collection[str] | None = None
) -> list[RingOp]:
    """Put a ring in the place of every buffer of a kernel that may have one, with the slots of its scope."""
    turns: dict[tuple[scf.ForOp, ...], SSAValue] = {}
    rings: list[RingOp] = []
    for buffer in [each for each in function.walk() if isinstance(each, BufferOp)]:
        if buffer.scope is None or (scopes is not None and buffer.scope not in scopes):
            continue
        if (found := candidate(buffer, depths.get(buffer.scope, 1), target)) is None:
            continue
        if found.loops not in turns:
            turns[found.loops] = iteration_number(found.loops)
        rings.append(rotate(found, turns[found.loops], target))
    return rings


def kernel_with_rings(function: func.FuncOp, target: TargetOp) -> func.FuncOp:
    """A kernel as `multi-buffer{depth=auto}` will make it, if there is room: a copy where that changes anything."""
    depths = depths_of(function)
    if not any(count > 1 for count in depths.values()):
        return function
    copy = function.clone()
    return copy if make_rings(copy, target, depths) else function
