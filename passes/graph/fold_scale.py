# SPDX-License-Identifier: Apache-2.0
"""Fold products and sums with constants into the weights before them, or into one product and one sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from penstock.dialects import graph
from penstock.dialects.context import store_of
from penstock.dialects.graph import NCHW, NHWC, tensor_of
from penstock.passes.graph.contractions import (
    ContractionOp,
    channel_vector,
    channels_of,
    folded,
    is_finite,
    is_in_range,
)
from penstock.passes.graph.simplification.arithmetic import join_constants
from penstock.passes.graph.simplification.rules import (
    Rules,
    apply_rules,
    has_type_of,
    is_integral,
    is_short_constant,
)
from penstock.passes.graph.values import NodeBuilder, graph_blocks, only_user


def _with_constant(op: graph.AddOp | graph.MulOp) -> tuple[SSAValue, SSAValue] | None:
    """What is computed and what is constant, where there is one of each and the constant does not widen the other."""
    for value, constant in ((op.a, op.b), (op.b, op.a)):
        if (
            is_short_constant(constant)
            and not is_short_constant(value)
            and has_type_of(value, op)
            and not is_integral(value)
        ):
            return value, constant
    return None


def _into_product(op: graph.AddOp | graph.MulOp, nodes: NodeBuilder) -> SSAValue | None:
    """Into the weights and the bias of a convolution, or a factor into those of a matrix product."""
    # Asked before what is constant, which may take long to find out.
    if not any(isinstance(operand.owner, ContractionOp) for operand in op.operands):
        return None
    found = _with_constant(op)
    if found is None or not isinstance(product := found[0].owner, ContractionOp) or only_user(found[0]) is not op:
        return None
    if isinstance(product, graph.ConvOp):
        if product.layout.data not in (NCHW, NHWC) or product.filters is not None:
            return None
    elif isinstance(op, graph.AddOp) or tensor_of(product.b).get_num_dims() != 2:
        return None
    # Weights that are narrower than the result would be rounded again.
    same = tensor_of(product.operands[1]).element_type == tensor_of(op.result).element_type
    if not same or not all(map(is_short_constant, product.operands[1:])):
        return None
    axis, shape = channels_of(product), tensor_of(op.result).get_shape()
    vector = channel_vector(found[1], axis, len(shape), shape[axis], nodes)
    if vector is None:
        return None
    return folded(product, *((None, vector) if isinstance(op, graph.AddOp) else (vector, None)), nodes)


def _distribute(op: graph.MulOp, nodes: NodeBuilder) -> SSAValue | None:
    """(x * a + c) * d -> x * (a * d) + c * d, where both constants are in range."""
    if not any(isinstance(operand.owner, graph.AddOp) for operand in op.operands):
        return None
    found = _with_constant(op)
    if found is None or not isinstance(total := found[0].owner, graph.AddOp) or only_user(total.result) is not op:
        return None
    inner = _with_constant(total)
    if (
        inner is None
        or not isinstance(product := inner[0].owner, graph.MulOp)
        or only_user(product.result) is not total
    ):
        return None
    if (taken := _with_constant(product)) is None:
        return None
    factor = nodes.add(graph.MulOp(taken[1], found[1]), "factor")
    shift = nodes.add(graph.MulOp(inner[1], found[1]), "shift")
    if not is_in_range(factor, nodes, taken[1], found[1]) or not is_finite(shift, nodes):
        return None
    scaled = nodes.add(graph.MulOp(taken[0], factor), "scaled")
    return nodes.add(graph.AddOp(scaled, shift))


def _join(op: graph.AddOp | graph.MulOp, nodes: NodeBuilder) -> SSAValue | None:
    """(x op c) op d -> x op (c op d), where c op d is in range."""
    if (joined := join_constants(op, nodes)) is None or is_integral(op.result):
        return joined
    constant = nodes.ops[0]
    factors = constant.operands if isinstance(constant, graph.MulOp) else ()
    found = is_in_range(constant.results[0], nodes, *factors) if factors else is_finite(constant.results[0], nodes)
    return joined if found else None


RULES: Rules = {
    graph.AddOp: (_into_product, _join),
    graph.MulOp: (_into_product, _distribute, _join),
}


@dataclass(frozen=True)
class FoldScalePass(ModulePass):
    """
    Fold a product or a sum with constants, one for each channel, into what it follows.

    After a convolution or a matrix product with constant weights, as its only user, it goes into weights and bias;
    products and sums that follow each other become one product and one sum. So a batch normalisation that was written
    as a normalisation, a scale and a shift costs no more than one, or nothing. What is folded are graph ops on the old
    constants, for `fold-constants` to evaluate. Weights that are narrower than their accumulator stay. Integers are
    for `simplify`.

    Products and sums are rounded in another order: the pass reassociates. It folds only where what is folded is in
    range: sums of constants are finite, products neither overflow nor underflow; of the weights of a channel the
    largest may not, for one that underflows is then off by half a unit in the last place of that one at most. So what
    is finite before is finite after, as long as the terms of no sum overflow. Runs after `fold-batch-norm`.

    Before:
    ```mlir
    func.func @main(%x: tensor<2x3xf32>) -> tensor<2x4xf32> {
      %w = graph.constant dense<3.000000e+00> : tensor<3x4xf32>
      %s = graph.constant dense<2.000000e+00> : tensor<4xf32>
      %0 = graph.matmul %x, %w : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
      %y = graph.mul %0, %s : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }
    ```
    After (`fold-scale`):
    ```mlir
    func.func @main(%x: tensor<2x3xf32>) -> tensor<2x4xf32> {
      %w = graph.constant dense<3.000000e+00> : tensor<3x4xf32>
      %s = graph.constant dense<2.000000e+00> : tensor<4xf32>
      %matrix = graph.mul %w, %s : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
      %y = graph.matmul %x, %matrix : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }
    ```
    """

    name = "fold-scale"
    reassociates: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in graph_blocks(op):
            apply_rules(RULES, store_of(ctx), block)
