# SPDX-License-Identifier: Apache-2.0
"""Matrix products, normalisations, softmax and attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import AttentionOp
from penstock.dialects.graph.base import tensor_of
from penstock.dialects.graph.layout import channel_axis
from penstock.dialects.graph.nn import (
    BatchNormalizationOp,
    GemmOp,
    LogSoftmaxOp,
    LrnOp,
    MatmulOp,
    SoftmaxBase,
    SoftmaxOp,
)
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.accumulator import in_accumulator, widened
from penstock.runtime.interpreter.graph.registry import implements
from penstock.runtime.interpreter.graph.shape import pad_with
from penstock.runtime.interpreter.values import in_type


@implements(MatmulOp)
@in_accumulator
def matmul(op: MatmulOp, operands: Sequence[Array]) -> Array:
    """The matrix product by NumPy's rule."""
    a, b = operands
    a, b, total = widened(op, a, b, a.shape[-1])
    return np.asarray(in_type(np.matmul(a, b), total))


@implements(GemmOp)
@in_accumulator
def gemm(op: GemmOp, operands: Sequence[Array]) -> Array:
    """alpha * A' B' + beta * C."""
    a, b = operands[0].T if op.trans_a else operands[0], operands[1].T if op.trans_b else operands[1]
    a, b, total = widened(op, a, b, a.shape[-1])
    number = total.type
    result = in_type(np.matmul(a, b), total)
    if op.alpha.value.data != 1:
        result = result * number(op.alpha.value.data)
    if len(operands) > 2:
        c = operands[2]
        result = result + (c if op.beta.value.data == 1 else c * number(op.beta.value.data))
    return result


@implements(BatchNormalizationOp)
def batch_normalization(op: BatchNormalizationOp, operands: Sequence[Array]) -> Array:
    """(x - mean) / sqrt(var + epsilon) * scale + bias along the axis."""
    x = operands[0]
    shape = [1] * x.ndim
    shape[op.axis.value.data] = -1
    scale, bias, mean, var = (vector.reshape(shape) for vector in operands[1:])
    deviation = np.sqrt(var + var.dtype.type(op.epsilon.value.data))
    return (x - mean) / deviation * scale + bias


@implements(SoftmaxOp, LogSoftmaxOp)
@in_accumulator
def softmax(op: SoftmaxBase, operands: Sequence[Array]) -> Array:
    """Both of them, after subtracting the largest element."""
    (x,) = operands
    axis = op.axis.value.data
    shifted = x - np.maximum.reduce(x, axis=axis, keepdims=True)
    powers = np.exp(shifted)
    total = np.add.reduce(powers, axis=axis, keepdims=True, dtype=x.dtype)
    return shifted - np.log(total) if isinstance(op, LogSoftmaxOp) else powers * (1 / total)


@implements(LrnOp)
@in_accumulator
def lrn(op: LrnOp, operands: Sequence[Array]) -> Array:
    """x / (bias + alpha / size * sum of squares of neighbouring channels)^beta."""
    (x,) = operands
    number = x.dtype.type
    size, axis = op.size.value.data, channel_axis(op.layout.data, x.ndim)
    before = (size - 1) // 2
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, size - 1 - before)
    squares = np.moveaxis(pad_with(x * x, widths, number(0)), axis, 0)
    channels = x.shape[axis]
    total = squares[:channels].copy()
    for offset in range(1, size):
        total += squares[offset : offset + channels]
    base = number(op.bias.value.data) + number(op.alpha.value.data / size) * total
    return x / np.moveaxis(np.power(base, number(op.beta.value.data)), 0, axis)


@implements(AttentionOp)
@in_accumulator
def attention(op: AttentionOp, operands: Sequence[Array]) -> Array:
    """softmax(q k^T * scale + mask) v, divided by the sum of powers at the end."""
    q, k, v = (np.transpose(operand, perm) for operand, perm in zip(operands[:3], op.perms, strict=False))
    scores = _product(op, q, np.swapaxes(k, -1, -2))
    if op.scale.value.data != 1:
        scores = scores * scores.dtype.type(op.scale.value.data)
    if op.mask is not None:
        scores = scores + operands[3]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        largest = np.maximum.reduce(scores, axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - largest)
        if bool(op.zero_masked):
            powers = np.where(largest == -np.inf, powers.dtype.type(0), powers)
        total = np.add.reduce(powers, axis=-1, keepdims=True, dtype=scores.dtype)
        if bool(op.zero_masked):
            total = np.where(largest == -np.inf, total.dtype.type(1), total)
        result = _product(op, powers.astype(numpy_dtype(tensor_of(op.v).element_type)), v) / total
    return np.transpose(result, op.perms[3])


def _product(op: AttentionOp, a: Array, b: Array) -> Array:
    a, b, total = widened(op, a, b, a.shape[-1])
    return np.asarray(in_type(np.matmul(a, b), total))
