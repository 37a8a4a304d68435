"""Arithmetic that NumPy lacks, on arrays and NumPy scalars; integers are signed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Function = Callable[..., Any]


def choose(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`; a NumPy scalar if all are."""
    return np.asarray(np.where(condition, a, b), dtype=np.result_type(a, b))[()]


def wrap(a: Any, width: int) -> Any:
    """The low `width` bits of `a`, read as signed, in the type of `a`."""
    container = 8 * a.dtype.itemsize
    if width >= container:
        return a
    # a logical shift up and an arithmetic one down
    shift = a.dtype.type(container - width)
    return np.right_shift(np.left_shift(a, shift), shift)


def unsigned(a: Any, width: int) -> Any:
    """`a` read as an unsigned number of `width` bits, in the unsigned type of the same size."""
    if a.dtype.kind == "b":
        return a
    view = np.asarray(a).view(f"u{a.dtype.itemsize}")[()]
    if width < 8 * a.dtype.itemsize:
        view = view & view.dtype.type((1 << width) - 1)
    return view


def as_unsigned(function: Function, width: int) -> Function:
    """`function` on operands read as unsigned; a number that it returns is signless again."""

    def on_unsigned(*operands: Any) -> Any:
        result = function(*(unsigned(operand, width) for operand in operands))
        if result.dtype.kind == "u":
            result = np.asarray(result).view(f"i{result.dtype.itemsize}")[()]
        return result

    return on_unsigned


def divide_towards_zero(a: Any, b: Any) -> Any:
    """a / b without its fraction."""
    quotient = np.floor_divide(a, b)
    inexact = quotient * b != a
    return quotient + (inexact & ((a < 0) != (b < 0))).astype(a.dtype)


def divide_upwards(a: Any, b: Any) -> Any:
    """a / b, rounded to the integer above."""
    quotient = np.floor_divide(a, b)
    return quotient + (quotient * b != a).astype(a.dtype)


def power(a: Any, b: Any) -> Any:
    """a to the power of b, of integers; a negative power truncates towards zero."""
    whole = np.power(a, np.maximum(b, b.dtype.type(0)))
    one = a.dtype.type(1)
    # of a = -1; NumPy's % is never negative
    fraction = choose(np.abs(a) == one, choose(b % 2 == 0, one, a), a.dtype.type(0))
    return choose(b < 0, fraction, whole)


def erf(a: Any) -> Any:
    """The error function: that of the C library in float64, rounded to the type of `a`."""
    x = np.asarray(a)
    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape).astype(x.dtype)[()]


def _out_of_range(a: Any, b: Any) -> Any:
    return (b < 0) | (b >= 8 * a.dtype.itemsize)


def shift_left(a: Any, b: Any) -> Any:
    """a * 2^b, 0 when all bits are shifted out."""
    return choose(_out_of_range(a, b), a.dtype.type(0), np.left_shift(a, b))


def shift_right(a: Any, b: Any) -> Any:
    """a / 2^b downwards, for unsigned `a` 0 and for signed `a` its sign when all bits are shifted out."""
    last = a.dtype.type(8 * a.dtype.itemsize - 1)
    sign = np.right_shift(np.right_shift(a, last), a.dtype.type(1))
    return choose(_out_of_range(a, b), sign, np.right_shift(a, b))


def population(a: Any, width: int) -> Any:
    """The number of ones among `width` bits."""
    rest = unsigned(a, width).astype(np.uint64)
    ones = np.zeros_like(rest)
    for _ in range(width):
        ones += rest & np.uint64(1)
        rest = rest >> np.uint64(1)
    return ones.astype(a.dtype)


def leading_zeros(a: Any, width: int) -> Any:
    """The number of zeros above the highest one of `width` bits."""
    rest = unsigned(a, width).astype(np.uint64)
    zeros = np.full_like(rest, width)
    for _ in range(width):
        zeros -= (rest != 0).astype(np.uint64)
        rest = rest >> np.uint64(1)
    return zeros.astype(a.dtype)


def trailing_zeros(a: Any, width: int) -> Any:
    """The number of zeros below the lowest one of `width` bits."""
    return population(np.bitwise_and(np.invert(a), a - a.dtype.type(1)), width)


def fused_multiply_add(a: Any, b: Any, c: Any) -> Any:
    """
    a * b + c in float64, rounded to odd, so that rounding it once more to 32 bits or fewer is correct.

    The product of two 24-bit significands is exact in float64. Rounding to odd keeps what the sum lost from
    looking like a tie (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    number = total.view(np.int64)
    even = np.isfinite(total) & (lost != 0) & (number & 1 == 0)
    step = np.where((lost > 0) == (total > 0), 1, -1)
    return np.where(even, number + step, number).view(np.float64)[()]
