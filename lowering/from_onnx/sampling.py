"""
Images read between their elements, at places that are computed: what GridSample, RoiAlign and DeformConv share.

An image is a table of pixels, each a row of channels. The value at a place is a weighted sum of the pixels around it,
its taps, which are gathered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.lowering.from_onnx.arithmetic import Arithmetic
from penstock.lowering.from_onnx.node import Node, Unsupported

CUBIC_A = -0.75
"""The parameter of cubic convolution that GridSample prescribes."""


def working_type(x: SSAValue) -> Attribute:
    """The type in which places and weights are computed for an image with the elements of `x`."""
    return f64 if tensor_of(x).element_type == f64 else f32


@dataclass(frozen=True)
class Image:
    """
    Pixels (batches, sizes..., channels), as a table with a row of zeros at the end of each batch.

    `table` has the shape (batches, product of sizes + 1, channels).
    """

    table: SSAValue
    sizes: tuple[int, ...]

    @property
    def pixels(self) -> int:
        """How many there are in a batch, and the row of zeros."""
        return math.prod(self.sizes)


def image_of(node: Node, x: SSAValue) -> Image:
    """The image in a tensor (batches, channels, sizes...)."""
    sums = Arithmetic(node)
    batches, channels, *sizes = tensor_of(x).get_shape()
    flat = sums.transpose(sums.reshape(x, [batches, channels, math.prod(sizes)]), 0, 2, 1)
    table = node.emit(graph.PadOp(flat, pads=[0, 0, 0, 0, 1, 0]))
    return Image(table, tuple(sizes))


def reflected(sums: Arithmetic, x: SSAValue, low: float, high: float) -> SSAValue:
    """x folded back at `low` and `high` until it lies between them."""
    span = high - low
    if span <= 0:
        return sums.mul(x, 0.0)
    distance = sums.unary(graph.AbsOp, sums.sub(x, low))
    turns = sums.floor(sums.div(distance, span))
    rest = sums.sub(distance, sums.mul(turns, span))
    odd = sums.less(0.5, sums.sub(turns, sums.mul(sums.floor(sums.mul(turns, 0.5)), 2.0)))
    return sums.where(odd, sums.sub(high, rest), sums.add(low, rest))


@dataclass(frozen=True)
class Sampler:
    """
    How an image is read: `mode` is `nearest`, `linear` or `cubic`, and `padding` says what lies outside of it: `zeros`,
    the `border` or its `reflection`, at the centres of the outermost pixels if `align_corners`, else at their edges.
    """

    mode: str
    padding: str
    align_corners: bool = True

    def borders(self, size: int) -> tuple[float, float]:
        """Between which places the image is."""
        return (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)

    def taps(self, sums: Arithmetic, x: SSAValue, size: int) -> list[tuple[SSAValue, SSAValue | None]]:
        """The integral places around `x` along one dimension, and their weights; one without a weight counts alone."""
        if self.mode == "nearest":
            x = sums.unary(graph.RoundOp, x)
        if self.padding == "border" and self.mode == "linear":
            # Others are cut off pixel by pixel; so might these be, but for places at infinity.
            x = sums.clip(x, 0, size - 1)
        elif self.padding == "reflection":
            x = reflected(sums, x, *self.borders(size))
        if self.mode == "nearest":
            return [(x, None)]
        first = sums.floor(x)
        part = sums.sub(x, first)
        if self.mode == "linear":
            return [(first, sums.sub(1.0, part)), (sums.add(first, 1.0), part)]
        near, far = sums.sub(1.0, part), sums.add(part, 1.0)
        return [
            (sums.sub(first, 1.0), _cubic_far(sums, far)),
            (first, _cubic_near(sums, part)),
            (sums.add(first, 1.0), _cubic_near(sums, near)),
            (sums.add(first, 2.0), _cubic_far(sums, sums.add(near, 1.0))),
        ]

    def resolved(self, sums: Arithmetic, place: SSAValue, size: int) -> SSAValue:
        """An integral place, if it is outside, as that of the pixel that stands for it."""
        return reflected(sums, place, *self.borders(size)) if self.padding == "reflection" else place

    def samples(
        self, node: Node, image: Image, places: Sequence[SSAValue], first: SSAValue | None = None
    ) -> list[SSAValue]:
        """
        The weighted pixels (batches, count, channels), whose sums are the values of `image` at `places`.

        There is one tensor of places (batches, count), in elements, for each dimension. `first`, of this shape, says
        with which row of the table an image begins, for tables of several.
        """
        sums = Arithmetic(node)
        element = tensor_of(image.table).element_type
        dims = [self.taps(sums, place, size) for place, size in zip(places, image.sizes, strict=True)]
        strides = [math.prod(image.sizes[dim + 1 :]) for dim in range(len(dims))]
        # What is needed of each tap, once for all combinations with those of other dimensions.
        rows: list[list[tuple[SSAValue, SSAValue | None, SSAValue | None]]] = []
        for taps, size, stride in zip(dims, image.sizes, strides, strict=True):
            row: list[tuple[SSAValue, SSAValue | None, SSAValue | None]] = []
            for place, weight in taps:
                where = self.resolved(sums, place, size)
                offset = sums.mul(sums.index(where, size), stride)
                outside = None
                if self.padding == "zeros":
                    outside = sums.either(sums.less(where, 0.0), sums.less(size - 1.0, where))
                row.append((offset, weight, outside))
            rows.append(row)
        parts: list[SSAValue] = []
        for chosen in itertools.product(*rows):
            index, weight, outside = chosen[0]
            for offset, other_weight, other_outside in chosen[1:]:
                index = sums.add(index, offset)
                weight = _product(sums, weight, other_weight)
                if outside is not None and other_outside is not None:
                    outside = sums.either(outside, other_outside)
            if first is not None:
                index = sums.add(index, first)
            if outside is not None:
                index = sums.where(outside, tensor_of(image.table).get_shape()[1] - 1, index)
            column = sums.reshape(index, [*tensor_of(index).get_shape(), 1])
            part = node.emit(graph.GatherNdOp(image.table, column, batch_dims=1))
            if weight is not None:
                wide = sums.reshape(weight, [*tensor_of(weight).get_shape(), 1])
                part = sums.mul(sums.cast(part, tensor_of(weight).element_type), wide)
            parts.append(part if weight is not None else sums.cast(part, element))
        return parts


def _product(sums: Arithmetic, a: SSAValue | None, b: SSAValue | None) -> SSAValue | None:
    if a is None or b is None:
        return a or b
    return sums.mul(a, b)


def _cubic_near(sums: Arithmetic, x: SSAValue) -> SSAValue:
    """Keys' kernel for distances up to 1: ((a + 2) x - (a + 3)) x^2 + 1."""
    inner = sums.sub(sums.mul(x, CUBIC_A + 2), CUBIC_A + 3)
    return sums.add(sums.mul(sums.mul(inner, x), x), 1.0)


def _cubic_far(sums: Arithmetic, x: SSAValue) -> SSAValue:
    """Keys' kernel for distances from 1 to 2: ((a x - 5 a) x + 8 a) x - 4 a."""
    inner = sums.add(sums.mul(sums.sub(sums.mul(x, CUBIC_A), 5 * CUBIC_A), x), 8 * CUBIC_A)
    return sums.sub(sums.mul(inner, x), 4 * CUBIC_A)


def mode_of(node: Node, default: str) -> str:
    """The mode, by its name of today."""
    mode = node.string("mode", default)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode not in ("nearest", "linear", "cubic"):
        raise Unsupported(f"mode {mode}")
    return mode


def as_places(sums: Arithmetic, x: SSAValue) -> SSAValue:
    """Indices as integers of 64 bits."""
    return sums.cast(x, i64)
