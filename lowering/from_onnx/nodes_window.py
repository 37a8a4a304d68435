"""Importers of convolution and pooling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float, require
from penstock.dialects.graph.sizes import decided_equal
from penstock.dialects.graph.window import window_counts
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Node, Unsupported, imports

MOST_TAPS = 64
"""Where the largest of a window is, is looked for in windows of at most so many elements."""


def resolved_pads(
    node: Node,
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """
    The padding that `pads` and `auto_pad` ask for, all beginnings and then all ends.

    SAME_UPPER and SAME_LOWER give ceil(size / stride) places; an odd padding puts the larger part after,
    or before.
    """
    rank = len(spatial)
    for name, values in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilations)):
        require(len(values) == rank, f"{name} {list(values)} for {rank} spatial dimensions")
    mode = node.string("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return node.ints("pads") or [0] * (2 * rank)
    if mode == "VALID":
        return [0] * (2 * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"auto_pad {mode}")
    before: list[int] = []
    after: list[int] = []
    for size, window, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        extent = dilation * (window - 1) + 1
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return before + after


@imports("Conv")
def conv(node: Node) -> SSAValue:
    spatial, kernel = node.shape(0)[2:], node.shape(1)[2:]
    stated = node.ints("kernel_shape") or list(kernel)
    alike = len(stated) == len(kernel) and all(map(decided_equal, stated, kernel))
    require(alike, f"kernel_shape is {stated}, the filters have {list(kernel)}")
    strides = node.ints("strides") or [1] * len(spatial)
    dilations = node.ints("dilations") or [1] * len(spatial)
    return node.emit(
        graph.ConvOp(
            node.value(0),
            node.value(1),
            node.optional(2),
            strides=strides,
            pads=resolved_pads(node, spatial, kernel, strides, dilations),
            dilations=dilations,
            group=node.int("group", 1),
        )
    )


def _window(node: Node) -> tuple[list[int], list[int], list[int], list[int]]:
    """Kernel, strides, pads and dilations of a pool."""
    spatial = node.shape(0)[2:]
    kernel = node.ints("kernel_shape") or []
    strides = node.ints("strides") or [1] * len(spatial)
    dilations = node.ints("dilations") or [1] * len(spatial)
    return kernel, strides, resolved_pads(node, spatial, kernel, strides, dilations), dilations


@imports("MaxPool")
def max_pool(node: Node) -> list[SSAValue]:
    kernel, strides, pads, dilations = _window(node)
    values = node.emit(
        graph.MaxPoolOp(
            node.value(0),
            kernel_shape=kernel,
            strides=strides,
            pads=pads,
            dilations=dilations,
            ceil_mode=node.flag("ceil_mode", False),
        )
    )
    if not any(node.used_outputs[1:]):
        return [values]
    return [values, _where_largest(node, kernel, strides, pads, dilations)]


def _whole_windows(
    node: Node, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The pads with which no window hangs over the end, as with `ceil_mode` one may, and the numbers of windows."""
    spatial, rank = node.shape(0)[2:], len(kernel)
    counts = window_counts(spatial, kernel, strides, pads, dilations, node.flag("ceil_mode", False))
    if not node.flag("ceil_mode", False):
        return list(pads), counts
    ends = [
        (count - 1) * strides[dim] + dilations[dim] * (kernel[dim] - 1) + 1 - spatial[dim] - pads[dim]
        for dim, count in enumerate(counts)
    ]
    return [*pads[:rank], *(max(end, 0) for end in ends)], counts


def _where_largest(
    node: Node, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> SSAValue:
    """The index, into all elements of the input, of the first of the largest of each window: tap after tap."""
    x, shape, rank = node.value(0), node.shape(0), len(kernel)
    taps = math.prod(kernel)
    if not is_float(tensor_of(x).element_type) or taps > MOST_TAPS:
        raise Unsupported(f"indices of integers, or of more than {MOST_TAPS} taps")
    pads, counts = _whole_windows(node, kernel, strides, pads, dilations)
    padded = node.emit(graph.PadOp(x, pads=[0, 0, *pads[:rank], 0, 0, *pads[rank:]], value=-math.inf))
    column_major = node.flag("storage_order", False)
    order = range(rank) if column_major else range(rank)[::-1]
    pitch, pitches = 1, [0] * rank
    for dim in order:
        pitches[dim] = pitch
        pitch *= shape[2 + dim]
    best: tuple[SSAValue, SSAValue] | None = None
    for tap in itertools.product(*(range(size) for size in kernel)):
        starts = [0, 0, *(step * dilation for step, dilation in zip(tap, dilations, strict=True))]
        part = node.emit(graph.SliceOp(padded, starts=starts, sizes=[*shape[:2], *counts], steps=[1, 1, *strides]))
        grid = np.indices(counts)
        flat = sum((grid[dim] * strides[dim] + starts[2 + dim] - pads[dim]) * pitches[dim] for dim in range(rank))
        place = node.constant(np.asarray(flat, np.int64), "places")
        if best is None:
            best = part, place
            continue
        larger = node.emit(graph.GreaterOp(part, best[0]))
        best = node.emit(graph.WhereOp(larger, part, best[0])), node.emit(graph.WhereOp(larger, place, best[1]))
    require(best is not None, "a window has no elements")
    assert best is not None
    planes = np.arange(math.prod(shape[:2]), dtype=np.int64).reshape(*shape[:2], *[1] * rank) * pitch
    return node.emit(graph.AddOp(best[1], node.constant(planes, "planes")))


@imports("LpPool")
@in_accumulator
def lp_pool(node: Node) -> SSAValue:
    """(sum of |x|^p)^(1/p) over each window: the sum is a convolution of each channel with ones."""
    kernel, strides, pads, dilations = _window(node)
    pads, _ = _whole_windows(node, kernel, strides, pads, dilations)
    x, p, channels = node.value(0), node.int("p", 2), node.shape(0)[1]
    powers = node.emit(graph.AbsOp(x))
    if p != 1:
        powers = node.emit(graph.PowOp(powers, node.scalar(p, x)))
    ones = np.ones([channels, 1, *kernel], numpy_dtype(tensor_of(x).element_type))
    total = node.emit(
        graph.ConvOp(
            powers,
            node.constant(ones, "ones"),
            strides=strides,
            pads=pads,
            dilations=dilations,
            group=channels,
        )
    )
    return total if p == 1 else node.emit(graph.PowOp(total, node.scalar(1 / p, x)))


@imports("AveragePool")
def average_pool(node: Node) -> SSAValue:
    kernel, strides, pads, dilations = _window(node)
    return node.emit(
        graph.AveragePoolOp(
            node.value(0),
            kernel_shape=kernel,
            strides=strides,
            pads=pads,
            dilations=dilations,
            ceil_mode=node.flag("ceil_mode", False),
            count_include_pad=node.flag("count_include_pad", False),
        )
    )


@imports("GlobalLpPool")
@in_accumulator
def global_lp_pool(node: Node) -> SSAValue:
    """(sum of |x|^p)^(1/p) over all elements of each channel."""
    x, p = node.value(0), node.int("p", 2)
    powers = node.emit(graph.PowOp(node.emit(graph.AbsOp(x)), node.scalar(p, x)))
    total = node.emit(graph.ReduceSumOp(powers, axes=list(range(2, len(node.shape(0))))))
    return node.emit(graph.PowOp(total, node.scalar(1 / p, x)))
