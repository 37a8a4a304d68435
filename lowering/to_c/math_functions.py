"""The ops of `math` on scalars: the C library's functions, and bit counts."""

from __future__ import annotations

from xdsl.dialects import math
from xdsl.ir import Operation

from penstock.lowering.to_c.emitter import FunctionEmitter
from penstock.lowering.to_c.expressions import (
    Rule,
    call,
    cast,
    integer_helper,
    operands_of,
    result_type,
    unsigned_of,
)
from penstock.lowering.to_c.text import Expr


def library(function: str) -> Rule:
    """A function of the C library, in float for 16-bit floats."""

    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        ctype = result_type(emitter, op)
        name = function if ctype.bits == 64 else f"{function}f"
        called = call(name, *operands_of(emitter, op))
        return emitter.rounded(ctype, called.text) if ctype.is_small else called

    return rule


def _rsqrt(emitter: FunctionEmitter, op: math.RsqrtOp) -> Expr:
    ctype = result_type(emitter, op)
    one, root = ("1.0", "sqrt") if ctype.bits == 64 else ("1.0f", "sqrtf")
    operand = emitter.scalar(op.operand).text
    inner = emitter.rounded(ctype, f"{root}({operand})")
    return emitter.rounded(ctype, f"{one} / {inner.text}")


def _power_of_float(emitter: FunctionEmitter, op: math.FPowIOp) -> Expr:
    ctype = result_type(emitter, op)
    base, power = operands_of(emitter, op)
    called = call("pow" if ctype.bits == 64 else "powf", base, cast(ctype.value, power))
    return emitter.rounded(ctype, called.text) if ctype.is_small else called


def _absolute(emitter: FunctionEmitter, op: math.AbsIOp) -> Expr:
    ctype = result_type(emitter, op)
    operand = emitter.scalar(op.operand)
    if ctype.is_bool:
        return operand
    negated = f"({ctype.value})(0 - ({unsigned_of(ctype)}){operand.atom})"
    return Expr(f"{operand.atom} < 0 ? {negated} : {operand.atom}")


MATH_RULES: dict[type[Operation], Rule] = {
    math.AbsFOp: library("fabs"),
    math.AbsIOp: _absolute,
    math.AcosOp: library("acos"),
    math.AcoshOp: library("acosh"),
    math.AsinOp: library("asin"),
    math.AsinhOp: library("asinh"),
    math.AtanOp: library("atan"),
    math.Atan2Op: library("atan2"),
    math.AtanhOp: library("atanh"),
    math.CbrtOp: library("cbrt"),
    math.CeilOp: library("ceil"),
    math.CopySignOp: library("copysign"),
    math.CosOp: library("cos"),
    math.CoshOp: library("cosh"),
    math.CountLeadingZerosOp: integer_helper("leading_zeros"),
    math.CountTrailingZerosOp: integer_helper("trailing_zeros"),
    math.CtPopOp: integer_helper("ones"),
    math.ErfOp: library("erf"),
    math.ExpOp: library("exp"),
    math.Exp2Op: library("exp2"),
    math.ExpM1Op: library("expm1"),
    math.FPowIOp: _power_of_float,
    math.FloorOp: library("floor"),
    math.FmaOp: library("fma"),
    math.IPowIOp: integer_helper("power_integer"),
    math.LogOp: library("log"),
    math.Log10Op: library("log10"),
    math.Log1pOp: library("log1p"),
    math.Log2Op: library("log2"),
    math.PowFOp: library("pow"),
    math.RoundOp: library("round"),
    math.RoundEvenOp: library("rint"),
    math.RsqrtOp: _rsqrt,
    math.SinOp: library("sin"),
    math.SinhOp: library("sinh"),
    math.SqrtOp: library("sqrt"),
    math.TanOp: library("tan"),
    math.TanhOp: library("tanh"),
    math.TruncOp: library("trunc"),
}
