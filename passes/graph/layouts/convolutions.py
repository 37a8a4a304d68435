# SPDX-License-Identifier: Apache-2.0
"""Convolutions that are computed as others: what a matrix unit takes for one, and rewriting all of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriteWalker

from penstock.dialects.context import store_of
from penstock.dialects.cycles import loops_of
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import NCHW, ConstantOp, ConvOp
from penstock.dialects.graph.base import is_static
from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.analysis.intrinsics import is_whole, pattern_of
from penstock.passes.graph.layouts.preferences import MatrixIntrinsic, matrix_intrinsic
from penstock.passes.graph.simplification.rules import ApplyRules
from penstock.passes.graph.values import NodeBuilder, constant_array


@dataclass(frozen=True)
class Sizes:
    """The sizes of a convolution."""

    groups: int
    inputs: int
    """Channels of a group."""
    outputs: int
    """Those of its result."""
    window: int
    """Elements of a filter in one channel."""
    lines: int
    """How many rows of pixels the result has, those of all images."""
    columns: int

    @property
    def filters(self) -> int:
        """Elements of the filters of a group."""
        return self.outputs * self.inputs * self.window

    def cycles(self, product: MatrixIntrinsic, target: TargetOp, element_bytes: int) -> float:
        """
        What a unit takes that computes it as products of matrices, and its filters to come; infinite where the unit
        does not take such blocks.
        """
        intrinsic = product.intrinsic
        specs, maps = pattern_of(intrinsic).specs, [attr.data for attr in intrinsic.generic.indexing_maps]
        m, n = (next(iter(expr.used_dims())) for expr in maps[-1].results)
        (k,) = {*range(3)} - {m, n}
        extents = {m: self.columns, n: self.outputs, k: self.inputs}
        blocks = {dim: intrinsic.shape[dim] or (1, extent) for dim, extent in extents.items()}
        if product.is_blocked:
            extents |= {dim: -(-extents[dim] // blocks[dim][1]) * blocks[dim][1] for dim in (n, k)}
        if not all(is_whole(extents[dim], blocks[dim]) for dim in (n, k)):
            return inf
        covered = [(None, 1), (None, 1), (n, blocks[n][1]), (k, blocks[k][1]), (None, 1), (m, blocks[m][1])]
        filters, image = [True, True, True, True, False, False], [True, True, False, True, True, True]
        stays = intrinsic.stationary_operand
        loops = loops_of(
            [self.groups, self.window, extents[n], extents[k], self.lines, extents[m]],
            covered,
            [True] * 6 if stays is None else image if stays == product.activations else filters,
            [True, False, True, False, True, True],
        )
        moved = self.groups * self.window * extents[n] * extents[k] * element_bytes
        return float(intrinsic.timing.cycles(loops)) + arrival(target, specs[1 - product.activations].scope, moved)


def arrival(target: TargetOp, scope: str, size: int) -> float:
    """The cycles that so many bytes take from off chip to a scope, as far as the bus of the engine decides."""
    engine = target.dma_between(DRAM, scope)
    bus = target.buses().get(engine.bus_name or "") if engine is not None else None
    rate, per = (1, 0) if bus is None else bus.bytes_per_cycle
    return size * per / rate


def products_of(target: TargetOp) -> list[MatrixIntrinsic]:
    """The intrinsics by which units of a machine compute products of matrices."""
    units = [each for each in target.intrinsics().values() if each.unit is not None and not each.is_call]
    return [product for each in units if (product := matrix_intrinsic(each)) is not None]


def takes_other_filters(op: ConvOp) -> bool:
    """Whether its sizes are known, its layout is still to come, and its filters are weights."""
    is_plain = op.layout.data == NCHW and op.filters is None
    return is_plain and is_static(op.x.type) and isinstance(op.w.owner, ConstantOp)


def finite_filters(op: ConvOp, nodes: NodeBuilder) -> NDArray[np.generic] | None:
    """The filters of a convolution; None where they have not come with the text, or are not all finite."""
    try:
        filters = constant_array(op.w, nodes.store)
    except UserError:
        return None
    if filters is None or (filters.dtype.kind == "f" and not np.isfinite(filters).all()):
        return None
    return filters


def rewrite_convolutions(
    ctx: Context, module: ModuleOp, rule: Callable[[ConvOp, NodeBuilder], SSAValue | None]
) -> None:
    """Apply a rule to each convolution, once, and take away the filters that nothing reads any more."""
    weights = [conv.w.owner for conv in module.walk() if isinstance(conv, ConvOp)]
    rules = ApplyRules({ConvOp: (rule,)}, store_of(ctx))
    PatternRewriteWalker(rules, apply_recursively=False).rewrite_module(module)
    for weight in dict.fromkeys(weights):
        if isinstance(weight, ConstantOp) and not weight.result.uses:
            weight.detach()
            weight.erase()


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows of pixels of all images of a shape NCHW, and the pixels of each."""
    images, _, *rows, columns = shape
    return images * prod(rows), columns
