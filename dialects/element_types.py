"""Element types of the IR as NumPy's, and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    Signedness,
)
from xdsl.ir import Attribute

DType = np.dtype[Any]

_FLOATS: dict[type[Attribute], DType] = {
    BFloat16Type: np.dtype(ml_dtypes.bfloat16),
    Float8E4M3FNType: np.dtype(ml_dtypes.float8_e4m3fn),
    Float8E5M2Type: np.dtype(ml_dtypes.float8_e5m2),
    Float16Type: np.dtype(np.float16),
    Float32Type: np.dtype(np.float32),
    Float64Type: np.dtype(np.float64),
}
_WIDTHS = (8, 16, 32, 64)


def numpy_dtype(element: Attribute) -> DType:
    """
    The NumPy type of an element type: i1 is bool, a signless integer is signed, index is int64.

    Raises ValueError for a type that NumPy has no counterpart of.
    """
    if (found := _FLOATS.get(type(element))) is not None:
        return found
    match element:
        case IndexType():
            return np.dtype(np.int64)
        case IntegerType() if element.width.data == 1:
            return np.dtype(np.bool_)
        case IntegerType() if element.width.data in _WIDTHS:
            letter = "u" if element.signedness.data == Signedness.UNSIGNED else "i"
            return np.dtype(f"{letter}{element.width.data // 8}")
        case _:
            raise ValueError(f"{element} has no counterpart in NumPy")


def element_type(dtype: DType) -> Attribute:
    """
    The element type of a NumPy type, the inverse of `numpy_dtype`, with unsigned integers as `ui8` to `ui64`.

    Raises ValueError for strings, objects, complex numbers and other types without a counterpart.
    """
    for float_type, found in _FLOATS.items():
        if dtype == found:
            return float_type()
    match dtype.kind:
        case "b":
            return IntegerType(1)
        case "i":
            return IntegerType(dtype.itemsize * 8)
        case "u":
            return IntegerType(dtype.itemsize * 8, Signedness.UNSIGNED)
        case _:
            raise ValueError(f"elements of type {dtype} are not supported")
