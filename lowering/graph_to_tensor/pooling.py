# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows: a reduction whose window is a shape-only operand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, IndexType
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import is_unsigned
from penstock.dialects.graph.layout import spatial_dims
from penstock.lowering.accumulation import MAX, SUM, Reduction, accumulate
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import (
    element_of,
    loops,
    shape_of,
    signless,
    windowed,
)


@dataclass(frozen=True)
class WindowDim:
    """The windows along one spatial dim: `places` of `taps` elements, `stride` and `dilation` apart."""

    extent: int
    """Elements of the input."""
    places: int
    taps: int
    stride: int
    dilation: int
    low: int
    high: int
    """Padding before and after, as the op says."""

    @property
    def reach(self) -> int:
        """The padding after that the last window needs: above `high` if it is partly out of bounds (`ceil_mode`)."""
        last = (self.places - 1) * self.stride + (self.taps - 1) * self.dilation + 1
        return max(self.high, last - self.extent - self.low)

    def valid(self, include_padding: bool) -> tuple[int, int]:
        """The positions, counted from the first element of the input, whose elements count."""
        return (-self.low, self.extent + self.high) if include_padding else (0, self.extent)

    def counts(self, include_padding: bool) -> list[int]:
        """How many elements of each window count."""
        low, high = self.valid(include_padding)
        return [
            sum(low <= place * self.stride - self.low + tap * self.dilation < high for tap in range(self.taps))
            for place in range(self.places)
        ]


def window_dims(op: graph.PoolOp) -> list[WindowDim]:
    """The windows of a pooling op along each spatial dim."""
    rank = len(op.kernel_shape.get_values())
    first = _first_spatial(op)
    pads = op.pads.get_values()
    return [
        WindowDim(
            shape_of(op.x)[first + dim],
            shape_of(op.result)[first + dim],
            op.kernel_shape.get_values()[dim],
            op.strides.get_values()[dim],
            op.dilations.get_values()[dim],
            pads[dim],
            pads[rank + dim],
        )
        for dim in range(rank)
    ]


def _first_spatial(op: graph.PoolOp) -> int:
    return spatial_dims(op.layout.data, len(shape_of(op.x))).start


def _pool(kernel: KernelBuilder, op: graph.PoolOp, reduction: Reduction) -> SSAValue:
    dims, first = window_dims(op), _first_spatial(op)
    element, unsigned = signless(element_of(op.x)), is_unsigned(element_of(op.x))
    neutral = reduction.start(element, unsigned)
    padded = kernel.pad_spatial(
        kernel.value(op.x),
        first,
        [dim.low for dim in dims],
        [dim.reach for dim in dims],
        neutral,
    )
    shape = shape_of(op.result)
    every = loops(len(shape) + len(dims))
    whole, taps = every[: len(shape)], every[len(shape) :]
    end = first + len(dims)
    read = windowed(whole[first:end], taps, [dim.stride for dim in dims], [dim.dilation for dim in dims])
    window = kernel.empty([dim.taps for dim in dims], element, name="window")
    return accumulate(
        kernel,
        reduction,
        element,
        [(padded, [*whole[:first], *read, *whole[end:]])],
        shape,
        len(dims),
        ranges=[(window, taps)],
        unsigned=unsigned,
    )


@lowers(graph.MaxPoolOp)
def max_pool(kernel: KernelBuilder, op: graph.MaxPoolOp) -> SSAValue:
    """The largest of each window; the padding is below every number."""
    return _pool(kernel, op, MAX)


@lowers(graph.AveragePoolOp)
def average_pool(kernel: KernelBuilder, op: graph.AveragePoolOp) -> SSAValue:
    """The sum of each window, then a division by the number of its elements that count."""
    kernel.define(op.result, _pool(kernel, op, SUM))
    dims, first = window_dims(op), _first_spatial(op)
    include = bool(op.count_include_pad)
    counts = [dim.counts(include) for dim in dims]

    def mean(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        (total,) = elements
        if all(len(set(each)) == 1 for each in counts):
            return body.div(total, body.like(math.prod(each[0] for each in counts), total))
        element = total.type
        assert isinstance(element, AnyFloat)
        return body.div(total, body.from_index(_size(body, dims, counts, first, include), element))

    return kernel.pointwise([op.result], op.result, mean)


def _size(
    body: Body,
    dims: Sequence[WindowDim],
    counts: Sequence[Sequence[int]],
    first: int,
    include_padding: bool,
) -> SSAValue:
    """How many elements of the window at the loops' place count, as an index."""
    fixed = math.prod(each[0] for each in counts if len(set(each)) == 1)
    size = None if fixed == 1 else body.constant(fixed, IndexType())
    for number, (dim, each) in enumerate(zip(dims, counts, strict=True)):
        if len(set(each)) > 1:
            count = _count(body, dim, body.index(first + number), include_padding)
            size = count if size is None else body.mul(size, count)
    assert size is not None
    return size


def _count(body: Body, dim: WindowDim, place: SSAValue, include_padding: bool) -> SSAValue:
    """
    min(taps, ceil((end - s) / dilation)) - max(0, ceil((begin - s) / dilation)), s being where the window
    starts and [begin, end) what counts.
    """
    begin, end = dim.valid(include_padding)
    start = place
    if dim.stride != 1:
        start = body.mul(start, body.like(dim.stride, place))
    if dim.low != 0:
        start = body.sub(start, body.like(dim.low, place))

    def first_tap_from(position: int) -> SSAValue:
        distance = body.sub(body.like(position, place), start)
        if dim.dilation == 1:
            return distance
        return body.emit(arith.CeilDivSIOp(distance, body.like(dim.dilation, place)))

    last = body.min(first_tap_from(end), body.like(dim.taps, place))
    return body.sub(last, body.max(first_tap_from(begin), body.like(0, place)))
