# SPDX-License-Identifier: Apache-2.0
"""
Rules of arithmetic, for `simplify`. Each is exact, for NaN, infinities and the sign of zero as well.

| rule | why it is exact |
|---|---|
| x + 0, 0 + x -> x | integers; floats where 0 is -0.0, or x is never -0.0 (-0.0 + 0.0 is 0.0) |
| x - 0 -> x | integers; floats where it is 0.0 (x - -0.0 is x + 0.0) |
| 0 - x -> -x, x - x -> 0, x * 0 -> 0 | integers: floats have 0.0 - 0.0, NaN and infinities |
| x * 1, x / 1, x ^ 1 -> x | by definition |
| x ^ 2 -> x * x | x * x is the correctly rounded square; exponents like 1/2 stay: (-inf)^(1/2) is inf, its root NaN |
| x / c -> x * (1/c) | c a power of two with a reciprocal in the type: both round the same real number |
| -(-x), not not x, abs abs x, relu relu x | |
| clip of clip or relu, relu of clip | both are monotonic: the bounds are clipped; NaN stays NaN |
| relu, abs of what is never negative | |
| cast of cast | where the type between holds every number of the first one |
| max, min, and, or, bitwise and, or of x with itself | |
| x and true, x or false | |
| (x op c) op d -> x op (c op d) | max, min, and, or, bits; add and mul of integers, which wrap |
| where c, x, x -> x; where of a constant | |
"""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import AnyFloat, BFloat16Type, Float16Type, Float32Type, Float64Type
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.base import holds, integer_bounds
from penstock.passes.graph.contractions import bounds_of
from penstock.passes.graph.simplification.rules import (
    Rule,
    Rules,
    discard,
    has_type_of,
    identity,
    is_integral,
    is_short_constant,
    with_operands,
)
from penstock.passes.graph.values import NodeBuilder, number_of, only_user

_NEVER_NEGATIVE = (graph.AbsOp, graph.ExpOp, graph.SigmoidOp, graph.SoftplusOp, graph.SoftmaxOp, graph.ReluOp)
_NEVER_MINUS_ZERO = (graph.AbsOp, graph.ExpOp, graph.SigmoidOp, graph.SoftplusOp, graph.SoftmaxOp)


def _pairs(op: graph.BinaryOp) -> tuple[tuple[SSAValue, SSAValue], tuple[SSAValue, SSAValue]]:
    return (op.a, op.b), (op.b, op.a)


def _is(value: SSAValue, number: float) -> bool:
    """Whether a value is this number everywhere; -0.0 is not 0.0."""
    found = number_of(value)
    return found is not None and bool(found == number) and bool(np.signbit(found)) == (math.copysign(1, number) < 0)


def _is_never_minus_zero(value: SSAValue) -> bool:
    owner = value.owner
    if isinstance(owner, graph.CastOp):
        return is_integral(owner.x)
    if isinstance(owner, graph.AddOp):
        return _is(owner.a, 0.0) or _is(owner.b, 0.0)
    return isinstance(owner, _NEVER_MINUS_ZERO)


def _zeros(op: GraphOp, nodes: NodeBuilder) -> SSAValue:
    zero = nodes.constant(np.zeros((), numpy_dtype(tensor_of(op.result).element_type)), "zero")
    shape = tensor_of(op.result).get_shape()
    return nodes.add(graph.ExpandOp(zero, shape)) if shape else zero


def _without_neutral(op: graph.BinaryOp, nodes: NodeBuilder) -> SSAValue | None:
    """The other operand where one, at the right, or at either side for an op that commutes, changes nothing."""
    number, commutes = _NEUTRAL[type(op)]
    for x, other in _pairs(op)[: 1 + commutes]:
        if not has_type_of(x, op):
            continue
        if _is(other, number) and (not isinstance(op, graph.AddOp) or is_integral(x) or _is_never_minus_zero(x)):
            return x
        if isinstance(op, graph.AddOp) and _is(other, -0.0):
            return x
    return None


_NEUTRAL: dict[type[Operation], tuple[float, bool]] = {
    graph.AddOp: (0, True),
    graph.SubOp: (0, False),
    graph.MulOp: (1, True),
    graph.DivOp: (1, False),
    graph.PowOp: (1, False),
    graph.AndOp: (1, True),
    graph.OrOp: (0, True),
}
"""The number that changes nothing, and whether it may be at the left."""


def _sub(op: graph.SubOp, nodes: NodeBuilder) -> SSAValue | None:
    if not is_integral(op.result):
        return None
    if op.a == op.b:
        return _zeros(op, nodes)
    bounds = integer_bounds(tensor_of(op.b).element_type)
    if has_type_of(op.b, op) and _is(op.a, 0) and bounds is not None and bounds.start < 0:
        return nodes.add(graph.NegOp(op.b))
    return None


def _mul(op: graph.MulOp, nodes: NodeBuilder) -> SSAValue | None:
    if is_integral(op.result) and (_is(op.a, 0) or _is(op.b, 0)):
        return _zeros(op, nodes)
    return None


def _div(op: graph.BinaryOp, nodes: NodeBuilder) -> SSAValue | None:
    divisor = number_of(op.b)
    if divisor is None or is_integral(op.b):
        return None
    number = float(divisor)  # pyright: ignore[reportArgumentType]
    if number == 0 or not math.isfinite(number) or abs(math.frexp(number)[0]) != 0.5:
        return None
    if float(divisor.dtype.type(1 / number)) != 1 / number:
        return None
    reciprocal = np.full(tensor_of(op.b).get_shape(), 1 / number, divisor.dtype)
    return nodes.add(graph.MulOp(op.a, nodes.constant(reciprocal, "reciprocal")))


def _pow(op: graph.BinaryOp, nodes: NodeBuilder) -> SSAValue | None:
    return nodes.add(graph.MulOp(op.a, op.a)) if has_type_of(op.a, op) and _is(op.b, 2) else None


def _of_itself(op: graph.BinaryOp, nodes: NodeBuilder) -> SSAValue | None:
    return op.a if op.a == op.b else None


def join_constants(op: graph.BinaryOp, nodes: NodeBuilder) -> SSAValue | None:
    """(x op c) op d -> x op (c op d), for an op that is associative and commutative on these elements."""
    for first, outer in _pairs(op):
        before = first.owner
        if type(before) is not type(op) or not is_short_constant(outer) or only_user(first) is not op:
            continue
        assert isinstance(before, graph.BinaryOp)
        for x, inner in _pairs(before):
            if is_short_constant(inner) and not is_short_constant(x):
                joined = type(op)(inner, outer)
                if joined.result_type.element_count() > max(map(_size, (inner, outer))):
                    discard([joined])
                    return None
                return nodes.add(type(op)(x, nodes.add(joined, "constant")))
    return None


def _size(value: SSAValue) -> int:
    return tensor_of(value).element_count()


def _join_integers(op: graph.BinaryOp, nodes: NodeBuilder) -> SSAValue | None:
    return join_constants(op, nodes) if is_integral(op.result) else None


def _undone(op: graph.UnaryOp, nodes: NodeBuilder) -> SSAValue | None:
    before = op.x.owner
    return before.operands[0] if isinstance(before, Operation) and type(before) is type(op) else None


def _never_negative(op: graph.UnaryOp, nodes: NodeBuilder) -> SSAValue | None:
    known = _NEVER_MINUS_ZERO if type(op) is graph.AbsOp else _NEVER_NEGATIVE
    return op.x if isinstance(op.x.owner, known) else None


def _bounds(op: object) -> tuple[float, float] | None:
    """The bounds of a clip whose lower one is not above the upper one, or of a relu."""
    if not isinstance(op, graph.ReluOp | graph.ClipOp):
        return None
    low, high = bounds_of(op)
    return (low, high) if low <= high else None


def _clip(op: graph.ClipOp | graph.ReluOp, nodes: NodeBuilder) -> SSAValue | None:
    before = op.x.owner
    outer, inner = _bounds(op), _bounds(before)
    if outer is None or inner is None or not isinstance(before, graph.ClipOp | graph.ReluOp):
        return None
    low, high = (min(max(bound, outer[0]), outer[1]) for bound in inner)
    if (low, high) == inner:
        return op.x
    return nodes.add(graph.ClipOp(before.x, min=_finite(low), max=_finite(high)))


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def _unbounded(op: graph.ClipOp, nodes: NodeBuilder) -> SSAValue | None:
    return op.x if _bounds(op) == (-math.inf, math.inf) else None


def _cast(op: graph.CastOp, nodes: NodeBuilder) -> SSAValue | None:
    before = op.x.owner
    if not isinstance(before, graph.CastOp):
        return None
    first, between, last = (tensor_of(value).element_type for value in (before.x, op.x, op.result))
    if not _holds_all(between, first) or not (_is_number(last) or first == last):
        return None
    if isinstance(between, AnyFloat) and not isinstance(first, AnyFloat) and not _holds_all(last, first):
        # How a float that is out of range becomes an integer is not how an integer does.
        return None
    return before.x if first == last else nodes.add(graph.CastOp(before.x, last))


_SIGNIFICANT = {BFloat16Type: 8, Float16Type: 11, Float32Type: 24, Float64Type: 53}
"""Bits of the significand: integers of fewer bits, with their sign, are exact."""


def _is_number(element: Attribute) -> bool:
    return type(element) in _SIGNIFICANT or integer_bounds(element) is not None


def _holds_all(wide: Attribute, narrow: Attribute) -> bool:
    if not _is_number(wide) or not _is_number(narrow):
        return False
    bounds, digits = integer_bounds(narrow), _SIGNIFICANT.get(type(wide))  # pyright: ignore
    if bounds is not None and digits is not None:
        return bounds.stop - 1 <= 1 << digits and -bounds.start <= 1 << digits
    return holds(wide, narrow)


def _where(op: graph.WhereOp, nodes: NodeBuilder) -> SSAValue | None:
    chosen = op.a if op.a == op.b else None
    if chosen is None and (condition := number_of(op.cond)) is not None:
        chosen = op.a if condition else op.b
    if chosen is None:
        return None
    return chosen if has_type_of(chosen, op) else nodes.add(graph.ExpandOp(chosen, op.result_type.get_shape()))


def _without_expand(op: GraphOp, nodes: NodeBuilder) -> SSAValue | None:
    """What broadcasts anyway need not be repeated first."""
    for place, operand in enumerate(op.operands):
        if isinstance(owner := operand.owner, graph.ExpandOp):
            operands = [*op.operands[:place], owner.x, *op.operands[place + 1 :]]
            if (new := with_operands(op, operands)) is not None:
                return nodes.add(new)
    return None


_LATTICE: tuple[Rule, ...] = (_of_itself, join_constants, _without_expand)

RULES: Rules = {
    graph.IdentityOp: (identity,),
    graph.AddOp: (_without_neutral, _join_integers, _without_expand),
    graph.SubOp: (_without_neutral, _sub, _without_expand),
    graph.MulOp: (_without_neutral, _mul, _join_integers, _without_expand),
    graph.DivOp: (_without_neutral, _div, _without_expand),
    graph.PowOp: (_without_neutral, _pow, _without_expand),
    graph.MaxOp: _LATTICE,
    graph.MinOp: _LATTICE,
    graph.AndOp: (_without_neutral, *_LATTICE),
    graph.OrOp: (_without_neutral, *_LATTICE),
    graph.BitwiseAndOp: _LATTICE,
    graph.BitwiseOrOp: _LATTICE,
    graph.BitwiseXorOp: (join_constants, _without_expand),
    graph.EqualOp: (_without_expand,),
    graph.LessOp: (_without_expand,),
    graph.GreaterOp: (_without_expand,),
    graph.PreluOp: (_without_expand,),
    graph.WhereOp: (_where, _without_expand),
    graph.NegOp: (_undone,),
    graph.NotOp: (_undone,),
    graph.AbsOp: (_never_negative,),
    graph.ReluOp: (_never_negative, _clip),
    graph.ClipOp: (_unbounded, _clip),
    graph.CastOp: (identity, _cast),
}
