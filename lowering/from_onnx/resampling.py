"""
Where the elements of a resized dimension come from: plain arithmetic on positions, as ONNX's Resize defines it.

A position of the result lies somewhere between elements of the input. Interpolation takes a weighted sum of the
elements around it, its taps; the nearest element is one tap of weight 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.node import Unsupported

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
    """For each index of the result the place in the input, in elements."""
    y = np.arange(dim.result, dtype=np.float64)
    width, last = dim.scale * dim.size, dim.size - 1
    if math.isclose(width, dim.result, rel_tol=1e-6):
        width = dim.result  # what the scale, which had 32 bits, stands for
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
