# SPDX-License-Identifier: Apache-2.0
"""Ops between element types: casts, and numbers to the integers that stand for them, and back."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from penstock.dialects.element_bits import is_narrow_integer
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import BitcastOp, CastOp
from penstock.dialects.graph.quantization import DequantizeLinearOp, LinearOp, QuantizeLinearOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.registry import implements


@implements(CastOp)
def cast(op: CastOp, operands: Sequence[Array]) -> Array:
    """The elements in another type: floats truncate to integers, integers wrap, not 0 is true."""
    x, dtype = operands[0], numpy_dtype(op.result_type.element_type)
    if 1 not in (x.dtype.isbuiltin, dtype.isbuiltin) and x.dtype != dtype:
        # Between types of other packages, which do not all know each other: through one that holds both exactly.
        x = x.astype(np.int8 if is_narrow_integer(x.dtype) else np.float32)
    return x.astype(dtype)


@implements(BitcastOp)
def bitcast(op: BitcastOp, operands: Sequence[Array]) -> Array:
    """The same bits; of a byte that becomes a truth value, whether one is set."""
    x, dtype = operands[0], numpy_dtype(op.result_type.element_type)
    return x.view(np.uint8) != 0 if dtype == np.bool_ else np.ascontiguousarray(x).view(dtype).reshape(x.shape)


def _along(op: LinearOp, vectors: Sequence[Array], rank: int) -> list[Array]:
    """Scale and zero point in shapes that broadcast along the axis."""
    if op.along is None:
        return list(vectors)
    shape = [1] * rank
    shape[op.along] = -1
    return [vector.reshape(shape) for vector in vectors]


@implements(QuantizeLinearOp)
def quantize_linear(op: QuantizeLinearOp, operands: Sequence[Array]) -> Array:
    """saturate(round(x / scale) + zero point), in f32."""
    x = operands[0].astype(np.float32)
    scale, *zero = _along(op, operands[1:], x.ndim)
    whole = np.rint(x / scale.astype(np.float32))
    if zero:
        whole = whole + zero[0].astype(np.float32)
    dtype = numpy_dtype(op.result_type.element_type)
    bounds = ml_dtypes.iinfo(dtype)
    return np.clip(whole, np.float32(bounds.min), np.float32(bounds.max)).astype(dtype)


@implements(DequantizeLinearOp)
def dequantize_linear(op: DequantizeLinearOp, operands: Sequence[Array]) -> Array:
    """(x - zero point) * scale, the difference in i32, the product in f32."""
    x = operands[0].astype(np.int32)
    scale, *zero = _along(op, operands[1:], x.ndim)
    if zero:
        x = x - zero[0].astype(np.int32)
    product = x.astype(np.float32) * scale.astype(np.float32)
    return product.astype(numpy_dtype(op.result_type.element_type))
