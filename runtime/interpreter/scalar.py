"""
Scalar ops of `arith` and `math` as Python source.

A float is computed in float64 and then rounded to its type, which is correct rounding (see `Rounder`); f32 goes
through an `array('f')` cell, the quickest way there is. An integer is kept in the signed range of its width. What
has no template here is computed by its elementwise function on NumPy scalars.
"""

from __future__ import annotations

import math as python_math
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.dialects import arith, math, memref
from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    Float64Type,
    TensorType,
)
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.elementwise import ELEMENTWISE, constant_of
from penstock.runtime.interpreter.ownership import is_tensor_select
from penstock.runtime.interpreter.registry import EMITTERS, emits
from penstock.runtime.interpreter.scalar_memory import Rounder
from penstock.runtime.interpreter.source import Writer
from penstock.runtime.interpreter.values import dtype_of, scalar_of, width_of

_FLOATS = (Float16Type, BFloat16Type, Float32Type, Float64Type)


# helpers that the source calls


def _divide(a: float, b: float) -> float:
    """a / b where b is zero."""
    if a == 0 or a != a:
        return python_math.nan
    return python_math.copysign(python_math.inf, a) * python_math.copysign(1.0, b)


def _tie_high(a: float, b: float) -> float:
    """The maximum of two floats that do not compare: NaN, or a zero."""
    return a + b if a == b == 0 else (a if a == b else python_math.nan)


def _tie_low(a: float, b: float) -> float:
    return -((-a) + (-b)) if a == b == 0 else (a if a == b else python_math.nan)


def _square_root(a: float) -> float:
    return python_math.sqrt(a) if a >= 0 else (a if a == 0 else python_math.nan)


def _divide_towards_zero(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


# integers


def _wrapped(expression: str, type: Attribute) -> str:
    """An expression wrapped to its integer type; numbers of type index are never wrapped."""
    width = width_of(type)
    return expression if width is None else _wrapped_to(expression, width)


def _wrapped_to(expression: str, width: int) -> str:
    half = 1 << (width - 1)
    return f"(({expression}) + {half} & {2 * half - 1}) - {half}"


def _unsigned(name: str, type: Attribute) -> str:
    width = width_of(type) or 64
    return f"({name} & {(1 << width) - 1})"


def _integer(template: str) -> Callable[[Writer, Any], None]:
    """The emitter of an integer op by a template of `a` and `b` whose result may need wrapping."""

    def emit(writer: Writer, op: Any) -> None:
        if width_of(op.result.type) == 1:
            emit_elementwise(writer, op)
            return
        expression = template.format(a=writer.name(op.lhs), b=writer.name(op.rhs))
        writer.assign(op.result, _wrapped(expression, op.result.type))
        if {op.lhs, op.rhs} <= writer.non_negative and "-" not in template and width_of(op.result.type) is None:
            writer.non_negative.add(op.result)

    return emit


def _exact(template: str) -> Callable[[Writer, Any], None]:
    """The emitter of an integer op whose result is in range; `ua` and `ub` are the operands read as unsigned."""

    def emit(writer: Writer, op: Any) -> None:
        type = op.result.type
        if width_of(type) == 1:
            emit_elementwise(writer, op)
            return
        a, b = writer.name(op.lhs), writer.name(op.rhs)
        names = {"a": a, "b": b, "ua": _unsigned(a, type), "ub": _unsigned(b, type), "w": (width_of(type) or 64) - 1}
        expression = template.format(**names)
        was_unsigned = "{ua}" in template
        writer.assign(op.result, _wrapped_to(expression, width_of(type) or 64) if was_unsigned else expression)
        if {op.lhs, op.rhs} <= writer.non_negative:
            writer.non_negative.add(op.result)

    return emit


for _op, _template in (
    (arith.AddiOp, "{a} + {b}"),
    (arith.SubiOp, "{a} - {b}"),
    (arith.MuliOp, "{a} * {b}"),
):
    EMITTERS[_op] = _integer(_template)
for _op, _template in (
    (arith.MinSIOp, "{a} if {a} < {b} else {b}"),
    (arith.MaxSIOp, "{a} if {a} > {b} else {b}"),
    (arith.AndIOp, "{a} & {b}"),
    (arith.OrIOp, "{a} | {b}"),
    (arith.XOrIOp, "{a} ^ {b}"),
    (arith.FloorDivSIOp, "{a} // {b}"),
    (arith.CeilDivSIOp, "-(-{a} // {b})"),
    (arith.DivUIOp, "{ua} // {ub}"),
    (arith.RemUIOp, "{ua} % {ub}"),
    (arith.ShRSIOp, "{a} >> ({b} if 0 <= {b} <= {w} else {w})"),
):
    EMITTERS[_op] = _exact(_template)


@emits(arith.DivSIOp, arith.RemSIOp)
def _emit_signed_division(writer: Writer, op: arith.DivSIOp | arith.RemSIOp) -> None:
    if width_of(op.result.type) == 1:
        emit_elementwise(writer, op)
        return
    a, b = writer.name(op.lhs), writer.name(op.rhs)
    non_negative = {op.lhs, op.rhs} <= writer.non_negative
    divide = writer.bind(_divide_towards_zero, "divide")
    quotient = f"{a} // {b}" if non_negative else f"{divide}({a}, {b})"
    if isinstance(op, arith.DivSIOp):
        writer.assign(op.result, _wrapped(quotient, op.result.type))
    else:
        writer.assign(op.result, f"{a} % {b}" if non_negative else f"{a} - {b} * {quotient}")
    if non_negative:
        writer.non_negative.add(op.result)


_SIGNED = ("==", "!=", "<", "<=", ">", ">=")


@emits(arith.CmpiOp)
def _emit_cmpi(writer: Writer, op: arith.CmpiOp) -> None:
    a, b, predicate = writer.name(op.lhs), writer.name(op.rhs), op.predicate.value.data
    if width_of(op.lhs.type) == 1 and 2 <= predicate < 6:
        a, b = b, a  # a true i1 is -1
    elif predicate >= 6:
        a, b, predicate = _unsigned(a, op.lhs.type), _unsigned(b, op.lhs.type), predicate - 4
    writer.assign(op.result, f"{a} {_SIGNED[predicate]} {b}")


@emits(arith.IndexCastOp, arith.ExtSIOp, arith.TruncIOp)
def _emit_integer_cast(writer: Writer, op: arith.IndexCastOp | arith.ExtSIOp | arith.TruncIOp) -> None:
    name = writer.name(op.input)
    if 1 in (width_of(op.input.type), width_of(op.result.type)):
        emit_elementwise(writer, op)
    elif isinstance(op, arith.ExtSIOp):
        writer.assign(op.result, name)
    else:
        writer.assign(op.result, _wrapped(name, op.result.type))
        if op.input in writer.non_negative and width_of(op.result.type) is None:
            writer.non_negative.add(op.result)


@emits(arith.ExtUIOp)
def _emit_extui(writer: Writer, op: arith.ExtUIOp) -> None:
    name = writer.name(op.input)
    writer.assign(op.result, f"int({name})" if width_of(op.input.type) == 1 else _unsigned(name, op.input.type))


@emits(arith.SelectOp)
def _emit_select(writer: Writer, op: arith.SelectOp) -> None:
    chosen = f"{writer.name(op.lhs)} if {writer.name(op.cond)} else {writer.name(op.rhs)}"
    # A tensor chosen as a whole gets an array of its own, so that no other name can change it.
    writer.assign(op.result, f"({chosen}).copy()" if is_tensor_select(op) else chosen)
    if {op.lhs, op.rhs} <= writer.non_negative:
        writer.non_negative.add(op.result)
    writer.defined(op.results)


# floats


def assign_rounded(writer: Writer, value: SSAValue, expression: str) -> None:
    """Define a float value by an expression in float64."""
    if isinstance(value.type, Float64Type) or _stored_only(value):
        writer.assign(value, expression)
    elif isinstance(value.type, Float32Type):
        cell = writer.bind(_cell_of(writer), "cell")
        writer.line(f"{cell}[0] = {expression}")
        writer.assign(value, f"{cell}[0]")
    else:
        rounder = writer.bind(_rounder_of(writer, dtype_of(value.type)), "round")
        writer.assign(value, f"{rounder}({expression})")


def _stored_only(value: SSAValue) -> bool:
    """Whether the only thing that happens to an f32 value is a store, which rounds it."""
    return isinstance(value.type, Float32Type) and all(
        isinstance(use.operation, memref.StoreOp) and use.index == 0 for use in value.uses
    )


def _cell_of(writer: Writer) -> array[float]:
    return writer.execution.kept("f32 cell", lambda: array("f", [0.0]))


def _rounder_of(writer: Writer, dtype: np.dtype[Any]) -> Rounder:
    return writer.execution.kept(f"{dtype} cell", lambda: Rounder(dtype))


def _float_binary(template: str, helper: Callable[..., float] | None = None, *, rounds: bool = True) -> Any:
    def emit(writer: Writer, op: Any) -> None:
        if not isinstance(op.result.type, _FLOATS):
            emit_elementwise(writer, op)
            return
        called = writer.bind(helper, "h") if helper is not None else ""
        expression = template.format(a=writer.name(op.lhs), b=writer.name(op.rhs), h=called)
        if rounds:
            assign_rounded(writer, op.result, expression)
        else:
            writer.assign(op.result, expression)

    return emit


def _float_unary(template: str, helper: Callable[..., float] | None = None, *, rounds: bool = True) -> Any:
    def emit(writer: Writer, op: Any) -> None:
        if not isinstance(op.result.type, _FLOATS):
            emit_elementwise(writer, op)
            return
        called = writer.bind(helper, "h") if helper is not None else ""
        expression = template.format(a=writer.name(op.operands[0]), h=called)
        if rounds:
            assign_rounded(writer, op.result, expression)
        else:
            writer.assign(op.result, expression)

    return emit


EMITTERS[arith.AddfOp] = _float_binary("{a} + {b}")
EMITTERS[arith.SubfOp] = _float_binary("{a} - {b}")
EMITTERS[arith.MulfOp] = _float_binary("{a} * {b}")
EMITTERS[arith.DivfOp] = _float_binary("{a} / {b} if {b} else {h}({a}, {b})", _divide)
EMITTERS[arith.MaximumfOp] = _float_binary(
    "{a} if {a} > {b} else {b} if {a} < {b} else {h}({a}, {b})", _tie_high, rounds=False
)
EMITTERS[arith.MinimumfOp] = _float_binary(
    "{a} if {a} < {b} else {b} if {a} > {b} else {h}({a}, {b})", _tie_low, rounds=False
)
EMITTERS[arith.NegfOp] = _float_unary("-{a}", rounds=False)
EMITTERS[math.AbsFOp] = _float_unary("abs({a})", rounds=False)
EMITTERS[math.SqrtOp] = _float_unary("{h}({a})", _square_root)
EMITTERS[arith.ExtFOp] = _float_unary("{a}", rounds=False)
EMITTERS[arith.TruncFOp] = _float_unary("{a}")

_CMPF = (
    "False", "{a} == {b}", "{a} > {b}", "{a} >= {b}", "{a} < {b}", "{a} <= {b}", "{a} < {b} or {a} > {b}",
    "{a} == {a} and {b} == {b}", "not ({a} < {b} or {a} > {b})", "not {a} <= {b}", "not {a} < {b}",
    "not {a} >= {b}", "not {a} > {b}", "{a} != {b}", "{a} != {a} or {b} != {b}", "True",
)  # fmt: skip


@emits(arith.CmpfOp)
def _emit_cmpf(writer: Writer, op: arith.CmpfOp) -> None:
    template = _CMPF[op.predicate.value.data]
    writer.assign(op.result, template.format(a=writer.name(op.lhs), b=writer.name(op.rhs)))


@emits(arith.SIToFPOp)
def _emit_sitofp(writer: Writer, op: arith.SIToFPOp) -> None:
    if (width_of(op.input.type) or 64) > 32 or width_of(op.input.type) == 1:
        emit_elementwise(writer, op)  # float64 would round once more
    else:
        assign_rounded(writer, op.result, f"float({writer.name(op.input)})")


# everything else


def emit_elementwise(writer: Writer, op: Operation) -> None:
    """Compute an op of scalars by its elementwise function."""
    function = ELEMENTWISE[type(op)](op)
    # Arrays of one element: NumPy computes some functions of its scalars another way, and rounds them differently.
    cells = [np.zeros(1, dtype_of(operand.type, op)) for operand in op.operands]

    def compute(*numbers: Any) -> Any:
        for cell, number in zip(cells, numbers, strict=True):
            cell[0] = number
        return scalar_of(function(*cells)[0])

    arguments = ", ".join(writer.name(operand) for operand in op.operands)
    writer.assign(op.results[0], f"{writer.bind(compute, 'compute')}({arguments})")


for _op in ELEMENTWISE:
    EMITTERS.setdefault(_op, emit_elementwise)


def dense_array(op: Operation, attr: DenseIntOrFPElementsAttr) -> Array:
    """The array of a dense constant."""
    dtype = dtype_of(attr.get_element_type(), op)
    values = [value != 0 for value in attr.get_values()] if dtype.kind == "b" else list(attr.get_values())
    shape = attr.get_shape()
    found = np.array(values, dtype)
    return np.full(shape, found[0]) if found.size == 1 else found.reshape(shape)


@emits(arith.ConstantOp)
def _emit_constant(writer: Writer, op: arith.ConstantOp) -> None:
    if isinstance(op.result.type, TensorType):
        if not isinstance(op.value, DenseIntOrFPElementsAttr):
            raise UserError("this constant is not interpreted", loc=location_of(op), status=UNSUPPORTED)
        writer.assign(op.result, writer.bind(dense_array(op, op.value), "dense"))
        return
    number = scalar_of(constant_of(op))
    writer.constants[op.result] = number
    if isinstance(number, float) and not python_math.isfinite(number):
        writer.assign(op.result, writer.bind(number, "constant"))
    else:
        writer.alias(op.result, f"({number!r})")
    if not isinstance(number, float) and number >= 0:
        writer.non_negative.add(op.result)
