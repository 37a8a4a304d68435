"""Make the transposed operands of a gemm explicit, so that those of weights fold away."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriteWalker

from penstock.dialects.context import store_of
from penstock.dialects.graph import GemmOp, TransposeOp
from penstock.dialects.graph.base import boolean
from penstock.passes.graph.simplification.rules import ApplyRules
from penstock.passes.graph.values import NodeBuilder, rebuilt


def _explicit(op: GemmOp, nodes: NodeBuilder) -> SSAValue | None:
    if not op.trans_a and not op.trans_b:
        return None
    operands = [
        nodes.add(TransposeOp(value, perm=[1, 0])) if transposed else value
        for value, transposed in ((op.a, op.trans_a), (op.b, op.trans_b))
    ]
    no = boolean(False)
    return nodes.add(rebuilt(op, [*operands, *op.operands[2:]], trans_a=no, trans_b=no))


@dataclass(frozen=True)
class TransposeOperandsPass(ModulePass):
    """
    Give every `graph.gemm` its operands as they are multiplied, with a `graph.transpose` where it transposed one.

    A matrix unit reads the rows of its right operand along the result's columns; the weights of a fully connected
    layer are mostly stored the other way. The transpose of a weight is then evaluated by `fold-constants`.
    Requires and guarantees the graph level.

    Before:
    ```mlir
    func.func @main(%x: tensor<2x3xf32>, %w: tensor<4x3xf32>) -> tensor<2x4xf32> {
      %y = graph.gemm %x, %w trans_b true : (tensor<2x3xf32>, tensor<4x3xf32>) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }
    ```
    After (`transpose-operands`):
    ```mlir
    func.func @main(%x: tensor<2x3xf32>, %w: tensor<4x3xf32>) -> tensor<2x4xf32> {
      %0 = graph.transpose %w perm [1, 0] : tensor<4x3xf32> -> tensor<3x4xf32>
      %y = graph.gemm %x, %0 : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }
    ```
    """

    name = "transpose-operands"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rules = ApplyRules({GemmOp: (_explicit,)}, store_of(ctx))
        PatternRewriteWalker(rules, apply_recursively=False).rewrite_module(op)
