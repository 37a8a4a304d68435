# SPDX-License-Identifier: Apache-2.0
"""Operations of StableHLO on each element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    IntegerType,
    Signedness,
    i32,
)

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import is_bool, is_float
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import (
    Conversion,
    Unsupported,
    converts,
    result_of,
    words_of,
)
from penstock.passes.graph.terms import Term

_FUNCTIONS = """
    abs=abs add=add ceil=ceil cosine=cos divide=div exponential=exp floor=floor log=log logistic=sigmoid multiply=mul
    negate=neg power=pow round_nearest_even=round sign=sign sine=sin sqrt=sqrt subtract=sub tan=tan tanh=tanh
    chlo.erf=erf chlo.acos=acos chlo.acosh=acosh chlo.asin=asin chlo.asinh=asinh chlo.atan=atan chlo.atanh=atanh
    chlo.cosh=cosh chlo.sinh=sinh chlo.tan=tan
"""
"""Operations that are ops by another name."""


def _called(function: str) -> Conversion:
    def convert(code: Any, op: ForeignOp, *xs: Term) -> Term:
        return xs[0].apply(function, *xs[1:])

    return convert


for _pair_of_names in _FUNCTIONS.split():
    _name, _, _function = _pair_of_names.partition("=")
    converts(_name)(_called(_function))


@converts("maximum", "minimum", "and", "or", "xor", "not")
def _logical(code: Any, op: ForeignOp, *xs: Term) -> Term:
    """Of truth values, and of the bits of integers."""
    word, x = op.short, xs[0]
    if word in ("maximum", "minimum"):
        if is_bool(x.element_type):
            return x.apply("or" if word == "maximum" else "and", xs[1])
        return x.apply(word[:3], xs[1])
    if is_bool(x.element_type):
        return x.equal(xs[1]).apply("not") if word == "xor" else x.apply(word, *xs[1:])
    if word == "not":
        return x.apply("bitwise_xor", code.array(np.invert(np.zeros((), numpy_dtype(x.element_type))), "ones"))
    return x.apply(f"bitwise_{word}", xs[1])


@converts("rsqrt")
def _rsqrt(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.apply("sqrt").apply("reciprocal")


@converts("exponential_minus_one")
def _exponential_minus_one(code: Any, op: ForeignOp, x: Term) -> Term:
    """Of what is negative an ELU; else exp(x) (1 - exp(-x))."""
    return (x < 0).where(x.apply("elu"), -(-x).apply("elu") * x.apply("exp"))


@converts("log_plus_one")
def _log_plus_one(code: Any, op: ForeignOp, x: Term) -> Term:
    """What is lost when 1 is added is put right by a quotient: Kahan's formula, Higham, "Accuracy", problem 1.5."""
    whole = x + 1
    quotient = whole.apply("log") * x / (whole - 1)
    return whole.equal(1).where(x, (abs(x) < math.inf).where(quotient, whole.apply("log")))


def shifted(x: Term, by: Term, kind: str) -> Term:
    """A logical shift is one of integers without a sign, an arithmetic one of integers with a sign."""
    element = x.element_type
    if "left" in kind:
        return x.apply("shift_left", by)
    signedness = Signedness.UNSIGNED if "logical" in kind else Signedness.SIGNLESS
    plain = IntegerType(8 * numpy_dtype(element).itemsize, signedness)
    if plain == element:
        return x.apply("shift_right", by)
    x, by = (each.emit(graph.BitcastOp(each.value, plain)) for each in (x, by))
    return x.emit(graph.BitcastOp(x.apply("shift_right", by).value, element))


@converts("shift_left", "shift_right_arithmetic", "shift_right_logical")
def _shift(code: Any, op: ForeignOp, x: Term, by: Term) -> Term:
    return shifted(x, by, op.short)


@converts("chlo.square")
def _square(code: Any, op: ForeignOp, x: Term) -> Term:
    return x * x


@converts("remainder")
def _remainder(code: Any, op: ForeignOp, a: Term, b: Term) -> Term:
    """With the sign of the dividend."""
    return a.apply("mod", b) if is_float(a.element_type) else a - a / b * b


@converts("clamp")
def _clamp(code: Any, op: ForeignOp, low: Term, x: Term, high: Term) -> Term:
    return x.apply("max", low).apply("min", high)


@converts("is_finite")
def _is_finite(code: Any, op: ForeignOp, x: Term) -> Term:
    return abs(x) < math.inf


@converts("select")
def _select(code: Any, op: ForeignOp, condition: Term, a: Term, b: Term) -> Term:
    return condition.where(a, b)


@converts("convert")
def _convert(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.cast(result_of(op).element_type)


@converts("bitcast_convert")
def _bitcast(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.emit(graph.BitcastOp(x.value, result_of(op).element_type))


@converts("compare")
def _compare(code: Any, op: ForeignOp, a: Term, b: Term) -> Term:
    direction, *kind = words_of(op)
    if kind == ["TOTALORDER"]:
        raise Unsupported("in the total order of floats")
    if is_bool(a.element_type):
        a, b = a.cast(i32), b.cast(i32)
    match direction:
        case "EQ":
            return a.equal(b)
        case "NE":
            return a.equal(b).apply("not")
        case "LT":
            return a.apply("less", b)
        case "GT":
            return a.apply("greater", b)
        case "LE":
            return a.apply("less", b) | a.equal(b)
        case _:
            return a.apply("greater", b) | a.equal(b)
