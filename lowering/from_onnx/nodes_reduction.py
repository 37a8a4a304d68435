# SPDX-License-Identifier: Apache-2.0
"""Importers of reductions, normalisations and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import IntegerType, Signedness, f32, f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import ReductionOp
from penstock.dialects.graph.base import is_bool, normalized_axis
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Importer, OnnxNode, Unsupported, imports
from penstock.passes.graph.terms import Term

Elementwise: TypeAlias = Callable[[Term], Term]

_UI8 = IntegerType(8, Signedness.UNSIGNED)


def axes_of(node: OnnxNode, input_since: int) -> list[int] | None:
    """The axes of a reduction, None for all: no axes mean all of them, or none if `noop_with_empty_axes`."""
    return node.listed("axes", 1, input_since) or ([] if node.flag("noop_with_empty_axes", False) else None)


def _square(x: Term) -> Term:
    return x * x


def _root(x: Term) -> Term:
    return x.apply("sqrt")


def _logarithm(x: Term) -> Term:
    return x.apply("log")


def reduction(
    op: type[ReductionOp],
    input_since: int = 18,
    *,
    before: Elementwise | None = None,
    after: Elementwise | None = None,
) -> Importer:
    """
    A reduction with a step on each element before it, and on the result after it.

    The largest or smallest of booleans, "or" and "and", is taken as that of bytes without a sign: the extremum of
    none of them is then 0 or 255, which is the right boolean too.
    """

    def build(node: OnnxNode) -> SSAValue:
        axes, x = axes_of(node, input_since), node.code.input(0)
        element = x.element_type
        x = x.cast(_UI8) if is_bool(element) else x if before is None else before(x)
        found = node.code.emit(op(x.value, axes=axes, keepdims=node.flag("keepdims", True)))
        return (found.cast(element) if is_bool(element) else found if after is None else after(found)).value

    return build


def log_sum_exp(node: OnnxNode) -> SSAValue:
    """log(sum(exp(x - max))) + max, so that exp does not overflow; an infinite maximum stays in the sum."""
    axes, x = axes_of(node, 18), node.code.input(0)
    largest = node.code.emit(graph.ReduceMaxOp(x.value, axes=axes))
    largest = abs(largest).equal(math.inf).where(0, largest)
    rank = len(x.shape)
    summed = [normalized_axis(axis, rank) for axis in (range(rank) if axes is None else axes)]
    result = (x - largest).apply("exp").sum(summed).apply("log") + largest
    kept = [size for dim, size in enumerate(x.shape) if dim not in summed]
    return (result if node.flag("keepdims", True) else result.reshape(kept)).value


imports("ReduceL1")(reduction(graph.ReduceSumOp, before=abs))
imports("ReduceL2")(in_accumulator(reduction(graph.ReduceSumOp, before=_square, after=_root), integers=f64))
imports("ReduceLogSum")(in_accumulator(reduction(graph.ReduceSumOp, after=_logarithm), integers=f64))
imports("ReduceLogSumExp")(in_accumulator(log_sum_exp, integers=f64))
imports("ReduceMax")(reduction(graph.ReduceMaxOp))
imports("ReduceMean")(reduction(graph.ReduceMeanOp))
imports("ReduceMin")(reduction(graph.ReduceMinOp))
imports("ReduceProd")(reduction(graph.ReduceProdOp))
imports("ReduceSum")(reduction(graph.ReduceSumOp, input_since=13))
imports("ReduceSumSquare")(in_accumulator(reduction(graph.ReduceSumOp, before=_square)))


@imports("BatchNormalization")
def batch_normalization(node: OnnxNode) -> SSAValue:
    for name, used in zip(node.proto.output[1:], node.used_outputs[1:], strict=True):
        if used:
            raise Unsupported(f'its output "{name}"')
    if node.flag("training_mode", False):
        raise Unsupported("in training mode")
    if not node.flag("spatial", True):
        raise Unsupported("spatial=0, one mean for each element")
    operands = [node.code.input(index, node.type(0).element_type).value for index in range(5)]
    return node.emit(graph.BatchNormalizationOp(*operands, epsilon=node.float("epsilon", 1e-5)))


def softmax(op: type[graph.SoftmaxOp | graph.LogSoftmaxOp]) -> Importer:
    """Before operator set 13, all dimensions from `axis` on are normalised together."""

    def build(node: OnnxNode) -> SSAValue:
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


def centred(x: Term, axes: Sequence[int], epsilon: float) -> tuple[Term, Term, Term]:
    """The mean over `axes`, x without it, and sqrt(variance + epsilon)."""
    mean = mean_over(x, axes)
    rest = x - mean
    return mean, rest, (mean_over(rest * rest, axes) + epsilon).apply("sqrt")


def mean_over(x: Term, axes: Sequence[int]) -> Term:
    """The mean along axes, which keep a size of 1."""
    return x.emit(graph.ReduceMeanOp(x.value, axes=axes))


@imports("LayerNormalization")
def layer_normalization(node: OnnxNode) -> list[SSAValue]:
    """
    Over all dimensions from `axis` on, in the type `stash_type`, which is f32; of f64 in f64.

    The mean and the reciprocal of the deviation are f32.
    """
    if node.int("stash_type", 1) != 1:
        raise Unsupported(f"stash_type {node.int('stash_type', 1)}")
    element, rank = node.type(0).element_type, len(node.shape(0))
    axis = normalized_axis(node.int("axis", -1), rank)
    x = node.code.input(0, None if element == f64 else f32)
    mean, rest, deviation = centred(x, range(axis, rank), node.float("epsilon", 1e-5))
    result = (rest / deviation).cast(element) * node.code.input(1)
    outputs = [result + node.code.input(2) if node.has(2) else result]
    if any(node.used_outputs[1:]):
        outputs += [each.cast(f32) for each in (mean, deviation.apply("reciprocal"))]
    return [each.value for each in outputs]


@imports("InstanceNormalization")
@in_accumulator
def instance_normalization(node: OnnxNode) -> SSAValue:
    """Over the spatial dimensions of each channel of each image."""
    rank = len(node.shape(0))
    _, rest, deviation = centred(node.code.input(0), range(2, rank), node.float("epsilon", 1e-5))
    normal = rest / deviation
    scale, bias = (node.code.input(index).reshape([-1, *[1] * (rank - 2)]) for index in (1, 2))
    return (normal * scale + bias).value


@imports("MeanVarianceNormalization")
@in_accumulator
def mean_variance_normalization(node: OnnxNode) -> SSAValue:
    """x without its mean, divided by its deviation: not sqrt(mean(x^2) - mean(x)^2), which cancels."""
    _, rest, deviation = centred(node.code.input(0), node.ints("axes") or [0, 2, 3], 0.0)
    return (rest / (deviation + 1e-9)).value


@imports("LpNormalization")
@in_accumulator
def lp_normalization(node: OnnxNode) -> SSAValue:
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
