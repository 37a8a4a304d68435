"""Products of narrow operands, computed and summed in the wider type of an accumulator."""

from __future__ import annotations

from xdsl.ir import Attribute

from penstock.dialects.element_types import DType, numpy_dtype
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.exact import exact_floats


def widened(left: Array, right: Array, accumulator: Attribute | None, terms: int) -> tuple[Array, Array, DType]:
    """
    The factors of a sum of `terms` products as they are multiplied, and the type that the sum is in.

    Floats are widened to the accumulator. Integers become whatever multiplies them fast and exactly; `exact.in_type`
    then takes the sum back to its type, in which it wraps.
    """
    total = left.dtype if accumulator is None else numpy_dtype(accumulator)
    if total.kind in "iu":
        left, right = exact_floats(left, right, terms)
    else:
        left, right = left.astype(total, copy=False), right.astype(total, copy=False)
    return left, right, total
