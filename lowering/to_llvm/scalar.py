# SPDX-License-Identifier: Apache-2.0
"""
The ops of `arith` and `math` and affine expressions as LLVM instructions, on scalars or on vectors of them.

They have the meaning that generated C and the interpreter give them: no fast-math, fused multiply-adds only where the
IR has them, and the functions of the C library that C calls. `RULES` says how each op is written.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import affine, arith, math
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation

from penstock.dialects.upstream.arith import RemFOp
from penstock.lowering.codegen.affine import affine_minimum
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.types import CType, attribute_number
from penstock.lowering.codegen.views import unsupported
from penstock.lowering.to_llvm.conversions import CONVERSIONS, float_constant
from penstock.lowering.to_llvm.emitter import DIVIDED_BY_ZERO, LlvmEmitter, Rule
from penstock.lowering.to_llvm.small_floats import is_byte_float
from penstock.lowering.to_llvm.types import literal, value_type
from penstock.passes.analysis.index import stays_in_range


def _inst(name: str) -> Rule:
    """An instruction on the type of the result; of floats, rounded to it."""

    def rule(emitter: LlvmEmitter, op: Operation) -> str:
        ctype = emitter.result_type(op)
        may_wrap = name not in ("add", "sub", "mul") or not isinstance(op.results[0].type, IndexType)
        flag = "" if may_wrap or not stays_in_range(op.results[0]) else " nsw"
        return emitter.rounded(ctype, emitter.inst(name + flag, ctype, *emitter.texts(op)))

    return rule


def _intrinsic(name: str, flag: str = "") -> Rule:
    def rule(emitter: LlvmEmitter, op: Operation) -> str:
        ctype = emitter.result_type(op)
        found = emitter.intrinsic(name, ctype, *emitter.texts(op), flag=flag)
        return emitter.rounded(ctype, found)

    return rule


def _library(function: str) -> Rule:
    """A function of the C library, in `float` for small floats."""

    def rule(emitter: LlvmEmitter, op: Operation) -> str:
        ctype = emitter.result_type(op)
        return emitter.rounded(ctype, emitter.library(function, ctype, *emitter.texts(op)))

    return rule


def _constant(emitter: LlvmEmitter, op: arith.ConstantOp) -> str:
    number = attribute_number(op.value)
    if number is None:
        raise unsupported(op, f"{op.value} is no scalar constant", "a constant tensor is a memref.global at this level")
    return literal(emitter.result_type(op), number)


# floats


def _bits_of(emitter: LlvmEmitter, ctype: CType, value: str) -> tuple[str, str]:
    """The bits of a float, and their type."""
    type = "i64" if ctype.bits == 64 else "i32"
    return emitter.cast("bitcast", ctype, value, type), type


def _extremum(emitter: LlvmEmitter, op: arith.MaximumfOp | arith.MinimumfOp) -> str:
    """A maximum or minimum: NaN if one is NaN; -0 is below +0."""
    ctype, is_max = emitter.result_type(op), isinstance(op, arith.MaximumfOp)
    left, right = emitter.texts(op)
    for this, other, value in ((left, right, op.operands[1]), (right, left, op.operands[0])):
        number = attribute_number(value.owner.value) if isinstance(value.owner, arith.ConstantOp) else None
        if number is not None and number == number and (number or str(float(number)) == ("0.0" if is_max else "-0.0")):
            # A constant that decides between two zeros.
            chosen = emitter.inst("fcmp oge" if is_max else "fcmp ole", ctype, other, this)
            return emitter.select(chosen, ctype, other, this)
    bits, type = _bits_of(emitter, ctype, left)
    is_first = emitter.inst("icmp sge" if is_max else "icmp slt", type, bits, emitter.constant(type, 0))
    is_first = emitter.inst("and", "i1", emitter.inst("fcmp oeq", ctype, left, right), is_first)
    is_first = emitter.inst("or", "i1", emitter.inst("fcmp uno", ctype, left, left), is_first)
    beyond = emitter.inst("fcmp ogt" if is_max else "fcmp olt", ctype, left, right)
    return emitter.select(emitter.inst("or", "i1", beyond, is_first), ctype, left, right)


def _number_extremum(condition: str) -> Rule:
    """The larger or smaller number; a number if one is NaN."""

    def rule(emitter: LlvmEmitter, op: Operation) -> str:
        ctype = emitter.result_type(op)
        left, right = emitter.texts(op)
        beyond = emitter.inst(f"fcmp {condition}", ctype, left, right)
        is_first = emitter.inst("or", "i1", beyond, emitter.inst("fcmp uno", ctype, right, right))
        return emitter.select(is_first, ctype, left, right)

    return rule


_FLOAT_PREDICATES = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split()
_INTEGER_PREDICATES = "eq ne slt sle sgt sge ult ule ugt uge".split()


def _cmpf(emitter: LlvmEmitter, op: arith.CmpfOp) -> str:
    predicate = _FLOAT_PREDICATES[op.predicate.value.data]
    return emitter.inst(f"fcmp {predicate}", emitter.ctype(op.lhs), *emitter.texts(op))


def _cmpi(emitter: LlvmEmitter, op: arith.CmpiOp) -> str:
    predicate = _INTEGER_PREDICATES[op.predicate.value.data]
    return emitter.inst(f"icmp {predicate}", emitter.ctype(op.lhs), *emitter.texts(op))


def _select(emitter: LlvmEmitter, op: arith.SelectOp) -> str:
    condition, left, right = emitter.texts(op)
    return emitter.select(condition, emitter.result_type(op), left, right)


# integers


def _shift(name: str, beyond: str | None = None) -> Rule:
    """A shift; all bits may be shifted out. `beyond` is the shift by one bit less than there are, else it is 0."""

    def rule(emitter: LlvmEmitter, op: Operation) -> str:
        ctype = emitter.result_type(op)
        if ctype.is_bool:
            raise emitter.refuse(op, f"{op.name} of i1")
        value, amount = emitter.texts(op)
        fits = emitter.inst("icmp ult", ctype, amount, emitter.constant(ctype, ctype.bits))
        if beyond is not None:
            most = emitter.constant(ctype, ctype.bits - 1)
            return emitter.inst(name, ctype, value, emitter.select(fits, ctype, amount, most))
        return emitter.select(fits, ctype, emitter.inst(name, ctype, value, amount), emitter.constant(ctype, 0))

    return rule


def _counts_bits(name: str, flag: str = "") -> Rule:
    general = _intrinsic(name, flag)

    def rule(emitter: LlvmEmitter, op: Operation) -> str:
        if emitter.result_type(op).is_bool:
            raise emitter.refuse(op, f"{op.name} of i1")
        return general(emitter, op)

    return rule


def is_constant_divisor(op: Operation) -> bool:
    """Whether a division cannot fault, because its divisor is a positive constant."""
    owner = op.operands[1].owner
    number = attribute_number(owner.value) if isinstance(owner, arith.ConstantOp) else None
    return number is not None and number > 0


def _division(name: str, after: Callable[[LlvmEmitter, CType, str, str, str], str] | None = None) -> Rule:
    """
    A division, 0 and a fault by zero; `after` corrects the quotient that is rounded towards zero.

    The quotient by -1 is the negated number, for the least number too, and the remainder is 0.
    """
    is_signed, is_remainder = name[0] == "s", name[1:] == "rem"

    def rule(emitter: LlvmEmitter, op: Operation) -> str:
        ctype = emitter.result_type(op)
        if ctype.is_bool:
            raise emitter.refuse(op, f"{op.name} of i1")
        left, right = emitter.texts(op)
        if is_constant_divisor(op):
            found = emitter.inst(name, ctype, left, right)
            return found if after is None else after(emitter, ctype, left, right, found)
        zero = emitter.constant(ctype, 0)
        is_zero = emitter.inst("icmp eq", ctype, right, zero)
        emitter.fault_if(is_zero, DIVIDED_BY_ZERO)
        is_special, special = is_zero, zero
        if is_signed:
            is_minus = emitter.inst("icmp eq", ctype, right, emitter.constant(ctype, -1))
            is_special = emitter.inst("or", "i1", is_zero, is_minus)
            if not is_remainder:
                special = emitter.select(is_zero, ctype, zero, emitter.inst("sub", ctype, zero, left))
        divisor = emitter.select(is_special, ctype, emitter.constant(ctype, 1), right)
        found = emitter.inst(name, ctype, left, divisor)
        if after is not None:
            found = after(emitter, ctype, left, divisor, found)
        return emitter.select(is_special, ctype, special, found)

    return rule


def _correction(*, up: bool) -> Callable[[LlvmEmitter, CType, str, str, str], str]:
    """Away from zero: a quotient that is no integer, up where it is positive, or down where it is negative."""

    def after(emitter: LlvmEmitter, ctype: CType, left: str, right: str, quotient: str) -> str:
        zero = emitter.constant(ctype, 0)
        rest = emitter.inst("srem", ctype, left, right)
        has_rest = emitter.inst("icmp ne", ctype, rest, zero)
        signs = emitter.inst("xor", ctype, left, right)
        applies = emitter.inst("icmp sge" if up else "icmp slt", ctype, signs, zero)
        one = emitter.cast("zext", "i1", emitter.inst("and", "i1", has_rest, applies), ctype)
        return emitter.inst("add" if up else "sub", ctype, quotient, one)

    return after


def _round_up_unsigned(emitter: LlvmEmitter, ctype: CType, left: str, right: str, quotient: str) -> str:
    rest = emitter.inst("urem", ctype, left, right)
    has_rest = emitter.inst("icmp ne", ctype, rest, emitter.constant(ctype, 0))
    return emitter.inst("add", ctype, quotient, emitter.cast("zext", "i1", has_rest, ctype))


_POWER = """\
define internal {T} {symbol}({T} %a, {T} %b) {{
entry:
  %is_negative = icmp slt {T} %b, 0
  br i1 %is_negative, label %inverse, label %loop
inverse:
  %is_one = icmp eq {T} %a, 1
  %is_minus = icmp eq {T} %a, -1
  %odd = and {T} %b, 1
  %is_odd = icmp ne {T} %odd, 0
  %sign = select i1 %is_odd, {T} -1, {T} 1
  %of_minus = select i1 %is_minus, {T} %sign, {T} 0
  %inverted = select i1 %is_one, {T} 1, {T} %of_minus
  ret {T} %inverted
loop:
  %result = phi {T} [ 1, %entry ], [ %next, %body ]
  %base = phi {T} [ %a, %entry ], [ %squared, %body ]
  %left = phi {T} [ %b, %entry ], [ %half, %body ]
  %is_done = icmp eq {T} %left, 0
  br i1 %is_done, label %end, label %body
body:
  %bit = and {T} %left, 1
  %is_set = icmp ne {T} %bit, 0
  %product = mul {T} %result, %base
  %next = select i1 %is_set, {T} %product, {T} %result
  %squared = mul {T} %base, %base
  %half = lshr {T} %left, 1
  br label %loop
end:
  ret {T} %result
}}"""


def _power_of_integer(emitter: LlvmEmitter, op: math.IPowIOp) -> str:
    ctype = emitter.result_type(op)
    if ctype.is_bool:
        raise emitter.refuse(op, f"{op.name} of i1")
    type = value_type(ctype)
    symbol = f"@pen_power_{type}"
    emitter.asm.module.helpers.setdefault(symbol, _POWER.format(T=type, symbol=symbol))
    left, right = emitter.texts(op)
    return emitter.asm.value(f"call {type} {symbol}({type} {left}, {type} {right})")


# the C library


def _rsqrt(emitter: LlvmEmitter, op: math.RsqrtOp) -> str:
    ctype = emitter.result_type(op)
    root = emitter.rounded(ctype, emitter.intrinsic("sqrt", ctype, emitter.operand(op.operand)))
    return emitter.rounded(ctype, emitter.inst("fdiv", ctype, float_constant(emitter, ctype, 1.0), root))


def _power_of_float(emitter: LlvmEmitter, op: math.FPowIOp) -> str:
    ctype = emitter.result_type(op)
    base, power = emitter.texts(op)
    converted = emitter.cast("sitofp", emitter.ctype(op.operands[1]), power, ctype)
    return emitter.rounded(ctype, emitter.library("pow", ctype, base, converted))


def _absolute(emitter: LlvmEmitter, op: math.AbsIOp) -> str:
    return emitter.intrinsic("abs", emitter.result_type(op), emitter.operand(op.operand), flag="false")


def _affine_minimum(emitter: LlvmEmitter, op: affine.ApplyOp | affine.MinOp) -> str:
    return affine_minimum(emitter, op).text


_EXACT = {
    math.AbsFOp: "fabs", math.CeilOp: "ceil", math.CopySignOp: "copysign", math.FloorOp: "floor", math.FmaOp: "fma",
    math.RoundOp: "round", math.RoundEvenOp: "rint", math.SqrtOp: "sqrt", math.TruncOp: "trunc",
}  # fmt: skip
"""Ops that are instructions of a CPU, or functions of the C library with one correct result."""

_LIBRARY = (
    math.AcosOp, math.AcoshOp, math.AsinOp, math.AsinhOp, math.AtanOp, math.Atan2Op, math.AtanhOp, math.CbrtOp,
    math.CosOp, math.CoshOp, math.ErfOp, math.ExpOp, math.Exp2Op, math.ExpM1Op, math.LogOp, math.Log10Op,
    math.Log1pOp, math.Log2Op, math.SinOp, math.SinhOp, math.TanOp, math.TanhOp,
)  # fmt: skip
"""The ops whose names are those of functions of the C library."""

DIVISIONS: dict[type[Operation], Rule] = {
    arith.DivSIOp: _division("sdiv"),
    arith.RemSIOp: _division("srem"),
    arith.DivUIOp: _division("udiv"),
    arith.RemUIOp: _division("urem"),
    arith.FloorDivSIOp: _division("sdiv", _correction(up=False)),
    arith.CeilDivSIOp: _division("sdiv", _correction(up=True)),
    arith.CeilDivUIOp: _division("udiv", _round_up_unsigned),
}
"""Vectors of these are written only where they cannot fault."""

SCALARS: dict[type[Operation], Rule] = {
    RemFOp: _library("fmod"),
    math.FPowIOp: _power_of_float,
    math.IPowIOp: _power_of_integer,
    math.PowFOp: _library("pow"),
    affine.ApplyOp: _affine_minimum,
    affine.MinOp: _affine_minimum,
    **{op_class: _library(op_class.name.removeprefix("math.")) for op_class in _LIBRARY},
}
"""The ops that are written on scalars alone."""

RULES: dict[type[Operation], Rule] = {
    arith.ConstantOp: _constant,
    **CONVERSIONS,
    arith.AddfOp: _inst("fadd"),
    arith.SubfOp: _inst("fsub"),
    arith.MulfOp: _inst("fmul"),
    arith.DivfOp: _inst("fdiv"),
    arith.NegfOp: lambda e, op: e.inst("fneg", e.result_type(op), e.operand(op.operand)),
    arith.MaximumfOp: _extremum,
    arith.MinimumfOp: _extremum,
    arith.MaxnumfOp: _number_extremum("oge"),
    arith.MinnumfOp: _number_extremum("ole"),
    arith.CmpfOp: _cmpf,
    arith.AddiOp: _inst("add"),
    arith.SubiOp: _inst("sub"),
    arith.MuliOp: _inst("mul"),
    arith.AndIOp: _inst("and"),
    arith.OrIOp: _inst("or"),
    arith.XOrIOp: _inst("xor"),
    arith.MinSIOp: _intrinsic("smin"),
    arith.MaxSIOp: _intrinsic("smax"),
    arith.MinUIOp: _intrinsic("umin"),
    arith.MaxUIOp: _intrinsic("umax"),
    arith.ShLIOp: _shift("shl"),
    arith.ShRSIOp: _shift("ashr", "all"),
    arith.ShRUIOp: _shift("lshr"),
    arith.CmpiOp: _cmpi,
    arith.SelectOp: _select,
    math.AbsIOp: _absolute,
    math.CountLeadingZerosOp: _counts_bits("ctlz", "false"),
    math.CountTrailingZerosOp: _counts_bits("cttz", "false"),
    math.CtPopOp: _counts_bits("ctpop"),
    math.RsqrtOp: _rsqrt,
    **{op_class: _intrinsic(name) for op_class, name in _EXACT.items()},
    **DIVISIONS,
    **SCALARS,
}
"""Class of a pure op with one result -> how it is written. A plug-in may add its own."""


def is_vectorizable(emitter: LlvmEmitter, op: Operation) -> bool:
    """Whether a pure op can compute vectors."""
    if type(op) not in RULES or type(op) in SCALARS or (type(op) in DIVISIONS and not is_constant_divisor(op)):
        return False
    return not any(is_byte_float(emitter.ctype(value)) for value in (*op.operands, *op.results))


def emit_scalar(emitter: LlvmEmitter, op: Operation) -> None:
    """Bind the result of a pure op; raises UserError (unsupported) for one without a rule."""
    rule = RULES.get(type(op))
    if rule is None:
        raise emitter.refuse(op, f"{op.name}")
    is_constant = isinstance(op, arith.ConstantOp)
    text = rule(emitter, op)
    emitter.bind(op.results[0], Expr(text, is_atom=True) if is_constant else emitter.value_of(text))
