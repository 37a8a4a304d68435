"""Barriers in place of tokens, for machines whose commands nothing else orders."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp, ReadyOp, TokenType, WaitOp
from penstock.dialects.functions import body_block
from penstock.passes.accel.accel_check_hazards import check_hazards
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.loops import trip_count
from penstock.passes.schedule.ordering.tokens import strip

Pending = frozenset[SSAValue]
"""The tokens that may be of commands that are not complete."""


@dataclass
class _Barriers:
    """Where barriers go: each op that one comes before."""

    before: set[Operation] = field(default_factory=set[Operation])

    def block(self, block: Block, pending: Pending) -> Pending:
        """What may not be complete at the end of a block, which begins with `pending`, all its barriers noted."""
        for op in block.ops:
            match op:
                case BarrierOp():
                    pending = frozenset()
                case _ if isinstance(op, CommandOp | WaitOp):
                    waits = op.tokens if isinstance(op, WaitOp) else op.dependencies
                    if not pending.isdisjoint(waits):
                        self.before.add(op)
                        pending = frozenset()
                    if isinstance(op, CommandOp):
                        pending |= {op.token}
                case ReadyOp():
                    if not pending.isdisjoint(op.dependencies):
                        pending |= {op.token}
                case scf.ForOp():
                    pending = self.loop(op, pending)
                case scf.IfOp():
                    ends = [self.block(region.block, pending) for region in op.regions if region.blocks]
                    tokens = {result for result in op.results if isinstance(result.type, TokenType)}
                    pending = pending.union(*ends, tokens)
                case _:
                    pass
        return pending

    def loop(self, op: scf.ForOp, pending: Pending) -> Pending:
        """
        A loop waits once before it where it would wait in each iteration for what is outside.
        """
        inside, after = self._loop(op, pending)
        waiting, after_waiting = self._loop(op, frozenset())
        if pending and len(waiting) < len(inside):
            waiting, after = waiting | {op}, after_waiting
        else:
            waiting = inside
        self.before |= waiting
        return after

    def _loop(self, op: scf.ForOp, pending: Pending) -> tuple[set[Operation], Pending]:
        """The barriers of a loop that begins with `pending`, and what may not be complete after it."""
        body = op.body.block
        terminator = body.last_op
        assert isinstance(terminator, scf.YieldOp)
        carried = [n for n, value in enumerate(op.iter_args) if isinstance(value.type, TokenType)]
        begin = pending | {body.args[1 + n] for n in carried if op.iter_args[n] in pending}
        while True:
            trial = _Barriers()
            end = trial.block(body, begin)
            # What an iteration leaves, the next one begins with.
            again = begin | end | {body.args[1 + n] for n in carried if terminator.operands[n] in end}
            if again == begin:
                break
            begin = again
        results = {op.results[n] for n in carried if terminator.operands[n] in end or op.iter_args[n] in pending}
        left = end if trip_count(op) else end | pending
        return trial.before, left | results


@dataclass(frozen=True)
class AccelTokensToBarriersPass(ModulePass):
    """
    Order the commands of a machine by barriers, in place of tokens.

    Requires the accel level. Guaranteed: no tokens; between a command and one that waited for it the processor waits
    until all are complete. Barriers are few: one comes as late as it can, and so does for all that was issued until
    then; one that a loop would repeat for what was issued before it comes before the loop. The kernels are checked for
    hazards as they are then. Raises UserError for one.

    Before:
    ```mlir
    func.func private @k(%x: memref<4x4xf32>, %y: memref<4x4xf32>) attributes {device = @gemmini_fp32} {
      %a = mem.buffer at 0 : memref<4x4xf32, "spad">
      %b = mem.buffer at 64 : memref<4x4xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      %u = accel.dma %x to %b on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      %v = accel.dma %a to %y on "mvout" after (%t) : memref<4x4xf32, "spad"> to memref<4x4xf32>
      %w = accel.dma %b to %y on "mvout" after (%u, %v) : memref<4x4xf32, "spad"> to memref<4x4xf32>
      accel.barrier
      func.return
    }
    ```
    After (`accel-tokens-to-barriers` on `gemmini-fp32`):
    ```mlir
    func.func private @k(%x: memref<4x4xf32>, %y: memref<4x4xf32>) attributes {device = @gemmini_fp32} {
      %a = mem.buffer at 0 : memref<4x4xf32, "spad">
      %b = mem.buffer at 64 : memref<4x4xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      %u = accel.dma %x to %b on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      accel.barrier
      %v = accel.dma %a to %y on "mvout" : memref<4x4xf32, "spad"> to memref<4x4xf32>
      accel.barrier
      %w = accel.dma %b to %y on "mvout" : memref<4x4xf32, "spad"> to memref<4x4xf32>
      accel.barrier
      func.return
    }
    ```
    """

    name = "accel-tokens-to-barriers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _, functions = machine_kernels(op)
        for function in functions:
            self._kernel(function)
        check_hazards(op)

    def _kernel(self, function: func.FuncOp) -> None:
        barriers = _Barriers()
        barriers.block(body_block(function, "ordered by barriers"), frozenset())
        for op in barriers.before:
            barrier = BarrierOp()
            barrier.location = op.location
            Rewriter.insert_op(barrier, InsertPoint.before(op))
        strip(function)
