"""Barriers among iterations that run at once, in a whole program."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.schedule.primitives.insert_barriers import insert_barriers


class InsertBarriersPass(ModulePass):
    """
    Put the barriers into every `scf.forall` that its iterations need, and take out those that they do not.

    Works at the loop level, as `schedule.insert_barriers` does on one loop. Raises UserError, located, where iterations
    race whatever barriers there are, and where blocks would have to wait for each other.

    Before:
    ```mlir
    func.func @k(%x: memref<8xf32>) {
      %four = arith.constant 4 : index
      scf.forall (%i) in (4) {
        %j = arith.addi %i, %four : index
        gpu.barrier
        %v = memref.load %x[%j] : memref<8xf32>
        memref.store %v, %x[%i] : memref<8xf32>
      } {mapping = [#gpu.thread<x>]}
      func.return
    }
    ```
    After (`insert-barriers`):
    ```mlir
    func.func @k(%x: memref<8xf32>) {
      %four = arith.constant 4 : index
      scf.forall (%i) in (4) {
        %j = arith.addi %i, %four : index
        %v = memref.load %x[%j] : memref<8xf32>
        memref.store %v, %x[%i] : memref<8xf32>
      } {mapping = [#gpu.thread<x>]}
      func.return
    }
    ```
    """

    name = "insert-barriers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in list(op.walk(region_first=True)):
            if isinstance(each, ForallOp):
                insert_barriers(each)
