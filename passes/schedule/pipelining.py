# SPDX-License-Identifier: Apache-2.0
"""Iterations of the commands of a kernel that overlap: rings, skewed loops, places in the scopes, and the order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from xdsl.dialects import func, scf
from xdsl.ir import Block, Operation

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp
from penstock.passes.analysis.loops import loops_around
from penstock.passes.schedule.command_rings import is_filled_first
from penstock.passes.schedule.ordering import order, require_tokens
from penstock.passes.schedule.ordering.accesses import CommandInfo, commands_of
from penstock.passes.schedule.ordering.tokens import strip
from penstock.passes.schedule.rings import Candidate, loops_of_ring, require_room, require_turns, rotate, why_no_turns
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
    chosen = [(buffer, count) for buffer, count in slots if count > 1]
    _check(state, chosen, target)
    # Loops that carry tokens are replaced by others with the same body.
    bodies = [loop.body.block for loop in loops]
    with state.undone_on_error():
        strip(function)
        offsets = ScopeOffsets(function, target, state.kept)
        made = rotate(
            [Candidate(buffer, loops_of_ring(buffer, counted=True), count) for buffer, count in chosen], target
        )
        require_room(made, partial(_replan, offsets, not fixed_offsets))
        if not fixed_offsets:
            offsets.spread()
        commands = commands_of(function, target) if loops else None
        skewed = _skew(function, target, bodies, commands or (), where_possible) if loops else []
        if skewed:
            # What the inner loops became is looked at anew.
            commands = commands_of(function, target)
            offsets.changed()
            if not offsets.keep_apart():
                raise NoRoom("the scopes have no room for the buffers of skewed loops", skewed=True)
        if not fixed_offsets:
            remove_unused(function)
        order(function, target, commands)
        if not fixed_offsets and not offsets.is_planned():
            raise NoRoom("the scopes have no room for iterations that overlap")
    return list(made), sorted(skewed)


def _skew(
    function: func.FuncOp,
    target: TargetOp,
    bodies: Sequence[Block],
    commands: Sequence[CommandInfo],
    where_possible: bool,
) -> list[int]:
    """Skew the loops with these bodies, in their order; returns the numbers of those that were."""
    skewed = dict[int, None]()
    around = set[Operation]()
    why: UserError | None = None
    # A loop that is not skewed as it is may be once those inside of it are.
    for _ in range(2):
        why = None
        for number, body in enumerate(bodies):
            loop = body.parent_op()
            if number in skewed or not isinstance(loop, scf.ForOp) or not function.is_ancestor(loop):
                continue
            split = split_of(loop, commands, nested=loop in around)
            if isinstance(split, str):
                why = why or UserError(f"this loop cannot be skewed: {split}", loc=location_of(loop))
                continue
            skewed[number] = None
            around.update(loops_around(loop))
            rewrite(split)
            commands = commands_of(function, target)
    if why is not None and not where_possible:
        raise why
    return list(skewed)


def _replan(offsets: ScopeOffsets, move: bool) -> str | None:
    offsets.changed()
    return offsets.replan(move=move)


def _check(state: TransformState, chosen: Sequence[tuple[BufferOp, int]], target: TargetOp) -> None:
    """Raise UserError for a buffer that cannot be a ring of so many slots."""
    commands = state.commands
    if commands is None and chosen:
        commands = commands_of(state.kernel, target)
    for buffer, count in chosen:
        nest = loops_of_ring(buffer, counted=True)
        reason = why_no_turns(buffer, nest, partial(is_filled_first, buffer, commands or ()))
        require_turns(buffer, nest, count, reason)
