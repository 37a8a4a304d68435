# SPDX-License-Identifier: Apache-2.0
"""One kernel made of several that are called one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, i64
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp, ExecOp
from penstock.dialects.functions import unique_name
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.accel.merging.places import bytes_of, keep_apart
from penstock.passes.accel.merging.runs import Room, Run
from penstock.passes.analysis.kernels import CROSSING, DEVICE, MACS, PIPELINING, TILING, add_remark, stated_macs


@dataclass
class Merger:
    """One run becoming one kernel."""

    run: Run
    machine: Mapping[str, func.FuncOp]
    target: TargetOp
    room: Room

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
        held = [[bytes_of(op, self.target) for op in self.room.held(call)] for call in calls]
        parts = [self._inline(block, call, kernel, inside) for call, kernel in zip(calls, kernels, strict=True)]
        block.add_ops([BarrierOp(), func.ReturnOp()])
        keep_apart(parts, held, self.target)
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

    def _inline(
        self, block: Block, call: func.CallOp, kernel: func.FuncOp, inside: dict[SSAValue, SSAValue]
    ) -> list[ScopedAllocation]:
        """Put what a call does at the end of a block; returns the buffers in scopes that are of its own."""
        body = kernel.body.block
        mapper = dict[SSAValue, SSAValue]()
        for arg, value in zip(body.args, call.arguments, strict=True):
            mapper[arg] = self._inside(value, block, inside)
        # At the end all units would come to rest.
        ops = [op.clone(mapper) for op in list(body.ops)[:-2]]
        block.add_ops(ops)
        made = [each for op in ops for each in op.walk() if isinstance(each, ScopedAllocation)]
        return [op for op in made if op.scope is not None]

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
        macs = [self._macs(kernel) for kernel in kernels]
        crossing = [kernel.attributes.get(CROSSING) for kernel in kernels]
        bytes_crossing = sum(each.value.data for each in crossing if isinstance(each, IntegerAttr))
        for key, number in ((MACS, 0 if None in macs else sum(each or 0 for each in macs)), (CROSSING, bytes_crossing)):
            if number:
                merged.attributes[key] = IntegerAttr(number, i64)
        for key in (TILING, PIPELINING):
            said = dict.fromkeys(kernel.attributes[key] for kernel in kernels if key in kernel.attributes)
            add_remark(merged, key, [each.data for each in said if isinstance(each, StringAttr)], "analysis")

    def _macs(self, kernel: func.FuncOp) -> int | None:
        """The useful multiply-accumulates of a call; None where there are some, and it does not say how many."""
        intrinsics = self.target.intrinsics()
        commands = (op for op in kernel.walk() if isinstance(op, ExecOp))
        multiplies = any(intrinsics[op.intrinsic_name].macs_per_issue() for op in commands)
        return stated_macs(kernel) if multiplies else stated_macs(kernel) or 0


def _erase_unused(value: SSAValue) -> None:
    """Erase a buffer that nothing uses, and views of it likewise."""
    for use in list(value.uses):
        _erase_unused(use.operation.results[0])
    assert isinstance(value.owner, Operation)
    Rewriter.erase_op(value.owner)


def _place(kernel: func.FuncOp) -> int:
    assert kernel.parent is not None
    return kernel.parent.get_operation_index(kernel)
