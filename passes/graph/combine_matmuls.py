"""Compute products of one value with several constants as one product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.context import store_of
from penstock.passes.graph.matmuls.sibling_product import combine
from penstock.passes.graph.matmuls.siblings import families
from penstock.passes.graph.values import graph_blocks, remove_dead_constants


@dataclass(frozen=True)
class CombineMatmulsPass(ModulePass):
    """
    Compute the products of one value with several constants as one, of which each takes its part.

    Siblings are two or more `graph.matmul`s, `graph.gemm`s or `graph.conv`s of the same left operand with constants,
    whose other attributes and element types are the same, without more than a dozen other ops between one and the
    next. Matrices of one shape become a batch, a product with one more dim, of which each sibling takes a run of rows;
    matrices of several widths, and filters, are concatenated along the output, of which each sibling takes its
    columns or channels (with `unequal="leave"` those stay as they are). Elementwise ops that follow all siblings alike,
    each the only user of the one before, with constants along the output or none, are combined too. Constants are
    concatenated by ops that `fold-constants` evaluates, and the parts are views.

    The left operand is then read once. Each element is the same sum in the same order as before. Requires and
    guarantees the graph level; convolutions are combined before `layout`, gemms after `transpose-operands`.
    See TVM's CombineParallelDense, CombineParallelBatchMatmul and CombineParallelConv2D.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x8x16xf32>) -> (tensor<1x8x4xf32>, tensor<1x8x4xf32>) {
      %v = graph.constant #graph.weight<"v"> : tensor<16x4xf32>
      %w = graph.constant #graph.weight<"w"> : tensor<16x4xf32>
      %b = graph.constant #graph.weight<"b"> : tensor<4xf32>
      %c = graph.constant #graph.weight<"c"> : tensor<4xf32>
      %p = graph.matmul %x, %v : (tensor<1x8x16xf32>, tensor<16x4xf32>) -> tensor<1x8x4xf32>
      %q = graph.add %b, %p : (tensor<4xf32>, tensor<1x8x4xf32>) -> tensor<1x8x4xf32>
      %r = graph.matmul %x, %w : (tensor<1x8x16xf32>, tensor<16x4xf32>) -> tensor<1x8x4xf32>
      %s = graph.add %c, %r : (tensor<4xf32>, tensor<1x8x4xf32>) -> tensor<1x8x4xf32>
      func.return %q, %s : tensor<1x8x4xf32>, tensor<1x8x4xf32>
    }
    ```
    After (`combine-matmuls`):
    ```mlir
    func.func @main(%x: tensor<1x8x16xf32>) -> (tensor<1x8x4xf32>, tensor<1x8x4xf32>) {
      %v = graph.constant #graph.weight<"v"> : tensor<16x4xf32>
      %w = graph.constant #graph.weight<"w"> : tensor<16x4xf32>
      %b = graph.constant #graph.weight<"b"> : tensor<4xf32>
      %c = graph.constant #graph.weight<"c"> : tensor<4xf32>
      %rows = graph.reshape %x : tensor<1x8x16xf32> -> tensor<8x16xf32>
      %weight = graph.reshape %v : tensor<16x4xf32> -> tensor<1x16x4xf32>
      %weight_1 = graph.reshape %w : tensor<16x4xf32> -> tensor<1x16x4xf32>
      %weights = graph.concat %weight, %weight_1 axis 0
          : (tensor<1x16x4xf32>, tensor<1x16x4xf32>) -> tensor<2x16x4xf32>
      %siblings = graph.matmul %rows, %weights : (tensor<8x16xf32>, tensor<2x16x4xf32>) -> tensor<2x8x4xf32>
      %vector = graph.reshape %b : tensor<4xf32> -> tensor<1x1x4xf32>
      %vector_1 = graph.reshape %c : tensor<4xf32> -> tensor<1x1x4xf32>
      %weights_1 = graph.concat %vector, %vector_1 axis 0
          : (tensor<1x1x4xf32>, tensor<1x1x4xf32>) -> tensor<2x1x4xf32>
      %siblings_1 = graph.add %weights_1, %siblings : (tensor<2x1x4xf32>, tensor<2x8x4xf32>) -> tensor<2x8x4xf32>
      %q = graph.slice %siblings_1 starts [0, 0, 0] sizes [1, 8, 4] steps [1, 1, 1]
          : tensor<2x8x4xf32> -> tensor<1x8x4xf32>
      %s = graph.slice %siblings_1 starts [1, 0, 0] sizes [1, 8, 4] steps [1, 1, 1]
          : tensor<2x8x4xf32> -> tensor<1x8x4xf32>
      func.return %q, %s : tensor<1x8x4xf32>, tensor<1x8x4xf32>
    }
    ```
    """

    name = "combine-matmuls"

    unequal: Literal["concatenate", "leave"] = "concatenate"
    """What becomes of siblings whose outputs differ in width, and of convolutions."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store = store_of(ctx)
        for block in graph_blocks(op):
            for family in list(families(block)):
                if family.is_stack or self.unequal == "concatenate":
                    combine(family, store)
            remove_dead_constants(block)
