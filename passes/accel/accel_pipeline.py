# SPDX-License-Identifier: Apache-2.0
"""Pipelining: iterations of a loop of transfers and commands overlap, as far as buffers, units and scopes allow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import RingOp
from penstock.dialects.schedule_accel import PipelineOp
from penstock.passes.accel.pipelining.rings import Choice, choose_slots
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.analysis.kernels import AUTO, PIPELINING, add_remark, machine_kernels
from penstock.passes.isomorphic_kernels import rewrite_kernels
from penstock.passes.schedule.deciding import copy_section, given_key, require_kernels, run_section, written_section
from penstock.passes.schedule.ordering.accesses import commands_of
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.scope_offsets import Kept, NoRoom, kept_beside
from penstock.passes.schedule.sections import COMMANDS


@dataclass(frozen=True)
class AccelPipelinePass(ModulePass):
    """
    Let the iterations of loops overlap: rings for buffers, loops skewed where a unit needs it, tokens derived anew.

    Required: the accel level with SSA tokens, buffers in scopes placed. A buffer that each iteration of a nest fills
    anew, and that several units use, becomes a ring before the nest, whose slots take turns over all its iterations, so
    that an inner loop drains while the next iteration of the outer one begins. `depth` says how many slots; with "auto"
    the fewest with which the model (`passes.planning.pipelining`) is as fast as with eight. Offsets are planned anew
    with the same problem and planner as `mem-plan`; where a scope is too small, its ring of most slots loses one. What
    @main keeps in a scope stays where it is, and rings at hand stay as they are.

    Units run ahead of each other by themselves, so loops need no prologue; but a unit that loads and stores would hold
    up the loads after a store. Such a loop is skewed, see `schedule.skew`, if the rings allow it and it gains by
    the model: a short loop may not. Then the order is derived anew, see `schedule.ordering`: a load waits for the
    iteration that had its slot before.

    Guaranteed: the same results bit for bit, `mem-verify` passes; a kernel for which no offsets are found stays as it
    was. The attribute `pipelining` of a kernel says in words what was done and what the model expects of it. Raises
    UserError for a depth below 1, for a kernel in queue form and for commands in branches. See
    `schedule.pipeline` for an example.
    """

    name = "accel-pipeline"

    depth: int | str = AUTO
    """Slots of a ring; "auto" lets the model decide."""
    skew: bool = True
    """Whether loops may be skewed."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.depth != AUTO and (isinstance(self.depth, str) or self.depth < 1):
            raise UserError(f'a ring has at least one slot, or "{AUTO}" says how many, not {self.depth}')
        target, functions = machine_kernels(op)
        if target is None:
            return
        require_kernels(ctx, op, COMMANDS)
        kept = kept_beside(op) if functions else {}

        def beside(function: func.FuncOp) -> Kept:
            return kept.get(function.sym_name.data, {})

        def rewrite(function: func.FuncOp) -> None:
            decide = partial(self._decide, function, target)
            run_section(ctx, function, target, COMMANDS, decide, kept=beside(function))

        def context(function: func.FuncOp) -> Hashable:
            return tuple((scope, *held) for scope, held in beside(function).items()), given_key(ctx, function)

        note, copied = partial(written_section, ctx, COMMANDS), partial(copy_section, ctx, COMMANDS)
        rewrite_kernels(ctx, functions, target, self, rewrite, context, note, copied)

    def _decide(self, function: func.FuncOp, target: TargetOp, schedule: Schedule) -> None:
        commands = commands_of(function, target)
        depth = None if isinstance(self.depth, str) else self.depth
        choice = choose_slots(function, target, commands, depth, skewed=self.skew)
        loops: Sequence[SSAValue] = ()
        if choice.skewed == "outer":
            loops = schedule.match(scf.ForOp.name)
        elif choice.skewed != "none":
            # A loop of one command is of the pieces of a transfer.
            nests = [op for op in function.walk() if isinstance(op, scf.ForOp) and _has_several_commands(op)]
            around = {op.parent_op() for op in nests}
            inner = [op for op in nests if op not in around]
            outer = [op for op in reversed(nests) if op in around] if choice.skewed == "nested" else []
            loops = schedule.handles([*inner, *outer])
        buffers = schedule.handles(choice.slots)
        schedule.state.commands = commands
        op = _write(schedule, choice, buffers, loops)
        if op.fixed_offsets is None and PIPELINING in function.attributes:
            said = [op.remark.data] if op.remark is not None else []
            modelled = choice.describe(op.slot_counts, choice.skewed if op.skewed else "none")
            op.properties["remark"] = StringAttr("; ".join([*said, modelled]))
            add_remark(function, PIPELINING, [modelled])


def _has_several_commands(loop: scf.ForOp) -> bool:
    return sum(isinstance(op, CommandOp) for op in loop.walk()) > 1


def _write(schedule: Schedule, choice: Choice, buffers: Sequence[SSAValue], loops: Sequence[SSAValue]) -> PipelineOp:
    """Write down what was chosen, or what of it there is room for."""
    wanted, remark = tuple(choice.slots.values()), ""
    counts = wanted
    while True:
        slots = list(zip(buffers, counts, strict=True))
        try:
            return schedule.pipeline(slots, loops, wanted=wanted, where_possible=bool(loops), remark=remark)
        except NoRoom as error:
            if error.fitting:
                # Nothing is said of those that stay buffers.
                fitting = iter(error.fitting)
                counts = tuple(next(fitting) if count > 1 else count for count in counts)
            elif error.skewed:
                loops = ()
                if wanted or any(isinstance(op, RingOp) for op in schedule.state.kernel.walk()):
                    remark = "loops not skewed: the scopes are too small"
            else:
                remark = "iterations do not overlap: the scopes are too small"
                return schedule.pipeline(fixed_offsets=True, remark=remark)
