"""Importers of operators that read images between their elements; see `sampling`."""

from __future__ import annotations

import functools
import math

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float, require
from penstock.lowering.from_onnx.arithmetic import Arithmetic
from penstock.lowering.from_onnx.node import Importer, Node, Unsupported
from penstock.lowering.from_onnx.nodes_shape import sliced
from penstock.lowering.from_onnx.sampling import Image, Sampler, as_places, image_of, mode_of, working_type


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
    chosen = sums.mul(as_places(sums, sums.reshape(node.value(2), [regions, 1])), rows)
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


TABLE: dict[str, Importer] = {
    "AffineGrid": affine_grid,
    "DeformConv": deform_conv,
    "GridSample": grid_sample,
    "RoiAlign": roi_align,
}
