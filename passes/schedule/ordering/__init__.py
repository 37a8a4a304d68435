# SPDX-License-Identifier: Apache-2.0
"""
The order of a kernel's commands, derived from what they access: a minimal set of tokens that keeps program order where
it matters.

1. `dependences`: two commands must keep their order if they access a byte in common and one of them writes it (a
   scope's bytes by their offsets, so a buffer that takes the bytes of a dead one comes after that one's last use; off
   chip by allocation or argument). What the order of a unit implies is left out.
2. `reduce`: transitive reduction by happens-before, on a bounded unrolling. A command waits at most for the last of
   each in-order unit that it depends on, and only where nothing else implies it: a read for the write (forward), a
   write for the last reads (backward, mostly from the previous iteration).
3. `_with_bus_priority`: a prefetch waits for a later command of the unit where it would delay one on a bus.
4. `Threading`: loops take and return tokens. A ring of B slots has B tokens of each source that is waited for by slot;
   the values rotate through the loop, so an iteration waits for the one that had its slot before, B iterations ago.
   Where a loop is entered again, they are rotated by what that makes of the slots. Where the number of a slot is not
   affine in the iterations, the ring counts as one storage: correct, one iteration after the other.
5. `leave_out`: operands by which nothing arrives that is not implied otherwise are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from xdsl.dialects import func
from xdsl.rewriter import Rewriter

from penstock.dialects.accel import PopOp, PushOp, ReadyOp
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.analysis.loops import nest_around
from penstock.passes.schedule.ordering.accesses import CommandInfo, commands_of, in_order_units
from penstock.passes.schedule.ordering.conflicts import Dependence, dependences
from penstock.passes.schedule.ordering.reduction import leave_out, reduce
from penstock.passes.schedule.ordering.threading import Threading
from penstock.passes.schedule.ordering.tokens import strip, tidy


def order(function: func.FuncOp, target: TargetOp, commands: Sequence[CommandInfo] | None = None) -> None:
    """
    Take all tokens out of a kernel of the machine `target`, and order its commands anew. With `commands`, those of the
    kernel, it has no tokens.

    Required: the accel level, buffers in scopes placed. Guaranteed: what commands compute does not depend on how far
    units run ahead of each other, and it is what they compute in the order of the text; no token could be left out.
    Raises UserError for a kernel in queue form, whose order is in its pushes and pops, and for a command in a branch.
    """
    require_tokens(function)
    if commands is None:
        strip(function)
        commands = commands_of(function, target)
    in_order = in_order_units(commands, target)
    findings = reduce(function, commands, dependences(commands, in_order), in_order)
    needed = list(findings.needed)
    if (prioritised := _with_bus_priority(needed, commands, in_order)) != needed:
        # Several may now wait for one transfer, or for one whose completion implies another's.
        findings = reduce(function, commands, list(dict.fromkeys(prioritised)), in_order)
    completed = Threading(function, commands, findings, in_order).run()
    tidy(function, completed)
    leave_out(function, commands, findings.steps, completed)
    tidy(function, completed)
    if isinstance(completed.owner, ReadyOp) and not completed.uses:
        Rewriter.erase_op(completed.owner)


def require_tokens(function: func.FuncOp) -> None:
    """Raise UserError for a kernel in queue form, and for a command in a branch."""
    name = function.sym_name.data
    for op in function.walk():
        if isinstance(op, PushOp | PopOp):
            raise UserError(
                f"@{name} is ordered by queues; tokens are derived before they become queues", loc=location_of(op)
            )
        if isinstance(op, CommandOp):
            around = next(iter(nest_around(op)), op).parent_op()
            if around is not None and around is not function:
                raise UserError(
                    f"{op.name} is in {around.name}: tokens are derived for commands in loops alone",
                    loc=location_of(op),
                    notes=[f"{around.name} is at {location_of(around)}"],
                    status=UNSUPPORTED,
                )


def _with_bus_priority(
    dependences: Sequence[Dependence], commands: Sequence[CommandInfo], in_order: frozenset[str]
) -> list[Dependence]:
    """
    The dependences, those of prefetches on the last transfer on their bus that the unit of the source waits for.

    A unit that computes and transfers (on VTA, `compute` loads biases) stalls until its own transfer is complete, and
    a bus is granted in the order of requests. When an op of it is complete two come at once: its own transfer, for the
    epilogue of this iteration, and a prefetch into the slot that the op has released. The prefetch is long, and needed
    in a later iteration; granted first, it delays every iteration by its whole length. So that transfer releases the
    slot in the place of the op.
    """
    return [replace(each, source=_releasing(each, commands, in_order)) for each in dependences]


def _releasing(dependence: Dependence, commands: Sequence[CommandInfo], in_order: frozenset[str]) -> CommandInfo:
    source, sink = dependence.source, dependence.sink
    prefetches = sink.transfers and any(access.writes and access.scope is not None for access in sink.accesses)
    if source.transfers or sink.bus is None or not prefetches or source.unit not in in_order:
        return source
    transfers = [each for each in _following(source, commands) if each.bus == sink.bus and each.unit == source.unit]
    last = transfers[-1] if transfers else source
    # A sink between the two in the text would wait for the transfer of the previous iteration.
    return source if source.number < sink.number < last.number else last


def _following(command: CommandInfo, commands: Sequence[CommandInfo]) -> Iterator[CommandInfo]:
    """The commands after one in the text, up to the next loop or the end of its own."""
    for other in commands[command.number + 1 :]:
        if other.loops != command.loops:
            return
        yield other


__all__ = ["order", "require_tokens"]
