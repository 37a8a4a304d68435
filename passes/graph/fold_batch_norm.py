"""Fold batch normalisation into the convolution or matrix product in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from penstock.dialects.context import store_of
from penstock.dialects.graph import (
    NCHW,
    AddOp,
    BatchNormalizationOp,
    ConvOp,
    DivOp,
    GemmOp,
    MulOp,
    ReshapeOp,
    SqrtOp,
    SubOp,
    channel_axis,
    tensor_of,
)
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.values import NodeBuilder, is_constant, only_user


def _affine(op: BatchNormalizationOp, build: NodeBuilder) -> tuple[SSAValue, SSAValue]:
    """The vectors (factor, shift) for which the normalisation is x * factor + shift: of constants, a constant."""
    epsilon = build.number(op.epsilon.value.data, op.var, "epsilon")
    deviation = build.emit(SqrtOp(build.emit(AddOp(op.var, epsilon), "variance")), "deviation")
    factor = build.emit(DivOp(op.scale, deviation), "factor")
    shift = build.emit(SubOp(op.bias, build.emit(MulOp(op.mean, factor), "mean")), "shift")
    return factor, shift


def _along(vector: SSAValue, axis: int, rank: int, build: NodeBuilder, part: str) -> SSAValue:
    """`vector` in a shape that broadcasts along dimension `axis` of a tensor of `rank`."""
    if axis == rank - 1:
        return vector
    return build.emit(ReshapeOp(vector, [-1, *[1] * (rank - 1 - axis)]), part)


def _are_constant(values: Sequence[SSAValue | None]) -> bool:
    return all(value is None or is_constant(value) for value in values)


def _can_scale(weights: SSAValue, product: SSAValue, op: BatchNormalizationOp) -> bool:
    """Whether only `op` uses the product, and weights keep their type: narrow ones would be rounded again."""
    return only_user(product) is op and tensor_of(weights).element_type == tensor_of(op.result).element_type


@dataclass
class FoldIntoConv(RewritePattern):
    """conv, then batch normalisation of its channels: the filters scaled, the bias scaled and shifted."""

    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BatchNormalizationOp, rewriter: PatternRewriter) -> None:
        conv = op.x.owner
        if not isinstance(conv, ConvOp) or conv.filters is not None or not _can_scale(conv.w, conv.result, op):
            return
        rank, layout = op.result_type.get_num_dims(), conv.layout.data
        if op.axis.value.data != channel_axis(layout, rank) or not _are_constant((conv.w, conv.b, *op.operands[1:])):
            return
        build = NodeBuilder(op.location, self.store)
        factor, shift = _affine(op, build)
        outputs = 0 if layout == NCHW else rank - 1
        w = build.emit(MulOp(conv.w, _along(factor, outputs, rank, build, "factors")), "filters")
        b = shift
        if conv.b is not None:
            b = build.emit(AddOp(build.emit(MulOp(conv.b, factor), "scaled"), shift), "bias")
        properties = conv.properties.copy()
        build.finish(ConvOp.create(operands=[conv.x, w, b], result_types=[op.result_type], properties=properties))
        rewriter.replace(op, build.ops)
        rewriter.erase(conv)


@dataclass
class FoldIntoGemm(RewritePattern):
    """gemm, then batch normalisation of its columns: the matrix scaled, the addend scaled and shifted."""

    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BatchNormalizationOp, rewriter: PatternRewriter) -> None:
        gemm = op.x.owner
        if not isinstance(gemm, GemmOp) or not _can_scale(gemm.b, gemm.result, op):
            return
        if op.axis.value.data != 1 or not _are_constant((gemm.b, gemm.c, *op.operands[1:])):
            return
        build = NodeBuilder(op.location, self.store)
        factor, shift = _affine(op, build)
        columns = 0 if gemm.trans_b else 1
        b = build.emit(MulOp(gemm.b, _along(factor, columns, 2, build, "factors")), "matrix")
        c = shift
        if gemm.c is not None:
            addend = gemm.c
            if gemm.beta.value.data != 1:
                beta = build.number(gemm.beta.value.data, addend, "beta")
                addend = build.emit(MulOp(addend, beta), "addend")
            c = build.emit(AddOp(build.emit(MulOp(addend, factor), "scaled"), shift), "bias")
        alpha, trans_a, trans_b = gemm.alpha.value.data, bool(gemm.trans_a), bool(gemm.trans_b)
        build.finish(GemmOp(gemm.a, b, c, alpha=alpha, trans_a=trans_a, trans_b=trans_b, accumulator=gemm.accumulator))
        rewriter.replace(op, build.ops)
        rewriter.erase(gemm)


@dataclass
class SplitIntoScaleAndShift(RewritePattern):
    """A batch normalisation with nothing in front to fold into: one product and one sum with constants."""

    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BatchNormalizationOp, rewriter: PatternRewriter) -> None:
        if not _are_constant(op.operands[1:]):
            return
        build = NodeBuilder(op.location, self.store)
        axis, rank = op.axis.value.data, op.result_type.get_num_dims()
        factor, shift = _affine(op, build)
        scaled = build.emit(MulOp(op.x, _along(factor, axis, rank, build, "factors")), "scaled")
        shifted = AddOp(scaled, _along(shift, axis, rank, build, "shifts"))
        shifted.attributes = op.attributes.copy()
        build.finish(shifted)
        rewriter.replace(op, build.ops)


@dataclass(frozen=True)
class FoldBatchNormPass(ModulePass):
    """
    Remove batch normalisations whose parameters are constants.

    One that follows a convolution or gemm with constant weights, as its only user and along its channels,
    goes into weights and bias, in either layout, unless the weights are narrower than their accumulator; any
    other becomes a product and a sum. The new weights are graph ops on the old ones, for `fold-constants` to
    evaluate. Batch normalisations with computed parameters stay.

    The result carries the location of the normalisation. Sums are rounded differently: the pass reassociates.
    See Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference", CVPR 2018, section 3.2.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>) -> tensor<1x4x6x6xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %scale = graph.constant #graph.weight<"bn.weight"> : tensor<4xf32>
      %bias = graph.constant #graph.weight<"bn.bias"> : tensor<4xf32>
      %mean = graph.constant #graph.weight<"bn.mean"> : tensor<4xf32>
      %var = graph.constant #graph.weight<"bn.var"> : tensor<4xf32>
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
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %scale = graph.constant #graph.weight<"bn.weight"> : tensor<4xf32>
      %bias = graph.constant #graph.weight<"bn.bias"> : tensor<4xf32>
      %mean = graph.constant #graph.weight<"bn.mean"> : tensor<4xf32>
      %var = graph.constant #graph.weight<"bn.var"> : tensor<4xf32>
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
        store = store_of(ctx)
        patterns: list[RewritePattern] = [FoldIntoConv(store), FoldIntoGemm(store), SplitIntoScaleAndShift(store)]
        PatternRewriteWalker(GreedyRewritePatternApplier(patterns)).rewrite_module(op)
