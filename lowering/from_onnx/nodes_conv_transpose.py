"""
The importer of ConvTranspose: a convolution of the input with zeros between its elements.

See Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", arXiv:1603.07285, chapter 4. Where
no windows overlap, which is where the stride is the size of the kernel, no zeros are needed: a convolution with one
tap gives every element of a window in a channel of its own, and they are put side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import require
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.node import Node, imports
from penstock.lowering.from_onnx.nodes_shape import sliced


@dataclass(frozen=True)
class _Geometry:
    """What a ConvTranspose says about its spatial dimensions, one entry for each."""

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]
    """What is cut off the beginning of the full result."""
    after: Sequence[int]
    """What is cut off its end; negative where there are more elements, which are the bias."""
    group: int

    @property
    def is_tiling(self) -> bool:
        """Whether the windows lie side by side and cover the result."""
        plain = not any((*self.before, *self.after)) and set(self.dilations) == {1}
        return plain and list(self.kernel) == list(self.strides) and self.group == 1


@imports("ConvTranspose")
def conv_transpose(node: Node) -> SSAValue:
    """The gradient of a convolution by its input."""
    geometry = _geometry(node)
    return _side_by_side(node, geometry) if geometry.is_tiling else _stuffed(node, geometry)


def _geometry(node: Node) -> _Geometry:
    spatial, kernel = node.shape(0)[2:], list(node.shape(1)[2:])
    rank = len(spatial)
    stated = node.ints("kernel_shape") or kernel
    require(stated == kernel, f"kernel_shape is {stated}, the filters have {kernel}")
    strides = node.ints("strides") or [1] * rank
    dilations = node.ints("dilations") or [1] * rank
    extra = node.ints("output_padding") or [0] * rank
    pads = node.ints("pads") or [0] * (2 * rank)
    group, channels = node.int("group", 1), node.shape(0)[1]
    for name, values, count in (
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("output_padding", extra, rank),
        ("pads", pads, 2 * rank),
    ):
        require(len(values) == count, f"{name} has {len(values)} entries for {rank} spatial dimensions")
    require(node.shape(1)[0] == channels, f"filters for {node.shape(1)[0]} channels, the input has {channels}")
    require(group > 0 and channels % group == 0, f"{channels} channels in {group} groups")
    full = [
        stride * (size - 1) + dilation * (window - 1) + 1 + more
        for size, window, stride, dilation, more in zip(spatial, kernel, strides, dilations, extra, strict=True)
    ]
    mode = node.string("auto_pad", "NOTSET")
    require(mode in ("", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), f"auto_pad {mode}")
    wanted = node.ints("output_shape")
    if not wanted and mode.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(spatial, strides, strict=True)]
    if wanted:
        totals = [have - want for have, want in zip(full, wanted[-rank:], strict=True)]
        halves = [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]
        before, ends = halves, [total - half for total, half in zip(totals, halves, strict=True)]
    elif mode == "VALID":
        before, ends = [0] * rank, [0] * rank
    else:
        before, ends = pads[:rank], pads[rank:]
    after = [end - more for end, more in zip(ends, extra, strict=True)]
    return _Geometry(kernel, strides, dilations, before, after, group)


def _stuffed(node: Node, geometry: _Geometry) -> SSAValue:
    """A convolution with the filters turned round, over the input with `strides - 1` zeros after each element."""
    x, shape, rank = node.value(0), node.shape(0), len(geometry.kernel)
    if any(stride > 1 for stride in geometry.strides):
        apart = [size for each in shape[2:] for size in (each, 1)]
        pads = [0, 0] * (2 * rank + 2)
        for dim, stride in enumerate(geometry.strides):
            pads[2 + 2 * rank + 2 + 2 * dim + 1] = stride - 1
        x = node.emit(graph.PadOp(node.emit(graph.ReshapeOp(x, [*shape[:2], *apart])), pads=pads))
        x = node.emit(
            graph.ReshapeOp(
                x, [*shape[:2], *(size * stride for size, stride in zip(shape[2:], geometry.strides, strict=True))]
            )
        )
    reach = [dilation * (size - 1) for size, dilation in zip(geometry.kernel, geometry.dilations, strict=True)]
    low = [each - cut for each, cut in zip(reach, geometry.before, strict=True)]
    # The zeros after the last element are part of the padding.
    high = [
        each - cut - (stride - 1) for each, cut, stride in zip(reach, geometry.after, geometry.strides, strict=True)
    ]
    for dim in range(rank):
        size, first, last = tensor_of(x).get_shape()[2 + dim], max(-low[dim], 0), max(-high[dim], 0)
        if first or last:
            x = sliced(node, x, 2 + dim, first, size - first - last)
    return node.emit(
        graph.ConvOp(
            x,
            _turned_filters(node, geometry),
            node.optional(2),
            strides=[1] * rank,
            pads=[*(max(each, 0) for each in low), *(max(each, 0) for each in high)],
            dilations=geometry.dilations,
            group=geometry.group,
        )
    )


def _turned_filters(node: Node, geometry: _Geometry) -> SSAValue:
    """The filters (inputs, outputs of a group, window) as a convolution takes them, with the window reversed."""
    inputs, outputs, *window = node.shape(1)
    groups, rank = geometry.group, len(window)
    perm = [0, 2, 1, *range(3, 3 + rank)]
    split, joined = [groups, inputs // groups, outputs, *window], [groups * outputs, inputs // groups, *window]
    held = node.held(1)
    if not isinstance(held, SSAValue):
        turned = held.reshape(split).transpose(perm).reshape(joined)
        return node.constant(_owned(np.flip(turned, axis=tuple(range(2, 2 + rank)))), "turned")
    w = node.emit(graph.TransposeOp(node.emit(graph.ReshapeOp(held, split)), perm=perm))
    w = node.emit(graph.ReshapeOp(w, joined))
    steps = [1, 1, *[-1] * rank]
    return node.emit(graph.SliceOp(w, starts=[0, 0, *(size - 1 for size in window)], sizes=joined, steps=steps))


def _side_by_side(node: Node, geometry: _Geometry) -> SSAValue:
    """One tap for every place of the window, as channels, which are then moved to their places."""
    batch, _, *spatial = node.shape(0)
    inputs, outputs, *window = node.shape(1)
    rank, places = len(window), math.prod(window)
    perm, shape = [*range(1, 2 + rank), 0], [outputs * places, inputs, *[1] * rank]
    held = node.held(1)
    if isinstance(held, SSAValue):
        w = node.emit(graph.ReshapeOp(node.emit(graph.TransposeOp(held, perm=perm)), shape))
    else:
        w = node.constant(_owned(held.transpose(perm).reshape(shape)), "taps")
    bias: SSAValue | None = None
    if node.has(2):
        each = node.emit(graph.ReshapeOp(node.value(2), [outputs, 1]))
        bias = node.emit(graph.ReshapeOp(node.emit(graph.ExpandOp(each, [outputs, places])), [outputs * places]))
    y = node.emit(graph.ConvOp(node.value(0), w, bias, strides=[1] * rank, pads=[0] * (2 * rank), dilations=[1] * rank))
    y = node.emit(graph.ReshapeOp(y, [batch, outputs, *window, *spatial]))
    inside = [dim for place in range(rank) for dim in (2 + rank + place, 2 + place)]
    y = node.emit(graph.TransposeOp(y, perm=[0, 1, *inside]))
    whole = [size * stride for size, stride in zip(spatial, window, strict=True)]
    return node.emit(graph.ReshapeOp(y, [batch, outputs, *whole]))


def _owned(array: Array) -> Array:
    return np.ascontiguousarray(array)
