# SPDX-License-Identifier: Apache-2.0
"""Operations of TOSA on each element."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects.builtin import IntegerType, i32, i64

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import is_bool, is_float
from penstock.lowering.from_mlir.stablehlo.elements import shifted
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import Conversion, Unsupported, result_of
from penstock.lowering.from_mlir.tosa.numbers import clamped, ends_of, ints, known, number, points, scaled, tosa
from penstock.passes.graph.terms import Term

_FUNCTIONS = """
    abs=abs add=add ceil=ceil cos=cos equal=equal erf=erf exp=exp floor=floor greater=greater intdiv=div int_div=div
    log=log maximum=max minimum=min pow=pow reciprocal=reciprocal sigmoid=sigmoid sin=sin sub=sub tanh=tanh
    logical_and=and logical_not=not logical_or=or
    bitwise_and=bitwise_and bitwise_or=bitwise_or bitwise_xor=bitwise_xor
"""
"""Operations that are ops by another name."""


def _called(function: str) -> Conversion:
    def convert(code: Any, op: ForeignOp, *xs: Term) -> Term:
        return xs[0].apply(function, *xs[1:])

    return convert


for _pair_of_names in _FUNCTIONS.split():
    _name, _, _function = _pair_of_names.partition("=")
    tosa(_name)(_called(_function))


@tosa("greater_equal")
def _greater_equal(code: Any, op: ForeignOp, a: Term, b: Term) -> Term:
    return a.apply("greater", b) | a.equal(b)


@tosa("logical_xor")
def _logical_xor(code: Any, op: ForeignOp, a: Term, b: Term) -> Term:
    return a.equal(b).apply("not")


@tosa("bitwise_not")
def _bitwise_not(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.apply("bitwise_xor", code.array(np.invert(np.zeros((), numpy_dtype(x.element_type))), "ones"))


@tosa("logical_left_shift", "logical_right_shift", "arithmetic_right_shift")
def _shift(code: Any, op: ForeignOp, x: Term, by: Term) -> Term:
    found = shifted(x, by, op.short)
    if not number(op, "round"):
        return found
    last = shifted(x, (by - 1).apply("max", 0), op.short).apply("bitwise_and", 1)
    return (by > 0).where(found + last, found)


@tosa("rsqrt")
def _rsqrt(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.apply("sqrt").apply("reciprocal")


@tosa("negate")
def _negate(code: Any, op: ForeignOp, x: Term, *rest: Term) -> Term:
    """Of integers from their zero points, and no further than their type goes."""
    if is_float(x.element_type):
        return x.apply("neg")
    zero, zero_after = points(code, op, (x, *rest), 1, "input_zp", "output_zp")
    if (zero, zero_after) == (0, 0) and op.get("quantization_info") is None and not rest:
        return x.apply("neg")
    return clamped((zero + zero_after) - x.cast(i64), x.element_type)


@tosa("mul")
def _mul(code: Any, op: ForeignOp, a: Term, b: Term, *rest: Term) -> Term:
    """Of integers in the type of the result, shifted and rounded half up."""
    if is_float(a.element_type):
        return a * b
    element = result_of(op).element_type
    shift = number(op, "shift") or (int(known(code, rest[0], "shift").ravel()[0]) if rest else 0)
    if shift:
        return scaled(code, a.cast(i64) * b.cast(i64), np.array(1), np.array(shift)).cast(element)
    return a.cast(element) * b.cast(element)


@tosa("clamp")
def _clamp(code: Any, op: ForeignOp, x: Term) -> Term:
    element = x.element_type
    names = ("min_fp", "max_fp") if is_float(element) else ("min_int", "max_int")
    low, high = number(op, names[0], "min_val"), number(op, names[1], "max_val")
    if not is_float(element):
        # The ends may be beyond those of the type.
        bounds = ends_of(element)
        low, high = (min(max(each, bounds[0]), bounds[1]) for each in (low, high))
    return x.clip(low, high)


@tosa("select")
def _select(code: Any, op: ForeignOp, condition: Term, a: Term, b: Term) -> Term:
    return condition.where(a, b)


@tosa("cast")
def _cast(code: Any, op: ForeignOp, x: Term) -> Term:
    """To an integer the nearest, of two the even one, and what is beyond the ends of the type becomes these."""
    element = result_of(op).element_type
    if is_bool(element):
        return x.equal(0).apply("not")
    if not is_float(x.element_type) or is_float(element):
        return x.cast(element)
    low, high = ends_of(element)
    ends = np.array([low, high]).astype(numpy_dtype(x.element_type))
    whole = x.apply("round")
    # The greatest integer may be no float: all floats from the next one on become it.
    inside = whole.apply("max", float(ends[0])).apply("min", float(np.nextafter(ends[1], ends[0])))
    if float(ends[1]) <= high:
        return whole.clip(float(ends[0]), float(ends[1])).cast(element)
    top = code.array(np.array(high, numpy_dtype(element)), "highest")
    return (whole < float(ends[1])).where(inside.cast(element), top)


@tosa("identity")
def _identity(code: Any, op: ForeignOp, x: Term) -> Term:
    return x


@tosa("rescale")
def _rescale(code: Any, op: ForeignOp, x: Term, *rest: Term) -> Term:
    """(x - zero point) * multiplier / 2 ** shift + zero point, the last channel by its own, and inside the type."""
    element = result_of(op).element_type
    if number(op, "input_unsigned") or number(op, "output_unsigned"):
        raise Unsupported("of unsigned integers that have the type of signed ones")
    xs = (x, *rest)
    multiplier, shift = ints(code, op, xs, 1, "multiplier"), ints(code, op, xs, 2, "shift")
    zero, zero_after = number(op, "input_zp"), number(op, "output_zp")
    if zero is None:
        zero, zero_after = (int(known(code, xs[index], "a zero point").ravel()[0]) for index in (3, 4))
    twice = bool(number(op, "double_round")) or "DOUBLE_ROUND" in str(op.get("rounding_mode") or "")
    apart = bool(number(op, "per_channel"))
    factors = [np.array(each if apart else each[0]) for each in (multiplier, shift)]
    found = scaled(code, x.cast(i64) - zero, *factors, double_round=twice) + zero_after
    return clamped(found, element)


@tosa("table")
def _table(code: Any, op: ForeignOp, x: Term, *rest: Term) -> Term:
    """The entry at x + 128."""
    if x.element_type != IntegerType(8):
        raise Unsupported(f"of {x.element_type}")
    entries = rest[0] if rest else code.array(np.array(ints(code, op, (x,), 1, "table"), np.int8), "table")
    return code.emit(graph.GatherOp(entries.value, (x.cast(i32) + 128).value, axis=0))
