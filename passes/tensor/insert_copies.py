# SPDX-License-Identifier: Apache-2.0
"""`insert-copies`: copy what would be overwritten in place and is still read later."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.passes.tensor.bufferization.destinations import pass_destinations, uses_tensors


@dataclass(frozen=True)
class InsertCopiesPass(ModulePass):
    """
    Make every op on tensors able to overwrite its destination in place.

    A destination (the `outs` of a structured op, the tensor that an insertion changes, the initial value of a
    loop) is copied where its old elements are read later, belong to an argument or a constant, or come from
    outside a loop that does not carry them. A copy is an insertion of the whole into a `tensor.empty`. The
    insertion that puts a slice back to where it was taken from needs none, and slices are compared by buffer,
    offset and sizes. Every writer gets a `tensor.empty` of its own, and dead ops go.

    Required: functions on tensors of static shape, without branches between blocks. Guaranteed: `tensor-to-loop`
    adds no copies but at insertions and at the end of loops and functions. Raises UserError, located, for an op
    that has no form on memrefs.

    Before:
    ```mlir
    func.func @double_row(%x: tensor<4x8xf32>, %at: index) -> tensor<4x8xf32> {
      %row = tensor.extract_slice %x[%at, 0] [1, 8] [1, 1] : tensor<4x8xf32> to tensor<1x8xf32>
      %twice = linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]
      } outs(%row : tensor<1x8xf32>) {
      ^bb0(%old: f32):
        %sum = arith.addf %old, %old : f32
        linalg.yield %sum : f32
      } -> tensor<1x8xf32>
      %y = tensor.insert_slice %twice into %x[%at, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
      func.return %y : tensor<4x8xf32>
    }
    ```
    After (`insert-copies`):
    ```mlir
    func.func @double_row(%x: tensor<4x8xf32>, %at: index) -> tensor<4x8xf32> {
      %x_1 = tensor.empty() : tensor<4x8xf32>
      %x_2 = tensor.insert_slice %x into %x_1[0, 0] [4, 8] [1, 1] : tensor<4x8xf32> into tensor<4x8xf32>
      %row = tensor.extract_slice %x_2[%at, 0] [1, 8] [1, 1] : tensor<4x8xf32> to tensor<1x8xf32>
      %twice = linalg.generic {
        indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]
      } outs(%row : tensor<1x8xf32>) {
      ^bb0(%old: f32):
        %sum = arith.addf %old, %old : f32
        linalg.yield %sum : f32
      } -> tensor<1x8xf32>
      %y = tensor.insert_slice %twice into %x_2[%at, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
      func.return %y : tensor<4x8xf32>
    }
    ```
    """

    name = "insert-copies"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.walk():
            if isinstance(function, func.FuncOp) and uses_tensors(function):
                pass_destinations(function)
