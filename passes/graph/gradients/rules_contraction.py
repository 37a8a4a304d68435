# SPDX-License-Identifier: Apache-2.0
"""
Derivatives of matrix products and convolutions, which are matrix products and convolutions again, and of pooling.

The adjoint of a maximum goes to its position in the window; equal maxima share it evenly. Windows that are side by
side and cover the image need no more than repetition; others overlap, and their adjoints are added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import NCHW, channel_axis, tensor_of
from penstock.dialects.graph.sizes import is_known
from penstock.passes.graph.contractions import ContractionOp
from penstock.passes.graph.gradients.code import (
    AdjointCode,
    Term,
    derivative,
    gradient,
    refuse,
    refuse_other_layouts,
)
from penstock.runtime.interpreter.graph.window import window_sizes


def _transposed(matrix: Term) -> Term:
    """The last two dimensions exchanged."""
    rank = len(matrix.shape)
    return matrix.transpose([*range(rank - 2), rank - 1, rank - 2])


def _refuse_accumulator(op: ContractionOp) -> None:
    if op.accumulator is not None:
        refuse(op, f"that accumulates in {op.accumulator}", "differentiate before the element types are narrowed")


@gradient(graph.MatmulOp)
def matmul(code: AdjointCode, op: graph.MatmulOp) -> None:
    """seed B' and A' seed; a vector is a matrix of one row or column. What was repeated along the batch is summed."""
    _refuse_accumulator(op)
    left, right = tensor_of(op.a).get_shape(), tensor_of(op.b).get_shape()
    row, column = len(left) == 1, len(right) == 1
    a_shape, b_shape = (1, *left) if row else left, (*right, 1) if column else right
    rows, columns, inner = a_shape[-2], b_shape[-1], a_shape[-1]
    batch = code.seed.shape[: len(code.seed.shape) - 2 + row + column]

    def seed() -> Term:
        return code.seed.reshape([*batch, rows, columns])

    def of_a() -> Term:
        found = seed() @ _transposed(code.term(op.b).reshape(b_shape))
        return found.fit(a_shape).reshape(left)

    def of_b() -> Term:
        a = code.term(op.a).reshape(a_shape)
        if len(b_shape) == 2 and len(a_shape) > 2:  # one product whose inner dimension holds the batch
            found = _transposed(a.reshape([-1, inner])) @ seed().reshape([-1, columns])
        else:
            found = _transposed(a) @ seed()
        return found.fit(b_shape).reshape(right)

    code.add(op.a, of_a)
    code.add(op.b, of_b)


@gradient(graph.GemmOp)
def gemm(code: AdjointCode, op: graph.GemmOp) -> None:
    """alpha seed B' and alpha A' seed, with the operands transposed as they were, and beta times the seed."""
    _refuse_accumulator(op)
    alpha, beta = op.alpha.value.data, op.beta.value.data
    trans_a, trans_b = bool(op.trans_a), bool(op.trans_b)

    def product(a: Term, b: Term, trans_a: bool, trans_b: bool) -> Term:
        return code.emit(graph.GemmOp(a.value, b.value, alpha=alpha, trans_a=trans_a, trans_b=trans_b))

    a, b, seed = code.term(op.a), code.term(op.b), code.seed
    code.add(op.a, lambda: product(b, seed, trans_b, True) if trans_a else product(seed, b, False, not trans_b))
    code.add(op.b, lambda: product(seed, a, True, trans_a) if trans_b else product(a, seed, not trans_a, False))
    if op.c is not None:
        c = tensor_of(op.c).get_shape()
        code.add(op.c, lambda: seed.fit(c) if beta == 1 else seed.fit(c) * beta)


@dataclass(frozen=True)
class ConvGeometry:
    """What a convolution says about its spatial dimensions, one entry for each."""

    size: Sequence[int]
    """The sizes of the image."""
    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]
    """The padding before the image. That after it follows from the rest."""
    group: int = 1

    @property
    def reach(self) -> list[int]:
        """The distance from the first to the last element of a window."""
        return [dilation * (size - 1) for size, dilation in zip(self.kernel, self.dilations, strict=True)]

    def after(self, counts: Sequence[int]) -> list[int]:
        """The padding after the image that so many windows reach; negative for elements that are in no window."""
        return [
            reach + stride * (count - 1) + 1 - size - pad
            for reach, stride, count, size, pad in zip(
                self.reach, self.strides, counts, self.size, self.before, strict=True
            )
        ]


def adjoint_of_image(
    seed: Term, filters: Term, geometry: ConvGeometry, layout: str = NCHW, bias: Term | None = None
) -> Term:
    """
    The adjoint of the image of a convolution: the seed, spread apart by the strides, convolved with the filters,
    which have been exchanged (see `adjoint_filters`), plus a bias of each channel (layout "NCHW"). With a window of one
    element, and no bias, the convolution comes first.

    See Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", arXiv:1603.07285, chapter 4.
    """
    rank = len(geometry.size)
    first, rest = (2, 0) if layout == NCHW else (1, 1)
    given: dict[str, Any] = {"group": geometry.group, "layout": layout}
    # With a bias that would round narrow floats twice: after the products, and after the bias.
    is_point = set(geometry.kernel) == {1} and bias is None
    if is_point:
        seed = seed.emit(graph.ConvOp(seed.value, filters.value, **given))
    apart = seed.spread([*[1] * first, *geometry.strides, *[1] * rest], tail=True)
    low = [reach - pad for reach, pad in zip(geometry.reach, geometry.before, strict=True)]
    high = [
        size + reach - extent - before
        for size, reach, extent, before in zip(
            geometry.size, geometry.reach, apart.shape[first : first + rank], low, strict=True
        )
    ]
    if is_point:
        return apart.padded([*[0] * first, *low, *[0] * rest], [*[0] * first, *high, *[0] * rest])
    cut_low, cut_high = ([*[0] * first, *(min(each, 0) for each in side), *[0] * rest] for side in (low, high))
    left = [sum(extents) for extents in zip(apart.shape, cut_low, cut_high, strict=True)]
    if any(is_known(size) and size <= 0 for size in left):
        # Every window is in the padding.
        channels = filters.shape[0] if layout == NCHW else filters.shape[-1]
        sizes = [channels, *geometry.size] if layout == NCHW else [*geometry.size, channels]
        constant = seed.number(0.0) if bias is None else bias.reshape([-1, *[1] * rank])
        return constant.expand([seed.shape[0], *sizes])
    image = apart.padded(cut_low, cut_high)
    return seed.emit(
        graph.ConvOp(
            image.value,
            filters.value,
            None if bias is None else bias.value,
            pads=[max(each, 0) for each in (*low, *high)],
            dilations=geometry.dilations,
            **given,
        )
    )


def adjoint_filters(filters: Term, group: int) -> Term:
    """Filters [O, C / group, window...] as [C, O / group, window...] with the window backwards."""
    outputs, inputs, *window = filters.shape
    spatial = range(2, 2 + len(window))
    if group == 1:
        exchanged = filters.transpose([1, 0, *spatial])
    else:
        exchanged = filters.reshape([group, outputs // group, inputs, *window])
        exchanged = exchanged.transpose([0, 2, 1, *(dim + 1 for dim in spatial)])
        exchanged = exchanged.reshape([group * inputs, outputs // group, *window])
    return exchanged.reversed(spatial)


def adjoint_of_filters(image: Term, seed: Term, geometry: ConvGeometry) -> Term:
    """
    The adjoint of the filters of a convolution: the image convolved with the seed as filters, batch and channels
    exchanged, stride and dilation exchanged. With a window of one element and one group it is a matrix product.
    """
    group, rank = geometry.group, len(geometry.size)
    batch, channels, *_ = image.shape
    outputs, out = seed.shape[1], seed.shape[2:]
    spatial = range(2, 2 + rank)
    if set(geometry.kernel) == {1} and group == 1:
        return _adjoint_of_points(image, seed, geometry)
    if group == 1:
        images = image.transpose([1, 0, *spatial])
    else:
        images = image.reshape([batch, group, channels // group, *geometry.size])
        images = images.transpose([2, 1, 0, *(dim + 1 for dim in spatial)])
        images = images.reshape([channels // group, group * batch, *geometry.size])
    filters = seed.transpose([1, 0, *spatial])
    after = geometry.after(out)
    if any(size + cut <= 0 for size, cut in zip(geometry.size, after, strict=True)):
        # Every window is in the padding.
        return seed.number(0.0).expand([outputs, channels // group, *geometry.kernel])
    images = images.padded([0] * (2 + rank), [0, 0, *(min(each, 0) for each in after)])
    found = image.emit(
        graph.ConvOp(
            images.value,
            filters.value,
            strides=geometry.dilations,
            pads=[*geometry.before, *(max(each, 0) for each in after)],
            dilations=geometry.strides,
            group=group,
        )
    )
    assert found.shape == (channels // group, outputs, *geometry.kernel)
    return found.transpose([1, 0, *spatial])


def _adjoint_of_points(image: Term, seed: Term, geometry: ConvGeometry) -> Term:
    """The adjoint of filters of one element each: the seed times the elements that were read, over all places."""
    rank, counts = len(geometry.size), seed.shape[2:]
    batch_last = [1, 0, *range(2, 2 + rank)]
    image = image.padded([0, 0, *geometry.before], [0, 0, *geometry.after(counts)])
    if image.shape[2:] != counts:
        image = image.slice([0] * (2 + rank), [*image.shape[:2], *counts], [1, 1, *geometry.strides])
    rows, columns = (each.transpose(batch_last).reshape([each.shape[1], -1]) for each in (seed, image))
    found = seed.emit(graph.GemmOp(rows.value, columns.value, trans_b=True))
    return found.reshape([*found.shape, *geometry.kernel])


@gradient(graph.ConvOp)
def conv(code: AdjointCode, op: graph.ConvOp) -> None:
    """Two convolutions, and the sums of the seed over each channel. Another layout than NCHW is left and entered."""
    _refuse_accumulator(op)
    refuse_other_layouts(op, op.layout.data)
    if op.filters is not None:
        refuse(op, f'with filters in the layout "{op.filters.data}"', "differentiate before the pass layout")
    rank, plain = len(op.kernel_shape), op.layout.data == NCHW
    images = list(range(2 + rank)) if plain else [0, rank + 1, *range(1, rank + 1)]
    filters = list(range(2 + rank)) if plain else [rank + 1, rank, *range(rank)]

    def into(value: Term, perm: list[int]) -> Term:
        return value.transpose([perm.index(dim) for dim in range(len(perm))])

    geometry = ConvGeometry(
        size=[tensor_of(op.x).get_shape()[dim] for dim in images[2:]],
        kernel=op.kernel_shape,
        strides=op.strides.get_values(),
        dilations=op.dilations.get_values(),
        before=op.pads.get_values()[:rank],
        group=op.group.value.data,
    )

    def of_image() -> Term:
        exchanged = adjoint_filters(code.term(op.w).transpose(filters), geometry.group)
        return into(adjoint_of_image(code.seed.transpose(images), exchanged, geometry), images)

    def of_filters() -> Term:
        found = adjoint_of_filters(code.term(op.x).transpose(images), code.seed.transpose(images), geometry)
        return into(found, filters)

    code.add(op.x, of_image)
    code.add(op.w, of_filters)
    code.add(op.b, lambda: code.seed.sum([0, *images[2:]], keepdims=False))


@dataclass(frozen=True)
class _Windows:
    """The positions of a sliding window."""

    op: graph.PoolOp

    @property
    def first(self) -> int:
        """The first spatial dimension."""
        return 2 if self.op.layout.data == NCHW else 1

    @property
    def kernel(self) -> Sequence[int]:
        return self.op.kernel_shape.get_values()

    @property
    def size(self) -> Sequence[int]:
        """The spatial sizes of the image."""
        return tensor_of(self.op.x).get_shape()[self.first : self.first + len(self.kernel)]

    @property
    def counts(self) -> Sequence[int]:
        """The number of positions along each spatial dimension."""
        return self.op.result_type.get_shape()[self.first : self.first + len(self.kernel)]

    @property
    def are_tiles(self) -> bool:
        """Whether the windows are side by side and cover the image."""
        tiled = [count * size for count, size in zip(self.counts, self.kernel, strict=True)]
        plain = not any(self.op.pads.get_values()) and set(self.op.dilations.get_values()) == {1}
        return plain and list(self.op.strides.get_values()) == list(self.kernel) and tiled == list(self.size)

    def all_dims(self, spatial: Sequence[int], other: int) -> list[int]:
        """One entry for each dimension of the image: `spatial` ones, and `other` for the rest."""
        rest = self.op.result_type.get_num_dims() - self.first - len(spatial)
        return [*[other] * self.first, *spatial, *[other] * rest]

    @property
    def split_axes(self) -> list[int]:
        """The dimensions within the window, where each spatial one is split into positions and what is in a window."""
        return [self.first + 1 + 2 * dim for dim in range(len(self.kernel))]

    @property
    def split_shape(self) -> list[int]:
        """For windows that are tiles: the shape of the image split in this way."""
        shape = self.op.result_type.get_shape()
        pairs = [size for pair in zip(self.counts, self.kernel, strict=True) for size in pair]
        return [*shape[: self.first], *pairs, *shape[self.first + len(self.kernel) :]]

    def each(self, value: Term) -> Term:
        """A value of each window in a shape that broadcasts to that of the split image."""
        sizes = [size for count in self.counts for size in (count, 1)]
        return value.reshape([*value.shape[: self.first], *sizes, *value.shape[self.first + len(self.kernel) :]])

    def offsets(self) -> list[list[int]]:
        """For each element of a window, in row-major order, where it is from the first of its padded dimension."""
        taps = product(*(range(size) for size in self.kernel))
        return [[at * step for at, step in zip(tap, self.op.dilations.get_values(), strict=True)] for tap in taps]

    def geometry(self, group: int = 1) -> ConvGeometry:
        """That of a convolution with these windows."""
        return ConvGeometry(
            size=self.size,
            kernel=self.kernel,
            strides=self.op.strides.get_values(),
            dilations=self.op.dilations.get_values(),
            before=self.op.pads.get_values()[: len(self.kernel)],
            group=group,
        )


@derivative(graph.AveragePoolOp)
def average_pool(code: AdjointCode, op: graph.AveragePoolOp) -> Term:
    """The seed divided by the elements that count, added to every element of the window."""
    refuse_other_layouts(op, op.layout.data)
    windows = _Windows(op)
    counts = window_sizes(op, tensor_of(op.x).get_shape())
    if counts.min() == counts.max():
        share = code.seed * (1 / float(counts.flat[0]))
    else:
        element = numpy_dtype(op.result_type.element_type)
        share = code.seed / code.array(counts.astype(element), "window_sizes")
    if windows.are_tiles:
        return windows.each(share).expand(windows.split_shape).reshape(tensor_of(op.x).get_shape())
    channels = op.result_type.get_shape()[channel_axis(op.layout.data, op.result_type.get_num_dims())]
    ones = [channels, 1, *windows.kernel] if op.layout.data == NCHW else [*windows.kernel, 1, channels]
    filters = share.number(1.0).expand(ones)
    return adjoint_of_image(share, filters, windows.geometry(channels), op.layout.data)


@derivative(graph.MaxPoolOp)
def max_pool(code: AdjointCode, op: graph.MaxPoolOp) -> Term:
    """The seed for the largest elements of each window."""
    refuse_other_layouts(op, op.layout.data)
    windows = _Windows(op)
    return _of_tiles(code, windows) if windows.are_tiles else _of_overlapping(code, windows)


def _of_tiles(code: AdjointCode, windows: _Windows) -> Term:
    x = code.term(windows.op.x).reshape(windows.split_shape)
    largest = x.apply("equal", windows.each(code.term(windows.op.result))).cast(x.element_type)
    share = windows.each(code.seed) / largest.sum(windows.split_axes)
    return (largest * share).reshape(tensor_of(windows.op.x).get_shape())


def _of_overlapping(code: AdjointCode, windows: _Windows) -> Term:
    """Tap by tap: the elements of all windows at one position in them, and their shares put back there."""
    x, y, geometry = code.term(windows.op.x), code.term(windows.op.result), windows.geometry()
    steps = windows.all_dims(geometry.strides, 1)
    # What no window reaches is cut off here and grows back, as zeros, at the end.
    before, after = windows.all_dims(geometry.before, 0), windows.all_dims(geometry.after(windows.counts), 0)
    image = x.padded(before, after, -math.inf)
    masks = [
        image.slice(windows.all_dims(offset, 0), y.shape, steps).apply("equal", y).cast(x.element_type)
        for offset in windows.offsets()
    ]
    share = code.seed / sum(masks[1:], masks[0])
    terms: list[Term] = []
    for offset, mask in zip(windows.offsets(), masks, strict=True):
        apart = (mask * share).spread(steps)
        low = [at - pad for at, pad in zip(windows.all_dims(offset, 0), before, strict=True)]
        high = [size - at - extent for size, at, extent in zip(x.shape, low, apart.shape, strict=True)]
        terms.append(apart.padded(low, high))
    return sum(terms[1:], terms[0])


@derivative(graph.GlobalAveragePoolOp)
def global_average_pool(code: AdjointCode, op: graph.GlobalAveragePoolOp) -> Term:
    """The seed divided by the number of elements, everywhere."""
    refuse_other_layouts(op, op.layout.data)
    shape = tensor_of(op.x).get_shape()
    elements = np.prod(shape) / np.prod(op.result_type.get_shape())
    return (code.seed * (1 / float(elements))).expand(shape)


@derivative(graph.GlobalMaxPoolOp)
def global_max_pool(code: AdjointCode, op: graph.GlobalMaxPoolOp) -> Term:
    """The seed for the largest elements of each channel."""
    refuse_other_layouts(op, op.layout.data)
    x, y = code.term(op.x), code.term(op.result)
    axes = [dim for dim in range(len(y.shape)) if dim not in (0, channel_axis(op.layout.data, len(y.shape)))]
    largest = x.apply("equal", y).cast(x.element_type)
    return largest * (code.seed / largest.sum(axes))
