# SPDX-License-Identifier: Apache-2.0
"""
Values below graph level: what a tensor, a memref and a scalar are while a program runs.

A tensor is an ndarray that is never written to. A memref is an ndarray too, or a `TaggedBuffer` (see `scopes`) where
its bytes are tagged. A scalar is a Python number: a float that its type can hold exactly, an int in the signed range
of its width, a bool for i1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType, MemRefType, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_bits import DType, is_narrow_integer
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.weights import Array

Value = Any
"""A tensor, a memref, a scalar or a token."""

_WIDTHS = (8, 16, 32, 64)

POISON_BYTE = 0xA5
"""What the bytes of undefined integers are; undefined floats are NaN."""


def width_of(element: Attribute) -> int | None:
    """The bits of an integer type; None for any other type."""
    match element:
        case IntegerType():
            return element.width.data
        case _:
            return None


def dtype_of(element: Attribute, op: Operation | None = None) -> DType:
    """The NumPy type of an element type, integers of unusual width in the next larger one; located at `op`."""
    bits = width_of(element)
    if bits is not None and bits not in (1, *_WIDTHS) and bits < _WIDTHS[-1]:
        return np.dtype(f"i{next(width for width in _WIDTHS if bits < width) // 8}")
    try:
        return numpy_dtype(element)
    except ValueError as error:
        loc = location_of(op) if op is not None else None
        raise UserError(str(error), loc=loc, status=UNSUPPORTED) from None


def dense_array(constant: DenseIntOrFPElementsAttr, dtype: DType) -> Array:
    """The array of a constant in the text, read-only, in the NumPy type that stands for its elements."""
    data, shape = constant.data.data, constant.get_shape()
    if dtype == np.bool_:  # stored as a byte, of which any bit may be set
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    held = np.dtype(np.int8) if is_narrow_integer(dtype) else dtype
    return np.frombuffer(data, held).astype(dtype, copy=False).reshape(shape)


def element_of(value: SSAValue) -> Attribute:
    """The element type of a tensor or memref, or the type itself of a scalar."""
    if isa(value.type, TensorType | MemRefType):
        return value.type.element_type
    return value.type


def has_own_dtype(element: Attribute) -> bool:
    """Whether NumPy's arithmetic in `dtype_of(element)` is that of the element type: not so for i1, i4, ..."""
    return width_of(element) in (None, *_WIDTHS)


def is_float(dtype: DType) -> bool:
    """Whether a dtype is a floating-point type, those of ml_dtypes included."""
    return dtype.kind in "fV"


def undefined(shape: Sequence[int], dtype: DType) -> Array:
    """A fresh array that says so when it is read: NaN, or `POISON_BYTE` in every byte of an integer."""
    array = np.empty(tuple(shape), dtype)
    poison(array)
    return array


def poison(array: Array) -> None:
    """Make the contents of an array undefined."""
    if is_float(array.dtype):
        array.fill(np.nan)
    elif array.dtype.kind == "b":
        array.fill(True)
    else:
        array.fill(np.frombuffer(bytes([POISON_BYTE]) * array.itemsize, array.dtype)[0])


def scalar_of(element: Any) -> Value:
    """The Python number of a NumPy scalar."""
    dtype = element.dtype
    if is_float(dtype):
        return float(element)
    return bool(element) if dtype.kind == "b" else int(element)


# integer products on BLAS: in floats wherever every partial sum is exact


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
