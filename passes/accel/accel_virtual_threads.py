# SPDX-License-Identifier: Apache-2.0
"""`accel-virtual-threads`: which loops have iterations that are interleaved on the units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.loops import trip_count
from penstock.passes.schedule.deciding import has_section, require_kernels, run_section
from penstock.passes.schedule.ordering import require_tokens
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import COMMANDS
from penstock.passes.schedule.virtual_threads import conflict, loops_inside_out, units_in

MARK = "virtual_threads"
"""The attribute of a loop that says how many of its iterations are interleaved."""


@dataclass(frozen=True)
class AccelVirtualThreadsPass(ModulePass):
    """
    Interleave iterations of a loop on the units of the machine, so that one loads while another computes.

    See `schedule.virtual_thread` for an example; `accel-assign-queues` then primes and drains the queues. A loop is
    marked by the attribute `virtual_threads = 2 : i64`; in a kernel without marks it is the innermost loop in which
    several units work and whose iterations are independent, with `threads` of them.

    Required: the accel level, buffers placed, tokens rather than queues. Guaranteed: the same results bit for bit, and
    every buffer has its offset: those that are there keep theirs, if the copies fit beside them. Raises UserError,
    located, for fewer than one thread, for a marked loop whose iterations depend on each other or whose trip count is
    not constant, and for copies that do not fit in the scope.
    """

    name = "accel-virtual-threads"

    threads: int = 2
    """Iterations that are interleaved where no loop of a kernel is marked; with 1 nothing is changed."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.threads < 1:
            raise UserError(f"there is at least one virtual thread, not {self.threads}")
        target, functions = machine_kernels(op)
        if target is None:
            return
        require_kernels(ctx, op, COMMANDS)
        for function in functions:
            leads = not has_section(ctx, function, COMMANDS)
            run_section(ctx, function, target, COMMANDS, partial(self._kernel, function, target), leads=leads)

    def _kernel(self, function: func.FuncOp, target: TargetOp, schedule: Schedule) -> None:
        chosen = next(_marked(function), None)
        if chosen is None and self.threads > 1:
            require_tokens(function)
            chosen = self._choice(function, target)
        while chosen is not None:
            loop, threads = chosen
            (handle,) = schedule.handles([loop])
            schedule.virtual_thread(handle, threads)
            # Loops are replaced where the order is derived anew; the marks stay.
            chosen = next(_marked(function), None)

    def _choice(self, function: func.FuncOp, target: TargetOp) -> tuple[scf.ForOp, int] | None:
        """The loop whose iterations are interleaved where none is marked."""
        program = None
        for loop in loops_inside_out(function):
            trips = trip_count(loop) or 0
            if trips < 2 or len(units_in(loop, target)) < 2:
                continue
            program = trace(function, target) if program is None else program
            threads = min(self.threads, trips)
            if conflict(loop, program, threads) is None:
                return loop, threads
        return None


def _marked(function: func.FuncOp) -> Iterator[tuple[scf.ForOp, int]]:
    """The loops that are marked, inner ones first, and their threads; a mark of one says nothing."""
    for loop in loops_inside_out(function):
        mark = loop.attributes.get(MARK)
        threads = mark.value.data if isinstance(mark, IntegerAttr) else 0
        if mark is not None and threads < 1:
            raise UserError(
                f"{MARK} is the number of iterations that are interleaved, at least 1", loc=location_of(loop)
            )
        if threads == 1:
            del loop.attributes[MARK]
        elif threads:
            yield loop, threads
