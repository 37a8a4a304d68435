# SPDX-License-Identifier: Apache-2.0
"""Operators that read or write elements at indices that other operands name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.graph.indexing import (
    GatherElementsOp,
    GatherNdOp,
    GatherOp,
    ScatterElementsOp,
    ScatterNdOp,
    TopKOp,
)
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.accumulator import in_accumulator
from penstock.runtime.interpreter.graph.registry import implements


def _from_front(op: Operation, indices: Array, size: int) -> Array:
    """Indices counted from the front; raises UserError for one that is outside `size`."""
    wide = indices.astype(np.int64)
    inside = (wide >= -size) & (wide < size)
    if not inside.all():
        fault = wide[~inside].ravel()[0]
        raise UserError(f"index {fault} is outside a dimension of {size}", loc=location_of(op))
    return np.where(wide < 0, wide + size, wide)


@implements(GatherOp)
def gather(op: GatherOp, operands: Sequence[Array]) -> Array:
    """Parts along the axis."""
    x, indices = operands
    axis = op.axis.value.data
    return np.take(x, _from_front(op, indices, x.shape[axis]), axis=axis)


def _places(op: Operation, x: Array, indices: Array, axis: int) -> tuple[Any, ...]:
    """Where the elements of `indices` point: their own places, but for the axis."""
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[axis] = _from_front(op, indices, x.shape[axis])
    return tuple(places)


def _rows(op: Operation, x: Array, indices: Array, first: int) -> tuple[Array, ...]:
    """The indices of rows, of dimension `first` of `x` and those after it."""
    return tuple(_from_front(op, indices[..., column], x.shape[first + column]) for column in range(indices.shape[-1]))


@implements(GatherElementsOp)
def gather_elements(op: GatherElementsOp, operands: Sequence[Array]) -> Array:
    """Elements along the axis."""
    x, indices = operands
    return np.asarray(x[_places(op, x, indices, op.axis.value.data)])


@implements(GatherNdOp)
def gather_nd(op: GatherNdOp, operands: Sequence[Array]) -> Array:
    """Parts at rows of indices, side by side in the dimensions of the batch."""
    x, indices = operands
    batch = op.batch_dims.value.data
    outer = np.indices(indices.shape[:-1], sparse=True)[:batch]
    return np.array(x[(*outer, *_rows(op, x, indices, batch))])


COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scattered(x: Array, places: tuple[Any, ...], updates: Array, reduction: str) -> Array:
    result = np.array(x)
    if reduction == "none":
        # One after the other: of updates at one place the last one stays.
        spread: list[Array] = list(np.broadcast_arrays(*places))
        for at in np.ndindex(spread[0].shape):
            result[tuple(int(each[at]) for each in spread)] = updates[at]
        return result
    combine: Callable[..., None] = COMBINE[reduction].at
    combine(result, places, updates)
    return result


@implements(ScatterElementsOp)
@in_accumulator
def scatter_elements(op: ScatterElementsOp, operands: Sequence[Array]) -> Array:
    """Elements along the axis, changed."""
    x, indices, updates = operands
    places = _places(op, x, indices, op.axis.value.data)
    return _scattered(x, tuple(np.broadcast_arrays(*places)), updates, op.reduction.data)


@implements(ScatterNdOp)
@in_accumulator
def scatter_nd(op: ScatterNdOp, operands: Sequence[Array]) -> Array:
    """Parts at rows of indices, changed."""
    x, indices, updates = operands
    return _scattered(x, _rows(op, x, indices, 0), updates, op.reduction.data)


@implements(TopKOp)
def top_k(op: TopKOp, operands: Sequence[Array]) -> Array:
    """The places of the extrema: by a stable sort, which keeps equal elements in their order."""
    (x,) = operands
    axis = op.axis.value.data
    if op.largest:
        # Sorting from the back and reversing keeps the order of equal elements.
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return np.take(order, np.arange(op.k.value.data), axis=axis).astype(np.int64)
