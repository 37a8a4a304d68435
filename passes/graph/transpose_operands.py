# SPDX-License-Identifier: Apache-2.0
"""Make the transposed operands of a gemm explicit, so that those of weights fold away."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriteWalker

from penstock.dialects.context import store_of
from penstock.dialects.graph import ConstantOp, GemmOp, TransposeOp, tensor_of
from penstock.dialects.graph.base import boolean
from penstock.passes.analysis.kernels import processor_of
from penstock.passes.graph.simplification.rules import ApplyRules
from penstock.passes.graph.values import NodeBuilder, rebuilt


def _explicit(op: GemmOp, nodes: NodeBuilder) -> SSAValue | None:
    return _transposed(op, nodes) if op.trans_a or op.trans_b else None


def _explicit_where_reused(op: GemmOp, nodes: NodeBuilder) -> SSAValue | None:
    """Not where one row is multiplied by a matrix that is no weight, and is read once."""
    is_constant = isinstance(op.b.owner, ConstantOp)
    if op.trans_b and not op.trans_a and not is_constant and tensor_of(op.result).get_shape()[0] == 1:
        return None
    return _explicit(op, nodes)


def _transposed(op: GemmOp, nodes: NodeBuilder) -> SSAValue:
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
    layer are mostly stored the other way. The transpose of a weight is then evaluated by `fold-constants`. On a host
    whose file says what its registers hold, a matrix that is no weight stays where one row is multiplied by it.
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
        rule = _explicit if processor_of(op) is None else _explicit_where_reused
        rules = ApplyRules({GemmOp: (rule,)}, store_of(ctx))
        PatternRewriteWalker(rules, apply_recursively=False).rewrite_module(op)
