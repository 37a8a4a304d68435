# SPDX-License-Identifier: Apache-2.0
"""Reductions, pooling over all places, and local response normalisation: sums and their kin."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.dialects.graph.base import is_float, is_unsigned
from penstock.dialects.graph.layout import spatial_dims
from penstock.lowering.accumulation import (
    MAX,
    MIN,
    PRODUCT,
    SUM,
    Reduction,
    accumulate,
    reduce,
)
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import Dims, element_of, loops, shape_of

REDUCTIONS: dict[type[graph.ReductionOp], Reduction] = {
    graph.ReduceSumOp: SUM,
    graph.ReduceMeanOp: SUM,
    graph.ReduceMaxOp: MAX,
    graph.ReduceMinOp: MIN,
    graph.ReduceProdOp: PRODUCT,
}


def lower_reduction(kernel: KernelBuilder, op: graph.ReductionOp) -> SSAValue:
    """A fill and a generic whose reduction loops are the axes; the mean then divides, of integers a sum of 64 bits."""
    x, axes, keep = kernel.value(op.x), op.axes.get_values(), bool(op.keepdims)
    unsigned, reduction = is_unsigned(element_of(op.x)), REDUCTIONS[type(op)]
    if not isinstance(op, graph.ReduceMeanOp):
        return kernel.rounded(op.result, reduce(kernel, x, axes, reduction, keep=keep, unsigned=unsigned))
    wide = element_of(x) if is_float(element_of(x)) else i64

    def term(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        return elements[0] if is_float(wide) else body.widen(elements[0], wide, unsigned)

    total = reduce(kernel, x, axes, reduction, element=wide, term=term, keep=keep, unsigned=unsigned)
    return _divided(kernel, op.result, total, math.prod(shape_of(x)[axis] for axis in axes))


for _op_class in REDUCTIONS:
    lowers(_op_class)(lower_reduction)


def _divided(kernel: KernelBuilder, result: SSAValue, total: SSAValue, count: int) -> SSAValue:
    kernel.define(result, total)
    return kernel.pointwise([result], result, lambda body, xs: body.div(xs[0], body.like(count, xs[0])))


def _all_places(kernel: KernelBuilder, op: graph.GlobalPoolOp, reduction: Reduction) -> SSAValue:
    axes = spatial_dims(op.layout.data, len(shape_of(op.x)))
    unsigned = is_unsigned(element_of(op.x))
    return reduce(kernel, kernel.value(op.x), axes, reduction, keep=True, unsigned=unsigned)


@lowers(graph.GlobalMaxPoolOp)
def global_max_pool(kernel: KernelBuilder, op: graph.GlobalMaxPoolOp) -> SSAValue:
    """The largest over the spatial dims."""
    return _all_places(kernel, op, MAX)


@lowers(graph.GlobalAveragePoolOp)
def global_average_pool(kernel: KernelBuilder, op: graph.GlobalAveragePoolOp) -> SSAValue:
    """The sum over the spatial dims, divided by their number of elements."""
    total = _all_places(kernel, op, SUM)
    count = math.prod(shape_of(op.x)) // math.prod(shape_of(op.result))
    return _divided(kernel, op.result, total, count)


@lowers(graph.LrnOp)
def lrn(kernel: KernelBuilder, op: graph.LrnOp) -> SSAValue:
    """
    The sum of squares over a window of channels of the padded input, then x / (bias + alpha / size * sum)^beta.

    The window is a `tensor.empty` operand that gives the reduction loop its range.
    """
    size, shape, element = op.size.value.data, shape_of(op.x), element_of(op.x)
    axis = graph.channel_axis(op.layout.data, len(shape))
    before = (size - 1) // 2
    x = kernel.value(op.x)
    padded = kernel.pad_spatial(x, axis, [before], [size - 1 - before], 0)
    *whole, neighbour = loops(len(shape) + 1)
    read: list[AffineExpr] = [*whole[:axis], whole[axis] + neighbour, *whole[axis + 1 :]]
    window: tuple[SSAValue, Dims] = (kernel.empty([size], element, name="window"), [neighbour])

    def square(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        return body.mul(elements[0], elements[0])

    squares = accumulate(kernel, SUM, element, [(padded, read)], shape, 1, term=square, ranges=[window])
    alpha, beta, bias = (each.value.data for each in (op.alpha, op.beta, op.bias))

    def normalise(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        x, squares, result = elements
        x = body.widen(x, squares.type)
        share = body.mul(body.like(alpha / size, squares), squares)
        base = body.add(body.like(bias, squares), share)
        return body.cast(body.div(x, body.pow(base, body.like(beta, base))), result.type, False)

    return kernel.map(normalise, x, squares)
