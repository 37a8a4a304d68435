# SPDX-License-Identifier: Apache-2.0
"""Convolution and pooling: windows as strided views, contractions as matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from penstock.dialects.graph.layout import (
    NCHW,
    NHWC,
    image_layout,
    parse_layout,
    spatial_dims,
    spatial_sizes,
    with_channels,
)
from penstock.dialects.graph.window import (
    AveragePoolOp,
    ConvOp,
    GlobalAveragePoolOp,
    GlobalMaxPoolOp,
    GlobalPoolOp,
    MaxPoolOp,
    PoolOp,
)
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.accumulator import in_accumulator, widened
from penstock.runtime.interpreter.graph.reduction import extreme
from penstock.runtime.interpreter.graph.registry import implements
from penstock.runtime.interpreter.graph.shape import pad_with, transformed
from penstock.runtime.interpreter.values import in_type


class Windows:
    """
    The positions of the sliding window of `op` in a padded input.

    `x` has the layout given; `counts` are the numbers of positions. Where windows reach beyond the
    padding (`ceil_mode`), `x` is padded further, with the same `filler`.
    """

    def __init__(
        self,
        x: Array,
        op: ConvOp | PoolOp,
        layout: str,
        counts: Sequence[int],
        filler: object,
    ):
        kernel = op.kernel_shape if isinstance(op, ConvOp) else op.kernel_shape.get_values()
        strides, pads, dilations = (each.get_values() for each in (op.strides, op.pads, op.dilations))
        self.kernel, self.strides, self.dilations = kernel, strides, dilations
        self.counts = counts
        rank = len(kernel)
        self.first = spatial_dims(layout, x.ndim).start
        """The first spatial dimension."""
        widths = [(0, 0)] * x.ndim
        for dim in range(rank):
            size = x.shape[self.first + dim]
            reach = (counts[dim] - 1) * strides[dim] + (kernel[dim] - 1) * dilations[dim] + 1
            after = max(pads[rank + dim], reach - size - pads[dim])
            widths[self.first + dim] = (pads[dim], after)
        self.padded = pad_with(x, widths, filler)

    def taps(self) -> Iterator[Array]:
        """For each element of the window, in row-major order: that element of every window."""
        for tap in product(*(range(size) for size in self.kernel)):
            yield self.tap(tap)

    def tap(self, tap: Sequence[int]) -> Array:
        """One element of every window: the shape of the input with the counts as spatial sizes."""
        spatial = tuple(
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, dilation, count, stride in zip(tap, self.dilations, self.counts, self.strides, strict=True)
        )
        return self.padded[(slice(None),) * self.first + spatial]

    def view(self) -> Array:
        """
        All windows as a view: [N, C, kernel..., counts...], or [N, counts..., kernel..., C].
        """
        shape, steps = self.padded.shape, self.padded.strides
        rank, first = len(self.kernel), self.first
        spatial = steps[first : first + rank]
        over = tuple(step * stride for step, stride in zip(spatial, self.strides, strict=True))
        within = tuple(step * dilation for step, dilation in zip(spatial, self.dilations, strict=True))
        if first == 2:
            sizes = (*shape[:2], *self.kernel, *self.counts)
            strides = (*steps[:2], *within, *over)
        else:
            sizes = (shape[0], *self.counts, *self.kernel, shape[-1])
            strides = (steps[0], *over, *within, steps[-1])
        return np.lib.stride_tricks.as_strided(self.padded, sizes, strides, writeable=False)


@implements(ConvOp)
@in_accumulator
def conv(op: ConvOp, operands: Sequence[Array]) -> Array:
    """
    Convolution: the windows are copied into a matrix, which a matrix product contracts (im2col).

    Windows of one element need no copy beyond their stride; a depthwise convolution, whose contraction is
    over the window alone, is a sum over its elements instead.
    """
    x, w = operands[:2]
    layout = op.layout.data
    counts = spatial_sizes(op.result_type, layout)
    images, plain = image_layout(layout, x.ndim), image_layout(NHWC, len(counts) + 2)
    if op.filters is not None:
        spatial = "".join(plain.dims[1:-1])
        x, w = transformed(x, images, plain), transformed(w, op.filter_layout, parse_layout(f"{spatial}IO"))
        layout = NHWC
    inputs, outputs = (w.shape[1], w.shape[0]) if layout == NCHW else w.shape[-2:]
    x, w, total = widened(op, x, w, inputs * math.prod(op.kernel_shape))
    windows = Windows(x, op, layout, counts, x.dtype.type(0))
    group = op.group.value.data
    if inputs == 1 and outputs == group and group > 1:
        result = _depthwise(windows, w, layout)
    elif layout == NCHW:
        result = _channels_first(windows, w, group)
    else:
        result = _channels_last(windows, w, group)
    result = in_type(result.reshape(with_channels(x.shape[0], outputs, counts, layout)), total)
    if len(operands) > 2:
        bias = operands[2].reshape(-1)
        # in place: the result of a contraction is always a fresh array
        result += bias.reshape(-1, *[1] * len(counts)) if layout == NCHW else bias
    return result if op.filters is None else transformed(result, plain, images)


def _depthwise(windows: Windows, w: Array, layout: str) -> Array:
    """One filter a channel: y = sum over the window of element times filter."""
    rank = len(windows.kernel)
    total: Array | None = None
    for tap in product(*(range(size) for size in windows.kernel)):
        # [C, 1, ..., 1] or [C]
        filters = w[(slice(None), 0, *tap)] if layout == NCHW else w[(*tap, 0)]
        term = windows.tap(tap) * (filters.reshape(-1, *[1] * rank) if layout == NCHW else filters)
        total = term if total is None else np.add(total, term, out=total)
    assert total is not None
    return total


def _channels_first(windows: Windows, w: Array, group: int) -> Array:
    """[N, g, O/g, places] from filters [O, C/g, kernel...] and windows [N, C, kernel..., places...]."""
    batch, places = windows.padded.shape[0], math.prod(windows.counts)
    filters = w.reshape(group, w.shape[0] // group, -1)
    columns = windows.view().reshape(batch, group, filters.shape[-1], places)
    return np.matmul(filters, columns)


def _channels_last(windows: Windows, w: Array, group: int) -> Array:
    """[N * places, O] from filters [kernel..., C/g, O] and windows [N, places..., kernel..., C]."""
    batch, places = windows.padded.shape[0], math.prod(windows.counts)
    inputs, outputs = w.shape[-2:]
    taps = math.prod(windows.kernel)
    if group == 1:
        return np.matmul(
            windows.view().reshape(batch * places, taps * inputs),
            w.reshape(taps * inputs, outputs),
        )
    view = windows.view().reshape(batch * places, taps, group, inputs)
    rows = view.transpose(2, 0, 1, 3).reshape(group, batch * places, taps * inputs)
    filters = w.reshape(taps * inputs, group, outputs // group).transpose(1, 0, 2)
    return np.matmul(rows, filters).transpose(1, 0, 2)


def _pool(op: PoolOp, x: Array, filler: object, combine: Callable[[Array, Array], Any]) -> Array:
    """The elements of each window combined into one, in row-major order."""
    layout = op.layout.data
    windows = Windows(x, op, layout, spatial_sizes(op.result_type, layout), filler)
    taps = windows.taps()
    total = next(taps).copy()
    for tap in taps:
        combine(total, tap)
    return total


@implements(MaxPoolOp)
def max_pool(op: MaxPoolOp, operands: Sequence[Array]) -> Array:
    """The largest element of each window."""
    (x,) = operands
    return _pool(op, x, extreme(x.dtype, -1), lambda total, tap: np.maximum(total, tap, out=total))


@implements(AveragePoolOp)
@in_accumulator
def average_pool(op: AveragePoolOp, operands: Sequence[Array]) -> Array:
    """The sum of each window divided by the number of elements that count."""
    (x,) = operands
    total = _pool(op, x, x.dtype.type(0), lambda total, tap: np.add(total, tap, out=total))
    return total / window_sizes(op, x.shape).astype(x.dtype)


def window_sizes(op: AveragePoolOp, input_shape: Sequence[int]) -> Array:
    """
    How many elements of each window count, in a shape that broadcasts to the result: those inside the
    input, or, with `count_include_pad`, inside the input or its padding.
    """
    layout, pads = op.layout.data, op.pads.get_values()
    first = spatial_dims(layout, len(input_shape)).start
    rank = len(pads) // 2
    sizes = np.ones([1] * len(input_shape), np.int64)
    for dim in range(rank):
        extent = input_shape[first + dim]
        starts = np.arange(op.result_type.get_shape()[first + dim]) * op.strides.get_values()[dim]
        offsets = np.arange(op.kernel_shape.get_values()[dim]) * op.dilations.get_values()[dim]
        at = starts[:, None] + offsets - pads[dim]
        low, high = (-pads[dim], extent + pads[rank + dim]) if op.count_include_pad else (0, extent)
        count = np.count_nonzero((at >= low) & (at < high), axis=1)
        along = [1] * len(input_shape)
        along[first + dim] = -1
        sizes = sizes * count.reshape(along)
    return sizes


@implements(GlobalAveragePoolOp, GlobalMaxPoolOp)
@in_accumulator
def global_pool(op: GlobalPoolOp, operands: Sequence[Array]) -> Array:
    """The mean or the largest element of each channel."""
    (x,) = operands
    axes = tuple(spatial_dims(op.layout.data, x.ndim))
    if isinstance(op, GlobalMaxPoolOp):
        return np.maximum.reduce(x, axis=axes, keepdims=True)
    total = np.add.reduce(x, axis=axes, keepdims=True, dtype=x.dtype)
    return total / x.dtype.type(math.prod(x.shape[axis] for axis in axes))
