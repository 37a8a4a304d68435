# SPDX-License-Identifier: Apache-2.0
"""Operations of StableHLO that combine elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import (
    i32,
)
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import integer_bounds, is_bool, is_float
from penstock.dialects.weights import Array
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import (
    Unsupported,
    converts,
    elements_of,
    int_of,
    ints_of,
    reducer_of,
    result_of,
    words_of,
)
from penstock.lowering.from_onnx.nodes_indexing import first_index
from penstock.passes.graph.terms import Term, along

_REDUCTIONS = {
    "add": (graph.ReduceSumOp, "add"),
    "maximum": (graph.ReduceMaxOp, "max"),
    "minimum": (graph.ReduceMinOp, "min"),
    "multiply": (graph.ReduceProdOp, "mul"),
}


@converts("reduce")
def _reduce(code: Any, op: ForeignOp, *operands: Term) -> Term | Sequence[Term]:
    if len(op.results) == 2:
        return _extremum(code, op, operands[0])
    word = reducer_of(op)
    x, start = operands
    axes = ints_of(op, "dimensions")
    element = x.element_type
    if is_bool(element) and word in ("and", "or"):
        total, combine = (graph.ReduceMinOp, "min") if word == "and" else (graph.ReduceMaxOp, "max")
        x, start = x.cast(i32), start.cast(i32)
    elif word in _REDUCTIONS:
        total, combine = _REDUCTIONS[word]
    else:
        raise Unsupported(f"by {word}")
    found = code.emit(total(x.value, axes=axes, keepdims=False)) if axes else x
    if not _is_neutral(code.known(start), combine, x.element_type):
        found = found.apply(combine, start)
    return found.cast(element)


def _extremum(code: Any, op: ForeignOp, x: Term) -> Sequence[Term]:
    """The largest, or smallest, element along a dimension, and its first index, as JAX writes argmax and argmin."""
    block, numbers, axes = op.bodies[0].block, op.operands[1].owner, ints_of(op, "dimensions")
    known: dict[SSAValue, int] = {value: index for index, value in enumerate(block.args)}
    steps: list[str] = []
    for each in block.ops:
        words = words_of(each)[:1] if isinstance(each, ForeignOp) else []
        steps.append(" ".join((each.name.partition(".")[2], *words, *(str(known[value]) for value in each.operands))))
        known |= {value: len(known) for value in each.results}
    is_largest = steps[0] == "compare GT 0 2"
    is_counted = isinstance(numbers, ForeignOp) and numbers.short == "iota" and [int_of(numbers, "dim")] == axes
    if steps[1:] != _FIRST_EXTREMUM or not (is_largest or steps[0] == "compare LT 0 2") or not is_counted:
        raise Unsupported("by more than one operation on one value")
    (axis,) = axes
    return first_extremum(code, x, axis, tensor_of(op.results[1]).element_type, is_largest=is_largest)


def first_extremum(code: Any, x: Term, axis: int, element: Attribute, *, is_largest: bool) -> tuple[Term, Term]:
    """The largest, or smallest, element along a dimension, and its first index, of that type; NaN comes first."""
    total = graph.ReduceMaxOp if is_largest else graph.ReduceMinOp
    most, size = code.emit(total(x.value, axes=[axis])), x.shape[axis]
    found = x.equal(most)
    if is_float(x.element_type):
        found = found | x.equal(x).apply("not")
    places = code.array(along(np.arange(size), axis, len(x.shape)), "places")
    index = first_index(found, places, axis, size, keep=False).cast(element)
    return most.reshape(index.shape), index


_FIRST_EXTREMUM = [
    "compare NE 0 0",
    "or 4 5",
    "compare EQ 0 2",
    "compare LT 1 3",
    "and 7 8",
    "or 6 9",
    "select 6 0 2",
    "select 10 1 3",
    "return 11 12",
]
"""
What follows the comparison of two elements, 0 and 2, with the indices 1 and 3: the one that is more or no number, and
of two that are equal the one before.
"""


def _is_neutral(start: Array | None, combine: str, element: Attribute) -> bool:
    """Whether combining with a number changes nothing."""
    if start is None:
        return False
    bounds = integer_bounds(element)
    low, high = (-math.inf, math.inf) if bounds is None else (bounds[0], bounds[-1])
    return float(start) == float({"add": 0, "mul": 1, "max": low, "min": high}[combine])


@converts("reduce_window")
def _reduce_window(code: Any, op: ForeignOp, x: Term, start: Term) -> Term:
    """The largest or the sum of each window: a pool, or a convolution with ones, over the dimensions that it spans."""
    word, rank = reducer_of(op), len(x.shape)
    if word not in ("maximum", "add") or not is_float(x.element_type):
        raise Unsupported(f"by {word} of {x.element_type}")
    if not _is_neutral(code.known(start), _REDUCTIONS[word][1], x.element_type):
        raise Unsupported("that starts with another value")
    ones = [1] * rank
    sizes = ints_of(op, "window_dimensions")
    steps, apart, inside = (
        ints_of(op, name, default=ones) for name in ("window_strides", "window_dilations", "base_dilations")
    )
    if inside != ones:
        raise Unsupported("of elements that are spread")
    padding = op.get("padding")
    pads = np.zeros((rank, 2), np.int64) if padding is None else elements_of(cast("graph.Dense", padding))[0]
    spans = [dim for dim in range(rank) if sizes[dim] != 1 or steps[dim] != 1 or pads[dim].any()]
    if not spans:
        return x
    if len(spans) > 3:
        raise Unsupported(f"over {len(spans)} dimensions")
    others = [dim for dim in range(rank) if dim not in spans]
    order = [*others, *spans]
    flat = x.transpose(order).reshape([math.prod(x.shape[dim] for dim in others), 1, *(x.shape[dim] for dim in spans)])
    window: dict[str, Any] = {
        "strides": [steps[dim] for dim in spans],
        "pads": [int(pads[dim, side]) for side in (0, 1) for dim in spans],
        "dilations": [apart[dim] for dim in spans],
    }
    kernel = [sizes[dim] for dim in spans]
    if word == "maximum":
        found = code.emit(graph.MaxPoolOp(flat.value, kernel_shape=kernel, **window))
    else:
        taps = code.array(np.ones([1, 1, *kernel], numpy_dtype(x.element_type)), "ones")
        found = code.emit(graph.ConvOp(flat.value, taps.value, **window))
    result = result_of(op).get_shape()
    return found.reshape([result[dim] for dim in order]).transpose([order.index(dim) for dim in range(rank)])
