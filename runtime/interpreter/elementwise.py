"""
What each op of `arith` and `math` computes, on arrays and on NumPy scalars, in the element type's own arithmetic.

`ELEMENTWISE` maps the class of an op to a maker: from an op to the function of its operands. Integers are
signless: an op that reads them as unsigned does so on a view. Overflow wraps.

`maximumf` and `minimumf` hand NaN on and order -0 below +0; `maxnumf` and `minnumf` prefer the number to the NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_types import DType
from penstock.dialects.upstream.arith import RemFOp
from penstock.runtime.interpreter import bits
from penstock.runtime.interpreter.graph.special import erf
from penstock.runtime.interpreter.values import dtype_of, element_of, width_of

Function = Callable[..., Any]
Maker = Callable[[Any], Function]


def constant_of(op: arith.ConstantOp) -> Any:
    """The NumPy scalar of a scalar constant; raises UserError for one that is no number."""
    dtype = dtype_of(op.result.type, op)
    match op.value:
        case FloatAttr():
            return dtype.type(op.value.value.data)
        case IntegerAttr():
            value = op.value.value.data
            if dtype.kind == "b":
                return np.bool_(value != 0)
            return np.array(value & (2 ** (8 * dtype.itemsize) - 1), dtype=f"u{dtype.itemsize}").astype(dtype)[()]
        case _:
            raise UserError(f"{op.value} is no scalar constant", loc=location_of(op), status=UNSUPPORTED)


def _wrapped(function: Function, type: Attribute) -> Function:
    """`function` with its integer result wrapped to a width that NumPy has no type of."""
    width = width_of(type)
    if width is None or width in (1, 8, 16, 32, 64):
        return function

    def wrapped(*operands: Any) -> Any:
        return bits.wrap(function(*operands), width)

    return wrapped


def _same(function: Function) -> Maker:
    """The maker of an op that computes `function`, whatever its type."""

    def make(op: Any) -> Function:
        return function

    return make


def _integer(function: Function, on_bool: Function | None = None) -> Maker:
    """The maker of an integer op; i1 is a bool, where NumPy's arithmetic differs."""

    def make(op: Any) -> Function:
        if on_bool is not None and dtype_of(op.results[0].type, op).kind == "b":
            return on_bool
        return _wrapped(function, op.results[0].type)

    return make


def _unsigned(function: Function) -> Maker:
    """The maker of an op that reads its operands as unsigned."""

    def make(op: Any) -> Function:
        return _wrapped(bits.as_unsigned(function, _width(op.operands[0])), op.results[0].type)

    return make


def _width(value: SSAValue) -> int:
    return width_of(element_of(value)) or 64


def _divider(function: Function) -> Maker:
    """The maker of an integer division, which refuses a divisor of zero."""

    def make(op: Any) -> Function:
        def divide(a: Any, b: Any) -> Any:
            if not np.all(b):
                raise UserError("division by zero", loc=location_of(op))
            return function(a, b)

        if op.name in ("arith.divui", "arith.ceildivui", "arith.remui"):
            return _wrapped(bits.as_unsigned(divide, _width(op.operands[0])), op.results[0].type)
        return _wrapped(divide, op.results[0].type)

    return make


def _counting(make_counter: Callable[[int], Function]) -> Maker:
    """The maker of an op that counts bits of its operand."""

    def make(op: Any) -> Function:
        return make_counter(_width(op.operands[0]))

    return make


# comparisons

_SIGNED: tuple[Function, ...] = (
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
)  # fmt: skip


def _cmpi(op: arith.CmpiOp) -> Function:
    predicate = op.predicate.value.data
    if predicate >= 6:
        return bits.as_unsigned(_SIGNED[predicate - 4], _width(op.lhs))
    function = _SIGNED[predicate]
    if dtype_of(op.lhs.type, op).kind == "b" and predicate >= 2:
        return _swapped(function)  # a true i1 is -1
    return function


def _swapped(function: Function) -> Function:
    def swapped(a: Any, b: Any) -> Any:
        return function(b, a)

    return swapped


def _ordered(a: Any, b: Any) -> Any:
    return (a == a) & (b == b)


def _not(function: Function) -> Function:
    def negated(a: Any, b: Any) -> Any:
        return np.logical_not(function(a, b))

    return negated


def _one(a: Any, b: Any) -> Any:
    return (a < b) | (a > b)


def _always(value: bool) -> Function:
    def constant(a: Any, b: Any) -> Any:
        return np.full(np.broadcast_shapes(np.shape(a), np.shape(b)), value)[()]

    return constant


_CMPF: tuple[Function, ...] = (
    _always(False), np.equal, np.greater, np.greater_equal, np.less, np.less_equal, _one, _ordered,
    _not(_one), _not(np.less_equal), _not(np.less), _not(np.greater_equal), _not(np.greater),
    np.not_equal, _not(_ordered), _always(True),
)  # fmt: skip


def _cmpf(op: arith.CmpfOp) -> Function:
    return _CMPF[op.predicate.value.data]


# minima and maxima


def _signed_zero(function: Function) -> Function:
    """`function`, a NumPy maximum or minimum, with -0 below +0."""
    is_maximum = function in (np.maximum, np.fmax)

    def ordered(a: Any, b: Any) -> Any:
        result = function(a, b)
        if np.ndim(b) == 0 and (b != 0 or (is_maximum and not np.signbit(b))):
            # No ties between zeros, or the usual max(a, +0), of which no zero is negative.
            return result if b != 0 else result + b
        zero = result == 0
        if np.any(zero):
            # NumPy may return either of two zeros. Their sum is the larger one; the negated sum of the
            # negated ones the smaller.
            chosen = a + b if is_maximum else -((-a) + (-b))
            return bits.choose(zero & (a == b), chosen, result)
        return result

    return ordered


# conversions


def _cast(target: DType) -> Function:
    def cast(a: Any) -> Any:
        return a.astype(target)

    return cast


def _from_bool(target: DType) -> Function:
    def cast(a: Any) -> Any:
        return (-a.astype(np.int8)).astype(target)  # a true i1 is -1

    return cast


def _to_bool(a: Any) -> Any:
    return (a & 1).astype(np.bool_)


def _convert(op: Any) -> Function:
    """Extension, truncation and the signed conversions: NumPy's own."""
    target = dtype_of(op.results[0].type, op)
    if target.kind == "b":
        return _to_bool
    if dtype_of(op.operands[0].type, op).kind == "b":
        return _from_bool(target)
    return _wrapped(_cast(target), op.results[0].type)


def _convert_unsigned(op: Any) -> Function:
    target, source = dtype_of(op.results[0].type, op), dtype_of(op.operands[0].type, op)
    if source.kind == "b":
        return _cast(target)
    width = _width(op.operands[0])

    def cast(a: Any) -> Any:
        return bits.unsigned(a, width).astype(target)

    return _wrapped(cast, op.results[0].type)


def _float_to_integer(op: Any) -> Function:
    """Towards zero. What does not fit is poison in MLIR; here it wraps, on every machine."""
    width = _width(op.results[0])
    target = dtype_of(op.results[0].type, op)
    wide = np.uint64 if isinstance(op, arith.FPToUIOp) and width == 64 else np.int64

    def convert(a: Any) -> Any:
        number = np.asarray(a, np.float64).astype(wide)
        return bits.wrap(number.astype(np.int64), width).astype(target)[()]

    return convert


def _bitcast(op: arith.BitcastOp) -> Function:
    target = dtype_of(op.result.type, op)

    def cast(a: Any) -> Any:
        return np.asarray(a).view(target)[()]

    return cast


def _float_to_integer_power(a: Any, b: Any) -> Any:
    return np.power(a, b.astype(a.dtype))


def _power_of_integer(a: Any, b: Any) -> Any:
    """An integer to a negative power truncates towards zero."""
    whole = np.power(a, np.maximum(b, b.dtype.type(0)))
    one = a.dtype.type(1)
    fraction = bits.choose(np.abs(a) == one, bits.choose(b % 2 == 0, one, a), a.dtype.type(0))
    return bits.choose(b < 0, fraction, whole)


def _fma(op: math.FmaOp) -> Function:
    dtype = dtype_of(op.result.type, op)
    if dtype == np.float64:
        raise UserError("math.fma of f64 is not interpreted", loc=location_of(op), status=UNSUPPORTED)

    def fused(a: Any, b: Any, c: Any) -> Any:
        return bits.fused_multiply_add(a, b, c).astype(dtype)

    return fused


def _round_half_away(a: Any) -> Any:
    whole = np.trunc(a)
    return np.copysign(np.abs(whole) + (np.abs(a - whole) >= 0.5).astype(a.dtype), a)


def _erf(a: Any) -> Any:
    return erf(np.asarray(a))[()]


def _rsqrt(a: Any) -> Any:
    return a.dtype.type(1) / np.sqrt(a)


ELEMENTWISE: dict[type[Operation], Maker] = {
    arith.AddiOp: _integer(np.add, np.logical_xor),
    arith.SubiOp: _integer(np.subtract, np.logical_xor),
    arith.MuliOp: _integer(np.multiply, np.logical_and),
    arith.DivSIOp: _divider(bits.divide_towards_zero),
    arith.DivUIOp: _divider(np.floor_divide),
    arith.FloorDivSIOp: _divider(np.floor_divide),
    arith.CeilDivSIOp: _divider(bits.divide_upwards),
    arith.CeilDivUIOp: _divider(bits.divide_upwards),
    arith.RemSIOp: _divider(np.fmod),
    arith.RemUIOp: _divider(np.fmod),
    RemFOp: _same(np.fmod),
    arith.MinUIOp: _unsigned(np.minimum),
    arith.MaxUIOp: _unsigned(np.maximum),
    arith.MinSIOp: _integer(np.minimum, np.logical_or),
    arith.MaxSIOp: _integer(np.maximum, np.logical_and),
    arith.AndIOp: _integer(np.bitwise_and),
    arith.OrIOp: _integer(np.bitwise_or),
    arith.XOrIOp: _integer(np.bitwise_xor),
    arith.ShLIOp: _integer(bits.shift_left),
    arith.ShRUIOp: _unsigned(bits.shift_right),
    arith.ShRSIOp: _integer(bits.shift_right),
    arith.CmpiOp: _cmpi,
    arith.CmpfOp: _cmpf,
    arith.SelectOp: _same(bits.choose),
    arith.AddfOp: _same(np.add),
    arith.SubfOp: _same(np.subtract),
    arith.MulfOp: _same(np.multiply),
    arith.DivfOp: _same(np.divide),
    arith.NegfOp: _same(np.negative),
    arith.MaximumfOp: _same(_signed_zero(np.maximum)),
    arith.MinimumfOp: _same(_signed_zero(np.minimum)),
    arith.MaxnumfOp: _same(_signed_zero(np.fmax)),
    arith.MinnumfOp: _same(_signed_zero(np.fmin)),
    arith.BitcastOp: _bitcast,
    arith.IndexCastOp: _convert,
    arith.ExtSIOp: _convert,
    arith.ExtUIOp: _convert_unsigned,
    arith.TruncIOp: _convert,
    arith.SIToFPOp: _convert,
    arith.UIToFPOp: _convert_unsigned,
    arith.FPToSIOp: _float_to_integer,
    arith.FPToUIOp: _float_to_integer,
    arith.ExtFOp: _convert,
    arith.TruncFOp: _convert,
    math.AbsFOp: _same(np.abs),
    math.AbsIOp: _integer(np.abs),
    math.AcosOp: _same(np.arccos),
    math.AcoshOp: _same(np.arccosh),
    math.AsinOp: _same(np.arcsin),
    math.AsinhOp: _same(np.arcsinh),
    math.AtanOp: _same(np.arctan),
    math.Atan2Op: _same(np.arctan2),
    math.AtanhOp: _same(np.arctanh),
    math.CbrtOp: _same(np.cbrt),
    math.CeilOp: _same(np.ceil),
    math.CopySignOp: _same(np.copysign),
    math.CosOp: _same(np.cos),
    math.CoshOp: _same(np.cosh),
    math.CountLeadingZerosOp: _counting(bits.leading_zeros),
    math.CountTrailingZerosOp: _counting(bits.trailing_zeros),
    math.CtPopOp: _counting(bits.population),
    math.ErfOp: _same(_erf),
    math.ExpOp: _same(np.exp),
    math.Exp2Op: _same(np.exp2),
    math.ExpM1Op: _same(np.expm1),
    math.FPowIOp: _same(_float_to_integer_power),
    math.FloorOp: _same(np.floor),
    math.FmaOp: _fma,
    math.IPowIOp: _integer(_power_of_integer),
    math.LogOp: _same(np.log),
    math.Log10Op: _same(np.log10),
    math.Log1pOp: _same(np.log1p),
    math.Log2Op: _same(np.log2),
    math.PowFOp: _same(np.power),
    math.RoundOp: _same(_round_half_away),
    math.RoundEvenOp: _same(np.rint),
    math.RsqrtOp: _same(_rsqrt),
    math.SinOp: _same(np.sin),
    math.SinhOp: _same(np.sinh),
    math.SqrtOp: _same(np.sqrt),
    math.TanOp: _same(np.tan),
    math.TanhOp: _same(np.tanh),
    math.TruncOp: _same(np.trunc),
}
"""Class of an op of one result -> the maker of its function."""
