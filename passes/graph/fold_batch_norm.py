# SPDX-License-Identifier: Apache-2.0
"""Fold batch normalisation into the convolution or matrix product before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import GreedyRewritePatternApplier, PatternRewriteWalker

from penstock.dialects import graph
from penstock.dialects.context import store_of
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.contractions import channels_of, folded, is_finite, is_in_range, scaled_weights
from penstock.passes.graph.simplification.rules import ApplyRules, Rules
from penstock.passes.graph.values import NodeBuilder, is_constant, only_user


def _affine(op: graph.BatchNormalizationOp, nodes: NodeBuilder) -> tuple[SSAValue, SSAValue] | None:
    """The constant vectors (factor, shift) for which the normalisation is x * factor + shift, if they are in range."""
    epsilon = nodes.number(op.epsilon.value.data, op.var, "epsilon")
    deviation = nodes.add(graph.SqrtOp(nodes.add(graph.AddOp(op.var, epsilon), "variance")), "deviation")
    factor = nodes.add(graph.DivOp(op.scale, deviation), "factor")
    shift = nodes.add(graph.SubOp(op.bias, nodes.add(graph.MulOp(op.mean, factor), "mean")), "shift")
    return (factor, shift) if is_in_range(factor, nodes, op.scale) and is_finite(shift, nodes) else None


def _can_fold(op: graph.BatchNormalizationOp, weights: SSAValue, *addend: SSAValue) -> bool:
    """Whether only `op` uses the product, of constants that keep their type: narrow ones would be rounded again."""
    constants = [weights, *op.operands[1:], *addend]
    keeps_type = tensor_of(weights).element_type == tensor_of(op.result).element_type
    return only_user(op.x) is op and keeps_type and all(map(is_constant, constants))


def _into_product(op: graph.BatchNormalizationOp, nodes: NodeBuilder) -> SSAValue | None:
    """A convolution or gemm, then batch normalisation of its channels: weights scaled, bias scaled and shifted."""
    product = op.x.owner
    if not isinstance(product, graph.ConvOp | graph.GemmOp) or not _can_fold(op, *product.operands[1:]):
        return None
    if isinstance(product, graph.ConvOp) and product.filters is not None:
        return None
    if op.axis.value.data != channels_of(product):
        return None
    affine = _affine(op, nodes)
    return affine and folded(product, *affine, nodes)


def _into_scale_and_shift(op: graph.BatchNormalizationOp, nodes: NodeBuilder) -> SSAValue | None:
    """A batch normalisation with nothing before it to fold into: one product and one sum with constants."""
    if not all(map(is_constant, op.operands[1:])) or (affine := _affine(op, nodes)) is None:
        return None
    factor, shift = affine
    inner = op.result_type.get_num_dims() - 1 - op.axis.value.data
    scaled = scaled_weights(op.x, factor, op.axis.value.data, nodes, "scaled")
    if inner:
        shift = nodes.add(graph.ReshapeOp(shift, [-1, *[1] * inner]), "shifts")
    return nodes.add(graph.AddOp(scaled, shift))


RULES: Rules = {graph.BatchNormalizationOp: (_into_product, _into_scale_and_shift)}


@dataclass(frozen=True)
class FoldBatchNormPass(ModulePass):
    """
    Remove batch normalisations whose parameters are constants.

    One that follows a convolution or gemm with constant weights, as its only user and along its channels,
    goes into weights and bias, in either layout, unless the weights are narrower than their accumulator; any
    other becomes a product and a sum. The new weights are graph ops on the old ones, for `fold-constants` to
    evaluate. Batch normalisations with computed parameters stay, and those whose weights would be out of range (see
    `fold-scale`).

    The result carries the location of the normalisation. Sums are rounded differently: the pass reassociates.
    See Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference", CVPR 2018, section 3.2.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>) -> tensor<1x4x6x6xf32> {
      %w = graph.constant dense<3.000000e+00> : tensor<4x3x3x3xf32>
      %scale = graph.constant dense<2.000000e+00> : tensor<4xf32>
      %bias = graph.constant dense<1.000000e+00> : tensor<4xf32>
      %mean = graph.constant dense<5.000000e-01> : tensor<4xf32>
      %var = graph.constant dense<4.000000e+00> : tensor<4xf32>
      %conv = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
          : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
      %y = graph.batch_normalization %conv, %scale, %bias, %mean, %var
          : (tensor<1x4x6x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
      func.return %y : tensor<1x4x6x6xf32>
    }
    ```
    After (`fold-batch-norm`):
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>) -> tensor<1x4x6x6xf32> {
      %w = graph.constant dense<3.000000e+00> : tensor<4x3x3x3xf32>
      %scale = graph.constant dense<2.000000e+00> : tensor<4xf32>
      %bias = graph.constant dense<1.000000e+00> : tensor<4xf32>
      %mean = graph.constant dense<5.000000e-01> : tensor<4xf32>
      %var = graph.constant dense<4.000000e+00> : tensor<4xf32>
      %epsilon = graph.constant dense<1.000000e-05> : tensor<f32>
      %variance = graph.add %var, %epsilon : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
      %deviation = graph.sqrt %variance : tensor<4xf32>
      %factor = graph.div %scale, %deviation : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %mean_1 = graph.mul %mean, %factor : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %shift = graph.sub %bias, %mean_1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %factors = graph.reshape %factor : tensor<4xf32> -> tensor<4x1x1x1xf32>
      %filters = graph.mul %w, %factors : (tensor<4x3x3x3xf32>, tensor<4x1x1x1xf32>) -> tensor<4x3x3x3xf32>
      %y = graph.conv %x, %filters, %shift strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
          : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
      func.return %y : tensor<1x4x6x6xf32>
    }
    ```
    """

    name = "fold-batch-norm"
    reassociates: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(GreedyRewritePatternApplier([ApplyRules(RULES, store_of(ctx))])).rewrite_module(op)
