"""Importers of matrix products, normalisations and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import f32, f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import normalized_axis
from penstock.lowering.from_onnx.accumulation import cast, in_accumulator
from penstock.lowering.from_onnx.node import Importer, Node, Unsupported, imports


@imports("BatchNormalization")
def batch_normalization(node: Node) -> SSAValue:
    node.refuse_outputs_after(1)
    if node.flag("training_mode", False):
        raise Unsupported("in training mode")
    if not node.flag("spatial", True):
        raise Unsupported("spatial=0, one mean for each element")
    x = node.value(0)
    element = tensor_of(x).element_type
    vectors = [cast(node, node.value(index), element) for index in range(1, 5)]
    epsilon = node.float("epsilon", 1e-5)
    return node.emit(graph.BatchNormalizationOp(x, *vectors, epsilon=epsilon))


def softmax(op: type[graph.SoftmaxOp | graph.LogSoftmaxOp]) -> Importer:
    """Before operator set 13, all dimensions from `axis` on are normalised together."""

    def build(node: Node) -> SSAValue:
        x, shape = node.value(0), node.shape(0)
        if node.opset >= 13:
            return node.emit(op(x, axis=node.int("axis", -1)))
        # An axis of rank, for a matrix of one column, is allowed here.
        given = node.int("axis", 1)
        axis = given if given == len(shape) else normalized_axis(given, len(shape))
        if axis == len(shape) - 1:
            return node.emit(op(x, axis=axis))
        matrix = [math.prod(shape[:axis]), math.prod(shape[axis:])]
        flat = node.emit(graph.ReshapeOp(x, matrix))
        return node.emit(graph.ReshapeOp(node.emit(op(flat, axis=1)), shape))

    return build


def _centred(node: Node, x: SSAValue, axes: Sequence[int], epsilon: float) -> tuple[SSAValue, ...]:
    """The mean over `axes`, x without it, and sqrt(variance + epsilon)."""
    mean = node.emit(graph.ReduceMeanOp(x, axes=axes))
    centred = node.emit(graph.SubOp(x, mean))
    squares = node.emit(graph.MulOp(centred, centred))
    variance = node.emit(graph.ReduceMeanOp(squares, axes=axes))
    shifted = node.emit(graph.AddOp(variance, node.scalar(epsilon, variance)))
    return mean, centred, node.emit(graph.SqrtOp(shifted))


@imports("LayerNormalization")
def layer_normalization(node: Node) -> list[SSAValue]:
    """
    Over all dimensions from `axis` on, in the type `stash_type`, which is f32; of f64 in f64.

    The mean and the reciprocal of the deviation are f32.
    """
    if node.int("stash_type", 1) != 1:
        raise Unsupported(f"stash_type {node.int('stash_type', 1)}")
    element = node.type(0).element_type
    rank = len(node.shape(0))
    axis = normalized_axis(node.int("axis", -1), rank)
    x = node.value(0) if element == f64 else cast(node, node.value(0), f32)
    mean, centred, deviation = _centred(node, x, range(axis, rank), node.float("epsilon", 1e-5))
    normal = cast(node, node.emit(graph.DivOp(centred, deviation)), element)
    outputs = [node.emit(graph.MulOp(normal, node.value(1)))]
    if (bias := node.optional(2)) is not None:
        outputs = [node.emit(graph.AddOp(outputs[0], bias))]
    if any(node.used_outputs[1:]):
        outputs += [cast(node, each, f32) for each in (mean, node.emit(graph.ReciprocalOp(deviation)))]
    return outputs


@imports("InstanceNormalization")
@in_accumulator
def instance_normalization(node: Node) -> SSAValue:
    """Over the spatial dimensions of each channel of each image."""
    rank = len(node.shape(0))
    epsilon = node.float("epsilon", 1e-5)
    _, centred, deviation = _centred(node, node.value(0), range(2, rank), epsilon)
    normal = node.emit(graph.DivOp(centred, deviation))
    per_channel = [-1, *([1] * (rank - 2))]
    scale = node.emit(graph.ReshapeOp(node.value(1), per_channel))
    bias = node.emit(graph.ReshapeOp(node.value(2), per_channel))
    return node.emit(graph.AddOp(node.emit(graph.MulOp(normal, scale)), bias))


@imports("MeanVarianceNormalization")
@in_accumulator
def mean_variance_normalization(node: Node) -> SSAValue:
    """x without its mean, divided by its deviation: not sqrt(mean(x^2) - mean(x)^2), which cancels."""
    _, centred, deviation = _centred(node, node.value(0), node.ints("axes") or [0, 2, 3], 0.0)
    return node.emit(graph.DivOp(centred, node.emit(graph.AddOp(deviation, node.scalar(1e-9, deviation)))))


@imports("LpNormalization")
@in_accumulator
def lp_normalization(node: Node) -> SSAValue:
    """
    x divided by its norm along `axis`: the sum of sizes, or the root of the sum of squares. Where that is
    0, so is x, and so is the result.
    """
    x, order = node.value(0), node.int("p", 2)
    axes = [normalized_axis(node.int("axis", -1), len(node.shape(0)))]
    if order == 1:
        norm = node.emit(graph.ReduceSumOp(node.emit(graph.AbsOp(x)), axes=axes))
    else:
        squares = node.emit(graph.MulOp(x, x))
        norm = node.emit(graph.SqrtOp(node.emit(graph.ReduceSumOp(squares, axes=axes))))
    vanishes = node.emit(graph.EqualOp(norm, node.scalar(0.0, norm)))
    divisor = node.emit(graph.WhereOp(vanishes, node.scalar(1.0, norm), norm))
    return node.emit(graph.DivOp(x, divisor))


imports("LogSoftmax")(softmax(graph.LogSoftmaxOp))
imports("Softmax")(softmax(graph.SoftmaxOp))
