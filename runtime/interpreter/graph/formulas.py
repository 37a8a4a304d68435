"""Formulas of elementwise ops on arrays: ONNX semantics in the element type's own arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.dialects.graph.elementwise import PointwiseOp
from penstock.dialects.graph.formula import Scalar
from penstock.dialects.weights import Array
from penstock.runtime.interpreter import bits


def divide(a: Array, b: Array) -> Array:
    """a / b; integers truncate towards zero, as in C."""
    return bits.divide_towards_zero(a, b) if a.dtype.kind in "iu" else a / b


def power(a: Array, b: Array) -> Array:
    """a to the power of b; an integer to a negative power truncates towards zero."""
    return bits.power(a, b) if a.dtype.kind in "iu" else np.power(a, b)


FUNCTIONS: dict[str, Any] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "add": np.add,
    "and": np.logical_and,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "div": divide,
    "equal": np.equal,
    "erf": bits.erf,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "greater": np.greater,
    "greater_or_equal": np.greater_equal,
    "identity": np.asarray,
    "less": np.less,
    "log": np.log,
    "log1p": np.log1p,
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
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "where": np.where,
}


class _NumpyArithmetic:
    def like(self, value: float, other: Array) -> Array:
        # A Python float would widen bfloat16, and under NumPy 1 also a tensor of rank 0.
        return other.dtype.type(value)

    def apply(self, function: str, *elements: Array) -> Array:
        return FUNCTIONS[function](*elements)


_ARITHMETIC = _NumpyArithmetic()


def evaluate_formula(op: PointwiseOp, operands: Sequence[Array]) -> Array:
    """The formula of an op on arrays."""
    return op.formula(*(Scalar(operand, _ARITHMETIC) for operand in operands)).value
