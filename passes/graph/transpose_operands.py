"""Make the transposed operands of a gemm explicit, so that those of weights fold away."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from penstock.dialects.graph import GemmOp, TransposeOp


class _TransposeGemmOperands(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: GemmOp, rewriter: PatternRewriter) -> None:
        if not op.trans_a and not op.trans_b:
            return
        a = self._transposed(op.a, op, rewriter) if op.trans_a else op.a
        b = self._transposed(op.b, op, rewriter) if op.trans_b else op.b
        gemm = GemmOp(a, b, op.c, alpha=_number(op.alpha), beta=_number(op.beta), accumulator=op.accumulator)
        gemm.location = op.location
        rewriter.replace(op, gemm)

    def _transposed(self, value: SSAValue, op: GemmOp, rewriter: PatternRewriter) -> SSAValue:
        transpose = TransposeOp(value, perm=[1, 0])
        transpose.location = op.location
        rewriter.insert(transpose)
        return transpose.results[0]


def _number(attr: FloatAttr) -> float:
    return attr.value.data


@dataclass(frozen=True)
class TransposeOperandsPass(ModulePass):
    """
    Give every `graph.gemm` its operands as they are multiplied, with a `graph.transpose` where it transposed one.

    A matrix unit wants the rows of its right operand along the result's columns; the weights of a fully connected
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
        PatternRewriteWalker(_TransposeGemmOperands(), apply_recursively=False).rewrite_module(op)
