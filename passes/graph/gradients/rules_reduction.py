# SPDX-License-Identifier: Apache-2.0
"""Derivatives of reductions, softmax and normalisations."""

from __future__ import annotations

import math

from penstock.dialects import graph
from penstock.dialects.graph import channel_axis, tensor_of
from penstock.passes.graph.gradients.code import AdjointCode, Term, derivative, gradient


def _kept(value: Term, op: graph.ReductionOp) -> Term:
    """A value of the shape of the result in one that broadcasts to the operand's."""
    if not value.shape:
        return value
    axes = op.axes.get_values()
    return value.reshape([1 if dim in axes else size for dim, size in enumerate(tensor_of(op.x).get_shape())])


@derivative(graph.ReduceSumOp)
def reduce_sum(code: AdjointCode, op: graph.ReduceSumOp) -> Term:
    """The seed, repeated."""
    return _kept(code.seed, op).expand(tensor_of(op.x).get_shape())


@derivative(graph.ReduceMeanOp)
def reduce_mean(code: AdjointCode, op: graph.ReduceMeanOp) -> Term:
    """The seed divided by the number of elements, repeated."""
    shape = tensor_of(op.x).get_shape()
    count = math.prod(shape[axis] for axis in op.axes.get_values())
    return _kept(code.seed * (1 / max(count, 1)), op).expand(shape)


@derivative(graph.ReduceMaxOp, graph.ReduceMinOp)
def reduce_extremum(code: AdjointCode, op: graph.ReduceMaxOp | graph.ReduceMinOp) -> Term:
    """The seed for the extremum; equal ones share it evenly."""
    x = code.term(op.x)
    chosen = x.apply("equal", _kept(code.term(op.result), op)).cast(x.element_type)
    return chosen * (_kept(code.seed, op) / chosen.sum(op.axes.get_values()))


@derivative(graph.ReduceProdOp)
def reduce_prod(code: AdjointCode, op: graph.ReduceProdOp) -> Term:
    """
    The seed times the product of all other elements.

    Without a zero that is the product divided by the element. One zero leaves a derivative at that element only, two
    leave none: the product of the others is taken with zeros replaced by ones, and counted.
    """
    x, axes = code.term(op.x), op.axes.get_values()
    zero = x.apply("equal", 0.0)
    filled = zero.where(1.0, x)
    others = code.emit(graph.ReduceProdOp(filled.value, axes=axes)) / filled
    zeros = zero.cast(x.element_type)
    # Zeros among the other elements: then their product is 0.
    elsewhere = zeros.sum(axes) - zeros
    return _kept(code.seed, op) * (elsewhere > 0.0).where(0.0, others)


@derivative(graph.SoftmaxOp)
def softmax(code: AdjointCode, op: graph.SoftmaxOp) -> Term:
    """y (seed - sum(seed y))."""
    y = code.term(op.result)
    weighted = code.seed * y
    return weighted - y * weighted.sum([op.axis.value.data])


@derivative(graph.LogSoftmaxOp)
def log_softmax(code: AdjointCode, op: graph.LogSoftmaxOp) -> Term:
    """seed - exp(y) sum(seed)."""
    probabilities = code.term(op.result).apply("exp")
    return code.seed - probabilities * code.seed.sum([op.axis.value.data])


@derivative(graph.LrnOp)
def lrn(code: AdjointCode, op: graph.LrnOp) -> Term:
    """
    With s the base of the power: s^-beta seed - 2 x alpha beta / size times the sum of seed x s^(-beta - 1) over the
    channels that a channel plays a part in.
    """
    x, size, beta = code.term(op.x), op.size.value.data, op.beta.value.data
    scale = op.alpha.value.data / size
    before, after = (size - 1) // 2, size // 2
    axis = channel_axis(op.layout.data, len(x.shape))

    def neighbours(value: Term, before: int, after: int) -> Term:
        """The sum over the channels from so many before each to so many after it."""
        low, high = ([count if dim == axis else 0 for dim in range(len(x.shape))] for count in (before, after))
        grown = value.padded(low, high)
        parts = [grown.cut(axis, start, x.shape[axis]) for start in range(size)]
        return sum(parts[1:], parts[0])

    base = neighbours(x * x, before, after) * scale + op.bias.value.data
    power = base.apply("pow", -beta)
    weighted = code.seed * x * power / base
    return code.seed * power - x * neighbours(weighted, after, before) * (2 * scale * beta)


@gradient(graph.BatchNormalizationOp)
def batch_normalization(code: AdjointCode, op: graph.BatchNormalizationOp) -> None:
    """As in inference: mean and variance are operands like others, and not statistics of x."""
    axis, rank = op.axis.value.data, op.result_type.get_num_dims()
    others = [dim for dim in range(rank) if dim != axis]
    scale, var = code.term(op.scale), code.term(op.var)

    def along(vector: Term) -> Term:
        return vector.reshape([-1 if dim == axis else 1 for dim in range(rank)])

    def rate() -> Term:
        """1 / deviation."""
        return 1 / (var + op.epsilon.value.data).apply("sqrt")

    def total(value: Term) -> Term:
        return value.sum(others, keepdims=False)

    def centred() -> Term:
        return code.seed * (code.term(op.x) - along(code.term(op.mean)))

    code.add(op.x, lambda: code.seed * along(scale * rate()))
    code.add(op.scale, lambda: total(centred()) * rate())
    code.add(op.bias, lambda: total(code.seed))
    code.add(op.mean, lambda: -(total(code.seed) * scale * rate()))
    code.add(op.var, lambda: total(centred()) * scale * rate() / (var + op.epsilon.value.data) * -0.5)
