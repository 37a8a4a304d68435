"""Promote through the scopes between: copies that no DMA makes go through buffers that inner loops read again."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.transforms.dead_code_elimination import region_dce

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.loop.hoisting import route


@dataclass(frozen=True)
class PromoteLevelsPass(ModulePass):
    """
    Route every `mem.copy` of the machine's kernels along a path of DMA engines, through buffers that are filled early.

    Requires the loop level, promoted, its scopes not planned yet. Where no engine joins the two scopes of a copy, it
    becomes one copy for each step of a shortest path. What a step only reads is fetched before the outermost loop
    before which all that the loops read of it, a static box, still fits: then those loops read the scope
    between, and not the chip's edge. What is written in the loops takes the same path a tile at a time. Guarantees:
    an engine makes every copy, and the planner `first-fit-by-size` finds a plan for the scopes between, if it does
    when all goes a tile at a time. Raises UserError for a copy that no path of engines makes.

    Before:
    ```mlir
    machine.target @two_levels frequency 100 {
      machine.scope @sram size 1024 granule 16 dtypes [f32] parent @dram
      machine.scope @core size 64 granule 16 dtypes [f32] parent @sram
      machine.unit @load
      machine.dma @fetch unit @load from [@dram] to [@sram] dims 2 latency 10 row_overhead 1 outstanding 1
      machine.dma @feed unit @load from [@sram] to [@core] dims 2 latency 1 row_overhead 0 outstanding 1
    }
    func.func private @k(%x: memref<64xf32>) attributes {device = @two_levels} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %many = arith.constant 100 : index
      %end = arith.constant 64 : index
      %tile = arith.constant 16 : index
      scf.for %again = %zero to %many step %one {
        scf.for %i = %zero to %end step %tile {
          %a = mem.buffer : memref<16xf32, "core">
          mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "core">
        }
      }
      func.return
    }
    ```
    After (`promote-levels`):
    ```mlir
    machine.target @two_levels frequency 100 {
      machine.scope @sram size 1024 granule 16 dtypes [f32] parent @dram
      machine.scope @core size 64 granule 16 dtypes [f32] parent @sram
      machine.unit @load
      machine.dma @fetch unit @load from [@dram] to [@sram] dims 2 latency 10 row_overhead 1 outstanding 1
      machine.dma @feed unit @load from [@sram] to [@core] dims 2 latency 1 row_overhead 0 outstanding 1
    }
    func.func private @k(%x: memref<64xf32>) attributes {device = @two_levels} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %many = arith.constant 100 : index
      %end = arith.constant 64 : index
      %tile = arith.constant 16 : index
      %x_1 = mem.buffer : memref<64xf32, "sram">
      mem.copy %x to %x_1 : memref<64xf32> to memref<64xf32, "sram">
      scf.for %again = %zero to %many step %one {
        scf.for %i = %zero to %end step %tile {
          %a = mem.buffer : memref<16xf32, "core">
          mem.copy %x_1[%i] to %a : memref<64xf32, "sram"> to memref<16xf32, "core">
        }
      }
      func.return
    }
    ```
    """

    name = "promote-levels"

    hoist: bool = True
    """Fetch what inner loops read again before them; otherwise a tile at a time, to see what that costs."""
    reserve: float = 0.0
    """The share of a scope between that early fetches leave free, for what stays there between kernels."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not 0 <= self.reserve < 1:
            raise UserError(f"promote-levels: a reserve of {self.reserve} is no share from 0 to below 1")
        target, functions = machine_kernels(op)
        for function in functions:
            assert target is not None
            routed = route(function, target, hoist=self.hoist, reserve=self.reserve)
            if routed is not None:
                Rewriter.replace_op(function, routed, [])
                # Views that only the copies read, and what computed their places.
                region_dce(routed.body)
