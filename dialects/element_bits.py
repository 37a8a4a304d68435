"""How NumPy keeps the elements of arrays below graph level, where integers are signless; nothing of the IR."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

DType = np.dtype[Any]

NARROW: dict[tuple[int, bool], DType] = {
    (2, False): np.dtype(ml_dtypes.int2),
    (2, True): np.dtype(ml_dtypes.uint2),
    (4, False): np.dtype(ml_dtypes.int4),
    (4, True): np.dtype(ml_dtypes.uint4),
}
"""Integers of less than a byte, by their bits and whether they are unsigned; NumPy keeps each in a byte."""


def is_narrow_integer(dtype: DType) -> bool:
    """Whether a NumPy type is that of integers of 2 or 4 bits, which NumPy does not count among its integers."""
    return dtype in NARROW.values()


def stored(array: NDArray[Any]) -> NDArray[Any]:
    """
    An array as it is kept below graph level: integers of less than a byte one a byte, in the signed range of their
    width, since all integers are signless there; any other array as it is.
    """
    for (width, _), found in NARROW.items():
        if array.dtype == found:
            half = 1 << (width - 1)
            # Of a single number NumPy makes no array.
            return np.asarray(((array.astype(np.int8) + half) & (2 * half - 1)) - np.int8(half))
    return array


def same_bits(left: DType, right: DType) -> bool:
    """Whether two types are the same but for the sign of integers, which is not known below graph level."""
    if left == right:
        return True
    if left.kind in "iu" and right.kind in "iu":
        return left.itemsize == right.itemsize
    return any({left, right} == {NARROW[width, False], NARROW[width, True]} for width in (2, 4))
