"""Importers of matrix products, normalisations and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import f32, f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import normalized_axis
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Importer, Node, Unsupported, imports
from penstock.passes.graph.terms import Term


@imports("BatchNormalization")
def batch_normalization(node: Node) -> SSAValue:
    node.refuse_outputs_after(1)
    if node.flag("training_mode", False):
        raise Unsupported("in training mode")
    if not node.flag("spatial", True):
        raise Unsupported("spatial=0, one mean for each element")
    operands = [node.code.input(index, node.type(0).element_type).value for index in range(5)]
    return node.emit(graph.BatchNormalizationOp(*operands, epsilon=node.float("epsilon", 1e-5)))


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
        flat = node.emit(graph.ReshapeOp(x, [math.prod(shape[:axis]), math.prod(shape[axis:])]))
        return node.emit(graph.ReshapeOp(node.emit(op(flat, axis=1)), shape))

    return build


def _centred(x: Term, axes: Sequence[int], epsilon: float) -> tuple[Term, Term, Term]:
    """The mean over `axes`, x without it, and sqrt(variance + epsilon)."""
    mean = _mean(x, axes)
    centred = x - mean
    return mean, centred, (_mean(centred * centred, axes) + epsilon).apply("sqrt")


def _mean(x: Term, axes: Sequence[int]) -> Term:
    return x.emit(graph.ReduceMeanOp(x.value, axes=axes))


@imports("LayerNormalization")
def layer_normalization(node: Node) -> list[SSAValue]:
    """
    Over all dimensions from `axis` on, in the type `stash_type`, which is f32; of f64 in f64.

    The mean and the reciprocal of the deviation are f32.
    """
    if node.int("stash_type", 1) != 1:
        raise Unsupported(f"stash_type {node.int('stash_type', 1)}")
    element, rank = node.type(0).element_type, len(node.shape(0))
    axis = normalized_axis(node.int("axis", -1), rank)
    x = node.code.input(0, None if element == f64 else f32)
    mean, centred, deviation = _centred(x, range(axis, rank), node.float("epsilon", 1e-5))
    result = (centred / deviation).cast(element) * node.code.input(1)
    outputs = [result + node.code.input(2) if node.has(2) else result]
    if any(node.used_outputs[1:]):
        outputs += [each.cast(f32) for each in (mean, deviation.apply("reciprocal"))]
    return [each.value for each in outputs]


@imports("InstanceNormalization")
@in_accumulator
def instance_normalization(node: Node) -> SSAValue:
    """Over the spatial dimensions of each channel of each image."""
    rank = len(node.shape(0))
    _, centred, deviation = _centred(node.code.input(0), range(2, rank), node.float("epsilon", 1e-5))
    normal = centred / deviation
    scale, bias = (node.code.input(index).reshape([-1, *[1] * (rank - 2)]) for index in (1, 2))
    return (normal * scale + bias).value


@imports("MeanVarianceNormalization")
@in_accumulator
def mean_variance_normalization(node: Node) -> SSAValue:
    """x without its mean, divided by its deviation: not sqrt(mean(x^2) - mean(x)^2), which cancels."""
    _, centred, deviation = _centred(node.code.input(0), node.ints("axes") or [0, 2, 3], 0.0)
    return (centred / (deviation + 1e-9)).value


@imports("LpNormalization")
@in_accumulator
def lp_normalization(node: Node) -> SSAValue:
    """
    x divided by its norm along `axis`: the sum of sizes, or the root of the sum of squares. Where that is
    0, so is x, and so is the result.
    """
    x, axes = node.code.input(0), [normalized_axis(node.int("axis", -1), len(node.shape(0)))]
    is_sum = node.int("p", 2) == 1
    norm = abs(x).sum(axes) if is_sum else (x * x).sum(axes).apply("sqrt")
    return (x / norm.equal(0.0).where(1.0, norm)).value


imports("LogSoftmax")(softmax(graph.LogSoftmaxOp))
imports("Softmax")(softmax(graph.SoftmaxOp))
