# SPDX-License-Identifier: Apache-2.0
"""The scalar ops of a `linalg.generic` as expressions of the kernel language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, i1
from xdsl.dialects.linalg.ops import IndexOp
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_types import numpy_dtype
from penstock.lowering.from_kernel.syntax import (
    Binary,
    Call,
    Expression,
    Name,
    Number,
    Unary,
)

_BINARY: dict[type[Operation], str] = {
    arith.AddfOp: "+",
    arith.AddiOp: "+",
    arith.SubfOp: "-",
    arith.SubiOp: "-",
    arith.MulfOp: "*",
    arith.MuliOp: "*",
    arith.DivfOp: "/",
    arith.DivSIOp: "/",
    math.PowFOp: "**",
}
_FUNCTIONS: dict[type[Operation], str] = {
    arith.MaximumfOp: "max",
    arith.MaxSIOp: "max",
    arith.MinimumfOp: "min",
    arith.MinSIOp: "min",
    arith.SelectOp: "select",
    arith.ShLIOp: "shl",
    arith.ShRSIOp: "shr",
    math.AbsFOp: "abs",
    math.AbsIOp: "abs",
    math.RoundEvenOp: "round",
    **{
        kind: kind.name.removeprefix("math.")
        for kind in (
            *(math.CosOp, math.ErfOp, math.ExpM1Op, math.ExpOp, math.FloorOp, math.Log1pOp, math.LogOp),
            *(math.RsqrtOp, math.SinOp, math.SqrtOp, math.TanOp, math.TanhOp),
        )
    },
}
_CASTS = (
    *(arith.ExtFOp, arith.TruncFOp, arith.SIToFPOp, arith.FPToSIOp, arith.ExtSIOp, arith.TruncIOp),
    arith.IndexCastOp,
)
_UNSIGNED_CASTS = (arith.ExtUIOp, arith.UIToFPOp)
"""Casts that the language has of booleans only."""
_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def no_form(op: Operation, what: str) -> UserError:
    """The refusal of an op, with status 3."""
    return UserError(f"{what} has no form in the kernel language", loc=location_of(op), status=UNSUPPORTED)


def expression_of(
    value: SSAValue, known: Mapping[SSAValue, Expression], indices: Sequence[Name], at: Operation
) -> Expression:
    """
    What a body computes, from the expressions of its arguments and the names of the indices of its loops.

    Raises UserError, with status 3, for an op that the language has no form of; it is placed at `at`.
    """
    if value in known:
        return known[value]
    op = value.owner
    assert isinstance(op, Operation)
    if isinstance(op, IndexOp):
        return indices[op.dim.value.data]
    if (number := constant_of(value)) is not None:
        return number
    operands = [expression_of(operand, known, indices, at) for operand in op.operands]
    if (sign := _BINARY.get(type(op))) is not None:
        return Binary(sign, operands[0], operands[1])
    if (name := _FUNCTIONS.get(type(op))) is not None:
        return Call(name, tuple(operands))
    # A boolean is 0 or 1 in the language, and a number is cast to one by comparing it with 0.
    from_boolean = op.operands[0].type == i1 if op.operands else False
    if isinstance(op, _UNSIGNED_CASTS if from_boolean else _CASTS) and value.type != i1:
        return Call("cast", (Name(element_name(value.type)), operands[0]))
    match op:
        case arith.NegfOp():
            return Unary("-", operands[0])
        case arith.CmpfOp() | arith.CmpiOp():
            return _comparison(op, operands, at)
        case arith.AndIOp() if value.type == i1:
            return Binary("and", *operands)
        case arith.OrIOp() if value.type == i1:
            return Binary("or", *operands)
        case _:
            raise no_form(at, op.name)


def _comparison(op: arith.CmpfOp | arith.CmpiOp, operands: Sequence[Expression], at: Operation) -> Expression:
    names = arith.CMPF_COMPARISON_OPERATIONS if isinstance(op, arith.CmpfOp) else arith.CMPI_COMPARISON_OPERATIONS
    name = names[op.predicate.value.data]
    is_ours = name in ("eq", "ne", "une") or (name[0] in "os" and name != "one")
    relation = _RELATIONS.get(name if name in _RELATIONS else name[1:])
    if relation is None or not is_ours:
        raise no_form(at, f"the comparison {name}")
    return Binary(relation, operands[0], operands[1])


def element_name(element: Attribute) -> str:
    """What the language calls an element type."""
    return "bool" if element == i1 else str(element)


def constant_of(value: SSAValue) -> Expression | None:
    """The number that a scalar constant is; None for another value."""
    op = value.owner
    if not isinstance(op, arith.ConstantOp):
        return None
    match op.value:
        case FloatAttr() as number:
            return _float(number.value.data, number.type)
        case IntegerAttr() as number:
            return Name("true" if number.value.data else "false") if number.type == i1 else integer(number.value.data)
        case _:
            return None


def _float(value: float, element: Attribute) -> Expression:
    if value != value:
        return Name("nan")
    if value < 0 or str(value).startswith("-"):
        return Unary("-", _float(-value, element))
    if value == float("inf"):
        return Name("inf")
    text = str(numpy_dtype(element).type(value)) if isinstance(element, AnyFloat) else str(value)
    return Number(text.removesuffix(".0") if "e" not in text else text.replace("e+", "e"))


def integer(value: int) -> Expression:
    """An integer, which is negative by a sign."""
    return Number(str(value)) if value >= 0 else Unary("-", Number(str(-value)))
