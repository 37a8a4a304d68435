"""
Derivatives of pooling.

The adjoint of a maximum goes to where it stands in the window; equal maxima share it evenly. Windows that lie side by
side and cover the image need no more than repetition; others overlap, and their adjoints are added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import NCHW, channel_axis, tensor_of
from penstock.passes.graph.gradients.code import AdjointCode, Term, gradient, refuse_other_layouts
from penstock.passes.graph.gradients.geometry import padded, spread
from penstock.passes.graph.gradients.rules_contraction import ConvGeometry, adjoint_of_image
from penstock.runtime.interpreter.graph.window import window_sizes


@dataclass(frozen=True)
class _Windows:
    """The places of a sliding window."""

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
        """The number of places along each spatial dimension."""
        return self.op.result_type.get_shape()[self.first : self.first + len(self.kernel)]

    @property
    def are_tiles(self) -> bool:
        """Whether the windows lie side by side and cover the image."""
        tiled = [count * size for count, size in zip(self.counts, self.kernel, strict=True)]
        plain = not any(self.op.pads.get_values()) and set(self.op.dilations.get_values()) == {1}
        return plain and list(self.op.strides.get_values()) == list(self.kernel) and tiled == list(self.size)

    def all_dims(self, spatial: Sequence[int], other: int) -> list[int]:
        """One entry for each dimension of the image: `spatial` ones, and `other` for the rest."""
        rest = self.op.result_type.get_num_dims() - self.first - len(spatial)
        return [*[other] * self.first, *spatial, *[other] * rest]

    @property
    def split_axes(self) -> list[int]:
        """The dimensions within the window, where each spatial one is split into places and what is in a window."""
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

    def offsets(self) -> Iterator[list[int]]:
        """For each element of a window, in row-major order, where it is from the first of its padded dimension."""
        for tap in product(*(range(size) for size in self.kernel)):
            yield [at * step for at, step in zip(tap, self.op.dilations.get_values(), strict=True)]


@gradient(graph.AveragePoolOp)
def average_pool(code: AdjointCode, op: graph.AveragePoolOp) -> None:
    """The seed divided by the elements that count, added to every element of the window."""
    refuse_other_layouts(op, op.layout.data)
    windows = _Windows(op)
    counts = window_sizes(op, tensor_of(op.x).get_shape())

    def contribution() -> Term:
        if counts.min() == counts.max():
            share = code.seed * (1 / float(counts.flat[0]))
        else:
            element = numpy_dtype(op.result_type.element_type)
            share = code.seed / code.array(counts.astype(element), "window_sizes")
        if windows.are_tiles:
            return windows.each(share).expand(windows.split_shape).reshape(tensor_of(op.x).get_shape())
        channels = op.result_type.get_shape()[channel_axis(op.layout.data, op.result_type.get_num_dims())]
        ones = [channels, 1, *windows.kernel] if op.layout.data == NCHW else [*windows.kernel, 1, channels]
        geometry = ConvGeometry(
            size=windows.size,
            kernel=windows.kernel,
            strides=op.strides.get_values(),
            dilations=op.dilations.get_values(),
            before=op.pads.get_values()[: len(windows.kernel)],
            group=channels,
        )
        return adjoint_of_image(share, code.number(1.0, share.element_type).expand(ones), geometry, op.layout.data)

    code.add(op.x, contribution)


@gradient(graph.MaxPoolOp)
def max_pool(code: AdjointCode, op: graph.MaxPoolOp) -> None:
    """The seed for the largest elements of each window."""
    refuse_other_layouts(op, op.layout.data)
    windows = _Windows(op)
    code.add(op.x, lambda: _of_tiles(code, windows) if windows.are_tiles else _of_overlapping(code, windows))


def _of_tiles(code: AdjointCode, windows: _Windows) -> Term:
    x = code.term(windows.op.x).reshape(windows.split_shape)
    largest = x.with_(graph.EqualOp, windows.each(code.term(windows.op.result))).as_number(x)
    share = windows.each(code.seed) / largest.sum(windows.split_axes)
    return (largest * share).reshape(tensor_of(windows.op.x).get_shape())


def _of_overlapping(code: AdjointCode, windows: _Windows) -> Term:
    """Tap by tap: the elements of all windows at one place in them, and their shares put back there."""
    op = windows.op
    x, y = code.term(op.x), code.term(op.result)
    strides, pads, rank = op.strides.get_values(), op.pads.get_values(), len(windows.kernel)
    reach = [
        (count - 1) * stride + (size - 1) * dilation + 1
        for count, stride, size, dilation in zip(
            windows.counts, strides, windows.kernel, op.dilations.get_values(), strict=True
        )
    ]
    before = list(pads[:rank])
    after = [total - size - low for total, size, low in zip(reach, windows.size, before, strict=True)]
    # What no window reaches is cut off here and grows back, as zeros, at the end.
    image = padded(x, windows.all_dims(before, 0), windows.all_dims(after, 0), -math.inf)
    masks = [
        code.emit(
            graph.SliceOp(
                image.value,
                starts=windows.all_dims(offset, 0),
                sizes=y.shape,
                steps=windows.all_dims(strides, 1),
            )
        )
        .with_(graph.EqualOp, y)
        .as_number(x)
        for offset in windows.offsets()
    ]
    share = code.seed / _sum(masks)
    terms: list[Term] = []
    for offset, mask in zip(windows.offsets(), masks, strict=True):
        apart = spread(mask * share, windows.all_dims(strides, 1))
        extents = apart.shape[windows.first : windows.first + rank]
        low = [at - pad for at, pad in zip(offset, before, strict=True)]
        high = [size - at - extent for size, at, extent in zip(windows.size, low, extents, strict=True)]
        terms.append(padded(apart, windows.all_dims(low, 0), windows.all_dims(high, 0)))
    return _sum(terms)


def _sum(terms: Sequence[Term]) -> Term:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@gradient(graph.GlobalAveragePoolOp)
def global_average_pool(code: AdjointCode, op: graph.GlobalAveragePoolOp) -> None:
    """The seed divided by the number of elements, everywhere."""
    refuse_other_layouts(op, op.layout.data)
    shape = tensor_of(op.x).get_shape()
    elements = np.prod(shape) / np.prod(op.result_type.get_shape())
    code.add(op.x, lambda: (code.seed * (1 / float(elements))).expand(shape))


@gradient(graph.GlobalMaxPoolOp)
def global_max_pool(code: AdjointCode, op: graph.GlobalMaxPoolOp) -> None:
    """The seed for the largest elements of each channel."""
    refuse_other_layouts(op, op.layout.data)
    x, y = code.term(op.x), code.term(op.result)
    axes = [dim for dim in range(len(y.shape)) if dim not in (0, channel_axis(op.layout.data, len(y.shape)))]

    def contribution() -> Term:
        largest = x.with_(graph.EqualOp, y).as_number(x)
        return largest * (code.seed / largest.sum(axes))

    code.add(op.x, contribution)
