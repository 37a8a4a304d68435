"""Attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.attention import AttentionOp
from penstock.dialects.graph.base import tensor_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.exact import in_type
from penstock.runtime.interpreter.graph.accumulator import in_accumulator, widened
from penstock.runtime.interpreter.graph.registry import implements


@implements(AttentionOp)
@in_accumulator
def attention(op: AttentionOp, operands: Sequence[Array]) -> Array:
    """softmax(q k^T * scale + mask) v, divided by the sum of powers at the end."""
    q, k, v = (np.transpose(operand, perm) for operand, perm in zip(operands[:3], op.perms, strict=False))
    scores = _product(op, q, np.swapaxes(k, -1, -2))
    if op.scale.value.data != 1:
        scores = scores * scores.dtype.type(op.scale.value.data)
    if op.mask is not None:
        scores = scores + operands[3]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        largest = np.maximum.reduce(scores, axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - largest)
        if bool(op.zero_masked):
            powers = np.where(largest == -np.inf, powers.dtype.type(0), powers)
        total = np.add.reduce(powers, axis=-1, keepdims=True, dtype=scores.dtype)
        if bool(op.zero_masked):
            total = np.where(largest == -np.inf, total.dtype.type(1), total)
        result = _product(op, powers.astype(numpy_dtype(tensor_of(op.v).element_type)), v) / total
    return np.transpose(result, op.perms[3])


def _product(op: AttentionOp, a: Array, b: Array) -> Array:
    a, b, total = widened(op, a, b, a.shape[-1])
    return np.asarray(in_type(np.matmul(a, b), total))
