"""`merge-kernels`: one kernel of calls that follow each other, so that their commands may overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError
from penstock.dialects.functions import unique_name
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import ScopedAllocation
from penstock.dialects.remarks import remark
from penstock.passes.analysis.kernels import (
    CROSSING,
    DEVICE,
    ENTRY,
    MACS,
    TILING,
    add_remark,
    is_contraction,
    machine_kernels,
    stated_macs,
)
from penstock.passes.analysis.memory.op_orders import BlockOrder, BlockOrders
from penstock.passes.loop.merging.runs import Room, Run, is_call_of, runs
from penstock.passes.loop.order_ops import rearrange


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


@dataclass
class _Merger:
    """One run becoming one kernel."""

    run: Run
    machine: Mapping[str, func.FuncOp]
    target: TargetOp

    def merge(self, module: ModuleOp) -> func.FuncOp:
        """Put the kernel behind the last of the run's, and one call in the place of the last."""
        calls = self.run.calls
        kernels = [self.machine[name] for name in self.run.names]
        storages = self.run.storages()
        moved = [root for root in storages if self.run.stays_inside(root)]
        # A storage is given as it is where it is seen as several views: commands on all of these have to be ordered.
        given = [
            root if len(views) > 1 or views[0] is root else views[0]
            for root, views in storages.items()
            if root not in moved
        ]
        block = Block(arg_types=[value.type for value in given])
        inside: dict[SSAValue, SSAValue] = {}
        for value, arg in zip(given, block.args, strict=True):
            inside[value] = arg
            arg.name_hint = value.name_hint
        for call, kernel in zip(calls, kernels, strict=True):
            self._inline(block, call, kernel, inside)
        block.add_op(func.ReturnOp())
        taken = {op.sym_name.data for op in module.ops if isinstance(op, func.FuncOp)}
        name = unique_name(f"{kernels[0].sym_name.data}_to_{kernels[-1].sym_name.data}", taken)
        merged = func.FuncOp(name, ([arg.type for arg in block.args], []), Region(block), visibility="private")
        merged.location = kernels[0].location
        self._describe(merged, kernels)
        Rewriter.insert_op(merged, InsertPoint.after(max(kernels, key=_place)))
        new = func.CallOp(SymbolRefAttr(name), given, [])
        new.location = calls[0].location
        Rewriter.insert_op(new, InsertPoint.before(calls[-1]))
        for call in calls:
            Rewriter.erase_op(call)
        for root in moved:
            _erase_unused(root)
        return merged

    def _inline(self, block: Block, call: func.CallOp, kernel: func.FuncOp, inside: dict[SSAValue, SSAValue]) -> None:
        body = kernel.body.block
        mapper = dict[SSAValue, SSAValue]()
        for arg, value in zip(body.args, call.arguments, strict=True):
            mapper[arg] = self._inside(value, block, inside)
        for op in body.ops:
            if isinstance(op, func.ReturnOp):
                break
            block.add_op(op.clone(mapper))

    def _inside(self, value: SSAValue, block: Block, inside: dict[SSAValue, SSAValue]) -> SSAValue:
        """What an operand of a call is in the kernel: an argument, or a view or buffer made there."""
        if value not in inside:
            owner = value.owner
            assert isinstance(owner, Operation)
            operands = [self._inside(each, block, inside) for each in owner.operands]
            copy = owner.clone(dict(zip(owner.operands, operands, strict=True)))
            block.add_op(copy)
            inside[value] = copy.results[0]
        return inside[value]

    def _describe(self, merged: func.FuncOp, kernels: Sequence[func.FuncOp]) -> None:
        merged.attributes[DEVICE] = SymbolRefAttr(self.target.sym_name.data)
        macs = [_macs(kernel) for kernel in kernels]
        crossing = [kernel.attributes.get(CROSSING) for kernel in kernels]
        bytes_crossing = sum(each.value.data for each in crossing if isinstance(each, IntegerAttr))
        for key, number in ((MACS, 0 if None in macs else sum(each or 0 for each in macs)), (CROSSING, bytes_crossing)):
            if number:
                merged.attributes[key] = IntegerAttr(number, i64)
        said = [kernel.attributes[TILING] for kernel in kernels if TILING in kernel.attributes]
        add_remark(merged, TILING, [each.data for each in said if isinstance(each, StringAttr)], "analysis")


def _macs(kernel: func.FuncOp) -> int | None:
    """The useful multiply-accumulates of a call; None where there are some, and it does not say how many."""
    multiplies = any(isinstance(op, GenericOp) and is_contraction(op) for op in kernel.walk())
    return stated_macs(kernel) if multiplies else stated_macs(kernel) or 0


@dataclass(frozen=True)
class MergeKernelsPass(ModulePass):
    """
    Make one kernel of calls on the machine that follow each other, so that the commands of the next need not wait until
    all units are done with the one before.

    A kernel ends when all units have come to rest; within one, a command starts when what it depends on is complete. So
    in a merged kernel the first transfers of a part run while the part before still computes or stores, as far as the
    bytes on chip that they fill are free by then. What orders the parts is what orders the commands of any kernel:
    `mem-plan` places their buffers together, `loop-to-accel` derives the tokens of all commands together from the bytes
    that they access, on chip and off, and `accel-check-hazards` proves the whole.

    First the calls of @main are put into an order with few changes between host and machine: all that is ready on the
    one, then all that is ready on the other, and what depends on another stays behind it. Then each run of calls with
    only views, constants and allocations between them becomes one kernel, as far as what @main keeps on chip leaves
    room. A buffer in a scope that only they use becomes a buffer of the kernel; where they see a storage as several
    views, the kernel is given the storage, and makes them.
    `macs` and `crossing` are summed. Kernels that nobody calls any more are removed.

    Required: the loop level, no plan yet, as `mem-plan` is about to find it; a module without a machine stays as it is.
    Guaranteed: the same results bit for bit. The arena may grow, since all that a kernel is given is alive while it
    runs. Raises UserError for a negative limit.

    Before:
    ```mlir
    func.func @main(%x: memref<8x8xf32>, %y: memref<8x8xf32>) {
      %a = memref.alloc() : memref<8x8xf32>
      func.call @first(%x, %a) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
      func.call @second(%a, %y) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
      func.return
    }
    func.func private @first(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @gemmini_fp32} {
      %s = mem.buffer : memref<8x8xf32, "spad">
      mem.copy %x to %s : memref<8x8xf32> to memref<8x8xf32, "spad">
      mem.copy %s to %y : memref<8x8xf32, "spad"> to memref<8x8xf32>
      func.return
    }
    func.func private @second(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @gemmini_fp32} {
      %s = mem.buffer : memref<8x8xf32, "spad">
      mem.copy %x to %s : memref<8x8xf32> to memref<8x8xf32, "spad">
      mem.copy %s to %y : memref<8x8xf32, "spad"> to memref<8x8xf32>
      func.return
    }
    ```
    After (`merge-kernels` on `gemmini-fp32`):
    ```mlir
    func.func @main(%x: memref<8x8xf32>, %y: memref<8x8xf32>) {
      %a = memref.alloc() : memref<8x8xf32>
      func.call @first_to_second(%x, %a, %y) : (memref<8x8xf32>, memref<8x8xf32>, memref<8x8xf32>) -> ()
      func.return
    }
    func.func private @first_to_second(%x: memref<8x8xf32>, %a: memref<8x8xf32>, %y: memref<8x8xf32>)
        attributes {device = @gemmini_fp32} {
      %s = mem.buffer : memref<8x8xf32, "spad">
      mem.copy %x to %s : memref<8x8xf32> to memref<8x8xf32, "spad">
      mem.copy %s to %a : memref<8x8xf32, "spad"> to memref<8x8xf32>
      %s_1 = mem.buffer : memref<8x8xf32, "spad">
      mem.copy %a to %s_1 : memref<8x8xf32> to memref<8x8xf32, "spad">
      mem.copy %s_1 to %y : memref<8x8xf32, "spad"> to memref<8x8xf32>
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
        if is_free and (order := BlockOrders(op).of(entry)) is not None:
            rearrange(order, _alternating(order, [is_call_of(each, machine) for each in order.ops]))
        for run in list(runs(entry.body.block, machine, self.calls, Room(op, entry, machine, target))):
            merged = _Merger(run, machine, target).merge(op)
            names = ", ".join(f"@{name}" for name in run.names)
            remark(merged, "passed", f"made of {names}")
        called = {call.callee.string_value() for call in op.walk() if isinstance(call, func.CallOp)}
        for name, kernel in machine.items():
            if name not in called:
                Rewriter.erase_op(kernel)


def _erase_unused(value: SSAValue) -> None:
    """Erase a buffer that nothing uses, and views of it likewise."""
    for use in list(value.uses):
        _erase_unused(use.operation.results[0])
    assert isinstance(value.owner, Operation)
    Rewriter.erase_op(value.owner)


def _place(kernel: func.FuncOp) -> int:
    assert kernel.parent is not None
    return kernel.parent.get_operation_index(kernel)
