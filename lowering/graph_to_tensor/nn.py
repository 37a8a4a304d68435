"""Contractions (convolution, gemm, matmul), batch normalisation and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.graph_to_tensor.body import Body, Compute
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.lowering.graph_to_tensor.reduction import MAX, SUM, SUM_OF_POWERS
from penstock.lowering.graph_to_tensor.shapes import (
    Dims,
    Split,
    element_of,
    loops,
    shape_of,
    signless,
    windowed,
)
from penstock.lowering.graph_to_tensor.widening import stored_factor


def multiply_add(unsigned: tuple[bool, bool]) -> Compute:
    """
    The body of every contraction: `accumulator + a * b`, the factors widened to the accumulator's type first.

    `unsigned` says of `a` and of `b` whether its integers are.
    """

    def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        a, b, accumulator = elements
        left, right = (
            body.widen(factor, accumulator.type, each) for factor, each in zip((a, b), unsigned, strict=True)
        )
        return body.add(accumulator, body.mul(left, right))

    return compute


def contract(
    kernel: KernelBuilder,
    op: graph.ConvOp | graph.GemmOp | graph.MatmulOp,
    a: tuple[SSAValue, Dims],
    b: tuple[SSAValue, Dims],
    shape: Sequence[int],
    reductions: int,
) -> SSAValue:
    """
    The sum of products of `a` and `b`, the tensors of the first two operands of `op`, over `reductions` loops, for
    each element of `shape`, in the element type of the result.
    """
    left, right = (is_unsigned(element_of(stored_factor(factor))) for factor in op.operands[:2])
    start = kernel.fill(shape, signless(element_of(op.result)), 0)
    return kernel.generic([a, b], (start, loops(len(shape))), reductions, multiply_add((left, right)))


class ConvolutionLoops(NamedTuple):
    """The loops of a convolution by their role; `group` is empty or one loop."""

    batch: Dims
    group: Dims
    output: Dims
    places: Dims
    kernel: Dims
    input: Dims


def convolution_loops(rank: int, grouped: bool, channels_last: bool) -> ConvolutionLoops:
    """
    The parallel loops in the order of the result, then the reductions, each in the order of the filters:
    (n, o..., g, oc, k..., ic) with the channels last, and (n, g, oc, o..., ic, k...) with them first.
    """
    group = 1 if grouped else 0
    dims = loops(3 + 2 * rank + group)
    end = 2 + rank + group
    if channels_last:
        places, channels = dims[1 : 1 + rank], dims[1 + rank : end]
        kernel, inputs = dims[end : end + rank], dims[end + rank :]
    else:
        channels, places = dims[1 : 2 + group], dims[2 + group : end]
        inputs, kernel = dims[end : end + 1], dims[end + 1 :]
    return ConvolutionLoops(dims[:1], channels[:group], channels[group:], places, kernel, inputs)


@lowers(graph.ConvOp)
def conv(kernel: KernelBuilder, op: graph.ConvOp) -> SSAValue:
    """
    A contraction over windows of the padded input, then the bias.

    With groups the channels are split in two dims, (group, channel of it); the caller passes views.
    """
    channels_last = op.layout.data == graph.NHWC
    rank, groups = len(op.kernel_shape), op.group.value.data
    axis, out_axis = (rank + 1, rank + 1) if channels_last else (1, 0)
    split = Split(axis, groups) if groups > 1 else None
    x = kernel.value(stored_factor(op.x), split)
    w = kernel.value(stored_factor(op.w), Split(out_axis, groups) if groups > 1 else None)
    pads = op.pads.get_values()
    before = 1 if channels_last else len(shape_of(x)) - rank
    x = kernel.pad_spatial(x, before, pads[:rank], pads[rank:], 0)

    at = convolution_loops(rank, groups > 1, channels_last)
    read = windowed(at.places, at.kernel, op.strides.get_values(), op.dilations.get_values())
    if channels_last:
        x_dims: Dims = [*at.batch, *read, *at.group, *at.input]
        w_dims: Dims = [*at.kernel, *at.input, *at.group, *at.output]
    else:
        x_dims = [*at.batch, *at.group, *at.input, *read]
        w_dims = [*at.group, *at.output, *at.input, *at.kernel]
    shape = shape_of(op.result) if split is None else split.shape(shape_of(op.result))
    result = contract(kernel, op, (x, x_dims), (w, w_dims), shape, rank + 1)
    kernel.define(op.result, result, split)
    if op.b is None:
        return result
    return kernel.pointwise([op.result, op.b], op.result, lambda body, xs: body.add(xs[0], xs[1]), along={1: [axis]})


@lowers(graph.GemmOp)
def gemm(kernel: KernelBuilder, op: graph.GemmOp) -> SSAValue:
    """A contraction over (m, n, k), the transpositions in its maps; then alpha, beta and `c`."""
    m, n, k = loops(3)
    a_dims = [k, m] if op.trans_a else [m, k]
    b_dims = [n, k] if op.trans_b else [k, n]
    a, b = kernel.value(stored_factor(op.a)), kernel.value(stored_factor(op.b))
    result = contract(kernel, op, (a, a_dims), (b, b_dims), shape_of(op.result), 1)
    kernel.define(op.result, result)
    alpha, beta = op.alpha.value.data, op.beta.value.data

    def epilogue(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        product = elements[0]
        if alpha != 1:
            product = body.mul(body.like(alpha, product), product)
        if len(elements) == 1:
            return product
        c = elements[1]
        if beta != 1:
            c = body.mul(body.like(beta, c), c)
        return body.add(product, c)

    if op.c is None and alpha == 1:
        return result
    operands = [op.result] if op.c is None else [op.result, op.c]
    return kernel.pointwise(operands, op.result, epilogue)


@lowers(graph.MatmulOp)
def matmul(kernel: KernelBuilder, op: graph.MatmulOp) -> SSAValue:
    """A contraction over (batch..., m, n, k); vectors have no m, or no n."""
    shape = shape_of(op.result)
    a_shape, b_shape = shape_of(op.a), shape_of(op.b)
    *parallel, k = loops(len(shape) + 1)
    rows, columns = len(a_shape) > 1, len(b_shape) > 1
    batch = len(shape) - rows - columns
    m = parallel[batch : batch + rows]
    n = parallel[batch + rows :]

    def batch_dims(sizes: Sequence[int]) -> list[AffineExpr]:
        offset = batch - len(sizes)
        return [
            parallel[offset + dim] if size == shape[offset + dim] else AffineExpr.constant(0)
            for dim, size in enumerate(sizes)
        ]

    a_dims = [*batch_dims(a_shape[:-2]), *m, k]
    b_dims = [*batch_dims(b_shape[:-2]), k, *n]
    a, b = kernel.value(stored_factor(op.a)), kernel.value(stored_factor(op.b))
    return contract(kernel, op, (a, a_dims), (b, b_dims), shape, 1)


@lowers(graph.BatchNormalizationOp)
def batch_normalization(kernel: KernelBuilder, op: graph.BatchNormalizationOp) -> SSAValue:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, the vectors along the channels."""
    axis, epsilon = op.axis.value.data, op.epsilon.value.data

    def normalise(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        x, scale, bias, mean, var = elements
        deviation = body.sqrt(body.add(var, body.like(epsilon, var)))
        centred = body.div(body.sub(x, mean), deviation)
        return body.add(body.mul(centred, scale), bias)

    along = {number: [axis] for number in range(1, 5)}
    return kernel.pointwise(op.operands, op.result, normalise, along=along)


def _centred(kernel: KernelBuilder, x: SSAValue, axis: int, finish: Callable[[Body, SSAValue], SSAValue]) -> SSAValue:
    """`finish(x - m)`, m being the largest element along `axis`, so that no exponent overflows."""
    return _with_statistic(
        kernel,
        x,
        kernel.reduce(x, [axis], MAX),
        axis,
        lambda body, x, largest: finish(body, body.sub(x, largest)),
    )


def _with_statistic(
    kernel: KernelBuilder,
    x: SSAValue,
    statistic: SSAValue,
    axis: int,
    compute: Callable[[Body, SSAValue, SSAValue], SSAValue],
) -> SSAValue:
    """Each element of `x` combined with the element of `statistic`, which lacks the dim `axis`."""
    whole = loops(len(shape_of(x)))
    return kernel.generic(
        [(x, whole), (statistic, [*whole[:axis], *whole[axis + 1 :]])],
        (kernel.empty(shape_of(x), element_of(x)), whole),
        0,
        lambda body, elements: compute(body, elements[0], elements[1]),
    )


@lowers(graph.SoftmaxOp)
def softmax(kernel: KernelBuilder, op: graph.SoftmaxOp) -> SSAValue:
    """The largest m, e = exp(x - m), the sum of e, the quotient: one generic each."""
    axis = op.axis.value.data
    powers = _centred(kernel, kernel.value(op.x), axis, Body.exp)
    total = kernel.reduce(powers, [axis], SUM)
    return _with_statistic(kernel, powers, total, axis, Body.div)


@lowers(graph.LogSoftmaxOp)
def log_softmax(kernel: KernelBuilder, op: graph.LogSoftmaxOp) -> SSAValue:
    """The largest m, c = x - m, the sum of exp(c), c - log(sum): one generic each."""
    axis = op.axis.value.data
    centred = _centred(kernel, kernel.value(op.x), axis, lambda body, x: x)
    total = kernel.reduce(centred, [axis], SUM_OF_POWERS)
    return _with_statistic(kernel, centred, total, axis, lambda body, x, total: body.sub(x, body.log(total)))
