"""Importers of matrix products, normalisations and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float, normalized_axis
from penstock.lowering.from_onnx.node import Importer, Node, Unsupported


def accumulator_of(element: Attribute) -> Attribute | None:
    """
    The type in which products of an element type are summed up, if it is another one: for floats of 16 bits f32, as
    units that multiply them do it, and NumPy and onnxruntime.
    """
    return f32 if is_float(element) and numpy_dtype(element).itemsize <= 2 else None


def gemm(node: Node) -> SSAValue:
    element = node.type(0).element_type
    wide, c = accumulator_of(element), node.optional(2)
    product = node.emit(
        graph.GemmOp(
            node.value(0),
            node.value(1),
            c if c is None or wide is None else _cast(node, c, wide),
            alpha=node.float("alpha", 1.0),
            beta=node.float("beta", 1.0),
            trans_a=node.flag("transA", False),
            trans_b=node.flag("transB", False),
            accumulator=wide,
        )
    )
    return _cast(node, product, element)


def matmul(node: Node) -> SSAValue:
    element = node.type(0).element_type
    product = graph.MatmulOp(node.value(0), node.value(1), accumulator=accumulator_of(element))
    return _cast(node, node.emit(product), element)


def _cast(node: Node, value: SSAValue, element: Attribute) -> SSAValue:
    if tensor_of(value).element_type == element:
        return value
    return node.emit(graph.CastOp(value, element))


def batch_normalization(node: Node) -> SSAValue:
    node.refuse_outputs_after(1)
    if node.flag("training_mode", False):
        raise Unsupported("in training mode")
    if not node.flag("spatial", True):
        raise Unsupported("spatial=0, one mean for each element")
    x = node.value(0)
    element = tensor_of(x).element_type
    vectors = [_cast(node, node.value(index), element) for index in range(1, 5)]
    epsilon = node.float("epsilon", 1e-5)
    return node.emit(graph.BatchNormalizationOp(x, *vectors, epsilon=epsilon))


def lrn(node: Node) -> SSAValue:
    return node.emit(
        graph.LrnOp(
            node.value(0),
            size=node.int("size", 1),
            alpha=node.float("alpha", 1e-4),
            beta=node.float("beta", 0.75),
            bias=node.float("bias", 1.0),
        )
    )


def softmax(op: type[graph.SoftmaxOp | graph.LogSoftmaxOp]) -> Importer:
    """Before operator set 13, all dimensions from `axis` on are normalised together; of 16-bit floats in f32."""

    def build(node: Node) -> SSAValue:
        element = node.type(0).element_type
        wide = accumulator_of(element)
        return _cast(
            node, normalized(node, node.value(0) if wide is None else _cast(node, node.value(0), wide)), element
        )

    def normalized(node: Node, x: SSAValue) -> SSAValue:
        shape = node.shape(0)
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


def layer_normalization(node: Node) -> list[SSAValue]:
    """Computed in the type `stash_type`, f32 unless it says otherwise, over all dimensions from `axis` on."""
    if node.int("stash_type", 1) != 1:
        raise Unsupported(f"stash_type {node.int('stash_type', 1)}")
    element = node.type(0).element_type
    rank = len(node.shape(0))
    axis = normalized_axis(node.int("axis", -1), rank)
    x = _cast(node, node.value(0), f32)
    mean, centred, deviation = _centred(node, x, range(axis, rank), node.float("epsilon", 1e-5))
    normal = _cast(node, node.emit(graph.DivOp(centred, deviation)), element)
    outputs = [node.emit(graph.MulOp(normal, node.value(1)))]
    if (bias := node.optional(2)) is not None:
        outputs = [node.emit(graph.AddOp(outputs[0], bias))]
    if any(node.used_outputs[1:]):
        outputs += [mean, node.emit(graph.ReciprocalOp(deviation))]
    return outputs


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


TABLE: dict[str, Importer] = {
    "BatchNormalization": batch_normalization,
    "Gemm": gemm,
    "InstanceNormalization": instance_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": softmax(graph.LogSoftmaxOp),
    "LpNormalization": lp_normalization,
    "MatMul": matmul,
    "Softmax": softmax(graph.SoftmaxOp),
}
