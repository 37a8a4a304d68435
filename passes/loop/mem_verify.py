# SPDX-License-Identifier: Apache-2.0
"""`mem-verify`: the offsets of all buffers proved anew."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.passes.analysis.memory.memory_problems import checked_problems


@dataclass(frozen=True)
class MemVerifyPass(ModulePass):
    """
    Prove that the offsets of all buffers are a plan, on whatever IR it is given; change nothing.

    When buffers are alive, how large they are and what a scope holds is derived from the loop or accel level as it
    is, and nothing is taken over from a planner: what happened to the program since it was planned shows. It
    runs at the end of every pipeline.

    Required: nothing; a module without buffers passes. Guaranteed: every `mem.buffer` and `mem.ring` has an offset, a
    multiple of its scope's granule, and ends within its scope; no byte belongs to two buffers at a step at which
    both are alive, over the whole program where calls are involved. Raises UserError, at the op that creates a buffer,
    which says which two share which bytes in which steps, and what runs then.

    Before:
    ```mlir
    func.func @kernel(%x: memref<16xf32>) {
      %a = mem.buffer at 64 : memref<16xf32, "spad">
      mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
      func.return
    }
    ```
    After (`mem-verify` on `gemmini-fp32`):
    ```mlir
    func.func @kernel(%x: memref<16xf32>) {
      %a = mem.buffer at 64 : memref<16xf32, "spad">
      mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
      func.return
    }
    ```
    """

    name = "mem-verify"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        checked_problems(op)
