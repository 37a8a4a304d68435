"""Derivatives of reductions, softmax and normalisations."""

from __future__ import annotations

import math

from penstock.dialects import graph
from penstock.dialects.graph import channel_axis, tensor_of
from penstock.passes.graph.gradients.code import AdjointCode, Term, gradient
from penstock.passes.graph.gradients.geometry import cut, padded


def _kept(value: Term, op: graph.ReductionOp) -> Term:
    """A value of the shape of the result in one that broadcasts to the operand's."""
    if not value.shape:
        return value
    axes = op.axes.get_values()
    return value.reshape([1 if dim in axes else size for dim, size in enumerate(tensor_of(op.x).get_shape())])


def _elements(op: graph.ReductionOp) -> int:
    shape = tensor_of(op.x).get_shape()
    return math.prod(shape[axis] for axis in op.axes.get_values())


@gradient(graph.ReduceSumOp)
def reduce_sum(code: AdjointCode, op: graph.ReduceSumOp) -> None:
    """The seed, repeated."""
    code.add(op.x, lambda: _kept(code.seed, op).expand(tensor_of(op.x).get_shape()))


@gradient(graph.ReduceMeanOp)
def reduce_mean(code: AdjointCode, op: graph.ReduceMeanOp) -> None:
    """The seed divided by the number of elements, repeated."""
    share = 1 / max(_elements(op), 1)
    code.add(op.x, lambda: _kept(code.seed * share, op).expand(tensor_of(op.x).get_shape()))


@gradient(graph.ReduceMaxOp, graph.ReduceMinOp)
def reduce_extremum(code: AdjointCode, op: graph.ReduceMaxOp | graph.ReduceMinOp) -> None:
    """The seed for the extremum; equal ones share it evenly."""

    def contribution() -> Term:
        x = code.term(op.x)
        chosen = x.with_(graph.EqualOp, _kept(code.term(op.result), op)).as_number(x)
        return chosen * (_kept(code.seed, op) / chosen.sum(op.axes.get_values()))

    code.add(op.x, contribution)


@gradient(graph.ReduceProdOp)
def reduce_prod(code: AdjointCode, op: graph.ReduceProdOp) -> None:
    """
    The seed times the product of all other elements.

    Without a zero that is the product divided by the element. One zero leaves a derivative at that element only, two
    leave none: the product of the others is taken with zeros replaced by ones, and counted.
    """

    def contribution() -> Term:
        x, axes = code.term(op.x), op.axes.get_values()
        zero = x.with_(graph.EqualOp, 0.0)
        filled = zero.where(1.0, x, x)
        others = code.emit(graph.ReduceProdOp(filled.value, axes=axes)) / filled
        zeros = zero.as_number(x)
        # Zeros among the other elements: then their product is 0.
        elsewhere = zeros.sum(axes) - zeros
        return _kept(code.seed, op) * elsewhere.with_(graph.GreaterOp, 0.0).where(0.0, others, x)

    code.add(op.x, contribution)


@gradient(graph.SoftmaxOp)
def softmax(code: AdjointCode, op: graph.SoftmaxOp) -> None:
    """y (seed - sum(seed y))."""

    def contribution() -> Term:
        y = code.term(op.result)
        weighted = code.seed * y
        return weighted - y * weighted.sum([op.axis.value.data])

    code.add(op.x, contribution)


@gradient(graph.LogSoftmaxOp)
def log_softmax(code: AdjointCode, op: graph.LogSoftmaxOp) -> None:
    """seed - exp(y) sum(seed)."""

    def contribution() -> Term:
        probabilities = code.term(op.result).apply(graph.ExpOp)
        return code.seed - probabilities * code.seed.sum([op.axis.value.data])

    code.add(op.x, contribution)


@gradient(graph.LrnOp)
def lrn(code: AdjointCode, op: graph.LrnOp) -> None:
    """
    With s the base of the power: s^-beta seed - 2 x alpha beta / size times the sum of seed x s^(-beta - 1) over the
    channels that a channel plays a part in.
    """
    x, size, beta = code.term(op.x), op.size.value.data, op.beta.value.data
    scale = op.alpha.value.data / size
    before, after = (size - 1) // 2, size // 2
    axis = channel_axis(op.layout.data, len(x.shape))

    def neighbours(value: Term, before: int, after: int) -> Term:
        """The sum over the channels from `before` in front of each to `after` behind it."""
        low, high = ([count if dim == axis else 0 for dim in range(len(x.shape))] for count in (before, after))
        grown = padded(value, low, high)
        parts = [cut(grown, axis, start, x.shape[axis]) for start in range(size)]
        return sum(parts[1:], parts[0])

    def contribution() -> Term:
        base = neighbours(x * x, before, after) * scale + op.bias.value.data
        power = base.with_(graph.PowOp, -beta)
        weighted = code.seed * x * power / base
        return code.seed * power - x * neighbours(weighted, after, before) * (2 * scale * beta)

    code.add(op.x, contribution)


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
        return 1 / (var + op.epsilon.value.data).apply(graph.SqrtOp)

    def total(value: Term) -> Term:
        return value.sum(others, keepdims=False)

    def centred() -> Term:
        return code.seed * (code.term(op.x) - along(code.term(op.mean)))

    code.add(op.x, lambda: code.seed * along(scale * rate()))
    code.add(op.scale, lambda: total(centred()) * rate())
    code.add(op.bias, lambda: total(code.seed))
    code.add(op.mean, lambda: -(total(code.seed) * scale * rate()))
    code.add(op.var, lambda: total(centred()) * scale * rate() / (var + op.epsilon.value.data) * -0.5)
