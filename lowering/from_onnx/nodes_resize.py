# SPDX-License-Identifier: Apache-2.0
"""
Importers of Resize and Upsample, one dimension after the other.

The nearest elements are repeated, sliced or gathered; a linear or cubic interpolation is a sum of a few such
selections with weights, or, with the many taps of antialiasing, a product with a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import is_float, normalized_axis, require
from penstock.dialects.graph.sizes import is_known
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import OnnxNode, Unsupported, imports
from penstock.lowering.from_onnx.nodes_shape import joined_runs, repeated, runs_of
from penstock.passes.graph.terms import Term, along

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


@dataclass(frozen=True)
class Sampling:
    """The attributes of a Resize."""

    mode: str
    """`nearest`, `linear` or `cubic`."""
    coordinates: str
    """The coordinate transformation."""
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class Dimension:
    """One dimension to resize, with the part of it that `tf_crop_and_resize` keeps."""

    size: int
    result: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def positions(dim: Dimension, coordinates: str) -> Floats:
    """For each index of the result the position in the input, in elements."""
    y = np.arange(dim.result, dtype=np.float64)
    width, last = dim.scale * dim.size, dim.size - 1
    if math.isclose(width, dim.result, rel_tol=1e-6):
        width = dim.result  # what the scale, which had 32 bits, means
    match coordinates:
        case "align_corners":
            return np.zeros_like(y) if width == 1 else y * last / (width - 1)
        case "asymmetric":
            return y / dim.scale
        case "tf_half_pixel_for_nn":
            return (y + 0.5) / dim.scale
        case "tf_crop_and_resize":
            part = (dim.end - dim.start) * last
            within = np.full_like(y, part / 2) if width == 1 else y * part / (width - 1)
            return within + dim.start * last
        case "pytorch_half_pixel":
            return np.full_like(y, -0.5) if width == 1 else (y + 0.5) / dim.scale - 0.5
        case "half_pixel":
            return (y + 0.5) / dim.scale - 0.5
        case "half_pixel_symmetric":
            return dim.size / 2 * (1 - dim.result / width) + (y + 0.5) / dim.scale - 0.5
        case _:
            raise Unsupported(f"coordinate_transformation_mode {coordinates}")


def nearest_indices(dim: Dimension, sampling: Sampling) -> Ints:
    """The index of the element that each element of the result is."""
    where = positions(dim, sampling.coordinates)
    require(sampling.nearest in NEAREST, f"nearest_mode {sampling.nearest}")
    match sampling.nearest:
        case "floor":
            chosen = np.floor(where)
        case "ceil":
            chosen = np.ceil(where)
        case "round_prefer_ceil":
            chosen = np.floor(where + 0.5)
        case "simple":
            chosen = np.ceil(where) if dim.scale < 1 else np.floor(where)
        case _:
            chosen = np.ceil(where - 0.5)
    return np.clip(chosen, 0, dim.size - 1).astype(np.int64)


def taps(dim: Dimension, sampling: Sampling) -> tuple[Ints, Floats]:
    """For each index of the result (rows) the indices of its taps, and their weights, which sum up to 1."""
    where = positions(dim, sampling.coordinates)
    left = np.ceil(where) - 1
    ratio = (where - left)[:, np.newaxis]  # above 0, and at most 1
    shrink = min(dim.scale, 1.0) if sampling.antialias else 1.0
    reach = 2 if sampling.mode == "cubic" else 1
    first = math.floor(-reach / shrink) + 1
    steps = np.arange(first, 2 - first)
    distance = np.abs((steps - ratio) * shrink)
    if sampling.mode == "cubic":
        weights = _cubic(distance, sampling.cubic_a)
    else:
        weights = np.clip(1 - distance, 0, 1)
    indices = left[:, np.newaxis] + steps
    if sampling.exclude_outside:
        weights = np.where((indices >= 0) & (indices < dim.size), weights, 0)
    if sampling.exclude_outside or sampling.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(indices, 0, dim.size - 1).astype(np.int64), weights


def _cubic(distance: Floats, a: float) -> Floats:
    """Keys, "Cubic convolution interpolation for digital image processing", IEEE ASSP 29(6), 1981."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    weights: Any = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    return weights


def outside(dim: Dimension) -> NDArray[np.bool_]:
    """Which elements of the result `tf_crop_and_resize` takes from outside the input."""
    where = positions(dim, "tf_crop_and_resize")
    return (where < 0) | (where > dim.size - 1)


MAX_RUNS = 8
"""Up to so many runs of indices are slices that are joined, more are a gather."""
MAX_TAPS = 4
"""Up to so many taps are added up one after the other, more are a product with a matrix."""


def resize(node: OnnxNode) -> SSAValue:
    """Before operator set 11, coordinates are asymmetric and there are no sizes."""
    shape = node.shape(0)
    axes = [normalized_axis(axis, len(shape)) for axis in node.ints("axes") or range(len(shape))]
    if node.opset < 11:
        scales = [float(each) for each in node.array(1, "scales").ravel()]
        sampling = Sampling(mode_of(node), "asymmetric", nearest="simple")
        return _resized(
            node, axes, [_scaled(shape[axis], scale) for axis, scale in zip(axes, scales, strict=True)], sampling
        )
    sampling = Sampling(
        mode_of(node),
        node.string("coordinate_transformation_mode", "half_pixel"),
        node.string("nearest_mode", "round_prefer_floor"),
        node.float("cubic_coeff_a", -0.75),
        node.flag("exclude_outside", False),
        node.flag("antialias", False),
    )
    dims = _dimensions(node, [shape[axis] for axis in axes])
    if sampling.coordinates == "tf_crop_and_resize":
        roi = [float(each) for each in node.array(1, "region of interest").ravel()]
        require(len(roi) == 2 * len(axes), f"{len(roi)} numbers for a region of {len(axes)} dimensions")
        dims = [
            Dimension(dim.size, dim.result, dim.scale, start, end)
            for dim, start, end in zip(dims, roi[: len(axes)], roi[len(axes) :], strict=True)
        ]
    return _resized(node, axes, dims, sampling)


def upsample(node: OnnxNode) -> SSAValue:
    """The scales are an attribute before operator set 9."""
    shape = node.shape(0)
    scales = node.floats("scales") if node.opset < 9 else [float(each) for each in node.array(1, "scales").ravel()]
    require(len(scales) == len(shape), f"{len(scales)} scales for {len(shape)} dimensions")
    dims = [_scaled(size, scale) for size, scale in zip(shape, scales, strict=True)]
    return _resized(node, list(range(len(shape))), dims, Sampling(mode_of(node), "asymmetric", nearest="floor"))


def mode_of(node: OnnxNode, default: str = "nearest") -> str:
    """How to read between elements, by the name of today."""
    mode = node.string("mode", default)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode not in ("nearest", "linear", "cubic"):
        raise Unsupported(f"mode {mode}")
    return mode


def _scaled(size: int, scale: float) -> Dimension:
    require(scale > 0, f"the scale {scale} is not positive")
    # In 32 bits, as ONNX infers shapes: 10 * 0.7 is 7.
    result = size * int(scale) if scale == int(scale) else int(np.float32(size) * np.float32(scale))
    return Dimension(size, result, scale)


def _dimensions(node: OnnxNode, extents: Sequence[int]) -> list[Dimension]:
    """By scales, or by sizes, of which only the smallest or largest ratio may count."""
    if node.has(2) and math.prod(node.shape(2)) > 0:
        scales = [float(each) for each in node.array(2, "scales").ravel()]
        require(len(scales) == len(extents), f"{len(scales)} scales for {len(extents)} dimensions")
        return [_scaled(size, scale) for size, scale in zip(extents, scales, strict=True)]
    if not node.has(3):
        raise Unsupported("neither scales nor sizes are given")
    sizes = node.ints_of(3, "sizes")
    require(len(sizes) == len(extents), f"{len(sizes)} sizes for {len(extents)} dimensions")
    policy = node.string("keep_aspect_ratio_policy", "stretch")
    ratios = [size / extent for size, extent in zip(sizes, extents, strict=True)]
    if policy != "stretch":
        require(policy in ("not_larger", "not_smaller"), f"keep_aspect_ratio_policy {policy}")
        ratios = [min(ratios) if policy == "not_larger" else max(ratios)] * len(ratios)
        sizes = [math.floor(ratio * extent + 0.5) for ratio, extent in zip(ratios, extents, strict=True)]
    return [Dimension(*each) for each in zip(extents, sizes, ratios, strict=True)]


def _resized(node: OnnxNode, axes: Sequence[int], dims: Sequence[Dimension], sampling: Sampling) -> SSAValue:
    x = node.code.input(0)
    is_crop = sampling.coordinates == "tf_crop_and_resize"
    if sampling.mode != "nearest" and not is_float(x.element_type):
        raise Unsupported(f"mode {sampling.mode} of integers")
    for axis, dim in zip(axes, dims, strict=True):
        if dim.scale == 1 and not is_crop:
            continue
        if sampling.mode == "nearest":
            x = _nearest(node, x, axis, dim, sampling)
        else:
            x = _interpolated(node, x, axis, dim, sampling)
    if is_crop:
        for axis, dim in zip(axes, dims, strict=True):
            if (missing := outside(dim)).any():
                mask = node.code.constant(along(missing, axis, len(x.shape)), "outside")
                x = mask.where(node.float("extrapolation_value", 0.0), x)
    return x.value


def _nearest(node: OnnxNode, x: Term, axis: int, dim: Dimension, sampling: Sampling) -> Term:
    times = int(dim.scale)
    if not is_known(dim.size) and sampling.coordinates in ("asymmetric", "half_pixel") and dim.scale == times:
        # By a whole scale, every element of these coordinates is repeated equally often, whatever the size.
        sample = nearest_indices(Dimension(3, 3 * times, dim.scale), sampling)
        if sample.tolist() == [index for index in range(3) for _ in range(times)]:
            return repeated(x, axis, times)
    return _selected(node, x, axis, nearest_indices(dim, sampling).tolist())


def _selected(node: OnnxNode, x: Term, axis: int, indices: list[int]) -> Term:
    """The elements at `indices` along an axis."""
    size = x.shape[axis]
    times = len(indices) // size if size else 0
    if times > 1 and indices == [index for index in range(size) for _ in range(times)]:
        return repeated(x, axis, times)
    runs = runs_of(indices)
    if 0 < len(runs) <= MAX_RUNS:
        return joined_runs(x, axis, runs)
    chosen = node.code.constant(np.array(indices, np.int64), "indices")
    return node.code.emit(graph.GatherOp(x.value, chosen.value, axis=axis))


def _interpolated(node: OnnxNode, x: Term, axis: int, dim: Dimension, sampling: Sampling) -> Term:
    indices, weights = taps(dim, sampling)
    if indices.shape[1] > MAX_TAPS:
        return _product(node, x, axis, indices, weights)
    total: Term | None = None
    for tap in range(indices.shape[1]):
        column = weights[:, tap]
        if not column.any():
            continue
        part = _selected(node, x, axis, indices[:, tap].tolist())
        if not (column == 1).all():
            part = part * node.code.constant(along(column, axis, len(x.shape)), "weights", x.element_type)
        total = part if total is None else total + part
    assert total is not None, "weights sum up to 1"
    return total


def _product(node: OnnxNode, x: Term, axis: int, indices: Array, weights: Array) -> Term:
    """The axis brought to the end and multiplied by the matrix of all weights."""
    weights = weights.astype(numpy_dtype(x.element_type))
    matrix = np.zeros((x.shape[axis], len(indices)), weights.dtype)
    np.add.at(matrix, (indices, np.arange(len(indices))[:, np.newaxis]), weights)
    rank = len(x.shape)
    perm = [*(dim for dim in range(rank) if dim != axis), axis]
    y = x.transpose(perm) @ node.code.constant(matrix, "weights")
    return y.transpose([perm.index(dim) for dim in range(rank)])


def _interpolates(node: OnnxNode) -> bool:
    return mode_of(node) != "nearest"


imports("Resize")(in_accumulator(resize, when=_interpolates))
imports("Upsample")(in_accumulator(upsample, when=_interpolates))
