# SPDX-License-Identifier: Apache-2.0
"""Join the groups of channels of a convolution into blocks that fill a matrix unit."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import ConvOp, tensor_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.products import added_product
from penstock.passes.analysis.intrinsics import pattern_of
from penstock.passes.analysis.kernels import machine_of
from penstock.passes.graph.layouts.convolutions import (
    Sizes,
    finite_filters,
    products_of,
    rewrite_convolutions,
    rows_and_columns,
    takes_other_filters,
)
from penstock.passes.graph.layouts.preferences import MatrixIntrinsic, element_types, matrix_intrinsic
from penstock.passes.graph.values import NodeBuilder, rebuilt
from penstock.passes.shapes import shape_of

SLOTS = 2
"""How many blocks of filters are in their scope at a time: one that is used, and one that is fetched."""


class _Blocks:
    """The convolutions of groups of channels that a machine computes as products of matrices, and their time."""

    def __init__(self, target: TargetOp):
        self._target = target
        self._products = products_of(target)
        # What multiplies and adds in lanes, a channel in each.
        self._lanes = [
            tuple(spec.dtype for spec in pattern_of(each).specs)
            for each in target.intrinsics().values()
            if each.unit is not None and not each.is_call and matrix_intrinsic(each) is None
            if added_product(each.generic.body.block) is not None
        ]

    def rewrite(self, op: ConvOp, nodes: NodeBuilder) -> SSAValue | None:
        """The convolution with so many groups in one as take the least time; None if they are as many as now."""
        groups = op.group.value.data
        if groups == 1 or not takes_other_filters(op):
            return None
        elements = element_types(op)
        product = next((each for each in self._products if each.takes(elements)), None)
        if product is None or product.is_blocked or not product.preferences() or self._has_lanes(elements, product):
            return None
        joined = min((t for t in range(1, groups + 1) if groups % t == 0), key=lambda t: self._cycles(op, product, t))
        if joined == 1 or (filters := finite_filters(op, nodes)) is None:
            return None
        outputs, inputs, *window = filters.shape
        blocks = np.zeros((groups // joined, joined, outputs // groups, joined, inputs, *window), filters.dtype)
        places = np.arange(joined)
        parts = filters.reshape(groups // joined, joined, outputs // groups, inputs, *window)
        blocks[:, places, :, places] = np.moveaxis(parts, 1, 0)
        w = nodes.constant(blocks.reshape(outputs, joined * inputs, *window), "filters")
        group = IntegerAttr(groups // joined, i64)
        return nodes.add(rebuilt(op, [op.x, w, *op.operands[2:]], group=group))

    def _has_lanes(self, elements: tuple[object, ...], product: MatrixIntrinsic) -> bool:
        return any(each in (elements, product.elements) for each in self._lanes)

    def _cycles(self, op: ConvOp, product: MatrixIntrinsic, joined: int) -> tuple[float, int]:
        """
        What the unit takes with so many groups in one; infinite where the filters of one do not fit beside those of
        the next. The second number decides among equals.
        """
        groups = op.group.value.data // joined
        outputs, inputs, *window = shape_of(op.w)
        sizes = Sizes(groups, joined * inputs, outputs // groups, prod(window), *rows_and_columns(shape_of(op.result)))
        width = numpy_dtype(tensor_of(op.w).element_type).itemsize
        scope = pattern_of(product.intrinsic).specs[1 - product.activations].scope
        if joined > 1 and SLOTS * sizes.filters * width > self._target.scope(scope).size_bytes:
            return inf, joined
        return sizes.cycles(product, self._target, width), joined


@dataclass(frozen=True)
class BlockDiagonalPass(ModulePass):
    """
    Join groups of channels of a `graph.conv`, so that together they fill the matrix unit of a machine.

    A convolution of groups is a product of matrices for each of them, and leaves most of a matrix unit idle where
    groups are small, as those of one channel of a depthwise convolution. The filters of several groups are those of one
    with a block for each on the diagonal, and zeros beside. So many are joined as take the least time, by the cycles of
    the intrinsic and the bytes of the filters. Sums gain nothing but zeros: the result is the same, bit for bit, where
    all numbers are finite; an infinite one, or NaN, reaches the other channels of its block.

    Requires the graph level, before layouts are chosen, and filters that are weights; does nothing for a machine that
    multiplies and adds in lanes, and for one that loads its factors in blocks, which `layout` does not make of groups.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x8x6x6xf32>) -> tensor<1x8x6x6xf32> {
      %w = graph.constant dense<2.0> : tensor<8x1x1x1xf32>
      %y = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] group 8
          : (tensor<1x8x6x6xf32>, tensor<8x1x1x1xf32>) -> tensor<1x8x6x6xf32>
      func.return %y : tensor<1x8x6x6xf32>
    }
    ```
    After (`block-diagonal` on `gemmini-fp32`):
    ```mlir
    func.func @main(%x: tensor<1x8x6x6xf32>) -> tensor<1x8x6x6xf32> {
      %filters = graph.constant #graph.weight<"filters"> : tensor<8x4x1x1xf32>
      %y = graph.conv %x, %filters strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] group 2
          : (tensor<1x8x6x6xf32>, tensor<8x4x1x1xf32>) -> tensor<1x8x6x6xf32>
      func.return %y : tensor<1x8x6x6xf32>
    }
    ```
    """

    name = "block-diagonal"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = machine_of(op)
        if target is None or target.is_host:
            return
        rewrite_convolutions(ctx, op, _Blocks(target).rewrite)
