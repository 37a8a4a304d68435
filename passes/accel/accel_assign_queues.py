# SPDX-License-Identifier: Apache-2.0
"""From SSA tokens to pushes and pops between units."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.accel import DmaOp, ExecOp, PopOp, PushOp, WaitOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.passes.accel.queue_form import insert_pattern, place, prime_and_drain
from penstock.passes.accel.queues import assign_queues, keeps_order, least_time
from penstock.passes.accel.unrolling import unroll
from penstock.passes.analysis.commands.happens_before import waited_for
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.schedule.ordering.tokens import strip

_SLOWER = 1.02
"""How much longer a kernel with loops may take than without, before they are unrolled."""


@dataclass(frozen=True)
class AccelAssignQueuesPass(ModulePass):
    """
    Order the units of a machine by pushes and pops of its queues, in place of tokens: decoupled access-execute.

    Required: the accel level, buffers placed. Guaranteed: every two commands that were ordered are, no queue holds more
    than its capacity, and each holds at the end what it did at the beginning. Loops stay where each iteration can
    push and pop the same: queues are primed before and drained after them, as TVM does. Where that cannot be, or would
    take longer, a kernel of at most `unroll` commands is unrolled; there the queues order what the tokens did and no
    more. Units without a queue between them meet through carriers: a pop and a push of a unit in between. Tokens stay
    between transfers in flight on one unit. Raises UserError, located, where no queue leads, and where a kernel has
    more commands than `unroll` and no pattern for its loops.

    Before:
    ```mlir
    func.func private @k(%y: memref<64x16xi8>) attributes {device = @vta_pynq} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %end = arith.constant 64 : index
      %accs = mem.ring 2 at 0 : !mem.ring<memref<1x16xi32, "acc">>
      %free = accel.ready
      %d0, %d1 = scf.for %i = %zero to %end step %one iter_args(%two_ago = %free, %before = %free)
                  -> (!accel.token, !accel.token) {
        %acc = mem.slot %accs[%i] : !mem.ring<memref<1x16xi32, "acc">>
        %t = accel.exec @gemm_reset extents [1, 16] maps [affine_map<(m, n) -> (m, n)>] (%acc) after (%two_ago)
          : memref<1x16xi32, "acc">
        %row = memref.subview %y[%i, 0] [1, 16] [1, 1]
          : memref<64x16xi8> to memref<1x16xi8, strided<[16, 1], offset: ?>>
        %u = accel.exec @store_narrow extents [1, 16] maps [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>]
               (%acc, %row) after (%t) : memref<1x16xi32, "acc">, memref<1x16xi8, strided<[16, 1], offset: ?>>
        scf.yield %before, %u : !accel.token, !accel.token
      }
      accel.barrier
      func.return
    }
    ```
    After (`accel-assign-queues` on `vta-pynq`):
    ```mlir
    func.func private @k(%y: memref<64x16xi8>) attributes {device = @vta_pynq} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %end = arith.constant 64 : index
      %accs = mem.ring 2 at 0 : !mem.ring<memref<1x16xi32, "acc">>
      accel.push "store" to "compute"
      accel.push "store" to "compute"
      scf.for %i = %zero to %end step %one {
        %acc = mem.slot %accs[%i] : !mem.ring<memref<1x16xi32, "acc">>
        accel.pop "compute" from "store"
        %t = accel.exec @gemm_reset extents [1, 16] maps [affine_map<(d0, d1) -> (d0, d1)>]
          (%acc) : memref<1x16xi32, "acc">
        accel.push "compute" to "store"
        %row = memref.subview %y[%i, 0] [1, 16] [1, 1]
          : memref<64x16xi8> to memref<1x16xi8, strided<[16, 1], offset: ?>>
        accel.pop "store" from "compute"
        %u = accel.exec @store_narrow extents [1, 16] maps [affine_map<(d0, d1) -> (d0, d1)>,
          affine_map<(d0, d1) -> (d0, d1)>]
            (%acc, %row) : memref<1x16xi32, "acc">, memref<1x16xi8, strided<[16, 1], offset: ?>>
        accel.push "store" to "compute"
      }
      accel.pop "compute" from "store"
      accel.pop "compute" from "store"
      accel.barrier
      func.return
    }
    ```
    """

    name = "accel-assign-queues"

    unroll: int = 4096
    """The most commands of a kernel whose loops are unrolled; 0 keeps all loops."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, functions = machine_kernels(op)
        if target is None:
            return
        for function in functions:
            self._kernel(function, target)

    def _kernel(self, function: func.FuncOp, target: TargetOp) -> None:
        queued = next((op for op in function.walk() if isinstance(op, PushOp | PopOp)), None)
        if queued is not None:
            if any(_has_tokens(op) for op in function.walk()):
                raise UserError(
                    f"@{function.sym_name.data} is ordered by queues and by tokens",
                    loc=location_of(queued),
                    notes=["take out the pushes and pops, or the tokens"],
                )
            return
        program = trace(function, target)
        if not program.commands:
            return
        has_loops = any(isinstance(op, scf.ForOp) for op in function.walk())
        if has_loops:
            least = _SLOWER * least_time(assign_queues(program)) if len(program.commands) <= self.unroll else math.inf
            looped = _with_loops(function, target, within=least)
            if looped is not None:
                region = looped.detach_region(looped.body)
                function.detach_region(function.body)
                function.add_region(region)
                return
        if has_loops and len(program.commands) > self.unroll:
            raise UserError(
                f"no pushes and pops keep the order of @{function.sym_name.data} in its loops, and its "
                f"{len(program.commands):,} commands are more than are unrolled",
                loc=location_of(function),
                notes=[f"up to {self.unroll:,} are; raise `unroll`, or choose larger tiles"],
            )
        if has_loops:
            unroll(function)
        place(function, assign_queues(trace(function, target)))


def _has_tokens(op: Operation) -> bool:
    match op:
        case DmaOp() | ExecOp():
            return bool(op.dependencies)
        case WaitOp():
            return bool(op.tokens)
        case _:
            return False


def _with_loops(function: func.FuncOp, target: TargetOp, *, within: float) -> func.FuncOp | None:
    """A copy of a kernel in queue form that has kept its loops and takes no longer; None if there is no such."""
    best: tuple[int, func.FuncOp] | None = None
    for pushes_outside in (True, False):
        for pops_outside in (True, False):
            copy = function.clone()
            program = trace(copy, target)
            assigned = assign_queues(program)
            if not insert_pattern(assigned, pushes_outside=pushes_outside, pops_outside=pops_outside):
                return None
            strip(copy)
            if not prime_and_drain(copy, target, assigned):
                continue
            result = trace(copy, target)
            if not keeps_order(result, waited_for(program)) or check(result, most=1):
                continue
            time = least_time(result)
            if time <= min(within, _SLOWER * least_time(assigned)):
                return copy
            if time <= within and (best is None or time < best[0]):
                best = time, copy
    return None if best is None else best[1]
