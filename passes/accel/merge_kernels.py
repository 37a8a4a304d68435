# SPDX-License-Identifier: Apache-2.0
"""`merge-kernels`: one kernel of calls that follow each other, so that their commands may overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.accel import BarrierOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import ScopedAllocation
from penstock.dialects.remarks import remark
from penstock.passes.accel.merging.merger import Merger
from penstock.passes.accel.merging.runs import Room, is_call_of, runs
from penstock.passes.analysis.kernels import (
    ENTRY,
    machine_kernels,
)
from penstock.passes.analysis.memory.memory_problems import memory_problems, written_plan
from penstock.passes.analysis.memory.op_orders import BlockOrder, BlockOrders
from penstock.passes.loop.mem_plan import find_plan
from penstock.passes.loop.order_ops import rearrange
from penstock.passes.planning.problem import Limits, conflicts
from penstock.passes.planning.registry import DEFAULT_PLANNER
from penstock.passes.schedule.ordering import order


def _alternating(order: BlockOrder, on_machine: Sequence[bool]) -> list[int]:
    """
    The ops in an order with few changes between host and machine: of what is ready all of the one, then all of the
    other, each in the order in which they stand. No order that begins on the same side changes less often.
    """
    left, done, found = list(order.given), set[int](), list[int]()
    side = False
    while left:
        number = next((n for n in left if on_machine[n] is side and order.problem.before[n] <= done), None)
        if number is None:
            side = not side
            continue
        left.remove(number)
        done.add(number)
        found.append(number)
    return found


@dataclass(frozen=True)
class MergeKernelsPass(ModulePass):
    """
    Make one kernel of calls on the machine that follow each other, so that the commands of the next need not wait until
    all units are done with the one before.

    A kernel ends when all units have come to rest; within one, a command starts when what it depends on is complete. So
    in a merged kernel the first transfers of a part run while the part before still computes or stores, as far as the
    bytes on chip that they fill are free by then. The parts are what they were made by themselves, with their tiles,
    rings and places, but that buffers go off the bytes that the part before uses where there is room for that; the
    barriers between them go, and the order of all commands is derived anew from the bytes that
    they access, on chip and off, see `schedule.ordering`. `accel-check-hazards` proves the whole.

    First the calls of @main are put into an order with few changes between host and machine: all that is ready on the
    one, then all that is ready on the other, and what depends on another stays behind it; but not where something stays
    on chip between calls. Then each run of calls with only views, constants and allocations between them becomes one
    kernel, as far as what @main keeps on chip beyond the run has its bytes to itself during all of it. A buffer in a
    scope that only they use becomes a buffer of the kernel; where they see a storage as several views, the kernel is
    given the storage, and makes them. The arena is planned again where what the kernels are given, all of which is
    alive while they run, shares bytes.
    `macs` and `crossing` are summed. Kernels that are no longer called are removed.

    Required: the accel level with SSA tokens, planned; a module without a machine stays as it is. Guaranteed: the same
    results bit for bit, and a plan. The arena may grow. Raises UserError for a negative limit, for a kernel that
    does not end in a barrier, and for one in queue form.

    Before:
    ```mlir
    func.func @main(%x: memref<8x8xf32>, %y: memref<8x8xf32>) {
      %a = mem.buffer at 0 : memref<8x8xf32>
      func.call @first(%x, %a) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
      func.call @second(%x, %a, %y) : (memref<8x8xf32>, memref<8x8xf32>, memref<8x8xf32>) -> ()
      func.return
    }
    func.func private @first(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @gemmini_fp32} {
      %s = mem.buffer at 0 : memref<8x8xf32, "spad">
      %l = accel.dma %x to %s on "mvin" : memref<8x8xf32> to memref<8x8xf32, "spad">
      %r = accel.dma %s to %y on "mvout" after(%l) : memref<8x8xf32, "spad"> to memref<8x8xf32>
      accel.barrier
      func.return
    }
    func.func private @second(%w: memref<8x8xf32>, %x: memref<8x8xf32>, %y: memref<8x8xf32>)
        attributes {device = @gemmini_fp32} {
      %v = mem.buffer at 512 : memref<8x8xf32, "spad">
      %s = mem.buffer at 0 : memref<8x8xf32, "spad">
      %k = accel.dma %w to %v on "mvin" : memref<8x8xf32> to memref<8x8xf32, "spad">
      %l = accel.dma %x to %s on "mvin" : memref<8x8xf32> to memref<8x8xf32, "spad">
      %r = accel.dma %s to %y on "mvout" after(%l) : memref<8x8xf32, "spad"> to memref<8x8xf32>
      accel.barrier
      func.return
    }
    ```
    After (`merge-kernels` on `gemmini-fp32`):
    ```mlir
    func.func @main(%x: memref<8x8xf32>, %y: memref<8x8xf32>) {
      %a = mem.buffer at 0 : memref<8x8xf32>
      func.call @first_to_second(%x, %a, %y) : (memref<8x8xf32>, memref<8x8xf32>, memref<8x8xf32>) -> ()
      func.return
    }
    func.func private @first_to_second(%x: memref<8x8xf32>, %a: memref<8x8xf32>, %y: memref<8x8xf32>)
        attributes {device = @gemmini_fp32} {
      %s = mem.buffer at 0 : memref<8x8xf32, "spad">
      %l = accel.dma %x to %s on "mvin" : memref<8x8xf32> to memref<8x8xf32, "spad">
      %r = accel.dma %s to %a on "mvout" after(%l) : memref<8x8xf32, "spad"> to memref<8x8xf32>
      %v = mem.buffer at 512 : memref<8x8xf32, "spad">
      %s_1 = mem.buffer at 256 : memref<8x8xf32, "spad">
      %k = accel.dma %x to %v on "mvin" : memref<8x8xf32> to memref<8x8xf32, "spad">
      %l_1 = accel.dma %a to %s_1 on "mvin" after(%r) : memref<8x8xf32> to memref<8x8xf32, "spad">
      %r_1 = accel.dma %s_1 to %y on "mvout" after(%l_1) : memref<8x8xf32, "spad"> to memref<8x8xf32>
      accel.barrier
      func.return
    }
    ```
    """

    name = "merge-kernels"

    calls: int = 0
    """The most calls that one kernel is made of; 0 for any number."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.calls < 0:
            raise UserError("a limit of merge-kernels is negative")
        target, functions = machine_kernels(op)
        # A kernel of several blocks stays one of its own: its branches return from the whole.
        machine = {kernel.sym_name.data: kernel for kernel in functions if len(kernel.body.blocks) == 1}
        entry = next((each for each in op.ops if isinstance(each, func.FuncOp) and each.sym_name.data == ENTRY), None)
        if target is None or entry is None or len(entry.body.blocks) != 1:
            return
        # What stays on chip between kernels has its place by the order of the calls.
        is_free = not any(isinstance(each, ScopedAllocation) and each.scope is not None for each in entry.walk())
        if is_free and (given := BlockOrders(op).of(entry)) is not None:
            rearrange(given, _alternating(given, [is_call_of(each, machine) for each in given.ops]))
        room = Room(op, entry, machine, target)
        found = list(runs(entry.body.block, machine, self.calls, room))
        for name in dict.fromkeys(name for run in found for name in run.names):
            _require_commands(machine[name])
        for run in found:
            merged = Merger(run, machine, target, room).merge(op)
            order(merged, target)
            names = ", ".join(f"@{name}" for name in run.names)
            remark(merged, "passed", f"made of {names}")
        called = {call.callee.string_value() for call in op.walk() if isinstance(call, func.CallOp)}
        for name, kernel in machine.items():
            if name not in called:
                Rewriter.erase_op(kernel)
        # Whether kernels were merged or the calls only have another order.
        _replan_arena(op)


def _require_commands(kernel: func.FuncOp) -> None:
    end = kernel.body.block.last_op
    if end is None or not isinstance(end.prev_op, BarrierOp):
        message = f"@{kernel.sym_name.data} does not end in accel.barrier"
        raise UserError(message, loc=location_of(kernel), notes=["merge-kernels comes after accel-pipeline"])


def _replan_arena(module: ModuleOp) -> None:
    """Find places off chip anew where buffers that have places share bytes that are alive at once now."""
    for memory in memory_problems(module, placed_only=True, off_chip_only=True):
        if next(conflicts(memory.problem, written_plan(memory)), None) is not None:
            plan = find_plan(replace(memory, problem=memory.unplaced()), DEFAULT_PLANNER, Limits()).plan
            assert plan is not None
            for id, op in memory.ops.items():
                assert isinstance(op, ScopedAllocation)
                op.offset = IntegerAttr(plan.offsets[id], i64)
