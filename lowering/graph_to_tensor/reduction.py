"""Reductions, pooling over all places, and local response normalisation: sums and their kin."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.dialects.graph.base import is_unsigned
from penstock.dialects.graph.layout import spatial_dims
from penstock.lowering.graph_to_tensor.body import Body, highest, lowest
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, Reduction, lowers
from penstock.lowering.graph_to_tensor.shapes import Dims, element_of, loops, shape_of

SUM = Reduction(lambda element, unsigned: 0, Body.add)
PRODUCT = Reduction(lambda element, unsigned: 1, Body.mul)
MAX = Reduction(lowest, Body.max)
MIN = Reduction(highest, Body.min)
SUM_OF_POWERS = Reduction(lambda element, unsigned: 0, lambda body, total, x: body.add(total, body.exp(x)))

REDUCTIONS: dict[type[graph.ReductionOp], Reduction] = {
    graph.ReduceSumOp: SUM,
    graph.ReduceMeanOp: SUM,
    graph.ReduceMaxOp: MAX,
    graph.ReduceMinOp: MIN,
    graph.ReduceProdOp: PRODUCT,
}


def lower_reduction(kernel: KernelBuilder, op: graph.ReductionOp) -> SSAValue:
    """A fill and a generic whose reduction loops are the axes; the mean then divides."""
    x, axes = kernel.value(op.x), op.axes.get_values()
    unsigned = is_unsigned(element_of(op.x))
    total = kernel.reduce(x, axes, REDUCTIONS[type(op)], keep=bool(op.keepdims), unsigned=unsigned)
    if not isinstance(op, graph.ReduceMeanOp):
        return total
    return _divided(kernel, op.result, total, math.prod(shape_of(x)[axis] for axis in axes))


for _op_class in REDUCTIONS:
    lowers(_op_class)(lower_reduction)


def _divided(kernel: KernelBuilder, result: SSAValue, total: SSAValue, count: int) -> SSAValue:
    kernel.define(result, total)
    return kernel.pointwise([result], result, lambda body, xs: body.div(xs[0], body.like(count, xs[0])))


def _all_places(kernel: KernelBuilder, op: graph.GlobalPoolOp, reduction: Reduction) -> SSAValue:
    axes = spatial_dims(op.layout.data, len(shape_of(op.x)))
    unsigned = is_unsigned(element_of(op.x))
    return kernel.reduce(kernel.value(op.x), axes, reduction, keep=True, unsigned=unsigned)


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
    squares = kernel.generic(
        [(padded, read), window],
        (kernel.fill(shape, element, 0), whole),
        1,
        lambda body, elements: body.add(elements[2], body.mul(elements[0], elements[0])),
    )
    alpha, beta, bias = (each.value.data for each in (op.alpha, op.beta, op.bias))

    def normalise(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        x, squares, _ = elements
        share = body.mul(body.like(alpha / size, squares), squares)
        base = body.add(body.like(bias, squares), share)
        return body.div(x, body.pow(base, body.like(beta, base)))

    places = loops(len(shape))
    output = kernel.empty(shape, element)
    return kernel.generic([(x, places), (squares, places)], (output, places), 0, normalise)
