# SPDX-License-Identifier: Apache-2.0
"""
The ops of `arith` and `math` and affine expressions on scalars as C expressions.

They have the meaning that the interpreter gives them. `RULES` says how each op is written.
"""

from __future__ import annotations

from xdsl.dialects import affine, arith, math
from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import Operation, SSAValue

from penstock.dialects.upstream.arith import RemFOp
from penstock.lowering.codegen.affine import affine_minimum
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.types import attribute_number
from penstock.lowering.codegen.views import unsupported
from penstock.lowering.to_c.conversions import CONVERSIONS, Rule, call, cast, unsigned_of
from penstock.lowering.to_c.emitter import FunctionEmitter
from penstock.lowering.to_c.literals import literal
from penstock.passes.analysis.index import stays_in_range


def _integer_helper(what: str, on_bool: str | None = None, *, may_fault: bool = False) -> Rule:
    """A helper of the prelude; on i1 the operator `on_bool`."""

    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        ctype = emitter.result_type(op)
        operands = emitter.operands(op)
        if ctype.is_bool:
            if on_bool is None:
                raise emitter.refuse(op, f"{op.name} of i1")
            return Expr(f"{operands[0].atom} {on_bool} {operands[1].atom}")
        fault = [f"&{emitter.own}->fault"] if may_fault else []
        return call(emitter.helper(what, ctype), *operands, *fault)

    return rule


def _constant(emitter: FunctionEmitter, op: arith.ConstantOp) -> Expr:
    """The literal of a scalar constant."""
    number = attribute_number(op.value)
    if number is None:
        raise unsupported(op, f"{op.value} is no scalar constant", "a constant tensor is a memref.global at this level")
    return literal(emitter.result_type(op), number)


# floats


def _float_infix(symbol: str) -> Rule:
    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        left, right = emitter.operands(op)
        return emitter.rounded(emitter.result_type(op), f"{left.atom} {symbol} {right.atom}")

    return rule


def _negate(emitter: FunctionEmitter, op: arith.NegfOp) -> Expr:
    return Expr(f"-{emitter.scalar(op.operand).atom}")


def _extremum(general: str, simple: str) -> Rule:
    """A maximum or minimum; next to a constant that decides between two zeros, a simpler one."""

    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        ctype = emitter.result_type(op)
        left, right = emitter.operands(op)
        for this, other, value in ((left, right, op.operands[1]), (right, left, op.operands[0])):
            number = attribute_number(value.owner.value) if isinstance(value.owner, arith.ConstantOp) else None
            if (
                number is not None
                and number == number
                and (number != 0 or str(float(number)) == ("0.0" if simple == "max" else "-0.0"))
            ):
                return call(emitter.helper(simple, ctype), this, other)
        return call(emitter.helper(general, ctype), left, right)

    return rule


_COMPARISONS = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
_NEGATED = {9: "<=", 10: "<", 11: ">=", 12: ">"}
"""`ugt` is "not `ole`": true where one is NaN."""


def _cmpf(emitter: FunctionEmitter, op: arith.CmpfOp) -> Expr:
    predicate = op.predicate.value.data
    left, right = emitter.operands(op)
    if predicate in (0, 15):
        return Expr("1" if predicate else "0", is_atom=True)
    if predicate in _COMPARISONS:
        return Expr(f"{left.atom} {_COMPARISONS[predicate]} {right.atom}")
    if predicate in _NEGATED:
        return Expr(f"!({left.atom} {_NEGATED[predicate]} {right.atom})")
    ctype = emitter.ctype(op.lhs)
    called = call(emitter.helper("one" if predicate in (6, 8) else "ordered", ctype), left, right)
    return called if predicate in (6, 7) else Expr(f"!{called.text}")


# integers


def _integer_infix(symbol: str, on_bool: str) -> Rule:
    """An operation that wraps: on unsigned numbers where C's signed one must not overflow."""

    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        ctype = emitter.result_type(op)
        left, right = emitter.operands(op)
        if ctype.is_bool:
            return Expr(f"{left.atom} {on_bool} {right.atom}")
        if isinstance(op.results[0].type, IndexType) and stays_in_range(op.results[0]):
            return Expr(f"{left.atom} {symbol} {right.atom}")
        if ctype.bits < 32:
            return Expr(f"({ctype.value})({left.atom} {symbol} {right.atom})")
        if symbol == "*" and all(_comes_from_16_bits(operand) for operand in op.operands):
            return Expr(f"{left.atom} * {right.atom}")
        unsigned = unsigned_of(ctype)
        return Expr(f"({ctype.value})(({unsigned}){left.atom} {symbol} ({unsigned}){right.atom})")

    return rule


def _comes_from_16_bits(value: SSAValue) -> bool:
    """Whether an i32 or i64 is an extended i8 or i16, so that a product of two does not overflow."""
    owner = value.owner
    if not isinstance(owner, arith.ExtSIOp):
        return False
    return str(owner.input.type) in ("i1", "i8", "i16")


def _bitwise(symbol: str) -> Rule:
    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        ctype = emitter.result_type(op)
        left, right = emitter.operands(op)
        text = f"{left.atom} {symbol} {right.atom}"
        return Expr(f"({ctype.value})({text})") if ctype.bits < 32 else Expr(text)

    return rule


def _division(what: str, symbol: str) -> Rule:
    """A division, a plain one where the divisor is a constant that cannot fault."""
    general = _integer_helper(what, may_fault=True)

    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        left, right = emitter.operands(op)
        if (right.number or 0) > 0 and not emitter.result_type(op).is_bool:
            value = emitter.result_type(op).value
            text = f"{left.atom} {symbol} {right.atom}"
            return Expr(text) if emitter.result_type(op).bits >= 32 else Expr(f"({value})({text})")
        return general(emitter, op)

    return rule


_CMPI = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")


def _cmpi(emitter: FunctionEmitter, op: arith.CmpiOp) -> Expr:
    predicate = op.predicate.value.data
    left, right = emitter.operands(op)
    ctype = emitter.ctype(op.lhs)
    symbol = _CMPI[predicate]
    if ctype.is_bool and 2 <= predicate < 6:
        left, right = right, left  # a true i1 is -1
    elif predicate >= 6 and not ctype.is_bool:
        left, right = cast(unsigned_of(ctype), left), cast(unsigned_of(ctype), right)
    return Expr(f"{left.atom} {symbol} {right.atom}")


def _select(emitter: FunctionEmitter, op: arith.SelectOp) -> Expr:
    condition, left, right = emitter.operands(op)
    # Both are computed, whichever is selected. A load in a branch may also be compiled wrongly: GCC 12 vectorises two
    # loops at once, and masks what depends on the outer counter by the wrong elements.
    left, right = (emitter.held(emitter.ctype(op.result), each) if "[" in each.text else each for each in (left, right))
    return Expr(f"{condition.atom} ? {left.atom} : {right.atom}")


# the C library


def _library(function: str) -> Rule:
    """A function of the C library, in float for 16-bit floats."""

    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        ctype = emitter.result_type(op)
        name = function if ctype.bits == 64 else f"{function}f"
        called = call(name, *emitter.operands(op))
        return emitter.rounded(ctype, called.text) if ctype.is_small else called

    return rule


def _rsqrt(emitter: FunctionEmitter, op: math.RsqrtOp) -> Expr:
    ctype = emitter.result_type(op)
    one, root = ("1.0", "sqrt") if ctype.bits == 64 else ("1.0f", "sqrtf")
    operand = emitter.scalar(op.operand).text
    inner = emitter.rounded(ctype, f"{root}({operand})")
    return emitter.rounded(ctype, f"{one} / {inner.text}")


def _power_of_float(emitter: FunctionEmitter, op: math.FPowIOp) -> Expr:
    ctype = emitter.result_type(op)
    base, power = emitter.operands(op)
    called = call("pow" if ctype.bits == 64 else "powf", base, cast(ctype.value, power))
    return emitter.rounded(ctype, called.text) if ctype.is_small else called


def _absolute(emitter: FunctionEmitter, op: math.AbsIOp) -> Expr:
    ctype = emitter.result_type(op)
    operand = emitter.scalar(op.operand)
    if ctype.is_bool:
        return operand
    negated = f"({ctype.value})(0 - ({unsigned_of(ctype)}){operand.atom})"
    return Expr(f"{operand.atom} < 0 ? {negated} : {operand.atom}")


_LIBRARY = (
    math.AcosOp, math.AcoshOp, math.AsinOp, math.AsinhOp, math.AtanOp, math.Atan2Op, math.AtanhOp, math.CbrtOp,
    math.CeilOp, math.CopySignOp, math.CosOp, math.CoshOp, math.ErfOp, math.ExpOp, math.Exp2Op, math.ExpM1Op,
    math.FloorOp, math.FmaOp, math.LogOp, math.Log10Op, math.Log1pOp, math.Log2Op, math.RoundOp, math.SinOp,
    math.SinhOp, math.SqrtOp, math.TanOp, math.TanhOp, math.TruncOp,
)  # fmt: skip
"""The ops whose names are those of functions of the C library."""

RULES: dict[type[Operation], Rule] = {
    arith.ConstantOp: _constant,
    **CONVERSIONS,
    arith.AddfOp: _float_infix("+"),
    arith.SubfOp: _float_infix("-"),
    arith.MulfOp: _float_infix("*"),
    arith.DivfOp: _float_infix("/"),
    arith.NegfOp: _negate,
    arith.MaximumfOp: _extremum("maximum", "max"),
    arith.MinimumfOp: _extremum("minimum", "min"),
    arith.MaxnumfOp: lambda e, op: call(e.helper("maxnum", e.result_type(op)), *e.operands(op)),
    arith.MinnumfOp: lambda e, op: call(e.helper("minnum", e.result_type(op)), *e.operands(op)),
    arith.CmpfOp: _cmpf,
    arith.AddiOp: _integer_infix("+", "^"),
    arith.SubiOp: _integer_infix("-", "^"),
    arith.MuliOp: _integer_infix("*", "&"),
    arith.AndIOp: _bitwise("&"),
    arith.OrIOp: _bitwise("|"),
    arith.XOrIOp: _bitwise("^"),
    arith.DivSIOp: _division("divs", "/"),
    arith.RemSIOp: _division("rems", "%"),
    arith.DivUIOp: _integer_helper("divu", may_fault=True),
    arith.RemUIOp: _integer_helper("remu", may_fault=True),
    RemFOp: _library("fmod"),
    arith.FloorDivSIOp: _integer_helper("floordivs", may_fault=True),
    arith.CeilDivSIOp: _integer_helper("ceildivs", may_fault=True),
    arith.CeilDivUIOp: _integer_helper("ceildivu", may_fault=True),
    arith.MinSIOp: _integer_helper("mins", "|"),
    arith.MaxSIOp: _integer_helper("maxs", "&"),
    arith.MinUIOp: _integer_helper("minu", "&"),
    arith.MaxUIOp: _integer_helper("maxu", "|"),
    arith.ShLIOp: _integer_helper("shl"),
    arith.ShRSIOp: _integer_helper("shrs"),
    arith.ShRUIOp: _integer_helper("shru"),
    arith.CmpiOp: _cmpi,
    arith.SelectOp: _select,
    affine.ApplyOp: affine_minimum,
    affine.MinOp: affine_minimum,
    math.AbsFOp: _library("fabs"),
    math.AbsIOp: _absolute,
    math.CountLeadingZerosOp: _integer_helper("leading_zeros"),
    math.CountTrailingZerosOp: _integer_helper("trailing_zeros"),
    math.CtPopOp: _integer_helper("ones"),
    math.FPowIOp: _power_of_float,
    math.IPowIOp: _integer_helper("power_integer"),
    math.PowFOp: _library("pow"),
    math.RoundEvenOp: _library("rint"),
    math.RsqrtOp: _rsqrt,
    **{op_class: _library(op_class.name.removeprefix("math.")) for op_class in _LIBRARY},
}
"""Class of a pure op with one result -> its expression. A plug-in may add its own."""


NARROW = (
    arith.ConstantOp,
    arith.SelectOp,
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
    arith.SIToFPOp,
    arith.UIToFPOp,
    arith.FPToSIOp,
    arith.FPToUIOp,
)
"""The ops that take or give integers of less than a byte."""


def _is_narrow(value: SSAValue) -> bool:
    match value.type:
        case IntegerType():
            return 1 < value.type.width.data < 8
        case _:
            return False


def _compares_equal(op: Operation) -> bool:
    return isinstance(op, arith.CmpiOp) and op.predicate.value.data < 2


def emit_scalar(emitter: FunctionEmitter, op: Operation) -> None:
    """Bind the result of a scalar op; raises UserError (unsupported) for one without a rule."""
    rule = RULES.get(type(op))
    if rule is None:
        raise emitter.refuse(op, f"{op.name}")
    if not isinstance(op, NARROW) and not _compares_equal(op) and any(map(_is_narrow, (*op.operands, *op.results))):
        raise emitter.refuse(op, f"{op.name} of integers of less than a byte")
    emitter.keep(op, rule(emitter, op))
