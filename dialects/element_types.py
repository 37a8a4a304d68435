# SPDX-License-Identifier: Apache-2.0
"""Element types of the IR as NumPy's, and back."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float4E2M1FNType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    Signedness,
)
from xdsl.ir import Attribute

from penstock.dialects.element_bits import NARROW, DType

FLOATS: dict[type[AnyFloat], DType] = {
    Float32Type: np.dtype(np.float32),
    Float64Type: np.dtype(np.float64),
    Float16Type: np.dtype(np.float16),
    BFloat16Type: np.dtype(ml_dtypes.bfloat16),
    Float8E4M3FNType: np.dtype(ml_dtypes.float8_e4m3fn),
    Float8E5M2Type: np.dtype(ml_dtypes.float8_e5m2),
    Float8E4M3FNUZType: np.dtype(ml_dtypes.float8_e4m3fnuz),
    Float8E5M2FNUZType: np.dtype(ml_dtypes.float8_e5m2fnuz),
    Float8E8M0FNUType: np.dtype(ml_dtypes.float8_e8m0fnu),
    Float4E2M1FNType: np.dtype(ml_dtypes.float4_e2m1fn),
}
"""The float types, and the NumPy type of each."""
_WIDTHS = (8, 16, 32, 64)


def numpy_dtype(element: Attribute) -> DType:
    """
    The NumPy type of an element type: i1 is bool, a signless integer is signed, index is int64.

    Raises ValueError for a type that NumPy has no counterpart of.
    """
    if (found := FLOATS.get(cast(Any, type(element)))) is not None:
        return found
    match element:
        case IndexType():
            return np.dtype(np.int64)
        case IntegerType() if element.width.data == 1:
            return np.dtype(np.bool_)
        case IntegerType() if element.width.data in _WIDTHS:
            letter = "u" if element.signedness.data == Signedness.UNSIGNED else "i"
            return np.dtype(f"{letter}{element.width.data // 8}")
        case IntegerType() if (narrow := _narrow(element)) is not None:
            return narrow
        case _:
            raise ValueError(f"{element} has no counterpart in NumPy")


def element_type(dtype: DType) -> Attribute:
    """
    The element type of a NumPy type, the inverse of `numpy_dtype`, with unsigned integers as `ui2` to `ui64`.

    Raises ValueError for strings, objects, complex numbers and other types without a counterpart.
    """
    for float_type, found in FLOATS.items():
        if dtype == found:
            return float_type()
    for (width, unsigned), found in NARROW.items():
        if dtype == found:
            return IntegerType(width, Signedness.UNSIGNED if unsigned else Signedness.SIGNLESS)
    match dtype.kind:
        case "b":
            return IntegerType(1)
        case "i":
            return IntegerType(dtype.itemsize * 8)
        case "u":
            return IntegerType(dtype.itemsize * 8, Signedness.UNSIGNED)
        case _:
            raise ValueError(f"elements of type {dtype} are not supported")


def _narrow(element: IntegerType) -> DType | None:
    return NARROW.get((element.width.data, element.signedness.data == Signedness.UNSIGNED))
