# SPDX-License-Identifier: Apache-2.0
"""Multi-buffer: what an iteration of a loop brings in or takes away gets a buffer for each of several iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.kernels import AUTO, depths_of, machine_kernels
from penstock.passes.schedule.deciding import require_kernels, run_section
from penstock.passes.schedule.rings import candidates
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.scope_offsets import NoRoom, kept_beside
from penstock.passes.schedule.sections import ON_CHIP


@dataclass(frozen=True)
class MultiBufferPass(ModulePass):
    """
    Give each buffer that units take turns at in a loop, one that is filled or emptied above all, a ring of `depth`.

    Required: the loop level, promoted, no plan yet. The ring is before the nest of loops around the buffer, and
    `mem.slot` takes turns by the number of the iteration, which goes on from one iteration of an outer loop to the
    next: a transfer of the next iteration no longer writes where this one still reads, and while an inner loop runs out
    the next iteration of the outer one begins. So the overlap that a later pass makes use of is in the IR, and the
    planner sees what it costs. Of the loops around, those inside one whose iterations are not known count. Left as they
    are: buffers with an offset, buffers of which an iteration reads what it has not written, those that are handed on
    (yielded, passed to a call), and loops of a single iteration; a nest of fewer iterations than `depth` gets as many
    slots. With `fit`, and with `depth=auto`, buffer by buffer in program order, a ring has fewer slots, or is none,
    where its scope would be too small. Guaranteed: the same results bit for bit. Raises UserError for a depth below 1
    and for an unknown scope. See `schedule.multi_buffer` for an example.
    """

    name = "multi-buffer"

    depth: int | str = 2
    """Slots of a ring; with 1 nothing is changed, with "auto" it is what `depths` of the kernel says."""
    scopes: tuple[str, ...] | None = None
    """The scopes whose buffers are meant; all by default."""
    fit: bool = False
    """Whether to take fewer slots, or leave the buffer, where the scope has no room; with "auto" always."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.depth != AUTO and (isinstance(self.depth, str) or self.depth < 1):
            raise UserError(f'a ring has at least one slot, or "{AUTO}" says how many, not {self.depth}')
        target, functions = machine_kernels(op)
        if target is None:
            return
        for scope in self.scopes or ():
            if scope not in target.scopes():
                near = did_you_mean(scope, target.scopes())
                known = ", ".join(target.scopes())
                raise UserError(f'there is no scope "{scope}"', notes=[near or f"scopes: {known}"])
        require_kernels(ctx, op, ON_CHIP)
        kept = kept_beside(op)
        for function in functions:
            depths = depths_of(function) if isinstance(self.depth, str) else dict.fromkeys(target.scopes(), self.depth)
            decide = partial(self._kernel, function, target, depths)
            run_section(ctx, function, target, ON_CHIP, decide, kept=kept.get(function.sym_name.data, {}))

    def _kernel(self, function: func.FuncOp, target: TargetOp, depths: Mapping[str, int], schedule: Schedule) -> None:
        found = candidates(function, target, depths, self.scopes)
        for each, handle in zip(found, schedule.handles(each.buffer for each in found), strict=True):
            try:
                schedule.multi_buffer(handle, each.depth)
            except NoRoom as error:
                if not self.fit and self.depth != AUTO:
                    raise
                (slots,) = error.fitting
                if slots > 1:
                    schedule.multi_buffer(handle, slots)
