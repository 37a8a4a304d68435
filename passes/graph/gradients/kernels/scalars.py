# SPDX-License-Identifier: Apache-2.0
"""Reverse mode in the body of a `linalg.generic`: the adjoints of elements from that of what it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, FloatAttr
from xdsl.dialects.linalg.ops import IndexOp
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.graph.formula import Scalar
from penstock.dialects.upstream.arith import RemFOp
from penstock.passes.graph.gradients.rules_elementwise import BINARY, SLOPES, UNARY
from penstock.passes.scalar_body import Body

Element = Scalar[SSAValue]
_Unary = Callable[[Any, Any, Any], Any]
"""From the adjoint of the result, the operand and the result to what is added to the adjoint of the operand."""
_Binary = Callable[[Any, Any, Any, Any], Any]
"""From the adjoint of the result, both operands and the result to what is added to the adjoint of one of them."""

_FLAT = (math.FloorOp, math.CeilOp, math.RoundOp, math.RoundEvenOp, math.TruncOp, arith.ConstantOp, IndexOp)
"""Ops on floats that are constant almost everywhere."""


def _power(seed: Element, a: Element, b: Element, y: Element) -> Element:
    owner = b.value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, FloatAttr):
        exponent = owner.value.value.data
        return seed * (a * 2 if exponent == 2 else a.apply("pow", exponent - 1) * exponent if exponent else a * 0)
    return seed * b.apply("equal", 0.0).where(0.0, a.apply("pow", b - 1) * b)


def _exponent(seed: Element, a: Element, b: Element, y: Element) -> Element:
    positive = a > 0.0
    return seed * y * positive.where(positive.where(a, 1.0).apply("log"), 0.0)


def _sloped(op: type[Operation]) -> _Unary:
    slope: Callable[[Any, Any], Any] = SLOPES[op]
    return lambda seed, x, y: seed * slope(x, y)


_SLOPED = "Abs Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp Sin Sinh Tan Tanh".split()
_UNARY: dict[type[Operation], _Unary] = {
    **{
        getattr(math, "AbsFOp" if name == "Abs" else f"{name}Op"): _sloped(getattr(graph, f"{name}Op"))
        for name in _SLOPED
    },
    math.ExpM1Op: lambda seed, x, y: seed * (y + 1),
    math.Log1pOp: lambda seed, x, y: seed / (x + 1),
    math.LogOp: UNARY[graph.LogOp],
    math.RsqrtOp: lambda seed, x, y: seed * y / (x * -2),
    math.SqrtOp: UNARY[graph.SqrtOp],
    arith.NegfOp: UNARY[graph.NegOp],
}
"""Scalar ops -> the contribution to the adjoint of the operand. Kinks are those of the graph's ops."""
_BINARY: dict[type[Operation], tuple[_Binary, _Binary]] = {
    arith.AddfOp: BINARY[graph.AddOp],
    arith.DivfOp: BINARY[graph.DivOp],
    arith.MaximumfOp: BINARY[graph.MaxOp],
    arith.MinimumfOp: BINARY[graph.MinOp],
    arith.MulfOp: BINARY[graph.MulOp],
    arith.SubfOp: (lambda seed, a, b, y: seed, lambda seed, a, b, y: -seed),
    math.PowFOp: (_power, _exponent),
    RemFOp: BINARY[graph.ModOp],
}
"""Scalar ops -> the contributions to the adjoints of both operands."""


def depends_on(ops: Iterable[Operation], wanted: Iterable[SSAValue]) -> set[SSAValue]:
    """The floats that depend on those in `wanted` by ways on which there can be a derivative."""
    found = set(wanted)
    for op in ops:
        if not isinstance(op, _FLAT) and any(operand in found for operand in op.operands):
            found.update(result for result in op.results if isinstance(result.type, AnyFloat))
    return found


def adjoint_in(body: Body, ops: Sequence[Operation], value: SSAValue, seed: SSAValue, of: SSAValue) -> SSAValue | None:
    """
    The adjoint of the element `of`, computed at the end of `body`, if that of `value` is `seed`; None if `value` does
    not depend on it. `ops` are those that compute `value`.

    Raises UserError, located at the op, for one without a derivative.
    """
    active = depends_on(ops, [of])
    adjoints: dict[SSAValue, SSAValue] = {value: seed}
    for op in reversed(ops):
        result = op.results[0]
        found = adjoints.get(result)
        if result not in active or found is None:
            continue
        body.location = op.location
        for operand, share in zip(op.operands, _shares(body, op, found, active), strict=True):
            if share is not None:
                before = adjoints.get(operand)
                adjoints[operand] = share if before is None else body.add(before, share)
    return adjoints.get(of) if of in active and value in active else None


def _shares(body: Body, op: Operation, seed: SSAValue, active: set[SSAValue]) -> list[SSAValue | None]:
    """What is added to the adjoint of each operand; None for those that are not active."""
    if isinstance(op, arith.ExtFOp | arith.TruncFOp):
        return [in_type(body, seed, op.input.type)]
    seeded, result = Scalar(seed, body), Scalar(op.results[0], body)
    operands = [Scalar(each, body) for each in op.operands]
    rules: list[Callable[[], Any]]
    if (unary := _UNARY.get(type(op))) is not None:
        rules = [lambda: unary(seeded, operands[0], result)]
    elif (binary := _BINARY.get(type(op))) is not None:
        rules = [lambda rule=rule: rule(seeded, operands[0], operands[1], result) for rule in binary]
    elif isinstance(op, arith.SelectOp):
        taken = operands[0]
        rules = [lambda: seeded, lambda: taken.where(seeded, 0.0), lambda: taken.where(0.0, seeded)]
    else:
        raise UserError(f"{op.name} has no derivative", loc=location_of(op), status=UNSUPPORTED)
    return [rule().value if operand in active else None for operand, rule in zip(op.operands, rules, strict=True)]


def in_type(body: Body, value: SSAValue, element: Attribute) -> SSAValue:
    """A float in another type; what was wider before it was rounded is taken as it was."""
    owner = value.owner
    if isinstance(owner, arith.TruncFOp) and owner.input.type == element:
        return owner.input
    return body.cast(value, element, False)
