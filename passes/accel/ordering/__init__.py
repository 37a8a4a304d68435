"""
The order of a kernel's commands, derived from what they access: the fewest tokens that keep every program order that
matters.

Two commands must keep their order if they access a byte in common and one of them writes it (a scope's bytes by
their offsets, so a buffer that is put where a dead one was comes after that one's last use; off chip by allocation or
argument). The order of a unit is a fact and needs no token: a command that executes, and a transfer of an engine with
one outstanding, starts when all earlier ones of its unit are complete. What the rest imply, by whatever path, needs
none either. So a command waits at most for the last of each in-order unit that it depends on, and only where it has
not, directly or through others, waited for that or a later one before: what a read needs is the write (forward), what
a write needs is the last reads (backward, mostly from the round before). A prefetch waits for a later
command of that unit where it would delay one on a bus; see `bus_priority`.

Loops take and return tokens. A ring of B slots has B tokens of each source that is waited for by slot, and the values
rotate through the loop, so a round waits for the round that had its slot before, B rounds ago; where a loop is
entered again and starts to count anew, or goes on, they are turned by what that makes of the slots. Where the number
of a slot is not a constant plus multiples of rounds, the ring counts as one storage: correct, one round after the
other.
"""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.rewriter import Rewriter

from penstock.dialects.accel import PopOp, PushOp, ReadyOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.passes.accel.ordering.accesses import commands_of, in_order_units
from penstock.passes.accel.ordering.bus_priority import with_bus_priority
from penstock.passes.accel.ordering.conflicts import dependences
from penstock.passes.accel.ordering.paths import leave_out
from penstock.passes.accel.ordering.reduction import reduce
from penstock.passes.accel.ordering.threading import Threading
from penstock.passes.accel.ordering.tokens import strip, tidy


def order(function: func.FuncOp, target: TargetOp) -> None:
    """
    Take all tokens out of a kernel of the machine `target`, and order its commands anew.

    Required: the accel level, buffers in scopes placed. Guaranteed: what commands compute does not depend on how far
    units run ahead of each other, and it is what they compute in the order of the text; no token could be left out.
    Raises UserError for a kernel in queue form, whose order is in its pushes and pops.
    """
    for op in function.walk():
        if isinstance(op, PushOp | PopOp):
            raise UserError(
                f"@{function.sym_name.data} is ordered by queues; tokens are derived before they become queues",
                loc=location_of(op),
            )
    strip(function)
    commands = commands_of(function, target)
    in_order = in_order_units(commands, target)
    findings = reduce(function, commands, dependences(commands, in_order), in_order)
    needed = list(findings.needed)
    if (prioritised := with_bus_priority(needed, commands, in_order)) != needed:
        # Several may now wait for one transfer, or for one whose completion implies another's.
        findings = reduce(function, commands, list(dict.fromkeys(prioritised)), in_order)
    never = Threading(function, commands, findings, in_order).run()
    tidy(function, never)
    leave_out(function, commands, findings.steps, never)
    tidy(function, never)
    if isinstance(never.owner, ReadyOp) and not never.uses:
        Rewriter.erase_op(never.owner)


__all__ = ["order"]
