# SPDX-License-Identifier: Apache-2.0
"""Saying of a loop that its iterations may be executed at once."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import UnitAttr

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_loops import VectorizeOp
from penstock.passes.analysis.loop_dependences import VECTORIZE, name_of, obstacle_to_vectors
from penstock.passes.schedule.loop_nests import iterations_of
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def vectorize(loop: scf.ForOp) -> None:
    """
    Mark an innermost loop, no iteration of which depends on another one, with the attribute `vectorize`.

    There is no vector type at this level: the lowering to C proves the independence again where the mark is still
    there, and tells the C compiler, which chooses the width. Raises UserError, which names the dependence, where an
    iteration depends on another, for sums too: their order is kept.

    Before:
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c10 = arith.constant 10 : index
      scf.for %i = %c0 to %c10 step %c1 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
      }
      func.return
    }
    ```
    After (`schedule.vectorize %i`):
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c10 = arith.constant 10 : index
      scf.for %i = %c0 to %c10 step %c1 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
      } {vectorize}
      func.return
    }
    ```
    """
    iterations_of(loop)
    if (obstacle := obstacle_to_vectors(loop)) is not None:
        raise UserError(f"{name_of(loop)} cannot be vectorized", loc=location_of(loop), notes=[obstacle])
    loop.attributes[VECTORIZE] = UnitAttr()


@PRIMITIVES.register(VectorizeOp)
def apply_vectorize(state: TransformState, op: VectorizeOp) -> Sequence[Payload]:
    """`schedule.vectorize`."""
    vectorize(state.one(op.loop, scf.ForOp))
    return ()
