# SPDX-License-Identifier: Apache-2.0
"""Compute a convolution of few channels with a stride as one of more channels without."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue
from xdsl.passes import ModulePass

from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import (
    ConvOp,
    GraphOp,
    PadOp,
    PatternKind,
    ReshapeOp,
    TransposeOp,
    pattern_kind,
    tensor_of,
)
from penstock.dialects.graph.base import ints
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.intrinsics import pattern_of
from penstock.passes.analysis.kernels import machine_of
from penstock.passes.graph.layouts.convolutions import (
    Sizes,
    arrival,
    finite_filters,
    products_of,
    rewrite_convolutions,
    rows_and_columns,
    takes_other_filters,
)
from penstock.passes.graph.layouts.preferences import element_types
from penstock.passes.graph.values import NodeBuilder, rebuilt
from penstock.passes.shapes import shape_of


@dataclass(frozen=True)
class _Window:
    """A spatial dim of the convolution: the element `stride * i + r` of the image is the element i of its channel r."""

    stride: int
    before: int
    """Elements that are put before the image."""
    after: int
    """And after, so that the stride divides it."""
    lead: int
    """Zeros before the filter."""
    kernel: int
    """The size of the filters of the result."""
    pads: tuple[int, int]
    """Its pads before and after."""

    @staticmethod
    def of(size: int, kernel: int, stride: int, pad: int, outputs: int) -> _Window | None:
        """Of an image of a `size`; None where it has more elements than the windows reach."""
        # Filters begin where an element of the image has channel 0: that is a matter of zeros before the filter, or,
        # where the filter would grow by that, before the image.
        lead, before = -pad % stride, 0
        if -(-(kernel + lead) // stride) > -(-kernel // stride):
            lead, before = 0, pad % stride
        filters = -(-(kernel + lead) // stride)
        after = -(size + before) % stride
        first = (pad + lead - before) // stride
        last = outputs + filters - 1 - (size + before + after) // stride - first
        return None if last < 0 else _Window(stride, before, after, lead, filters, (first, last))


class _FirstConvolutions:
    """The convolutions with a stride of what the program is given, and what they take as others."""

    def __init__(self, target: TargetOp):
        self._target = target
        self._products = products_of(target)

    def rewrite(self, op: ConvOp, nodes: NodeBuilder) -> SSAValue | None:
        """The convolution without a stride; None where a unit of the machine does not take less time for it."""
        strides = op.strides.get_values()
        if op.group.value.data > 1 or max(strides) == 1 or max(op.dilations.get_values()) > 1:
            return None
        if not takes_other_filters(op) or not _is_given(op.x):
            return None
        (images, channels, *sizes), (outputs, _, *kernel) = shape_of(op.x), shape_of(op.w)
        rank = len(sizes)
        found = map(_Window.of, sizes, kernel, strides, op.pads.get_values()[:rank], shape_of(op.result)[2:])
        windows = [each for each in found if each is not None]
        if len(windows) < rank or not self._gains(op, windows) or (filters := finite_filters(op, nodes)) is None:
            return None
        around = [
            (each.lead, each.kernel * each.stride - each.lead - size)
            for each, size in zip(windows, kernel, strict=True)
        ]
        wider = np.pad(filters, [(0, 0), (0, 0), *around])
        x = op.x
        before, after = [each.before for each in windows], [each.after for each in windows]
        if any((*before, *after)):
            x = nodes.add(PadOp(x, pads=[0, 0, *before, 0, 0, *after], value=0.0), "padded")
        spatial, within = [2 + 2 * dim for dim in range(rank)], [3 + 2 * dim for dim in range(rank)]
        depth = channels * prod(strides)
        rows = [size // stride for size, stride in zip(shape_of(x)[2:], strides, strict=True)]
        split = [images, channels, *(part for pair in zip(rows, strides, strict=True) for part in pair)]
        x = nodes.add(ReshapeOp(x, split), "split")
        # Elements move once: channels become innermost, as most machines want them, and then have another name.
        x = nodes.add(TransposeOp(x, perm=[0, *spatial, *within, 1]), "interleaved")
        x = nodes.add(ReshapeOp(x, [images, *rows, depth]), "deep")
        x = nodes.add(TransposeOp(x, perm=[0, rank + 1, *range(1, rank + 1)]), "image")
        reduced = [each.kernel for each in windows]
        parts = [outputs, channels, *(part for pair in zip(reduced, strides, strict=True) for part in pair)]
        deep = wider.reshape(parts).transpose([0, *within, 1, *spatial])
        w = nodes.constant(deep.reshape(outputs, depth, *reduced), "filters")
        pads = [each.pads[0] for each in windows] + [each.pads[1] for each in windows]
        return nodes.add(rebuilt(op, [x, w, *op.operands[2:]], strides=ints([1] * rank), pads=ints(pads)))

    def _gains(self, op: ConvOp, windows: list[_Window]) -> bool:
        elements = element_types(op)
        product = next((each for each in self._products if each.takes(elements)), None)
        if product is None or not product.preferences():
            return False
        outputs, inputs, *kernel = shape_of(op.w)
        width = numpy_dtype(tensor_of(op.w).element_type).itemsize
        pixels = rows_and_columns(shape_of(op.result))
        depth = inputs * prod(each.stride for each in windows)
        now = Sizes(1, inputs, outputs, prod(kernel), *pixels)
        deep = Sizes(1, depth, outputs, prod(each.kernel for each in windows), *pixels)
        scope = pattern_of(product.intrinsic).specs[product.activations].scope
        # Where the image could stay on chip, its elements leave it once more, and come back in their new order.
        moved = 2 * arrival(self._target, scope, prod(shape_of(op.x)) * width)
        return deep.cycles(product, self._target, width) + moved < now.cycles(product, self._target, width)


def _is_given(value: SSAValue) -> bool:
    """Whether the program is given it, but for what is done with its elements one by one on the host."""
    while isinstance(value.owner, GraphOp) and pattern_kind(value.owner) <= PatternKind.INJECTIVE:
        if not value.owner.operands:
            return False
        value = value.owner.operands[0]
    return isinstance(value, BlockArgument)


@dataclass(frozen=True)
class SpaceToDepthPass(ModulePass):
    """
    Compute a convolution with a stride of the program's own input as one without, of as many more channels.

    The first convolution of a network has few channels, which leave most of a matrix unit idle. Of an image, elements
    that lie a stride apart become pixels of one channel, so that `s x s` neighbours are channels of one pixel; of the
    filters likewise, with zeros before and after until the stride divides them: 7 x 7 of 3 channels with a stride of 2
    are 4 x 4 of 12 channels. It is done where a unit of the machine takes fewer cycles for it, the way of the filters
    included, and that of the image once more from the chip and back.

    Sums gain nothing but zeros, and have another order: the same numbers for integers, and the pass reassociates. An
    infinite number, or NaN, may reach neighbouring elements of the result.

    Requires the graph level, before layouts are chosen; filters that are no weights, and convolutions of images whose
    sizes are not known, stay as they are.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xi8>) -> tensor<1x16x4x4xi32> {
      %w = graph.constant dense<2> : tensor<16x3x3x3xi8>
      %y = graph.conv %x, %w strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] accumulate i32
          : (tensor<1x3x8x8xi8>, tensor<16x3x3x3xi8>) -> tensor<1x16x4x4xi32>
      func.return %y : tensor<1x16x4x4xi32>
    }
    ```
    After (`space-to-depth` on `vta-pynq`):
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xi8>) -> tensor<1x16x4x4xi32> {
      %split = graph.reshape %x : tensor<1x3x8x8xi8> -> tensor<1x3x4x2x4x2xi8>
      %interleaved = graph.transpose %split perm [0, 2, 4, 3, 5, 1]
          : tensor<1x3x4x2x4x2xi8> -> tensor<1x4x4x2x2x3xi8>
      %deep = graph.reshape %interleaved : tensor<1x4x4x2x2x3xi8> -> tensor<1x4x4x12xi8>
      %image = graph.transpose %deep perm [0, 3, 1, 2] : tensor<1x4x4x12xi8> -> tensor<1x12x4x4xi8>
      %filters = graph.constant #graph.weight<"filters"> : tensor<16x12x2x2xi8>
      %y = graph.conv %image, %filters strides [1, 1] pads [1, 1, 0, 0] dilations [1, 1] accumulate i32
          : (tensor<1x12x4x4xi8>, tensor<16x12x2x2xi8>) -> tensor<1x16x4x4xi32>
      func.return %y : tensor<1x16x4x4xi32>
    }
    ```
    """

    name = "space-to-depth"
    reassociates: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = machine_of(op)
        if target is not None and not target.is_host:
            rewrite_convolutions(ctx, op, _FirstConvolutions(target).rewrite)
