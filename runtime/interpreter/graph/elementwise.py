"""Elementwise and broadcasting operators: ONNX semantics in the element type's own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation

from penstock.dialects.element_types import is_narrow_integer
from penstock.dialects.graph import broadcast, elementwise
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.registry import implements
from penstock.runtime.interpreter.graph.special import erf
from penstock.runtime.interpreter.graph.tensor_types import dtype_of

# Scalars are made in the element type, `x.dtype.type(c)`: a Python float would widen bfloat16, and under
# NumPy 1 also a tensor of rank 0.


def _erf(x: Array) -> Array:
    if x.dtype.itemsize >= 4:
        return erf(x)
    return erf(x.astype(np.float32)).astype(x.dtype)  # a 16-bit result, rounded once


def _reciprocal(x: Array) -> Array:
    return x.dtype.type(1) / x


def _relu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0))


def _sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    return one / (one + np.exp(-x))  # exp overflows to inf, whose reciprocal is the right 0


def _softplus(x: Array) -> Array:
    # log(1 + exp(x)) without the overflow
    return np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x)))


def _unit(x: Array) -> Array:
    """Cut off to 0 and 1 (np.clip widens bfloat16)."""
    return np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(1))


def _hard_swish(x: Array) -> Array:
    return x * _unit(x * x.dtype.type(1 / 6) + x.dtype.type(0.5))


def _identity(x: Array) -> Array:
    return x


UNARY: dict[type[Operation], Callable[[Array], Array]] = {
    elementwise.AbsOp: np.abs,
    elementwise.NegOp: np.negative,
    elementwise.ExpOp: np.exp,
    elementwise.LogOp: np.log,
    elementwise.SqrtOp: np.sqrt,
    elementwise.ReciprocalOp: _reciprocal,
    elementwise.FloorOp: np.floor,
    elementwise.RoundOp: np.rint,
    elementwise.CeilOp: np.ceil,
    elementwise.SignOp: np.sign,
    elementwise.ErfOp: _erf,
    elementwise.ReluOp: _relu,
    elementwise.SigmoidOp: _sigmoid,
    elementwise.TanhOp: np.tanh,
    elementwise.SoftplusOp: _softplus,
    elementwise.HardSwishOp: _hard_swish,
    elementwise.IdentityOp: _identity,
    elementwise.NotOp: np.logical_not,
}
"""The ops of one operand without parameters."""


@implements(*UNARY)
def unary(op: Operation, operands: Sequence[Array]) -> Array:
    """Any of `UNARY`."""
    return UNARY[type(op)](operands[0])


@implements(elementwise.LeakyReluOp)
def leaky_relu(op: elementwise.LeakyReluOp, operands: Sequence[Array]) -> Array:
    """x, negatives times alpha."""
    (x,) = operands
    return np.where(x >= 0, x, x * x.dtype.type(op.alpha.value.data))


@implements(elementwise.EluOp)
def elu(op: elementwise.EluOp, operands: Sequence[Array]) -> Array:
    """x, negatives as alpha * (exp(x) - 1)."""
    (x,) = operands
    return np.where(x >= 0, x, x.dtype.type(op.alpha.value.data) * np.expm1(x))


@implements(elementwise.SeluOp)
def selu(op: elementwise.SeluOp, operands: Sequence[Array]) -> Array:
    """gamma times elu."""
    (x,) = operands
    bent = np.where(x > 0, x, x.dtype.type(op.alpha.value.data) * np.expm1(x))
    return x.dtype.type(op.gamma.value.data) * bent


@implements(elementwise.HardSigmoidOp)
def hard_sigmoid(op: elementwise.HardSigmoidOp, operands: Sequence[Array]) -> Array:
    """alpha * x + beta between 0 and 1."""
    (x,) = operands
    number = x.dtype.type
    return _unit(x * number(op.alpha.value.data) + number(op.beta.value.data))


@implements(elementwise.GeluOp)
def gelu(op: elementwise.GeluOp, operands: Sequence[Array]) -> Array:
    """x times the normal distribution function, by erf or by tanh."""
    (x,) = operands
    number = x.dtype.type
    if op.approximate.data == "tanh":
        inner = number(math.sqrt(2 / math.pi)) * (x + number(0.044715) * x * x * x)
        phi = number(1) + np.tanh(inner)
    else:
        phi = number(1) + _erf(x * number(math.sqrt(0.5)))
    return number(0.5) * x * phi


@implements(elementwise.ClipOp)
def clip(op: elementwise.ClipOp, operands: Sequence[Array]) -> Array:
    """min(max(x, lower bound), upper bound)."""
    (result,) = operands
    if op.min is not None:
        result = np.maximum(result, _bound(op.min.value.data, result.dtype))
    if op.max is not None:
        result = np.minimum(result, _bound(op.max.value.data, result.dtype))
    return result


def _bound(value: float, dtype: np.dtype[Any]) -> np.generic:
    """`value` in `dtype`; one that an integer type cannot hold becomes its nearest number."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        # info.max as a float may round up past the type
        if value >= float(info.max):
            return dtype.type(info.max)
        return dtype.type(max(int(value), info.min) if value > float(info.min) else info.min)
    return dtype.type(value)


@implements(elementwise.CastOp)
def cast(op: elementwise.CastOp, operands: Sequence[Array]) -> Array:
    """The elements in another type: floats truncate to integers, integers wrap, not 0 is true."""
    x, dtype = operands[0], dtype_of(op.result_type.element_type)
    if 1 not in (x.dtype.isbuiltin, dtype.isbuiltin) and x.dtype != dtype:
        # Between types of other packages, which do not all know each other: through one that holds both exactly.
        x = x.astype(np.int8 if is_narrow_integer(x.dtype) else np.float32)
    return x.astype(dtype)


def divide(a: Array, b: Array) -> Array:
    """a / b; integers truncate towards zero, as in C."""
    if a.dtype.kind not in "iu":
        return a / b
    quotient = np.floor_divide(a, b)
    inexact = quotient * b != a
    return quotient + (inexact & ((a < 0) != (b < 0))).astype(a.dtype)


def power(a: Array, b: Array) -> Array:
    """a to the power of b; an integer to a negative power truncates towards zero."""
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    whole = np.power(a, np.maximum(b, b.dtype.type(0)))
    one = a.dtype.type(1)
    odd = np.where(b % 2 == 0, one, a)  # of a = -1; NumPy's % is never negative
    fraction = np.where(np.abs(a) == one, odd, a.dtype.type(0))
    return np.where(b < 0, fraction, whole)


def prelu(a: Array, b: Array) -> Array:
    """a, negatives times b."""
    return np.where(a >= 0, a, a * b)


BINARY: dict[type[Operation], Callable[[Array, Array], Array]] = {
    broadcast.AddOp: np.add,
    broadcast.SubOp: np.subtract,
    broadcast.MulOp: np.multiply,
    broadcast.DivOp: divide,
    broadcast.ModOp: np.fmod,
    broadcast.PowOp: power,
    broadcast.MaxOp: np.maximum,
    broadcast.MinOp: np.minimum,
    broadcast.PreluOp: prelu,
    broadcast.EqualOp: np.equal,
    broadcast.LessOp: np.less,
    broadcast.GreaterOp: np.greater,
    broadcast.AndOp: np.logical_and,
    broadcast.OrOp: np.logical_or,
}
"""The ops of two operands."""


@implements(*BINARY)
def binary(op: Operation, operands: Sequence[Array]) -> Array:
    """Any of `BINARY`."""
    return BINARY[type(op)](operands[0], operands[1])


@implements(broadcast.WhereOp)
def where(op: broadcast.WhereOp, operands: Sequence[Array]) -> Array:
    """a where the condition holds, else b."""
    condition, a, b = operands
    return np.where(condition, a, b)
