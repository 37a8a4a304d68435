"""Multi-buffer: what a round of a loop brings in or takes away gets a buffer for each of several rounds."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp
from penstock.passes.kernels import machine_kernels
from penstock.passes.loop.memory_problems import function_problems
from penstock.passes.loop.rings import candidate, number_of_round, remove_unused, restore, rotate
from penstock.passes.planning.problem import Limits, height
from penstock.passes.planning.registry import solve

STEPS = 2_000
"""Steps that a planner may take to find out whether a ring fits."""


@dataclass(frozen=True)
class MultiBufferPass(ModulePass):
    """
    Give each buffer that a round of a loop fills from outside its scope, or empties to the outside, a ring of `depth`.

    Required: the loop level, promoted, no plan yet. The ring stands before the innermost loop around the buffer, and
    `mem.slot` takes turns by the number of the round, so a transfer of the next round no longer writes where this one
    still reads: the overlap that a later pass makes use of is in the IR, and the planner sees what it costs. Left as
    they are: buffers with an offset, buffers of which a round reads what it has not written, those that are handed on
    (yielded, passed to a call), and loops of a single round; a loop of fewer rounds than `depth` gets as many slots.
    With `fit`, buffer by buffer in program order, a ring has fewer slots, or is none, where its scope would be too
    small. Guaranteed: the same results bit for bit. Raises UserError for a depth below 1 and for an unknown scope.

    Before:
    ```mlir
    func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %tile = arith.constant 16 : index
      %end = arith.constant 64 : index
      scf.for %i = %zero to %end step %tile {
        %a = mem.buffer : memref<16xf32, "spad">
        mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "spad">
        mem.copy %a to %y[%i] : memref<16xf32, "spad"> to memref<64xf32>
      }
      func.return
    }
    ```
    After (`multi-buffer` on `gemmini-fp32`):
    ```mlir
    func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %tile = arith.constant 16 : index
      %end = arith.constant 64 : index
      %a_ring = mem.ring 2 : !mem.ring<memref<16xf32, "spad">>
      scf.for %i = %zero to %end step %tile {
        %round = arith.divui %i, %tile : index
        %a = mem.slot %a_ring[%round] : !mem.ring<memref<16xf32, "spad">>
        mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "spad">
        mem.copy %a to %y[%i] : memref<16xf32, "spad"> to memref<64xf32>
      }
      func.return
    }
    ```
    """

    name = "multi-buffer"

    depth: int = 2
    """Slots of a ring; with 1 nothing is changed."""
    scopes: tuple[str, ...] | None = None
    """The scopes whose buffers are meant; all by default."""
    fit: bool = False
    """Whether to take fewer slots, or leave the buffer, where the scope has no room."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.depth < 1:
            raise UserError(f"a ring has at least one slot, not {self.depth}")
        target, functions = machine_kernels(op)
        if target is None:
            return
        for scope in self.scopes or ():
            if scope not in target.scopes():
                near = did_you_mean(scope, target.scopes())
                known = ", ".join(target.scopes())
                raise UserError(f'there is no scope "{scope}"', notes=[near or f"scopes: {known}"])
        for function in functions:
            self._kernel(function, target)

    def _kernel(self, function: func.FuncOp, target: TargetOp) -> None:
        turns: dict[scf.ForOp, SSAValue] = {}
        for buffer in [each for each in function.walk() if isinstance(each, BufferOp)]:
            if self.scopes is not None and buffer.scope not in self.scopes:
                continue
            if (found := candidate(buffer, self.depth)) is None:
                continue
            if found.loop not in turns:
                turns[found.loop] = number_of_round(found.loop)
            ring = rotate(found, turns[found.loop], target)
            while self.fit and not _fits(function, target, ring.scope):
                if ring.slot_count == 2:
                    restore(ring)
                    break
                ring.depth = IntegerAttr(ring.slot_count - 1, i64)
        for turn in turns.values():
            remove_unused(turn)


def _fits(function: func.FuncOp, target: TargetOp, scope: str | None) -> bool:
    """Whether a plan for this scope is found soon."""
    for each in function_problems(function, target):
        capacity = each.problem.capacity
        if each.scope == scope and capacity is not None:
            plan = solve(each.problem, limits=Limits(steps=STEPS, good_enough=capacity)).plan
            return plan is not None and height(each.problem, plan) <= capacity
    return True
