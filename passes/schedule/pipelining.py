"""Iterations of the commands of a kernel that overlap: rings, skewed loops, places in the scopes, and the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, i64

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp
from penstock.passes.analysis.loops import iterations
from penstock.passes.schedule.command_rings import counted_nest, why_no_command_ring
from penstock.passes.schedule.ordering import order, require_tokens
from penstock.passes.schedule.ordering.accesses import commands_of
from penstock.passes.schedule.ordering.tokens import strip
from penstock.passes.schedule.rings import Candidate, restore, rotate
from penstock.passes.schedule.scope_offsets import NoRoom, ScopeOffsets
from penstock.passes.schedule.skew import remove_unused, rewrite, split_of
from penstock.passes.schedule.state import TransformState


def pipeline_commands(
    state: TransformState,
    slots: Sequence[tuple[BufferOp, int]],
    loops: Sequence[scf.ForOp] = (),
    *,
    where_possible: bool = False,
    fixed_offsets: bool = False,
) -> tuple[list[RingOp], list[int]]:
    """
    Give buffers of commands so many slots, skew loops, find places for all, and derive the order anew.

    Returns the rings, and which of the loops were skewed: all unless `where_possible`. With `fixed_offsets` what has an
    offset keeps it. Raises UserError, with the kernel as it was, for a buffer that cannot be a ring and a loop that
    cannot be skewed; NoRoom for slots and loops that a scope is too small for.
    """
    function, target = state.kernel, state.target
    if target is None:
        raise UserError("the kernel is one of the host, where no units run beside each other")
    require_tokens(function)
    chosen = _checked(state, slots, target)
    # Loops that carry tokens are replaced by others with the same body.
    bodies = [loop.body.block for loop in loops]
    with state.undone_on_error():
        strip(function)
        offsets = ScopeOffsets(function, target, state.kept)
        made = rotate([replace(each, loops=counted_nest(each.buffer)) for each in chosen], target)
        _place(offsets, made, move=not fixed_offsets)
        if not fixed_offsets:
            offsets.spread()
        skewed, commands = list[int](), commands_of(function, target) if loops else None
        for loop in [op for op in function.walk(reverse=True) if isinstance(op, scf.ForOp)] if loops else ():
            if loop.body.block not in bodies:
                continue
            split = split_of(loop, commands or ())
            if not isinstance(split, str):
                skewed.append(bodies.index(loop.body.block))
                rewrite(split)
                # What the inner loops became is looked at anew.
                commands = commands_of(function, target)
            elif not where_possible:
                raise UserError(f"this loop cannot be skewed: {split}", loc=location_of(loop))
        if skewed:
            offsets.changed()
            if not offsets.keep_apart():
                raise NoRoom("the scopes have no room for the buffers of skewed loops", skewed=True)
        if not fixed_offsets:
            remove_unused(function)
        order(function, target, commands)
        if not fixed_offsets and not offsets.is_planned():
            raise NoRoom("the scopes have no room for iterations that overlap")
    return list(made), sorted(skewed)


def _checked(state: TransformState, slots: Sequence[tuple[BufferOp, int]], target: TargetOp) -> list[Candidate]:
    """The buffers that become rings; raises UserError for one that cannot."""
    commands = state.commands
    if commands is None and any(count > 1 for _, count in slots):
        commands = commands_of(state.kernel, target)
    found: list[Candidate] = []
    for buffer, count in slots:
        if count < 2:
            continue
        name, nest = f"%{buffer.memref.name_hint or 'buffer'}", counted_nest(buffer)
        if (reason := why_no_command_ring(buffer, nest, commands or ())) is not None:
            raise UserError(f"{name} cannot be a ring: {reason}", loc=location_of(buffer))
        if count > (most := iterations(nest) or count):
            raise UserError(f"{name} has {most} iterations, which use no {count} slots", loc=location_of(buffer))
        found.append(Candidate(buffer, nest, count))
    return found


def _place(offsets: ScopeOffsets, made: dict[RingOp, BufferOp], *, move: bool) -> None:
    """Find a place for rings; raises NoRoom with the slots that there is room for."""
    wanted = {ring: ring.slot_count for ring in made}
    fitting = dict(wanted)
    rings = dict(made)
    full = None
    while rings and (scope := offsets.replan(move=move)) is not None:
        full = full or scope
        _shrink(rings, scope)
        fitting = {ring: ring.slot_count if ring in rings else 1 for ring in made}
        offsets.changed()
    if full is not None:
        names = {ring: f"%{buffer.memref.name_hint or 'buffer'}" for ring, buffer in made.items()}
        asked = [f"{count} slots of {names[ring]}" for ring, count in wanted.items() if fitting[ring] < count]
        notes = [
            f"it has room for {fitting[ring]} of {names[ring]}, {buffer.size_in_bytes:,} bytes each"
            for ring, buffer in made.items()
            if fitting[ring] < wanted[ring]
        ]
        text = f'the scope "{full}" has no room for {" and ".join(asked)}'
        raise NoRoom(text, fitting=tuple(fitting.values()), notes=notes)


def _shrink(rings: dict[RingOp, BufferOp], scope: str) -> None:
    """
    Take a slot from the ring of a scope whose slots are largest, of those that have most; one of one slot is a buffer
    again.
    """
    ring = max((each for each in rings if each.scope == scope), key=lambda each: (each.slot_count, each.pitch_in_bytes))
    if ring.slot_count > 2:
        ring.depth = IntegerAttr(ring.slot_count - 1, i64)
    else:
        restore(ring, rings.pop(ring))
