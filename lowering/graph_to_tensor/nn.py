# SPDX-License-Identifier: Apache-2.0
"""Matrix products, batch normalisation and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.lowering.accumulation import MAX, SUM, reduce
from penstock.lowering.graph_to_tensor.contraction import contract, stored_factor
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import element_of, loops, shape_of


@lowers(graph.GemmOp)
def gemm(kernel: KernelBuilder, op: graph.GemmOp) -> SSAValue:
    """A contraction over (m, n, k), the transpositions in its maps; then alpha, beta and `c`."""
    m, n, k = loops(3)
    a_dims = [k, m] if op.trans_a else [m, k]
    b_dims = [n, k] if op.trans_b else [k, n]
    a, b = kernel.value(stored_factor(op.a)), kernel.value(stored_factor(op.b))
    result = contract(kernel, op, (a, a_dims), (b, b_dims), shape_of(op.result), 1)
    alpha, beta = op.alpha.value.data, op.beta.value.data

    def epilogue(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        product = elements[0]
        if alpha != 1:
            product = body.mul(body.like(alpha, product), product)
        if len(elements) == 1:
            return product
        c = body.widen(elements[1], product.type)
        if beta != 1:
            c = body.mul(body.like(beta, c), c)
        return body.add(product, c)

    if op.c is None and alpha == 1:
        return kernel.rounded(op.result, result)
    kernel.define(op.result, result)
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
    return kernel.rounded(op.result, contract(kernel, op, (a, a_dims), (b, b_dims), shape, 1))


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
        reduce(kernel, x, [axis], MAX),
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
    """
    The largest m, e = exp(x - m), the sum of e, its reciprocal, the product: one generic each.

    The sum is 1 or more, and may be NaN: its reciprocal does not overflow.
    """
    axis = op.axis.value.data
    powers = _centred(kernel, kernel.widened(op.x), axis, Body.exp)
    total = reduce(kernel, powers, [axis], SUM)
    rows = loops(len(shape_of(total)))
    share = kernel.generic(
        [(total, rows)],
        (kernel.empty(shape_of(total), element_of(total)), rows),
        0,
        lambda body, sums: body.div(body.like(1.0, sums[0]), sums[0]),
    )
    return kernel.rounded(op.result, _with_statistic(kernel, powers, share, axis, Body.mul))


@lowers(graph.LogSoftmaxOp)
def log_softmax(kernel: KernelBuilder, op: graph.LogSoftmaxOp) -> SSAValue:
    """The largest m, c = x - m, the sum of exp(c), c - log(sum): one generic each."""
    axis = op.axis.value.data
    centred = _centred(kernel, kernel.widened(op.x), axis, lambda body, x: x)
    total = reduce(kernel, centred, [axis], SUM, term=lambda body, xs: body.exp(xs[0]))
    result = _with_statistic(kernel, centred, total, axis, lambda body, x, total: body.sub(x, body.log(total)))
    return kernel.rounded(op.result, result)
