"""`plan-scopes`: an offset for every buffer in a scope of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import find_target
from penstock.passes.loop.scope_problem import overflow, scope_problems
from penstock.passes.planning.problem import PlanError, validate
from penstock.passes.planning.registry import DEFAULT_PLANNER, solve


@dataclass(frozen=True)
class PlanScopesPass(ModulePass):
    """
    Give every `mem.buffer` in a scope its byte offset: one planning problem for each scope of each function.

    A buffer is alive from the first op that touches it, itself or through a view, to the last, and throughout a
    loop that touches but does not create it. Its size runs from its first to its last element, row pitch
    included, in whole granules of the scope; its offset is a multiple of the granule. A buffer that has an
    offset keeps it: a plan is text, edit it and run again. Every plan is checked by an independent validator.

    Required: the loop level with promoted buffers, a `machine.target` that has the scopes. Guaranteed: no buffer
    in a scope without an offset, all within the scope. Raises UserError, located, for a function that does
    not fit (with the buffers alive at the peak and the least capacity that would do), for an unknown scope or
    planner, and for a plan given by hand that is none.

    Before:
    ```mlir
    machine.target @small frequency 100 {
      machine.scope @spad size 128 granule 16 dtypes [f32]
    }
    func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
      %a = mem.buffer : memref<16xf32, "spad">
      mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
      %b = mem.buffer : memref<16xf32, "spad">
      mem.copy %a to %b : memref<16xf32, "spad"> to memref<16xf32, "spad">
      %c = mem.buffer : memref<16xf32, "spad">
      mem.copy %b to %c : memref<16xf32, "spad"> to memref<16xf32, "spad">
      mem.copy %c to %y : memref<16xf32, "spad"> to memref<16xf32>
      func.return
    }
    ```
    After (`plan-scopes`):
    ```mlir
    machine.target @small frequency 100 {
      machine.scope @spad size 128 granule 16 dtypes [f32]
    }
    func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
      %a = mem.buffer at 0 : memref<16xf32, "spad">
      mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
      %b = mem.buffer at 64 : memref<16xf32, "spad">
      mem.copy %a to %b : memref<16xf32, "spad"> to memref<16xf32, "spad">
      %c = mem.buffer at 0 : memref<16xf32, "spad">
      mem.copy %b to %c : memref<16xf32, "spad"> to memref<16xf32, "spad">
      mem.copy %c to %y : memref<16xf32, "spad"> to memref<16xf32>
      func.return
    }
    ```
    """

    name = "plan-scopes"

    planner: str = DEFAULT_PLANNER
    """The planner that chooses the offsets."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = find_target(op)
        for function in op.ops:
            if not isinstance(function, func.FuncOp):
                continue
            for scoped in scope_problems(function, target):
                try:
                    plan = solve(scoped.problem, self.planner)
                except UserError as error:
                    where = f'@{function.sym_name.data}, scope "{scoped.scope}"'
                    raise UserError(f"{where}: {error.message}", loc=location_of(function), notes=error.notes) from None
                try:
                    validate(scoped.problem, plan)
                except PlanError:
                    raise overflow(scoped, plan, self.planner) from None
                for id, buffer in scoped.ops.items():
                    buffer.offset = IntegerAttr(plan.offsets[id], i64)
