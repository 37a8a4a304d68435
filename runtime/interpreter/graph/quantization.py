"""Quantisation: numbers to the integers that stand for them, and back."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from penstock.dialects.graph.quantization import DequantizeLinearOp, LinearOp, QuantizeLinearOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.registry import implements
from penstock.runtime.interpreter.graph.tensor_types import dtype_of


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
    dtype = dtype_of(op.result_type.element_type)
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
    return product.astype(dtype_of(op.result_type.element_type))
