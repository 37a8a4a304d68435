# SPDX-License-Identifier: Apache-2.0
"""Computing a pad whole."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import tensor
from xdsl.dialects.builtin import UnitAttr

from penstock.dialects.mem import EXPLICIT
from penstock.dialects.schedule_tensor import MaterializeOp
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(MaterializeOp)
def materialize(state: TransformState, op: MaterializeOp) -> Sequence[Payload]:
    """
    Make a pad an explicit copy: `tensor-to-loop` gives it a buffer, whatever boxes of it are read.

    Raises UserError for what is no `tensor.pad`.

    Before:
    ```mlir
    func.func private @k(%x: tensor<8xf32>) -> tensor<4xf32> {
      %c = arith.constant 0.000000e+00 : f32
      %p = tensor.pad %x low[1] high[1] {
      ^bb0(%i: index):
        tensor.yield %c : f32
      } : tensor<8xf32> to tensor<10xf32>
      %s = tensor.extract_slice %p[0] [4] [1] : tensor<10xf32> to tensor<4xf32>
      func.return %s : tensor<4xf32>
    }
    ```
    After (`schedule.materialize %p`):
    ```mlir
    func.func private @k(%x: tensor<8xf32>) -> tensor<4xf32> {
      %c = arith.constant 0.000000e+00 : f32
      %p = tensor.pad %x low[1] high[1] {
      ^bb0(%i: index):
        tensor.yield %c : f32
      } {mem.explicit} : tensor<8xf32> to tensor<10xf32>
      %s = tensor.extract_slice %p[0] [4] [1] : tensor<10xf32> to tensor<4xf32>
      func.return %s : tensor<4xf32>
    }
    ```
    """
    state.one(op.pad, tensor.PadOp).attributes[EXPLICIT] = UnitAttr()
    return ()
