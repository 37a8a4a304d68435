# SPDX-License-Identifier: Apache-2.0
"""Formulas of elementwise ops on arrays: ONNX semantics in the element type's own arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.dialects.graph.elementwise import PointwiseOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter import bits


def divide(a: Array, b: Array) -> Array:
    """a / b; integers truncate towards zero, as in C."""
    return bits.divide_towards_zero(a, b) if a.dtype.kind in "iu" else a / b


def power(a: Array, b: Array) -> Array:
    """a to the power of b; an integer to a negative power truncates towards zero."""
    return bits.power(a, b) if a.dtype.kind in "iu" else np.power(a, b)


_NUMPY_FUNCTIONS = (
    "abs", "add", "bitwise_and", "bitwise_or", "bitwise_xor", "ceil", "cos", "cosh", "equal", "exp", "expm1", "floor",
    "greater", "less", "log", "log1p", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "where",
)  # fmt: skip
"""The functions whose names are NumPy's."""

FUNCTIONS: dict[str, Any] = {
    **{name: getattr(np, name) for name in _NUMPY_FUNCTIONS},
    "acos": np.arccos,
    "acosh": np.arccosh,
    "and": np.logical_and,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "div": divide,
    "erf": bits.erf,
    "greater_or_equal": np.greater_equal,
    "identity": np.asarray,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "mul": np.multiply,
    "neg": np.negative,
    "or": np.logical_or,
    "pow": power,
    "round": np.rint,
    "shift_left": bits.shift_left,
    "shift_right": bits.shift_right,
    "sub": np.subtract,
}
"""Name of a function in a formula -> what computes it."""


class _NumpyArithmetic:
    def like(self, value: float, other: Array) -> Array:
        # A Python float would widen bfloat16, and under NumPy 1 also a tensor of rank 0.
        return other.dtype.type(value)

    def apply(self, function: str, *elements: Array) -> Array:
        return FUNCTIONS[function](*elements)


_ARITHMETIC = _NumpyArithmetic()


def evaluate_formula(op: PointwiseOp, operands: Sequence[Array]) -> Array:
    """The formula of an op on arrays."""
    return op.evaluate(operands, _ARITHMETIC)
