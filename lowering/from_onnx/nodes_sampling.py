"""Importers of operators that read images between their elements; see `sampling`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float, require
from penstock.lowering.from_onnx.arithmetic import Arithmetic
from penstock.lowering.from_onnx.node import Node, Unsupported, imports
from penstock.lowering.from_onnx.nodes_resize import mode_of
from penstock.lowering.from_onnx.nodes_shape import sliced

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


@imports("AffineGrid")
def affine_grid(node: Node) -> SSAValue:
    """The places of a regular grid, known at import, moved by a matrix."""
    sums, theta = Arithmetic(node), node.value(0)
    size = node.ints_of(1, "size")
    element, rank = tensor_of(theta).element_type, len(size) - 2
    batches, rows, columns = node.shape(0)
    require(
        rank in (2, 3) and rows == rank and columns == rank + 1 and size[0] == batches,
        f"matrices of shape {list(node.shape(0))} for images of shape {size}",
    )
    align_corners = node.flag("align_corners", False)
    axes = [_regular(extent, align_corners) for extent in size[2:]]
    # The innermost dimension is the first coordinate.
    grid = [each.ravel() for each in reversed(np.meshgrid(*axes, indexing="ij"))]
    table = np.stack([*grid, np.ones_like(grid[0])], axis=1)
    moved = sums.matmul(sums.constant(table, "grid", element), sums.transpose(theta, 0, 2, 1))
    return sums.reshape(moved, [batches, *size[2:], rank])


def _regular(extent: int, align_corners: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Places between -1 and 1: at the ends and between them, or in the middle of parts of equal length."""
    if align_corners:
        return np.linspace(-1.0, 1.0, extent) if extent > 1 else np.array([-1.0])
    return (2.0 * np.arange(extent) + 1.0) / extent - 1.0


@imports("GridSample")
def grid_sample(node: Node) -> SSAValue:
    """The image at every place of the grid, whose coordinates are between -1 and 1, the innermost dimension first."""
    sums, x = Arithmetic(node), node.value(0)
    batches, channels, *sizes = node.shape(0)
    places = node.shape(1)
    padding = node.string("padding_mode", "zeros")
    if padding not in ("zeros", "border", "reflection"):
        raise Unsupported(f"padding_mode {padding}")
    sampler = Sampler(mode_of(node, "linear"), padding, node.flag("align_corners", False))
    element, working = tensor_of(x).element_type, working_type(x)
    if sampler.mode != "nearest" and not is_float(element):
        raise Unsupported(f"mode {sampler.mode} of integers")
    require(
        len(places) == len(sizes) + 2 and places[0] == batches and places[-1] == len(sizes),
        f"a grid of shape {list(places)} for an image of shape {list(node.shape(0))}",
    )
    require(math.prod(sizes) > 0, "an image without pixels")
    count = math.prod(places[1:-1])
    grid = sums.reshape(sums.cast(node.value(1), working), [batches, count, len(sizes)])
    coordinates: list[SSAValue] = []
    for dim, size in enumerate(sizes):
        each = sums.reshape(sliced(node, grid, 2, len(sizes) - 1 - dim, 1), [batches, count])
        if sampler.align_corners:
            coordinates.append(sums.mul(sums.mul(sums.add(each, 1.0), 0.5), size - 1.0))
        else:
            coordinates.append(sums.mul(sums.sub(sums.mul(sums.add(each, 1.0), float(size)), 1.0), 0.5))
    parts = sampler.samples(node, image_of(node, x), coordinates)
    total = sums.cast(functools.reduce(sums.add, parts), element)
    return sums.reshape(sums.transpose(total, 0, 2, 1), [batches, channels, *places[1:-1]])


@imports("RoiAlign")
def roi_align(node: Node) -> SSAValue:
    """
    Regions of images brought to one size: each bin is the mean, or maximum, of samples that lie in it on a grid.

    He et al., "Mask R-CNN", ICCV 2017; ONNX's maximum is that of the weighted pixels, not of the samples.
    """
    sums, x = Arithmetic(node), node.value(0)
    batches, channels, *sizes = node.shape(0)
    require(len(sizes) == 2, f"images of {len(sizes)} dimensions, not 2")
    regions = node.shape(1)[0]
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    is_half = node.string("coordinate_transformation_mode", default) == "half_pixel"
    bins = [node.int("output_height", 1), node.int("output_width", 1)]
    per_bin, mode = node.int("sampling_ratio", 0), node.string("mode", "avg")
    require(mode in ("avg", "max"), f'mode is "avg" or "max", not "{mode}"')
    if per_bin <= 0:
        raise Unsupported("sampling_ratio 0, where how many samples a bin takes depends on the regions")
    element, working = tensor_of(x).element_type, working_type(x)
    corners = sums.mul(sums.cast(node.value(1), working), node.float("spatial_scale", 1.0))
    if is_half:
        corners = sums.sub(corners, 0.5)
    shape = [regions, bins[0] * per_bin, bins[1] * per_bin]
    places: list[SSAValue] = []
    outside: SSAValue | None = None
    for dim, size in enumerate(sizes):
        start, end = (sliced(node, corners, 1, column, 1) for column in (1 - dim, 3 - dim))
        extent = sums.sub(end, start)
        if not is_half:
            extent = sums.clip(extent, 1.0, None)
        steps = (np.arange(bins[dim] * per_bin) + 0.5) / per_bin
        offsets = sums.constant(steps[np.newaxis], "samples", working)
        place = sums.add(start, sums.mul(sums.div(extent, float(bins[dim])), offsets))
        place = sums.reshape(place, [regions, *(shape[1 + each] if each == dim else 1 for each in range(2))])
        beyond = sums.either(sums.less(place, -1.0), sums.less(float(size), place))
        outside = beyond if outside is None else sums.either(outside, beyond)
        places.append(sums.reshape(sums.expand(place, shape), [1, math.prod(shape)]))
    assert outside is not None
    image = image_of(node, x)
    rows = image.pixels + 1
    table = sums.reshape(image.table, [1, batches * rows, channels])
    chosen = sums.mul(sums.cast(sums.reshape(node.value(2), [regions, 1]), i64), rows)
    first = sums.reshape(sums.expand(chosen, [regions, shape[1] * shape[2]]), [1, math.prod(shape)])
    parts = Sampler("linear", "border").samples(node, Image(table, image.sizes), places, first)
    op = graph.AddOp if mode == "avg" else graph.MaxOp
    values = functools.reduce(lambda a, b: sums.binary(op, a, b), parts)
    values = sums.reshape(values, [*shape, channels])
    values = sums.where(sums.reshape(outside, [*shape, 1]), 0.0, values)
    split = sums.reshape(values, [regions, bins[0], per_bin, bins[1], per_bin, channels])
    reduction = graph.ReduceMeanOp if mode == "avg" else graph.ReduceMaxOp
    pooled = node.emit(reduction(split, axes=[2, 4], keepdims=False))
    return sums.cast(sums.transpose(pooled, 0, 3, 1, 2), element)


@imports("DeformConv")
def deform_conv(node: Node) -> SSAValue:
    """
    A convolution whose taps are moved, each by an offset of its own: the image is sampled at all of them, and the
    samples are multiplied by the filters.

    Zhu et al., "Deformable ConvNets v2: more deformable, better results", CVPR 2019.
    """
    sums, x = Arithmetic(node), node.value(0)
    batches, channels, *sizes = node.shape(0)
    outputs, inputs, *kernel = node.shape(1)
    if len(sizes) != 2:
        raise Unsupported(f"on {len(sizes)} spatial dimensions")
    group, offset_group = node.int("group", 1), node.int("offset_group", 1)
    strides, dilations = node.ints("strides") or [1, 1], node.ints("dilations") or [1, 1]
    pads = node.ints("pads") or [0, 0, 0, 0]
    wanted = list(node.shape(2)[2:])
    result = [
        (size + pads[dim] + pads[dim + 2] - dilations[dim] * (kernel[dim] - 1) - 1) // strides[dim] + 1
        for dim, size in enumerate(sizes)
    ]
    window, count = math.prod(kernel), math.prod(result)
    require(
        channels == inputs * group and outputs % group == 0 and channels % offset_group == 0,
        f"filters {list(node.shape(1))} in {group} groups, {offset_group} of offsets, for {channels} channels",
    )
    require(
        list(node.shape(2)) == [batches, offset_group * window * 2, *result],
        f"offsets of shape {list(node.shape(2))} for a result of {result}, found {wanted}",
    )
    element, working = tensor_of(x).element_type, working_type(x)
    batched = batches * offset_group
    offsets = sums.reshape(sums.cast(node.value(2), working), [batched, window, 2, *result])
    places: list[SSAValue] = []
    for dim in range(2):
        tap = np.arange(kernel[dim]) * dilations[dim]
        base = np.arange(result[dim]) * strides[dim] - pads[dim]
        still = np.zeros((*kernel, *result))
        still += tap.reshape([-1 if each == dim else 1 for each in range(4)])
        still += base.reshape([-1 if each == 2 + dim else 1 for each in range(4)])
        moved = sums.reshape(sliced(node, offsets, 2, dim, 1), [batched, window * count])
        places.append(sums.add(moved, sums.constant(still.reshape(1, -1), "taps", working)))
    part = channels // offset_group
    image = image_of(node, sums.reshape(x, [batched, part, *sizes]))
    samples = functools.reduce(sums.add, Sampler("linear", "zeros").samples(node, image, places))
    if node.has(4):
        mask = sums.reshape(sums.cast(node.value(4), working), [batched, window * count, 1])
        samples = sums.mul(samples, mask)
    columns = sums.reshape(sums.cast(samples, element), [batches, offset_group, window, count, part])
    columns = sums.transpose(columns, 0, 1, 4, 2, 3)
    columns = sums.reshape(columns, [batches, group, inputs * window, count])
    filters = sums.reshape(node.value(1), [1, group, outputs // group, inputs * window])
    y = sums.reshape(sums.matmul(filters, columns), [batches, outputs, *result])
    return sums.add(y, sums.reshape(node.value(3), [outputs, 1, 1])) if node.has(3) else y
