# SPDX-License-Identifier: Apache-2.0
"""Importers of operators that read images between their elements; see `Sampler`."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import is_float, require
from penstock.lowering.from_onnx.node import OnnxNode, Unsupported, imports
from penstock.lowering.from_onnx.nodes_resize import mode_of
from penstock.lowering.from_onnx.nodes_window import SpatialWindows
from penstock.passes.graph.terms import Term

CUBIC_A = -0.75
"""The parameter of cubic convolution that GridSample prescribes."""


def working_type(x: Term) -> Attribute:
    """The type in which coordinates and weights are computed for an image with the elements of `x`."""
    return f64 if x.element_type == f64 else f32


@dataclass(frozen=True)
class Image:
    """
    Pixels (batches, sizes..., channels), as a table with a row of zeros at the end of each batch.

    `table` has the shape (batches, product of sizes + 1, channels).
    """

    table: Term
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, x: Term) -> Image:
        """The image in a tensor (batches, channels, sizes...)."""
        batches, channels, *sizes = x.shape
        flat = x.reshape([batches, channels, math.prod(sizes)]).transpose([0, 2, 1])
        return cls(x.emit(graph.PadOp(flat.value, pads=[0, 0, 0, 0, 1, 0])), tuple(sizes))


def reflected(x: Term, low: float, high: float) -> Term:
    """x folded back at `low` and `high` until it lies between them."""
    span = high - low
    if span <= 0:
        return x * 0.0
    distance = abs(x - low)
    folds = (distance / span).apply("floor")
    rest = distance - folds * span
    return is_odd(folds).where(high - rest, low + rest)


def is_odd(x: Term) -> Term:
    """Whether integral floats are odd."""
    return 0.5 < x - (x * 0.5).apply("floor") * 2.0


@dataclass(frozen=True)
class _Tap:
    """What is needed of one tap along one dimension: its row of the table, its weight, and whether it is outside."""

    row: Term
    weight: Term | None
    outside: Term | None

    def __mul__(self, other: _Tap) -> _Tap:
        """The tap of two dimensions, or more."""
        return _Tap(
            self.row + other.row,
            None if self.weight is None or other.weight is None else self.weight * other.weight,
            None if self.outside is None or other.outside is None else self.outside | other.outside,
        )


@dataclass(frozen=True)
class Sampler:
    """
    How an image is read: `mode` is `nearest`, `linear` or `cubic`, and `padding` says what lies outside of it: `zeros`,
    the `border` or its `reflection`, at the centres of the outermost pixels if `align_corners`, else at their edges.
    """

    mode: str
    padding: str
    align_corners: bool = True

    def _reflected(self, x: Term, size: int) -> Term:
        return reflected(x, 0.0, size - 1.0) if self.align_corners else reflected(x, -0.5, size - 0.5)

    def taps(self, x: Term, size: int) -> list[tuple[Term, Term | None]]:
        """The integral coordinates around `x` along one dimension, and their weights; none where one counts alone."""
        if self.mode == "nearest":
            x = x.apply("round")
        if self.padding == "border" and self.mode == "linear":
            # Others are cut off pixel by pixel; so might these be, but for coordinates at infinity.
            x = x.clip(0, size - 1)
        elif self.padding == "reflection":
            x = self._reflected(x, size)
        if self.mode == "nearest":
            return [(x, None)]
        first = x.apply("floor")
        part = x - first
        if self.mode == "linear":
            return [(first, 1.0 - part), (first + 1.0, part)]
        near = 1.0 - part
        return [
            (first - 1.0, _cubic_far(part + 1.0)),
            (first, _cubic_near(part)),
            (first + 1.0, _cubic_near(near)),
            (first + 2.0, _cubic_far(near + 1.0)),
        ]

    def _tap(self, x: Term, weight: Term | None, size: int, stride: int) -> _Tap:
        x = self._reflected(x, size) if self.padding == "reflection" else x
        # What is no index, and NaN, becomes some index all the same.
        row = x.clip(0, size - 1).cast(i64).clip(0, size - 1) * stride
        return _Tap(row, weight, (x < 0.0) | (size - 1.0 < x) if self.padding == "zeros" else None)

    def samples(self, image: Image, coordinates: Sequence[Term], first: Term | None = None) -> list[Term]:
        """
        The weighted pixels (batches, count, channels), whose sums are the values of `image` at `coordinates`.

        There is one tensor of coordinates (batches, count), in elements, for each dimension. `first`, of this shape,
        says with which row of the table an image begins, for tables of several.
        """
        table, parts = image.table, list[Term]()
        strides = [math.prod(image.sizes[dim + 1 :]) for dim in range(len(image.sizes))]
        dims = [
            [self._tap(*tap, size, stride) for tap in self.taps(x, size)]
            for x, size, stride in zip(coordinates, image.sizes, strides, strict=True)
        ]
        for chosen in itertools.product(*dims):
            tap = functools.reduce(operator.mul, chosen)
            row = tap.row if first is None else tap.row + first
            if tap.outside is not None:
                row = tap.outside.where(table.shape[1] - 1, row)
            part = table.emit(graph.GatherNdOp(table.value, row.reshape([*row.shape, 1]).value, batch_dims=1))
            if tap.weight is not None:
                part = part.cast(tap.weight.element_type) * tap.weight.reshape([*tap.weight.shape, 1])
            parts.append(part)
        return parts


def _cubic_near(x: Term) -> Term:
    """Keys' kernel for distances up to 1: ((a + 2) x - (a + 3)) x^2 + 1."""
    return (x * (CUBIC_A + 2) - (CUBIC_A + 3)) * x * x + 1.0


def _cubic_far(x: Term) -> Term:
    """Keys' kernel for distances from 1 to 2: ((a x - 5 a) x + 8 a) x - 4 a."""
    return ((x * CUBIC_A - 5 * CUBIC_A) * x + 8 * CUBIC_A) * x - 4 * CUBIC_A


@imports("AffineGrid")
def affine_grid(node: OnnxNode) -> SSAValue:
    """The points of a regular grid, known at import, moved by a matrix."""
    theta = node.code.input(0)
    size = node.ints_of(1, "size")
    rank = len(size) - 2
    batches, rows, columns = theta.shape
    require(
        rank in (2, 3) and rows == rank and columns == rank + 1 and size[0] == batches,
        f"matrices of shape {list(theta.shape)} for images of shape {size}",
    )
    align_corners = node.flag("align_corners", False)
    axes = [_regular(extent, align_corners) for extent in size[2:]]
    # The innermost dimension is the first coordinate.
    grid = [each.ravel() for each in reversed(np.meshgrid(*axes, indexing="ij"))]
    table = np.stack([*grid, np.ones_like(grid[0])], axis=1)
    moved = node.code.constant(table, "grid", theta.element_type) @ theta.transpose([0, 2, 1])
    return moved.reshape([batches, *size[2:], rank]).value


def _regular(extent: int, align_corners: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Points between -1 and 1: at the ends and between them, or in the middle of parts of equal length."""
    if align_corners:
        return np.linspace(-1.0, 1.0, extent) if extent > 1 else np.array([-1.0])
    return (2.0 * np.arange(extent) + 1.0) / extent - 1.0


@imports("GridSample")
def grid_sample(node: OnnxNode) -> SSAValue:
    """The image at every point of the grid, whose coordinates are between -1 and 1, the innermost dimension first."""
    x, grid = node.code.input(0), node.code.input(1)
    batches, channels, *sizes = x.shape
    padding = node.string("padding_mode", "zeros")
    if padding not in ("zeros", "border", "reflection"):
        raise Unsupported(f"padding_mode {padding}")
    sampler = Sampler(mode_of(node, "linear"), padding, node.flag("align_corners", False))
    if sampler.mode != "nearest" and not is_float(x.element_type):
        raise Unsupported(f"mode {sampler.mode} of integers")
    require(
        len(grid.shape) == len(sizes) + 2 and grid.shape[0] == batches and grid.shape[-1] == len(sizes),
        f"a grid of shape {list(grid.shape)} for an image of shape {list(x.shape)}",
    )
    require(math.prod(sizes) > 0, "an image without pixels")
    result = grid.shape[1:-1]
    count = math.prod(result)
    grid = grid.cast(working_type(x)).reshape([batches, count, len(sizes)])
    coordinates: list[Term] = []
    for dim, size in enumerate(sizes):
        each = grid.cut(2, len(sizes) - 1 - dim, 1).reshape([batches, count]) + 1.0
        coordinates.append(each * 0.5 * float(size - 1) if sampler.align_corners else (each * float(size) - 1.0) * 0.5)
    total = functools.reduce(operator.add, sampler.samples(Image.of(x), coordinates)).cast(x.element_type)
    return total.transpose([0, 2, 1]).reshape([batches, channels, *result]).value


@imports("RoiAlign")
def roi_align(node: OnnxNode) -> SSAValue:
    """
    Regions of images brought to one size: each bin is the mean, or maximum, of samples that lie in it on a grid.

    He et al., "Mask R-CNN", ICCV 2017; ONNX's maximum is that of the weighted pixels, not of the samples.
    """
    code, x = node.code, node.code.input(0)
    batches, channels, *sizes = x.shape
    require(len(sizes) == 2, f"images of {len(sizes)} dimensions, not 2")
    regions = node.shape(1)[0]
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    is_half = node.string("coordinate_transformation_mode", default) == "half_pixel"
    bins = [node.int("output_height", 1), node.int("output_width", 1)]
    per_bin, mode = node.int("sampling_ratio", 0), node.string("mode", "avg")
    require(mode in ("avg", "max"), f'mode is "avg" or "max", not "{mode}"')
    if per_bin <= 0:
        raise Unsupported("sampling_ratio 0, where how many samples a bin takes depends on the regions")
    working = working_type(x)
    corners = code.input(1, working) * node.float("spatial_scale", 1.0)
    if is_half:
        corners = corners - 0.5
    shape = [regions, bins[0] * per_bin, bins[1] * per_bin]
    count = math.prod(shape)
    coordinates: list[Term] = []
    beyond: list[Term] = []
    for dim, size in enumerate(sizes):
        start, end = (corners.cut(1, column, 1) for column in (1 - dim, 3 - dim))
        extent = end - start if is_half else (end - start).clip(1.0, None)
        steps = (np.arange(shape[1 + dim]) + 0.5) / per_bin
        offsets = code.constant(steps[np.newaxis], "samples", working)
        points = start + extent / float(bins[dim]) * offsets
        points = points.reshape([regions, *(shape[1 + each] if each == dim else 1 for each in range(2))])
        beyond.append((points < -1.0) | (float(size) < points))
        coordinates.append(points.expand(shape).reshape([1, count]))
    image = Image.of(x)
    rows = image.table.shape[1]
    image = Image(image.table.reshape([1, batches * rows, channels]), image.sizes)
    chosen = code.input(2).reshape([regions, 1]).cast(i64) * rows
    first = chosen.expand([regions, shape[1] * shape[2]]).reshape([1, count])
    parts = Sampler("linear", "border").samples(image, coordinates, first)
    combine = "add" if mode == "avg" else "max"
    values = functools.reduce(lambda a, b: a.apply(combine, b), parts)
    outside = (beyond[0] | beyond[1]).reshape([*shape, 1])
    values = outside.where(0.0, values.reshape([*shape, channels]))
    split = values.reshape([regions, bins[0], per_bin, bins[1], per_bin, channels])
    reduction = graph.ReduceMeanOp if mode == "avg" else graph.ReduceMaxOp
    pooled = code.emit(reduction(split.value, axes=[2, 4], keepdims=False))
    return pooled.transpose([0, 3, 1, 2]).cast(x.element_type).value


@imports("DeformConv")
def deform_conv(node: OnnxNode) -> SSAValue:
    """
    A convolution whose taps are moved, each by an offset of its own: the image is sampled at all of them, and the
    samples are multiplied by the filters.

    Zhu et al., "Deformable ConvNets v2: more deformable, better results", CVPR 2019.
    """
    code, x = node.code, node.code.input(0)
    batches, channels, *sizes = x.shape
    outputs, inputs, *kernel = node.shape(1)
    if len(sizes) != 2:
        raise Unsupported(f"on {len(sizes)} spatial dimensions")
    group, offset_group = node.int("group", 1), node.int("offset_group", 1)
    windows = SpatialWindows.of(node, sizes, kernel)
    result, window, count = windows.counts, math.prod(kernel), math.prod(windows.counts)
    require(
        channels == inputs * group and outputs % group == 0 and channels % offset_group == 0,
        f"filters {list(node.shape(1))} in {group} groups, {offset_group} of offsets, for {channels} channels",
    )
    require(
        list(node.shape(2)) == [batches, offset_group * window * 2, *result],
        f"offsets of shape {list(node.shape(2))} for a result of {result}",
    )
    working = working_type(x)
    batched = batches * offset_group
    offsets = code.input(2, working).reshape([batched, window, 2, *result])
    coordinates: list[Term] = []
    for dim, still in enumerate(windows.positions()):
        moved = offsets.cut(2, dim, 1).reshape([batched, window * count])
        coordinates.append(moved + code.constant(still.reshape(1, -1), "taps", working))
    part = channels // offset_group
    image = Image.of(x.reshape([batched, part, *sizes]))
    samples = functools.reduce(operator.add, Sampler("linear", "zeros").samples(image, coordinates))
    if node.has(4):
        samples = samples * code.input(4, working).reshape([batched, window * count, 1])
    columns = samples.cast(x.element_type).reshape([batches, offset_group, window, count, part])
    columns = columns.transpose([0, 1, 4, 2, 3]).reshape([batches, group, inputs * window, count])
    filters = code.input(1).reshape([1, group, outputs // group, inputs * window])
    y = (filters @ columns).reshape([batches, outputs, *result])
    return (y + code.input(3).reshape([outputs, 1, 1]) if node.has(3) else y).value
