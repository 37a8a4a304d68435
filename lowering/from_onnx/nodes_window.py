# SPDX-License-Identifier: Apache-2.0
"""Importers of convolution and pooling, and the windows of all operators that have some."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float, require
from penstock.dialects.graph.sizes import decided_equal
from penstock.dialects.graph.window import window_counts
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import OnnxNode, Unsupported, imports
from penstock.passes.graph.gradients.rules_contraction import ConvGeometry, adjoint_filters, adjoint_of_image
from penstock.passes.graph.terms import Term, along

MAX_TAPS = 64
"""Indices of the largest elements are computed for windows of at most so many elements."""

AUTO_PADS = ("", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class SpatialWindows:
    """The windows of an operator over its spatial dimensions: one entry for each, of `pads` two."""

    spatial: Sequence[int]
    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]
    ceil_mode: bool = False

    @classmethod
    def of(
        cls, node: OnnxNode, spatial: Sequence[int], kernel: Sequence[int] | None = None, *, same: bool = True
    ) -> SpatialWindows:
        """
        What the attributes of a node say, or leave to their defaults; `kernel` is what its operands say.

        SAME_UPPER and SAME_LOWER give ceil(size / stride) windows; an odd padding puts the larger part after, or
        before. Without `same` their padding is left to the caller.
        """
        rank = len(spatial)
        stated = node.ints("kernel_shape")
        if kernel is not None and stated:
            equal = len(stated) == len(kernel) and all(map(decided_equal, stated, kernel))
            require(equal, f"kernel_shape is {stated}, the filters have {list(kernel)}")
        kernel = (stated or []) if kernel is None else kernel
        strides, dilations = (node.ints(name) or [1] * rank for name in ("strides", "dilations"))
        for name, values in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilations)):
            require(len(values) == rank, f"{name} {list(values)} for {rank} spatial dimensions")
        mode = node.string("auto_pad", "NOTSET")
        if mode not in AUTO_PADS:
            raise Unsupported(f"auto_pad {mode}")
        pads = [0] * (2 * rank)
        if mode in ("NOTSET", ""):
            pads = node.ints("pads") or pads
        elif mode != "VALID" and same:
            for dim, (size, window) in enumerate(zip(spatial, kernel, strict=True)):
                extent = dilations[dim] * (window - 1) + 1
                total = max((-(-size // strides[dim]) - 1) * strides[dim] + extent - size, 0)
                small, large = total // 2, total - total // 2
                pads[dim], pads[dim + rank] = (small, large) if mode == "SAME_UPPER" else (large, small)
        return cls(spatial, kernel, strides, dilations, pads, node.flag("ceil_mode", False))

    @property
    def properties(self) -> dict[str, Any]:
        """Those of the op of a convolution."""
        return {"strides": self.strides, "pads": self.pads, "dilations": self.dilations}

    @property
    def of_pool(self) -> dict[str, Any]:
        """The properties of the op of a pool."""
        return {"kernel_shape": self.kernel, **self.properties, "ceil_mode": self.ceil_mode}

    @property
    def counts(self) -> list[int]:
        """The number of windows along each dimension."""
        return window_counts(self.spatial, self.kernel, self.strides, self.pads, self.dilations, self.ceil_mode)

    @property
    def whole(self) -> SpatialWindows:
        """The same with the padding after that the last windows reach, which with `ceil_mode` may be more."""
        if not self.ceil_mode:
            return self
        rank = len(self.kernel)
        ends = [
            (count - 1) * self.strides[dim]
            + self.dilations[dim] * (self.kernel[dim] - 1)
            + 1
            - self.spatial[dim]
            - self.pads[dim]
            for dim, count in enumerate(self.counts)
        ]
        return replace(self, pads=[*self.pads[:rank], *(max(end, 0) for end in ends)])

    def positions(self) -> list[Array]:
        """Where each tap of each window reads along each dimension: (taps..., windows...)."""
        rank, counts = len(self.kernel), self.counts
        return [
            np.broadcast_to(
                along(np.arange(self.kernel[dim]) * self.dilations[dim], dim, 2 * rank)
                + along(np.arange(counts[dim]) * self.strides[dim] - self.pads[dim], rank + dim, 2 * rank),
                (*self.kernel, *counts),
            )
            for dim in range(rank)
        ]


def convolution(
    node: OnnxNode, x: SSAValue, w: SSAValue, b: SSAValue | None, accumulator: Attribute | None = None
) -> SSAValue:
    """The convolution of two values as the attributes of a node say."""
    spatial, kernel = (tensor_of(each).get_shape()[2:] for each in (x, w))
    windows, group = SpatialWindows.of(node, spatial, kernel), node.int("group", 1)
    return node.emit(graph.ConvOp(x, w, b, **windows.properties, group=group, accumulator=accumulator))


@imports("Conv")
def conv(node: OnnxNode) -> SSAValue:
    return convolution(node, node.value(0), node.value(1), node.optional(2))


@imports("MaxPool")
def max_pool(node: OnnxNode) -> list[SSAValue]:
    windows = SpatialWindows.of(node, node.shape(0)[2:])
    values = node.emit(graph.MaxPoolOp(node.value(0), **windows.of_pool))
    return [values, _where_largest(node, windows.whole)] if any(node.used_outputs[1:]) else [values]


def _where_largest(node: OnnxNode, windows: SpatialWindows) -> SSAValue:
    """The index, into all elements of the input, of the first of the largest of each window: tap after tap."""
    code, x, rank = node.code, node.code.input(0), len(windows.kernel)
    if not is_float(x.element_type) or math.prod(windows.kernel) > MAX_TAPS:
        raise Unsupported(f"indices of integers, or of more than {MAX_TAPS} taps")
    require(math.prod(windows.kernel) > 0, "a window has no elements")
    pads = [0, 0, *windows.pads[:rank], 0, 0, *windows.pads[rank:]]
    padded = code.emit(graph.PadOp(x.value, pads=pads, value=-math.inf))
    order = range(rank) if node.flag("storage_order", False) else range(rank)[::-1]
    pitch, index = 1, np.zeros((), np.int64)
    for dim in order:
        index = index + windows.positions()[dim] * pitch
        pitch *= windows.spatial[dim]
    best: tuple[Term, Term] | None = None
    for tap in itertools.product(*map(range, windows.kernel)):
        starts = [0, 0, *(step * dilation for step, dilation in zip(tap, windows.dilations, strict=True))]
        sizes, steps = [*x.shape[:2], *windows.counts], [1, 1, *windows.strides]
        part = code.emit(graph.SliceOp(padded.value, starts=starts, sizes=sizes, steps=steps))
        numbers = code.constant(index[tap], "indices")
        if best is None:
            best = part, numbers
            continue
        larger = part > best[0]
        best = larger.where(part, best[0]), larger.where(numbers, best[1])
    assert best is not None
    planes = np.arange(math.prod(x.shape[:2]), dtype=np.int64).reshape(*x.shape[:2], *[1] * rank) * pitch
    return (best[1] + code.constant(planes, "planes")).value


def _norm(node: OnnxNode, total_of: Callable[[Term], Term]) -> SSAValue:
    """(sum of |x|^p)^(1/p)."""
    x, p = node.code.input(0), node.int("p", 2)
    total = total_of(abs(x) if p == 1 else abs(x).apply("pow", p))
    return (total if p == 1 else total.apply("pow", 1 / p)).value


@imports("LpPool")
@in_accumulator
def lp_pool(node: OnnxNode) -> SSAValue:
    """The norm of each window: the sum is a convolution of each channel with ones."""
    windows, channels = SpatialWindows.of(node, node.shape(0)[2:]).whole, node.shape(0)[1]

    def total(powers: Term) -> Term:
        ones = node.code.constant(np.ones([channels, 1, *windows.kernel]), "ones", powers.element_type)
        return node.code.emit(graph.ConvOp(powers.value, ones.value, **windows.properties, group=channels))

    return _norm(node, total)


@imports("AveragePool")
def average_pool(node: OnnxNode) -> SSAValue:
    windows = SpatialWindows.of(node, node.shape(0)[2:])
    return node.emit(
        graph.AveragePoolOp(node.value(0), **windows.of_pool, count_include_pad=node.flag("count_include_pad", False))
    )


@imports("GlobalLpPool")
@in_accumulator
def global_lp_pool(node: OnnxNode) -> SSAValue:
    """The norm of all elements of each channel."""
    return _norm(node, lambda powers: powers.sum(range(2, len(powers.shape))))


@imports("MaxUnpool")
def max_unpool(node: OnnxNode) -> SSAValue:
    """Zeros, with each element at the index that a MaxPool has given."""
    x, rank = node.code.input(0), len(node.shape(0)) - 2
    kernel, strides = node.ints("kernel_shape") or [], node.ints("strides") or [1] * rank
    pads = node.ints("pads") or [0] * (2 * rank)
    sizes = [
        (size - 1) * stride + window - before - after
        for size, stride, window, before, after in zip(
            x.shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True
        )
    ]
    whole = [*x.shape[:2], *sizes]
    zeros = node.code.number(0, x.element_type).expand([math.prod(whole)])
    indices = node.code.input(1).reshape([-1])
    scattered = graph.ScatterElementsOp(zeros.value, indices.value, x.reshape([-1]).value, axis=0)
    y = node.code.emit(scattered).reshape(whole).value
    if not node.has(2):
        return y
    result = node.ints_of(2, "output shape")
    more = [size - have for size, have in zip(result, whole, strict=True)]
    require(min(more) >= 0, f"the output shape {result} is smaller than {whole}")
    return node.emit(graph.PadOp(y, pads=[*[0] * len(more), *more]))


@imports("Col2Im")
def col2im(node: OnnxNode) -> SSAValue:
    """
    Patches put back where they come from, and added up where they overlap: the gradient of taking them.

    Where each element goes is known at import; what falls onto the padding goes to one element more.
    """
    code, x = node.code, node.code.input(0)
    image, block = node.ints_of(1, "image shape"), node.ints_of(2, "block shape")
    windows = SpatialWindows.of(node, image, block)
    batches, rows, columns = x.shape
    window = math.prod(block)
    require(rows % window == 0, f"patches of shape {block} for {rows} rows")
    counts = windows.counts
    require(columns == math.prod(counts), f"{columns} patches, where images of shape {image} have {counts}")
    index, outside = np.zeros((), np.int64), np.zeros((), np.bool_)
    for size, positions in zip(image, windows.positions(), strict=True):
        outside = outside | (positions < 0) | (positions >= size)
        index = index * size + positions
    whole = math.prod(image)
    channels = rows // window
    patches = [batches * channels, window * columns]
    where = code.constant(np.where(outside, whole, index).reshape(1, -1), "positions", i64).expand(patches)
    zeros = code.number(0, x.element_type).expand([patches[0], whole + 1])
    flat = x.reshape(patches)
    total = code.emit(graph.ScatterElementsOp(zeros.value, where.value, flat.value, axis=1, reduction="add"))
    return total.cut(1, 0, whole).reshape([batches, channels, *image]).value


@imports("ConvTranspose")
def conv_transpose(node: OnnxNode) -> SSAValue:
    """
    The gradient of a convolution by its input.

    Where no windows overlap, which is where the stride is the size of the kernel, no zeros are needed between the
    elements: a convolution with one tap gives every element of a window in a channel of its own, and they are put
    side by side.
    """
    x, w, b = node.code.input(0), node.code.input(1), node.code.input(2) if node.has(2) else None
    geometry = _transposed_geometry(node)
    whole = [size * stride for size, stride in zip(x.shape[2:], geometry.strides, strict=True)]
    is_plain = not any(geometry.before) and set(geometry.dilations) == {1} and geometry.group == 1
    if is_plain and list(geometry.kernel) == list(geometry.strides) and geometry.size == whole:
        return _side_by_side(x, w, b, whole).value
    return adjoint_of_image(x, adjoint_filters(w, geometry.group), geometry, bias=b).value


def _transposed_geometry(node: OnnxNode) -> ConvGeometry:
    """The convolution whose gradient a ConvTranspose is."""
    spatial, kernel, channels = node.shape(0)[2:], node.shape(1)[2:], node.shape(0)[1]
    rank, group = len(spatial), node.int("group", 1)
    windows = SpatialWindows.of(node, spatial, kernel, same=False)
    extra = node.ints("output_padding") or [0] * rank
    for name, values, count in (("output_padding", extra, rank), ("pads", windows.pads, 2 * rank)):
        require(len(values) == count, f"{name} has {len(values)} entries for {rank} spatial dimensions")
    require(node.shape(1)[0] == channels, f"filters for {node.shape(1)[0]} channels, the input has {channels}")
    require(group > 0 and channels % group == 0, f"{channels} channels in {group} groups")
    full = [
        stride * (size - 1) + dilation * (window - 1) + 1 + more
        for size, window, stride, dilation, more in zip(
            spatial, kernel, windows.strides, windows.dilations, extra, strict=True
        )
    ]
    mode, result = node.string("auto_pad", "NOTSET"), node.ints("output_shape")
    if not result and mode.startswith("SAME"):
        result = [size * stride for size, stride in zip(spatial, windows.strides, strict=True)]
    if result:
        result = result[-rank:]
        totals = [have - want for have, want in zip(full, result, strict=True)]
        before = [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]
    else:
        before = list(windows.pads[:rank])
        cuts = zip(full, before, windows.pads[rank:], strict=True)
        result = [have - first - last for have, first, last in cuts]
    return ConvGeometry(result, kernel, windows.strides, windows.dilations, before, group)


def _side_by_side(x: Term, w: Term, b: Term | None, whole: Sequence[int]) -> Term:
    """One tap for every element of the window, as channels, which are then moved side by side."""
    batch, _, *spatial = x.shape
    inputs, outputs, *window = w.shape
    rank, taps = len(window), math.prod(window)
    filters = w.transpose([*range(1, 2 + rank), 0]).reshape([outputs * taps, inputs, *[1] * rank])
    bias = None if b is None else b.reshape([outputs, 1]).expand([outputs, taps]).reshape([outputs * taps]).value
    y = x.emit(graph.ConvOp(x.value, filters.value, bias)).reshape([batch, outputs, *window, *spatial])
    inside = [dim for number in range(rank) for dim in (2 + rank + number, 2 + number)]
    return y.transpose([0, 1, *inside]).reshape([batch, outputs, *whole])
