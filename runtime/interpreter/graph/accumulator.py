# SPDX-License-Identifier: Apache-2.0
"""Sums and products of narrow operands, computed in the wider type of an accumulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from xdsl.ir import Operation

from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.element_bits import DType
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph.base import summed_in, tensor_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.values import exact_floats

OpT = TypeVar("OpT", bound=Operation)


def in_accumulator(function: Callable[[OpT, Sequence[Array]], Array]) -> Callable[[OpT, Sequence[Array]], Array]:
    """Let `function` compute on operands of narrow floats in f32, and round once to the element type of the result."""

    def compute(op: OpT, operands: Sequence[Array]) -> Array:
        result = function(op, [_widened(operand) for operand in operands])
        return result.astype(numpy_dtype(tensor_of(op.results[0]).element_type), copy=False)

    return compute


def _widened(array: Array) -> Array:
    return array.astype(numpy_dtype(accumulator_of(element_type(array.dtype))), copy=False)


def widened(op: Operation, left: Array, right: Array, terms: int) -> tuple[Array, Array, DType]:
    """
    The factors of a sum of `terms` products of `op` as they are multiplied, and the type that the sum is in.

    Floats are widened to the accumulator. Integers become whatever multiplies them fast and exactly; `exact.in_type`
    then takes the sum back to its type, in which it wraps.
    """
    total = numpy_dtype(summed_in(op))
    if total.kind in "iu":
        left, right = exact_floats(left, right, terms)
    else:
        left, right = left.astype(total, copy=False), right.astype(total, copy=False)
    return left, right, total
