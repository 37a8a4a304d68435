# SPDX-License-Identifier: Apache-2.0
"""From the loop level to the accelerator: copies and tensorized ops become asynchronous commands."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import affine, arith, func, memref, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.functions import body_block
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, SlotOp
from penstock.dialects.upstream.scf import ForallOp
from penstock.lowering.loop_to_accel.execs import lower_generic
from penstock.lowering.loop_to_accel.transfers import lower_copy
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.memory.storage import VIEWS
from penstock.passes.isomorphic_kernels import rewrite_kernels
from penstock.passes.schedule.ordering import order

KEPT = (*VIEWS, memref.ReinterpretCastOp, SlotOp, arith.ConstantOp, affine.ApplyOp, affine.MinOp, scf.YieldOp)
"""Ops that a kernel keeps beside its commands, as it does all index arithmetic."""


@dataclass
class _Lowering:
    """The lowering of one kernel."""

    target: TargetOp

    def run(self, kernel: func.FuncOp) -> None:
        block = body_block(kernel, "lowered to commands")
        self._block(block)
        terminator = block.last_op
        assert terminator is not None
        Rewriter.insert_op(BarrierOp(), InsertPoint.before(terminator))
        order(kernel, self.target)

    def _block(self, block: Block) -> None:
        for op in list(block.ops):
            match op:
                case scf.ForOp():
                    self._block(op.body.block)
                case CopyOp() | GenericOp():
                    self._command(op)
                case BufferOp() | RingOp():
                    op.planned_offset()
                case _ if isinstance(op, (*KEPT, func.ReturnOp)) or op.name.startswith("arith."):
                    continue
                case _:
                    raise UserError(
                        f"{op.name} cannot run on @{self.target.sym_name.data}",
                        loc=location_of(op),
                        notes=["run `forall-to-for` before"] if isinstance(op, ForallOp) else [],
                        status=UNSUPPORTED,
                    )

    def _command(self, op: CopyOp | GenericOp) -> None:
        # Which order they need is derived of all commands together, once they are there.
        if isinstance(op, CopyOp):
            lower_copy(Builder(InsertPoint.before(op)), op, self.target)
        else:
            lower_generic(Builder(InsertPoint.before(op)), op, self.target)
        windows = [value.owner for value in op.operands if isinstance(value.owner, memref.ReinterpretCastOp)]
        Rewriter.erase_op(op)
        for window in windows:
            # Its shape was all that mattered of it.
            if not window.result.uses:
                Rewriter.erase_op(window)


@dataclass(frozen=True)
class LoopToAccelPass(ModulePass):
    """
    Turn the kernels of the machine into asynchronous commands, ordered by tokens.

    Requires the loop level, tensorized and with every scope planned. A `mem.copy` becomes transfers of the DMA
    engine between its two scopes, a loop of them where the box has more dims than a descriptor; a window that
    is out of bounds is padded by the engine, or filled by an intrinsic first where the engine cannot. A
    tensorized op becomes `accel.exec`, whose match is proved again. Each command comes after what it depends on, as
    far as nothing else implies that (see `passes.schedule.ordering`), and loops carry the tokens.
    Guarantees: kernels of the machine hold commands, loops, views and index arithmetic only, and end in
    `accel.barrier`. Depth is that of the rings at hand, 1 elsewhere: storage is written again when its last reader is
    done, a slot when the reader of the iteration that had it before is.

    Before:
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%x: memref<8x3xf32>, %y: memref<8x4xf32>) attributes {device = @gemmini_fp32} {
      %a = mem.buffer at 0 : memref<8x3xf32, strided<[4, 1]>, "spad">
      %b = mem.buffer at 128 : memref<3x4xf32, "spad">
      %c = mem.buffer at 0 : memref<8x4xf32, "acc">
      mem.copy %x to %a : memref<8x3xf32> to memref<8x3xf32, strided<[4, 1]>, "spad">
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"],
          library_call = "gemm"} ins(%a, %b : memref<8x3xf32, strided<[4, 1]>, "spad">, memref<3x4xf32, "spad">)
          outs(%c : memref<8x4xf32, "acc">) {
      ^bb0(%p: f32, %q: f32, %r: f32):
        %s = arith.mulf %p, %q : f32
        %t = arith.addf %r, %s : f32
        linalg.yield %t : f32
      }
      mem.copy %c to %y : memref<8x4xf32, "acc"> to memref<8x4xf32>
      func.return
    }
    ```
    After (`loop-to-accel` on `gemmini-fp32`):
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%x: memref<8x3xf32>, %y: memref<8x4xf32>) attributes {device = @gemmini_fp32} {
      %a = mem.buffer at 0 : memref<8x3xf32, strided<[4, 1]>, "spad">
      %b = mem.buffer at 128 : memref<3x4xf32, "spad">
      %c = mem.buffer at 0 : memref<8x4xf32, "acc">
      %0 = accel.dma %x to %a on "mvin" : memref<8x3xf32> to memref<8x3xf32, strided<[4, 1]>, "spad">
      %1 = accel.exec @gemm extents [8, 4, 3]
          maps [#mk, #kn, #mn](%a, %b, %c) after(%0)
          : memref<8x3xf32, strided<[4, 1]>, "spad">, memref<3x4xf32, "spad">, memref<8x4xf32, "acc">
      %2 = accel.dma %c to %y on "mvout" after(%1) : memref<8x4xf32, "acc"> to memref<8x4xf32>
      accel.barrier
      func.return
    }
    ```
    """

    name = "loop-to-accel"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, functions = machine_kernels(op)
        if target is not None:
            rewrite_kernels(ctx, functions, target, self, _Lowering(target).run)


__all__ = ["LoopToAccelPass"]
