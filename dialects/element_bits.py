# SPDX-License-Identifier: Apache-2.0
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


def bits_of(dtype: DType) -> int:
    """The bits of an element; NumPy says 8 of all integers of less."""
    return next((width for (width, _), found in NARROW.items() if dtype == found), 8 * dtype.itemsize)


def packed_bytes(integers: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """
    The bytes of integers of 2 or 4 bits: in each those along `axis`, the first in the lowest bits. That dimension has
    as many as a byte holds, and vanishes. Integers with a sign make bytes with one.
    """
    bits, rank = bits_of(integers.dtype), integers.ndim
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape([-1 if dim == axis % rank else 1 for dim in range(rank)])
    whole = integers.astype(np.int8).view(np.uint8) & np.uint8((1 << bits) - 1)
    found = np.bitwise_or.reduce(whole << shifts, axis=axis)
    return found.view(np.int8) if integers.dtype in (NARROW[2, False], NARROW[4, False]) else found


def unpacked_bytes(data: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The integers of 2 or 4 bits in bytes, from the lowest bits on: more along the last dimension."""
    bits = bits_of(dtype)
    apart = (data.view(np.uint8)[..., np.newaxis] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    whole = apart.reshape(*data.shape[:-1], data.shape[-1] * (8 // bits))
    return whole.astype(NARROW[bits, True]).view(dtype) if dtype == NARROW[bits, True] else _signed(whole, bits, dtype)


def _signed(whole: NDArray[Any], bits: int, dtype: DType) -> NDArray[Any]:
    """Bits as numbers with a sign."""
    half = 1 << (bits - 1)
    return ((whole ^ np.uint8(half)).view(np.int8) - np.int8(half)).astype(dtype)
