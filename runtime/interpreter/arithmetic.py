# SPDX-License-Identifier: Apache-2.0
"""
The ops of `arith` and `math`: one row an op, with its meaning on arrays and as Python source on scalars.

On arrays and NumPy scalars an op is computed in the element type's own arithmetic. Integers are signless: an op that
reads them as unsigned does so on a view. Overflow wraps.

On Python numbers an op is a template (see `scalar`). A float is computed in float64 and then rounded to its type, an
integer is kept in the signed range of its width. Without a template the array function is called. Both give the same
values, bit for bit.

`maximumf` and `minimumf` hand NaN on and order -0 below +0; `maxnumf` and `minnumf` prefer the number to the NaN.
"""

from __future__ import annotations

import math as python_math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type, FloatAttr, IntegerAttr
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_bits import DType
from penstock.dialects.upstream.arith import RemFOp, refuse_rounding_mode
from penstock.runtime.interpreter import bits
from penstock.runtime.interpreter.values import dtype_of, element_of, width_of

Function = Callable[..., Any]
Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]
Maker = Callable[[Any], Function]
Template = Callable[[Any], str | None]


@dataclass(frozen=True)
class OpArithmetic:
    """How an op of one result is computed."""

    on_arrays: Maker
    """From an op to the function of its operands, arrays or NumPy scalars."""
    template: Template | None = None
    """
    From an op to the Python expression of its operands `a` and `b`, None to call the array function on scalars.

    `ua` and `ub` are the operands read as unsigned, `w` the number of the highest bit, `h` is `helper`.
    """
    helper: Function | None = None
    wraps: bool = False
    """Whether the expression is an integer that may be out of range."""
    rounds: bool = False
    """Whether the expression is a float to be rounded to the type of the result."""
    on_non_negative: str | None = None
    """The template where no operand is negative; its value is in range."""
    keeps_non_negative: bool = False
    """Whether the result is not negative where no operand is."""


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


def _width(value: SSAValue) -> int:
    return width_of(element_of(value)) or 64


def _counting(count: Callable[[Any, int], Any]) -> OpArithmetic:
    """An op that counts bits of its operand."""

    def on_arrays(op: Any) -> Unary:
        width = _width(op.operands[0])
        return lambda a: count(a, width)

    return OpArithmetic(on_arrays)


def _wrapped(function: Function, type: Attribute) -> Function:
    """`function` with its integer result wrapped to a width that NumPy has no type of."""
    width = width_of(type)
    if width is None or width in (1, 8, 16, 32, 64):
        return function

    def wrapped(*operands: Any) -> Any:
        return bits.wrap(function(*operands), width)

    return wrapped


# integers


def _except_on_i1(template: str | None) -> Template:
    return lambda op: None if 1 in (width_of(op.operands[0].type), width_of(op.results[0].type)) else template


def _integer(
    function: Function,
    template: str | None = None,
    *,
    on_i1: Function | None = None,
    unsigned: bool = False,
    divides: bool = False,
    helper: Function | None = None,
    wraps: bool = False,
    on_non_negative: str | None = None,
    keeps_non_negative: bool = True,
) -> OpArithmetic:
    """An op on integers; i1 is a bool, where NumPy's arithmetic differs. A division refuses a divisor of zero."""

    def on_arrays(op: Any) -> Function:
        if on_i1 is not None and dtype_of(op.results[0].type, op).kind == "b":
            return on_i1
        found = _with_checked_divisor(function, op) if divides else function
        if unsigned:
            found = bits.as_unsigned(found, _width(op.operands[0]))
        return _wrapped(found, op.results[0].type)

    return OpArithmetic(
        on_arrays,
        _except_on_i1(template),
        helper,
        wraps,
        on_non_negative=on_non_negative,
        keeps_non_negative=keeps_non_negative,
    )


def _with_checked_divisor(function: Function, op: Operation) -> Function:
    def divide(a: Any, b: Any) -> Any:
        if not np.all(b):
            raise UserError("division by zero", loc=location_of(op))
        return function(a, b)

    return divide


def _quotient(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


# floats

_FLOATS = (Float16Type, BFloat16Type, Float32Type, Float64Type)


def _on_floats(template: str | None) -> Template:
    return lambda op: template if isinstance(op.results[0].type, _FLOATS) else None


def _same(function: Function) -> Maker:
    """What computes `function`, whatever the op's type."""

    def on_arrays(op: Any) -> Function:
        return function

    return on_arrays


def _float(
    function: Function, template: str | None = None, helper: Function | None = None, *, rounds: bool = True
) -> OpArithmetic:
    """An op that computes `function`, whatever its type."""

    return OpArithmetic(_same(function), _on_floats(template), helper, rounds=rounds)


def _divide_by_zero(a: float, b: float) -> float:
    if a == 0 or a != a:
        return python_math.nan
    return python_math.copysign(python_math.inf, a) * python_math.copysign(1.0, b)


def _square_root(a: float) -> float:
    return python_math.sqrt(a) if a >= 0 else (a if a == 0 else python_math.nan)


def _maximum_of_tie(a: float, b: float) -> float:
    """The maximum of two floats of which none is larger: NaN, or a zero."""
    return a + b if a == b == 0 else (a if a == b else python_math.nan)


def _minimum_of_tie(a: float, b: float) -> float:
    return -((-a) + (-b)) if a == b == 0 else (a if a == b else python_math.nan)


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


def _float_to_integer_power(a: Any, b: Any) -> Any:
    return np.power(a, b.astype(a.dtype))


def _fma(op: math.FmaOp) -> Function:
    dtype = dtype_of(op.result.type, op)
    if dtype == np.float64:
        return bits.fused_multiply_add_of_f64

    def fused(a: Any, b: Any, c: Any) -> Any:
        return bits.fused_multiply_add(a, b, c).astype(dtype)

    return fused


def _round_half_away(a: Any) -> Any:
    whole = np.trunc(a)
    return np.copysign(np.abs(whole) + (np.abs(a - whole) >= 0.5).astype(a.dtype), a)


def _rsqrt(a: Any) -> Any:
    return a.dtype.type(1) / np.sqrt(a)


# comparisons

_CMPI: tuple[tuple[Function, str], ...] = (
    (np.equal, "=="),
    (np.not_equal, "!="),
    (np.less, "<"),
    (np.less_equal, "<="),
    (np.greater, ">"),
    (np.greater_equal, ">="),
)


def _cmpi(op: arith.CmpiOp) -> Binary:
    predicate = op.predicate.value.data
    if predicate >= 6:
        return bits.as_unsigned(_CMPI[predicate - 4][0], _width(op.lhs))
    function = _CMPI[predicate][0]
    if not _is_swapped(op):
        return function
    return lambda a, b: function(b, a)


def _cmpi_template(op: arith.CmpiOp) -> str:
    predicate = op.predicate.value.data
    if predicate >= 6:
        return f"{{ua}} {_CMPI[predicate - 4][1]} {{ub}}"
    symbol = _CMPI[predicate][1]
    return f"{{b}} {symbol} {{a}}" if _is_swapped(op) else f"{{a}} {symbol} {{b}}"


def _is_swapped(op: arith.CmpiOp) -> bool:
    """Whether a signed comparison is of i1, of which a true one is -1."""
    return width_of(element_of(op.lhs)) == 1 and 2 <= op.predicate.value.data < 6


def _ordered(a: Any, b: Any) -> Any:
    return (a == a) & (b == b)


def _not(function: Function) -> Binary:
    return lambda a, b: np.logical_not(function(a, b))


def _less_or_greater(a: Any, b: Any) -> Any:
    return (a < b) | (a > b)


def _always(value: bool) -> Binary:
    return lambda a, b: np.full(np.broadcast_shapes(np.shape(a), np.shape(b)), value)[()]


_CMPF: tuple[tuple[Function, str], ...] = (
    (_always(False), "False"),
    (np.equal, "{a} == {b}"),
    (np.greater, "{a} > {b}"),
    (np.greater_equal, "{a} >= {b}"),
    (np.less, "{a} < {b}"),
    (np.less_equal, "{a} <= {b}"),
    (_less_or_greater, "{a} < {b} or {a} > {b}"),
    (_ordered, "{a} == {a} and {b} == {b}"),
    (_not(_less_or_greater), "not ({a} < {b} or {a} > {b})"),
    (_not(np.less_equal), "not {a} <= {b}"),
    (_not(np.less), "not {a} < {b}"),
    (_not(np.greater_equal), "not {a} >= {b}"),
    (_not(np.greater), "not {a} > {b}"),
    (np.not_equal, "{a} != {b}"),
    (_not(_ordered), "{a} != {a} or {b} != {b}"),
    (_always(True), "True"),
)


def _cmpf(op: arith.CmpfOp) -> Function:
    return _CMPF[op.predicate.value.data][0]


def _cmpf_template(op: arith.CmpfOp) -> str:
    return _CMPF[op.predicate.value.data][1]


# conversions


def _cast(target: DType) -> Unary:
    return lambda a: a.astype(target)


def _convert(op: Any) -> Unary:
    """Extension, truncation and the signed conversions: NumPy's own. A true i1 is -1."""
    refuse_rounding_mode(op)
    target = dtype_of(op.results[0].type, op)
    if target.kind == "b":
        return lambda a: (a & 1).astype(np.bool_)
    if dtype_of(op.operands[0].type, op).kind == "b":
        return lambda a: (-a.astype(np.int8)).astype(target)
    return _wrapped(_cast(target), op.results[0].type)


def _convert_unsigned(op: Any) -> Unary:
    target, source = dtype_of(op.results[0].type, op), dtype_of(op.operands[0].type, op)
    if source.kind == "b":
        return _cast(target)
    width = _width(op.operands[0])

    def convert(a: Any) -> Any:
        return bits.unsigned(a, width).astype(target)

    return _wrapped(convert, op.results[0].type)


def _integer_cast(*, wraps: bool) -> OpArithmetic:
    return OpArithmetic(_convert, _except_on_i1("{a}"), wraps=wraps, keeps_non_negative=True)


def _float_of_integer(op: arith.SIToFPOp) -> str | None:
    # Of more bits, float64 would round once more.
    return "float({a})" if 1 < (width_of(op.input.type) or 64) <= 32 else None


def _float_to_integer(op: Any) -> Function:
    """Towards zero. What does not fit is poison in MLIR; here it wraps, on every machine."""
    width = _width(op.results[0])
    target = dtype_of(op.results[0].type, op)
    wide = np.uint64 if isinstance(op, arith.FPToUIOp) and width == 64 else np.int64

    def convert(a: Any) -> Any:
        number = np.asarray(a, np.float64).astype(wide)
        return bits.wrap(number.astype(np.int64), width).astype(target)[()]

    return convert


def _bitcast(op: arith.BitcastOp) -> Unary:
    target = dtype_of(op.result.type, op)
    return lambda a: np.asarray(a).view(target)[()]


_NUMPY_MATH = (
    math.CbrtOp, math.CeilOp, math.CopySignOp, math.CosOp, math.CoshOp, math.ExpOp, math.Exp2Op, math.ExpM1Op,
    math.FloorOp, math.LogOp, math.Log10Op, math.Log1pOp, math.Log2Op, math.SinOp, math.SinhOp, math.TanOp,
    math.TanhOp, math.TruncOp,
)  # fmt: skip
"""The ops whose names are NumPy's."""

ARITHMETIC: dict[type[Operation], OpArithmetic] = {
    arith.AddiOp: _integer(np.add, "{a} + {b}", on_i1=np.logical_xor, wraps=True),
    arith.SubiOp: _integer(np.subtract, "{a} - {b}", on_i1=np.logical_xor, wraps=True, keeps_non_negative=False),
    arith.MuliOp: _integer(np.multiply, "{a} * {b}", on_i1=np.logical_and, wraps=True),
    arith.DivSIOp: _integer(
        bits.divide_towards_zero,
        "{h}({a}, {b})",
        helper=_quotient,
        divides=True,
        wraps=True,
        on_non_negative="{a} // {b}",
    ),
    arith.DivUIOp: _integer(
        np.floor_divide, "{ua} // {ub}", divides=True, unsigned=True, wraps=True, on_non_negative="{a} // {b}"
    ),
    arith.FloorDivSIOp: _integer(np.floor_divide, "{a} // {b}", divides=True),
    arith.CeilDivSIOp: _integer(bits.divide_upwards, "-(-{a} // {b})", divides=True),
    arith.CeilDivUIOp: _integer(bits.divide_upwards, divides=True, unsigned=True),
    arith.RemSIOp: _integer(
        np.fmod, "{a} - {b} * {h}({a}, {b})", helper=_quotient, divides=True, on_non_negative="{a} % {b}"
    ),
    arith.RemUIOp: _integer(
        np.fmod, "{ua} % {ub}", divides=True, unsigned=True, wraps=True, on_non_negative="{a} % {b}"
    ),
    arith.MinSIOp: _integer(np.minimum, "{a} if {a} < {b} else {b}", on_i1=np.logical_or),
    arith.MaxSIOp: _integer(np.maximum, "{a} if {a} > {b} else {b}", on_i1=np.logical_and),
    arith.MinUIOp: _integer(np.minimum, unsigned=True),
    arith.MaxUIOp: _integer(np.maximum, unsigned=True),
    arith.AndIOp: _integer(np.bitwise_and, "{a} & {b}"),
    arith.OrIOp: _integer(np.bitwise_or, "{a} | {b}"),
    arith.XOrIOp: _integer(np.bitwise_xor, "{a} ^ {b}"),
    arith.ShLIOp: _integer(bits.shift_left),
    arith.ShRUIOp: _integer(bits.shift_right, unsigned=True),
    arith.ShRSIOp: _integer(bits.shift_right, "{a} >> ({b} if 0 <= {b} <= {w} else {w})"),
    arith.CmpiOp: OpArithmetic(_cmpi, _cmpi_template),
    arith.CmpfOp: OpArithmetic(_cmpf, _cmpf_template),
    arith.SelectOp: OpArithmetic(_same(bits.choose)),
    arith.AddfOp: _float(np.add, "{a} + {b}"),
    arith.SubfOp: _float(np.subtract, "{a} - {b}"),
    arith.MulfOp: _float(np.multiply, "{a} * {b}"),
    arith.DivfOp: _float(np.divide, "{a} / {b} if {b} else {h}({a}, {b})", _divide_by_zero),
    RemFOp: _float(np.fmod),
    arith.NegfOp: _float(np.negative, "-{a}", rounds=False),
    arith.MaximumfOp: _float(
        _signed_zero(np.maximum),
        "{a} if {a} > {b} else {b} if {a} < {b} else {h}({a}, {b})",
        _maximum_of_tie,
        rounds=False,
    ),
    arith.MinimumfOp: _float(
        _signed_zero(np.minimum),
        "{a} if {a} < {b} else {b} if {a} > {b} else {h}({a}, {b})",
        _minimum_of_tie,
        rounds=False,
    ),
    arith.MaxnumfOp: _float(_signed_zero(np.fmax)),
    arith.MinnumfOp: _float(_signed_zero(np.fmin)),
    arith.BitcastOp: OpArithmetic(_bitcast),
    arith.IndexCastOp: _integer_cast(wraps=True),
    arith.TruncIOp: _integer_cast(wraps=True),
    arith.ExtSIOp: _integer_cast(wraps=False),
    arith.ExtUIOp: OpArithmetic(_convert_unsigned, lambda op: "{ua}"),
    arith.SIToFPOp: OpArithmetic(_convert, _float_of_integer, rounds=True),
    arith.UIToFPOp: OpArithmetic(_convert_unsigned),
    arith.FPToSIOp: OpArithmetic(_float_to_integer),
    arith.FPToUIOp: OpArithmetic(_float_to_integer),
    arith.ExtFOp: OpArithmetic(_convert, _on_floats("{a}")),
    arith.TruncFOp: OpArithmetic(_convert, _on_floats("{a}"), rounds=True),
    math.AbsFOp: _float(np.abs, "abs({a})", rounds=False),
    math.AbsIOp: _integer(np.abs),
    math.AcosOp: _float(np.arccos),
    math.AcoshOp: _float(np.arccosh),
    math.AsinOp: _float(np.arcsin),
    math.AsinhOp: _float(np.arcsinh),
    math.AtanOp: _float(np.arctan),
    math.Atan2Op: _float(np.arctan2),
    math.AtanhOp: _float(np.arctanh),
    math.CountLeadingZerosOp: _counting(bits.leading_zeros),
    math.CountTrailingZerosOp: _counting(bits.trailing_zeros),
    math.CtPopOp: _counting(bits.population),
    math.ErfOp: _float(bits.erf),
    math.FPowIOp: _float(_float_to_integer_power),
    math.FmaOp: OpArithmetic(_fma),
    math.IPowIOp: _integer(bits.power),
    math.PowFOp: _float(np.power),
    math.RoundOp: _float(_round_half_away),
    math.RoundEvenOp: _float(np.rint),
    math.RsqrtOp: _float(_rsqrt),
    math.SqrtOp: _float(np.sqrt, "{h}({a})", _square_root),
    **{op_class: _float(getattr(np, op_class.name.removeprefix("math."))) for op_class in _NUMPY_MATH},
}
"""Class of an op of one result -> how it is computed."""
