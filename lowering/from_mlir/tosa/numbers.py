# SPDX-License-Identifier: Apache-2.0
"""What operations of TOSA say beside their operands: in attributes or, in newer text, in operands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import FloatAttr, IntegerType, i64
from xdsl.ir import Attribute

from penstock.dialects.graph.base import integer_bounds
from penstock.dialects.weights import Array
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import ConversionT, Unsupported, converts, ints_of, plain
from penstock.passes.graph.terms import Term


def tosa(*names: str) -> Callable[[ConversionT], ConversionT]:
    """Register the decorated function for operations of TOSA."""
    return converts(*(f"tosa.{name}" for name in names))


def known(code: Any, x: Term, what: str) -> Array:
    """The value of an operand that has to be a constant."""
    if (found := code.known(x)) is None:
        raise Unsupported(f"with {what} that is known only when the program runs")
    return np.asarray(found)


def ints(code: Any, op: ForeignOp, xs: Sequence[Term], place: int, *names: str) -> list[int]:
    """Integers: the attribute that has one of the names, or the operand at that place."""
    if any(op.get(name) is not None for name in names):
        return ints_of(op, *names)
    if place < len(xs):
        return [int(each) for each in known(code, xs[place], names[0]).ravel()]
    raise Unsupported(f"without {names[0]}")


def points(code: Any, op: ForeignOp, xs: Sequence[Term], place: int, *names: str) -> list[int]:
    """Zero points: what `quantization_info` says by name, or operands from that place on; 0 where nothing does."""
    said = str(op.get("quantization_info") or "")
    found = [re.search(rf"\b{name} = (-?\d+)", said) for name in names]
    if said:
        return [int(each[1]) if each else 0 for each in found]
    return [
        int(known(code, xs[place + index], name).ravel()[0]) if place + index < len(xs) else 0
        for index, name in enumerate(names)
    ]


def number(op: ForeignOp, *names: str) -> Any:
    """The number that one of several names has; None for none."""
    found = next((each for name in names if (each := op.get(name)) is not None), None)
    if isinstance(found, FloatAttr):
        return cast("FloatAttr[Any]", found).value.data
    return None if found is None else plain(found)


def ends_of(element: Attribute) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    bounds = integer_bounds(element)
    if bounds is None:
        raise Unsupported(f"of {element}")
    return bounds[0], bounds[-1]


def clamped(x: Term, element: Attribute) -> Term:
    """Integers as those of another type: what is beyond its ends becomes these."""
    low, high = ends_of(element)
    return x.apply("max", low).apply("min", high).cast(element)


def scaled(code: Any, x: Term, multiplier: Array, shift: Array, *, double_round: bool = False) -> Term:
    """x * multiplier / 2 ** shift in i64, rounded half up, or, from shifts of 32 on, twice (TOSA: apply_scale_32)."""
    wide = x.cast(i64)
    shift = np.asarray(shift, np.int64)
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    total = wide * code.array(np.asarray(multiplier, np.int64), "multiplier") + code.array(half, "half")
    if double_round and (shift > 31).any():
        again = code.array(np.where(shift > 31, np.int64(1) << 30, 0), "half")
        total = (wide < 0).where(total - again, total + again)
    return total.apply("shift_right", code.array(shift, "shift"))


def less(x: Term, zero_point: int, accumulator: IntegerType) -> Term:
    """Numbers from their zero point: as they are stored where that is 0."""
    return x if zero_point == 0 else x.cast(accumulator) - zero_point


def transposed(code: Any, x: Term, order: Sequence[int]) -> Term:
    """The dimensions in another order; of a constant at once."""
    array = code.known(x)
    return x.transpose(order) if array is None else code.array(np.ascontiguousarray(array.transpose(order)), "weights")


def reshaped(code: Any, x: Term, shape: Sequence[int]) -> Term:
    """The same elements in another shape; of a constant at once."""
    array = code.known(x)
    return x.reshape(shape) if array is None else code.array(array.reshape(shape), "weights")
