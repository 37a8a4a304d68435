# SPDX-License-Identifier: Apache-2.0
"""Buffers that a ring may take the place of, and putting it there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from xdsl.builder import Builder
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import REGISTERS, TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, SlotOp, element_bytes, memref_of, scope_of, span_in_bytes
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.kernels import depths_of
from penstock.passes.analysis.loops import constant_of, iteration_count, iterations, trip_count
from penstock.passes.analysis.memory.storage import overwrites, reads_and_writes, uses_through
from penstock.passes.analysis.units import performer
from penstock.passes.index_builder import erase_unused
from penstock.passes.planning.tile_problem import COMPUTED_SLOTS
from penstock.passes.schedule.loop_nests import iteration_of
from penstock.passes.schedule.scope_offsets import NoRoom


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


def loops_of_ring(op: Operation, *, counted: bool = False) -> tuple[scf.ForOp, ...]:
    """
    The loops around `op` whose iterations slots take turns over, outermost first: all but the first have constant
    bounds, and all of them where iterations have to be `counted`.
    """
    loops: list[scf.ForOp] = []
    loop = _loop_around(op)
    while loop is not None and (trip_count(loop) or not counted):
        loops.insert(0, loop)
        loop = _loop_around(loop) if trip_count(loop) else None
    return tuple(loops)


def why_no_turns(buffer: BufferOp, loops: Sequence[scf.ForOp], is_filled_first: Callable[[], bool]) -> str | None:
    """Why the iterations of a nest cannot take turns at several buffers like this one; None where they can."""
    if buffer.scope is None:
        return "it is off chip"
    if not loops:
        return "it is in no loop whose iterations are known"
    if iterations(loops) == 1:
        return "the loops around it have one iteration"
    return None if is_filled_first() else "an iteration may read what it has not written"


def why_no_ring(buffer: BufferOp, loops: Sequence[scf.ForOp], uses: Sequence[Use]) -> str | None:
    """Why no ring may take the place of a buffer at the loop level, with its uses through views; None where one may."""
    if buffer.byte_offset is not None:
        return f"it has the offset {buffer.byte_offset}; rings are made before mem-plan"
    # What else may keep a buffer, a yield above all, may hand it to the next iteration.
    for use in uses:
        if not isinstance(use.operation, CopyOp | GenericOp):
            return f"{use.operation.name} at {location_of(use.operation)} hands it on"
    return why_no_turns(buffer, loops, partial(_is_written_first, buffer, {use.operation for use in uses}))


def require_turns(buffer: BufferOp, loops: Sequence[scf.ForOp], slots: int, reason: str | None) -> None:
    """Raise UserError for a buffer that cannot be a ring, for a `reason` if there is one, or not of so many slots."""
    name, most = name_of(buffer), iterations(loops)
    if reason is not None:
        raise UserError(f"{name} cannot be a ring: {reason}", loc=location_of(buffer))
    if most is not None and slots > most:
        raise UserError(f"{name} has {most} iterations, which use no {slots} slots", loc=location_of(buffer))


def name_of(buffer: BufferOp) -> str:
    """What people call a buffer."""
    return f"%{buffer.memref.name_hint or 'buffer'}"


def candidate(buffer: BufferOp, depth: int, target: TargetOp | None = None) -> Candidate | None:
    """
    What can be made of a buffer in a scope; None where nothing is won by several, or it may not be done.

    With a target, what several of its units use in turn is meant, too, beside what crosses the edge of the scope.
    """
    loops, scope = loops_of_ring(buffer), buffer.scope
    if depth < 2 or not loops or scope is None:
        return None
    depth = min(depth, iterations(loops) or depth)
    uses = list(uses_through(buffer.memref))
    if depth < 2 or why_no_ring(buffer, loops, uses) is not None:
        return None
    shared = target is not None and len({performer(use.operation, target)[0] for use in uses}) > 1
    crossing = [use for use in uses if _crosses(use, scope)]
    if not shared and not crossing:
        return None
    if not any(reads_and_writes(use)[1] for use in crossing):
        depth = min(depth, COMPUTED_SLOTS)
    return Candidate(buffer, loops, depth)


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


def is_own(op: Operation) -> bool:
    """Whether an op makes a buffer in the memory that threads share."""
    return isinstance(op, BufferOp | memref.AllocOp | memref.AllocaOp) and scope_of(op.memref.type) != REGISTERS


def give_slots(forall: ForallOp) -> None:
    """Make of the buffers of an iteration slots of rings, one for each iteration of a loop with constant bounds."""
    made, count = [op for op in forall.walk() if is_own(op)], iteration_count(forall)
    assert count is not None
    start = Builder(InsertPoint.at_start(forall.region.block))
    turn = iteration_of(forall, forall.indices, start) if made else None
    for op in made:
        assert isinstance(op, BufferOp | memref.AllocOp | memref.AllocaOp)
        assert turn is not None
        for use in list(op.memref.uses):
            if isinstance(use.operation, memref.DeallocOp):
                Rewriter.erase_op(use.operation)
        ring = Builder(InsertPoint.before(forall)).insert(ring_of(op, count, None))
        slot = SlotOp(ring.ring, turn)
        slot.location = op.location
        slot.memref.name_hint = op.memref.name_hint
        Rewriter.replace_op(op, slot)


def rotate(
    found: Iterable[Candidate], target: TargetOp, turns: dict[tuple[scf.ForOp, ...], SSAValue] | None = None
) -> dict[RingOp, BufferOp]:
    """
    Put rings in the place of buffers, before their nests; returns the buffers, for `restore`.

    `turns` has the numbers of the iterations of nests that are there already, and gets those that are made.
    """
    turns = {} if turns is None else turns
    rings: dict[RingOp, BufferOp] = {}
    for each in found:
        buffer, hint = each.buffer, each.buffer.memref.name_hint
        turn = turns.get(each.loops)
        if turn is None or turn.owner.parent is None:
            turn = turns[each.loops] = iteration_number(each.loops)
        ring = ring_of(buffer, each.depth, target)
        slot = SlotOp(ring.ring, turn)
        slot.location = buffer.location
        Rewriter.insert_op(ring, InsertPoint.before(each.loops[0]))
        _exchange(buffer, slot)
        slot.memref.name_hint = hint
        rings[ring] = buffer
    return rings


def _exchange(old: BufferOp | SlotOp, new: BufferOp | SlotOp) -> None:
    Rewriter.insert_op(new, InsertPoint.before(old))
    old.memref.replace_all_uses_with(new.memref)
    old.detach()


def require_room(made: Mapping[RingOp, BufferOp], full: Callable[[], str | None]) -> None:
    """
    Raise NoRoom, with the slots that there is room for, where a scope is `full`; rings are then buffers again.

    Meanwhile the ring of such a scope whose slots are largest, of those that have most, loses one after the other.
    """
    wanted = {ring: ring.slot_count for ring in made}
    fitting, rings, scopes = dict(wanted), dict(made), list[str]()
    while rings and (scope := full()) is not None:
        scopes.append(scope)
        inside = (each for each in rings if each.scope == scope)
        ring = max(inside, key=lambda each: (each.slot_count, each.pitch_in_bytes))
        fitting[ring] -= 1
        if fitting[ring] > 1:
            ring.depth = IntegerAttr(fitting[ring], i64)
        else:
            restore(ring, rings.pop(ring))
    if not scopes:
        return
    for ring, buffer in rings.items():
        restore(ring, buffer)
    fewer = [(count, fitting[ring], made[ring]) for ring, count in wanted.items() if fitting[ring] < count]
    asked = " and ".join(f"{count} slots of {name_of(buffer)}" for count, _, buffer in fewer)
    raise NoRoom(
        f'the scope "{scopes[0]}" has no room for {asked}',
        fitting=tuple(fitting.values()),
        notes=[
            f"it has room for {n} of {name_of(buffer)}, {buffer.size_in_bytes:,} bytes each" for _, n, buffer in fewer
        ],
    )


def restore(ring: RingOp, buffer: BufferOp) -> None:
    """Undo `rotate`."""
    (use,) = ring.ring.uses
    slot = use.operation
    assert isinstance(slot, SlotOp)
    hint, turn = slot.memref.name_hint, slot.index
    _exchange(slot, buffer)
    buffer.memref.name_hint = hint
    slot.erase()
    Rewriter.erase_op(ring)
    erase_unused(turn)


def candidates(
    function: func.FuncOp, target: TargetOp, depths: Mapping[str, int], scopes: Collection[str] | None = None
) -> list[Candidate]:
    """Every buffer of a kernel that gains by a ring and may have one, with the slots of its scope."""
    found = (
        candidate(each, depths.get(each.scope or "", 1), target)
        for each in function.walk()
        if isinstance(each, BufferOp) and (scopes is None or each.scope in scopes)
    )
    return [each for each in found if each is not None]


def kernel_with_rings(function: func.FuncOp, target: TargetOp) -> func.FuncOp:
    """A kernel as `multi-buffer{depth=auto}` will make it, if there is room: a copy where that changes anything."""
    depths = depths_of(function)
    if not any(count > 1 for count in depths.values()):
        return function
    copy = function.clone()
    return copy if rotate(candidates(copy, target, depths), target) else function
