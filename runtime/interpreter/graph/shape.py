# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements; most return views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.dialects.graph.layout import Layout, LayoutTransformOp, layout_of_rank, steps_between
from penstock.dialects.graph.shape import (
    ConcatOp,
    ExpandOp,
    PadOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
)
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.registry import implements


@implements(ReshapeOp)
def reshape(op: ReshapeOp, operands: Sequence[Array]) -> Array:
    """The same elements in row-major order in another shape."""
    return operands[0].reshape(op.result_type.get_shape())


@implements(ExpandOp)
def expand(op: ExpandOp, operands: Sequence[Array]) -> Array:
    """Repeated to the shape of the result."""
    return np.broadcast_to(operands[0], op.result_type.get_shape())


@implements(TransposeOp)
def transpose(op: TransposeOp, operands: Sequence[Array]) -> Array:
    """Dimensions in another order."""
    return operands[0].transpose(op.perm.get_values())


@implements(ConcatOp)
def concat(op: ConcatOp, operands: Sequence[Array]) -> Array:
    """One after the other along the axis."""
    return np.concatenate(operands, axis=op.axis.value.data)


@implements(PadOp)
def pad(op: PadOp, operands: Sequence[Array]) -> Array:
    """With a constant around it."""
    (x,) = operands
    pads = op.pads.get_values()
    widths = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    return pad_with(x, widths, x.dtype.type(op.value.value.data))


def pad_with(x: Array, widths: Sequence[tuple[int, int]], value: object) -> Array:
    """`x` with `value` around it; `x` itself where nothing is to pad."""
    if not any(before or after for before, after in widths):
        return x
    shape = [size + sum(width) for size, width in zip(x.shape, widths, strict=True)]
    result = np.full(shape, value, dtype=x.dtype)
    inside = tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, widths, strict=True))
    result[inside] = x
    return result


@implements(SliceOp)
def slice_(op: SliceOp, operands: Sequence[Array]) -> Array:
    """Every step-th element of each dimension, from its start; steps may be negative."""
    parts: list[slice] = []
    for start, size, step in zip(op.starts.get_values(), op.sizes.get_values(), op.steps.get_values(), strict=True):
        stop = start + size * step
        # a stop before the first element would count from the end
        parts.append(slice(0, 0) if size == 0 else slice(start, None if stop < 0 else stop, step))
    return operands[0][tuple(parts)]


@implements(LayoutTransformOp)
def layout_transform(op: LayoutTransformOp, operands: Sequence[Array]) -> Array:
    """With zeros as padding of incomplete blocks, and without them where the result has none."""
    (x,) = operands
    shape = op.result_type.get_shape()
    source, target = layout_of_rank(op.source.data, x.ndim), layout_of_rank(op.target.data, len(shape))
    return transformed(x, source, target, shape)


def transformed(x: Array, source: Layout, target: Layout, shape: Sequence[int] | None = None) -> Array:
    """`x`, stored in the layout `source`, in the layout `target`: with all its blocks, or of the `shape` given."""
    if shape is None:
        shape = target.shape(source.extents(x.shape))
    steps = steps_between(source, target, x.shape, shape)
    after = [(0, large - size) for large, size in zip(steps.grown, x.shape, strict=True)]
    grown = pad_with(x, after, x.dtype.type(0))
    joined = grown.reshape(steps.split).transpose(steps.perm).reshape(steps.joined)
    return joined[tuple(slice(0, size) for size in shape)]
