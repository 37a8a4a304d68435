"""Integer products on BLAS: in floats wherever every partial sum is exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.dialects.element_types import DType
from penstock.dialects.weights import Array


def exact_floats(left: Array, right: Array, length: int) -> tuple[Array, Array]:
    """
    Integer operands as floats in which every sum of `length` products is exact, or as int64 where it would not be.

    Sums in int64 wrap, and so agree with those of any narrower type modulo its width.
    """
    bound = _magnitude(left) * _magnitude(right) * length
    for dtype, significand in ((np.float32, 24), (np.float64, 53)):
        if bound < 2**significand:
            return left.astype(dtype), right.astype(dtype)
    return left.astype(np.int64), right.astype(np.int64)


def in_type(product: Any, dtype: DType) -> Array:
    """A product, of integers perhaps computed in floats, in the element type `dtype`, in which integers wrap."""
    if dtype.kind in "iu" and product.dtype.kind == "f":
        # By way of 64 bits: NumPy leaves open what a float becomes that does not fit.
        product = product.astype(np.int64)
    return product.astype(dtype, copy=False)


def _magnitude(array: Array) -> int:
    if array.size == 0:
        return 0
    return max(abs(int(array.min())), abs(int(array.max())))
