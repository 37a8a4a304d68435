"""Tensors from one layout into another."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialects.graph.layout import Layout, layout_of_rank, steps_between
from penstock.dialects.graph.layout_transform import LayoutTransformOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.registry import implements
from penstock.runtime.interpreter.graph.shape import pad_with


@implements(LayoutTransformOp)
def layout_transform(op: LayoutTransformOp, operands: Sequence[Array]) -> Array:
    """Zeros after what blocks hang over, and without them where the result has none."""
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
