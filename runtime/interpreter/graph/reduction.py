# SPDX-License-Identifier: Apache-2.0
"""Reductions: narrow floats in f32, other types in their own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.dialects.graph.reduction import (
    ReduceMaxOp,
    ReduceMeanOp,
    ReduceMinOp,
    ReduceProdOp,
    ReduceSumOp,
    ReductionOp,
)
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.accumulator import in_accumulator
from penstock.runtime.interpreter.graph.formulas import divide
from penstock.runtime.interpreter.graph.registry import implements

UFUNCS: dict[type[ReductionOp], np.ufunc] = {
    ReduceSumOp: np.add,
    ReduceMeanOp: np.add,
    ReduceMaxOp: np.maximum,
    ReduceMinOp: np.minimum,
    ReduceProdOp: np.multiply,
}
"""What combines two elements."""


def extreme(dtype: np.dtype[Any], sign: int) -> np.generic:
    """The number below (sign -1) or above all others of a type: an infinity, or an integer bound."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return dtype.type(info.min if sign < 0 else info.max)
    return dtype.type(sign * math.inf)


NEUTRAL: dict[type[ReductionOp], Callable[[np.dtype[Any]], np.generic]] = {
    ReduceMaxOp: lambda dtype: extreme(dtype, -1),
    ReduceMinOp: lambda dtype: extreme(dtype, 1),
}
"""The result over no elements, where NumPy has none."""


@implements(*UFUNCS)
@in_accumulator
def reduce(op: ReductionOp, operands: Sequence[Array]) -> Array:
    """Any of `UFUNCS`; sums of floats are pairwise, as NumPy's."""
    (x,) = operands
    axes = tuple(op.axes.get_values())
    options: dict[str, Any] = {}
    if (neutral := NEUTRAL.get(type(op))) is not None and x.size == 0:
        options["initial"] = neutral(x.dtype)
    is_mean = isinstance(op, ReduceMeanOp)
    # NumPy would sum small integers in 64 bits, in which only a mean is summed.
    dtype = np.dtype(f"{x.dtype.kind}8") if is_mean and x.dtype.kind in "iu" else x.dtype
    result = UFUNCS[type(op)].reduce(x, axis=axes, keepdims=bool(op.keepdims), dtype=dtype, **options)
    if is_mean:
        count = math.prod(x.shape[axis] for axis in axes)
        return divide(np.asarray(result), np.asarray(count, dtype=dtype))
    return np.asarray(result)
