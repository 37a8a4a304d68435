# SPDX-License-Identifier: Apache-2.0
"""Convolutions, products and poolings of TOSA: images are NHWC, filters OHWI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xdsl.dialects.builtin import i32

from penstock.dialects import graph
from penstock.dialects.graph.base import is_float
from penstock.dialects.weights import Array
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import ints_of, result_of
from penstock.lowering.from_mlir.tosa.numbers import clamped, less, points, reshaped, scaled, tosa, transposed
from penstock.passes.graph.terms import Term


def _sides(pads: Sequence[int]) -> tuple[list[int], list[int]]:
    """What stands before each dimension, and what after it, of pairs of these."""
    return list(pads[0::2]), list(pads[1::2])


def _channels_first(rank: int) -> list[int]:
    return [0, rank + 1, *range(1, rank + 1)]


def _channels_last(rank: int) -> list[int]:
    return [0, *range(2, rank + 2), 1]


@dataclass(frozen=True)
class _Operands:
    """Images or rows, filters, and the bias of each channel."""

    x: Term
    w: Term
    b: Term
    zero: int
    """The zero point of `x`, where it is not subtracted yet."""

    def folded(self, code: Any, w: Term) -> Term:
        """The bias with the zero point in it, so that what is stored is multiplied; outputs come first in `w`."""
        if self.zero == 0:
            return self.b
        sums = code.known(w).astype(np.int64).reshape(w.shape[0], -1).sum(1)
        return self.b - code.array((sums * self.zero).astype(np.int32), "zero_point")


def _operands(code: Any, op: ForeignOp, xs: Sequence[Term]) -> _Operands:
    x, w, b, *_ = xs
    zero, zero_of_w = points(code, op, xs, 3, "input_zp", "weight_zp")
    b = b.expand([result_of(op).get_shape()[-1]])
    if zero_of_w == 0 and code.known(w) is not None and b.element_type == i32:
        return _Operands(x, w, b, zero)
    return _Operands(less(x, zero, i32), less(w, zero_of_w, i32), b, 0)


def _convolved(
    code: Any,
    op: ForeignOp,
    given: _Operands,
    w: Term,
    group: int = 1,
    *,
    pads: tuple[list[int], list[int]] | None = None,
    **window: Any,
) -> Term:
    """Of images NHWC with filters OIHW."""
    x, rank, element = given.x, len(given.x.shape) - 2, result_of(op).element_type
    wide = None if element == x.element_type == w.element_type else element
    low, high = pads or ([0] * rank, [0] * rank)
    if given.zero != 0:
        x, low, high = x.padded([0, *low, 0], [0, *high, 0], given.zero), [0] * rank, [0] * rank
    images, bias = x.transpose(_channels_first(rank)), given.folded(code, w)
    conv = graph.ConvOp(images.value, w.value, bias.value, group=group, accumulator=wide, pads=[*low, *high], **window)
    return code.emit(conv).transpose(_channels_last(rank))


def _window(op: ForeignOp) -> dict[str, Any]:
    return {
        "strides": ints_of(op, "stride"),
        "pads": _sides(ints_of(op, "pad")),
        "dilations": ints_of(op, "dilation"),
    }


@tosa("conv2d", "conv3d")
def _conv(code: Any, op: ForeignOp, *xs: Term) -> Term:
    given = _operands(code, op, xs)
    return _convolved(code, op, given, transposed(code, given.w, _channels_first(len(xs[0].shape) - 2)), **_window(op))


@tosa("depthwise_conv2d")
def _depthwise(code: Any, op: ForeignOp, *xs: Term) -> Term:
    """With filters [H, W, C, M]: M of each channel."""
    given = _operands(code, op, xs)
    height, width, channels, times = given.w.shape
    filters = reshaped(code, transposed(code, given.w, [2, 3, 0, 1]), [channels * times, 1, height, width])
    return _convolved(code, op, given, filters, channels, **_window(op))


@tosa("transpose_conv2d")
def _transpose_conv(code: Any, op: ForeignOp, *xs: Term) -> Term:
    """A convolution of images with zeros between their elements by filters that are backwards."""
    given = _operands(code, op, xs)
    x = less(given.x, given.zero, i32)
    around, steps = _sides(ints_of(op, "out_pad")), ints_of(op, "stride")
    low, high = ([size - 1 + more for size, more in zip(given.w.shape[1:3], side, strict=True)] for side in around)
    grown = x.spread([1, *steps, 1]).padded([0, *low, 0], [0, *high, 0])
    filters = transposed(code, given.w.reversed([1, 2]), [0, 3, 1, 2])
    return _convolved(code, op, replace(given, x=grown, zero=0), filters)


@tosa("fully_connected")
def _fully_connected(code: Any, op: ForeignOp, *xs: Term) -> Term:
    given = _operands(code, op, xs)
    return _product(code, op, given.x, transposed(code, given.w, [1, 0])) + given.folded(code, given.w)


def _product(code: Any, op: ForeignOp, a: Term, b: Term) -> Term:
    element = result_of(op).element_type
    wide = None if element == a.element_type == b.element_type else element
    return code.emit(graph.MatmulOp(a.value, b.value, accumulator=wide))


@tosa("matmul")
def _matmul(code: Any, op: ForeignOp, *xs: Term) -> Term:
    zeros = points(code, op, xs, 2, "a_zp", "b_zp")
    a, b = (less(x, zero, i32) for x, zero in zip(xs[:2], zeros, strict=True))
    return _product(code, op, a, b)


@tosa("max_pool2d")
def _max_pool(code: Any, op: ForeignOp, x: Term) -> Term:
    return _pooled(code, op, graph.MaxPoolOp, x)


def _pooled(code: Any, op: ForeignOp, pool: type[graph.MaxPoolOp | graph.AveragePoolOp], x: Term) -> Term:
    low, high = _sides(ints_of(op, "pad"))
    kernel, strides = ints_of(op, "kernel"), ints_of(op, "stride")
    found = pool(x.transpose([0, 3, 1, 2]).value, kernel_shape=kernel, strides=strides, pads=[*low, *high])
    return code.emit(found).transpose([0, 2, 3, 1])


@tosa("avg_pool2d")
def _average(code: Any, op: ForeignOp, *xs: Term) -> Term:
    """The padding is not counted."""
    x = xs[0]
    if is_float(x.element_type):
        return _pooled(code, op, graph.AveragePoolOp, x)
    zero, zero_after = points(code, op, xs, 1, "input_zp", "output_zp")
    kernel, strides = ints_of(op, "kernel"), ints_of(op, "stride")
    low, high = _sides(ints_of(op, "pad"))
    channels = x.shape[-1]
    ones = code.array(np.ones([channels, 1, *kernel], np.int8), "ones")
    images = less(x, zero, i32).transpose([0, 3, 1, 2])
    total = code.emit(
        graph.ConvOp(images.value, ones.value, strides=strides, pads=[*low, *high], group=channels, accumulator=i32)
    ).transpose([0, 2, 3, 1])
    multiplier, shift = _reciprocals(_counts(x.shape[1:3], total.shape[1:3], kernel, strides, low))
    return clamped(scaled(code, total, multiplier, shift) + zero_after, result_of(op).element_type)


def _counts(
    sizes: Sequence[int], places: Sequence[int], kernel: Sequence[int], strides: Sequence[int], low: Sequence[int]
) -> Array:
    """How many elements of each window are inside, as [h, w, 1]."""
    along: list[Array] = []
    for size, count, extent, step, before in zip(sizes, places, kernel, strides, low, strict=True):
        begin = np.arange(count) * step - before
        along.append(np.minimum(begin + extent, size) - np.maximum(begin, 0))
    return (along[0][:, None] * along[1])[..., None]


def _reciprocals(counts: Array) -> tuple[Array, Array]:
    """The reciprocal scale of the specification: 1 / count as a multiplier of 31 bits and a shift."""
    bits = np.array([(int(each) - 1).bit_length() for each in counts.ravel()], np.int64)
    multiplier = np.array(
        [((1 << 30) + 1 << int(k)) // int(each) for each, k in zip(counts.ravel(), bits, strict=True)], np.int64
    )
    return multiplier.reshape(counts.shape), (30 + bits).reshape(counts.shape)
