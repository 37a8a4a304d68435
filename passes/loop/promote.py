"""Promote what the machine computes on into its scopes: buffers, and the copies that fill and empty them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.loop.promotion import Promotion


@dataclass(frozen=True)
class PromotePass(ModulePass):
    """
    Put the operands of the machine's kernels into the scopes that its intrinsics want.

    Requires the loop level. A temporary becomes a `mem.buffer` in its scope, rows rounded up to the granule. What
    lives off chip gets a buffer and copies: a source that the kernel only reads is copied where its slice is
    defined, so that hoisting the slice before hoists the copy; what is written is copied in before its first use,
    unless that overwrites it, and out after its last. Guarantees: every operand lives where some intrinsic of the
    machine wants it. A copy may lead where no single DMA does, if several in turn do: `promote-levels` sees to that.
    Raises UserError for an op that no intrinsic computes, and where no path of DMAs leads.

    Before:
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%a: memref<8x3xf32>, %b: memref<3x4xf32>, %c: memref<8x4xf32>)
        attributes {device = @gemmini_fp32} {
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a, %b : memref<8x3xf32>, memref<3x4xf32>) outs(%c : memref<8x4xf32>) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      }
      func.return
    }
    ```
    After (`promote` on `gemmini-fp32`):
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%a: memref<8x3xf32>, %b: memref<3x4xf32>, %c: memref<8x4xf32>)
        attributes {device = @gemmini_fp32} {
      %b_1 = mem.buffer : memref<3x4xf32, "spad">
      mem.copy %b to %b_1 : memref<3x4xf32> to memref<3x4xf32, "spad">
      %a_1 = mem.buffer : memref<8x3xf32, strided<[4, 1]>, "spad">
      mem.copy %a to %a_1 : memref<8x3xf32> to memref<8x3xf32, strided<[4, 1]>, "spad">
      %c_1 = mem.buffer : memref<8x4xf32, "acc">
      mem.copy %c to %c_1 : memref<8x4xf32> to memref<8x4xf32, "acc">
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a_1, %b_1 : memref<8x3xf32, strided<[4, 1]>, "spad">, memref<3x4xf32, "spad">)
          outs(%c_1 : memref<8x4xf32, "acc">) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      }
      mem.copy %c_1 to %c : memref<8x4xf32, "acc"> to memref<8x4xf32>
      func.return
    }
    ```
    """

    name = "promote"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, functions = machine_kernels(op)
        for function in functions:
            assert target is not None
            Promotion(function, target).run()
