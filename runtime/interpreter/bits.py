# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that NumPy lacks, on arrays and NumPy scalars; integers are signed."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    return _sum_to_odd(np.asarray(a, np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64))


def _sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b, rounded, and what it lost (Knuth's two-sum)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _sum_to_odd(a: Any, b: Any) -> Any:
    """a + b in float64; where that is inexact, that one of the two numbers around it whose last bit is 1."""
    total, lost = map(np.asarray, _sum(a, b))
    number = total.view(np.int64)
    even = np.isfinite(total) & (lost != 0) & (number & 1 == 0)
    step = np.where((lost > 0) == (total > 0), 1, -1)
    return np.where(even, number + step, number).view(np.float64)[()]


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b, rounded, and what it lost (Dekker's product, with Veltkamp's halves of the significands)."""

    def halves(x: Any) -> tuple[Any, Any]:
        scaled = x * 134217729.0  # 2^27 + 1
        high = scaled - (scaled - x)
        return high, x - high

    total = a * b
    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    return total, ((a_high * b_high - total) + a_high * b_low + a_low * b_high) + a_low * b_low


def _is_between(x: Any, low: int, high: int) -> Any:
    return (np.abs(x) > 2.0**low) & (np.abs(x) < 2.0**high)


def fused_multiply_add_of_f64(a: Any, b: Any, c: Any) -> Any:
    """
    a * b + c in float64, rounded once.

    Product and sums are kept exactly, as two numbers each, and the smaller parts are summed to odd before the last sum
    (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008). That is right where none of them is too
    large or too small for float64; elsewhere each element is a fraction of integers, which Python rounds once.
    """
    a, b, c = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (a, b, c)))
    with np.errstate(all="ignore"):
        product, product_lost = _product(a, b)
        addend, addend_lost = _sum(c, product_lost)
        total, total_lost = _sum(product, addend)
        rounded = total + _sum_to_odd(total_lost, addend_lost)
        # With a factor of zero, an infinity or a NaN only the sum rounds; a product that overflows hides no infinite c.
        finite = np.isfinite(a) & np.isfinite(b)
        plain = ~finite | ~np.isfinite(c) | (a == 0) | (b == 0)
        twice_rounded: NDArray[np.float64] = a * b + c
        result: NDArray[np.float64] = np.where(plain, np.where(finite & ~np.isfinite(c), c, twice_rounded), rounded)
    is_safe = _is_between(a, -900, 900) & _is_between(b, -900, 900) & _is_between(product, -900, 1000)
    rest = ~(plain | (is_safe & ((c == 0) | _is_between(c, -900, 1000))))
    if np.any(rest):
        result[rest] = list(map(_fused, a[rest].tolist(), b[rest].tolist(), c[rest].tolist()))
    return result[()]


def _fused(a: float, b: float, c: float) -> float:
    """a * b + c of finite numbers, by way of a fraction."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        # Of zero the sign is that of the sum.
        return float(exact) if exact else a * b + c
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
