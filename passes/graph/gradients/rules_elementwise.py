"""
Derivatives of ops that map elements one by one, and of those on operands that broadcast.

Where a function has a kink, one of its subgradients is taken: 0 for relu at 0 and for abs at 0, the slope to the left
for its relatives, the slope inside for a clip at a bound, and of two equal operands of a maximum half each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float
from penstock.passes.graph.gradients.code import AdjointCode, Term, gradient
from penstock.runtime.interpreter.graph.shape import dense_array


def _square_root_of(x: Term) -> Term:
    return x.apply(graph.SqrtOp)


def _inside_out(x: Term, y: Term) -> Term:
    return 1 / _square_root_of(1 - x * x)


SLOPES: dict[type[graph.UnaryOp], Callable[[Term, Term], Term]] = {
    graph.AbsOp: lambda x, y: x.apply(graph.SignOp),
    graph.AcosOp: lambda x, y: -_inside_out(x, y),
    graph.AcoshOp: lambda x, y: 1 / _square_root_of(x * x - 1),
    graph.AsinOp: _inside_out,
    graph.AsinhOp: lambda x, y: 1 / _square_root_of(x * x + 1),
    graph.AtanOp: lambda x, y: 1 / (x * x + 1),
    graph.AtanhOp: lambda x, y: 1 / (1 - x * x),
    graph.CosOp: lambda x, y: -x.apply(graph.SinOp),
    graph.CoshOp: lambda x, y: x.apply(graph.SinhOp),
    graph.ErfOp: lambda x, y: (-(x * x)).apply(graph.ExpOp) * (2 / math.sqrt(math.pi)),
    graph.ExpOp: lambda x, y: y,
    graph.ReciprocalOp: lambda x, y: -(y * y),
    graph.SigmoidOp: lambda x, y: y * (1 - y),
    graph.SinOp: lambda x, y: x.apply(graph.CosOp),
    graph.SinhOp: lambda x, y: x.apply(graph.CoshOp),
    graph.SoftplusOp: lambda x, y: x.apply(graph.SigmoidOp),
    graph.TanOp: lambda x, y: y * y + 1,
    graph.TanhOp: lambda x, y: 1 - y * y,
}
"""Ops without parameters -> their derivative, from the operand and the result."""


@gradient(*SLOPES)
def smooth(code: AdjointCode, op: graph.UnaryOp) -> None:
    """The seed times the derivative."""
    code.add(op.x, lambda: code.seed * SLOPES[type(op)](code.term(op.x), code.term(op.result)))


@gradient(graph.IdentityOp)
def identity(code: AdjointCode, op: graph.IdentityOp) -> None:
    """The seed."""
    code.add(op.x, lambda: code.seed)


@gradient(graph.NegOp)
def neg(code: AdjointCode, op: graph.NegOp) -> None:
    """The negative of the seed."""
    code.add(op.x, lambda: -code.seed)


@gradient(graph.LogOp)
def log(code: AdjointCode, op: graph.UnaryOp) -> None:
    """seed / x."""
    code.add(op.x, lambda: code.seed / code.term(op.x))


@gradient(graph.SqrtOp)
def sqrt(code: AdjointCode, op: graph.UnaryOp) -> None:
    """seed / (2 sqrt(x))."""
    code.add(op.x, lambda: code.seed / (code.term(op.result) * 2))


@gradient(graph.CastOp)
def cast(code: AdjointCode, op: graph.CastOp) -> None:
    """The seed in the type of the operand."""
    element = tensor_of(op.x).element_type
    assert is_float(element)
    code.add(op.x, lambda: code.emit(graph.CastOp(code.seed.value, element)))


def _positive(x: Term) -> Term:
    return x.with_(graph.GreaterOp, 0.0)


@gradient(graph.ReluOp)
def relu(code: AdjointCode, op: graph.ReluOp) -> None:
    """The seed where the operand is positive."""
    code.add(op.x, lambda: _positive(code.term(op.x)).where(code.seed, 0.0, code.seed))


@gradient(graph.LeakyReluOp)
def leaky_relu(code: AdjointCode, op: graph.LeakyReluOp) -> None:
    """The seed where the operand is positive, elsewhere alpha times the seed."""
    alpha = op.alpha.value.data
    code.add(op.x, lambda: _positive(code.term(op.x)).where(code.seed, code.seed * alpha, code.seed))


@gradient(graph.EluOp, graph.SeluOp)
def elu(code: AdjointCode, op: graph.EluOp | graph.SeluOp) -> None:
    """gamma where the operand is positive, elsewhere gamma * alpha * exp(x), which is the result plus gamma * alpha."""
    gamma = op.gamma.value.data if isinstance(op, graph.SeluOp) else 1.0
    x, y, floor = code.term(op.x), code.term(op.result), gamma * op.alpha.value.data
    code.add(op.x, lambda: code.seed * _positive(x).where(gamma, y + floor, code.seed))


@gradient(graph.HardSigmoidOp)
def hard_sigmoid(code: AdjointCode, op: graph.HardSigmoidOp) -> None:
    """alpha times the seed where the result is neither 0 nor 1."""

    def contribution() -> Term:
        y = code.term(op.result)
        inside = _positive(y).with_(graph.AndOp, y.with_(graph.LessOp, 1.0))
        return inside.where(code.seed * op.alpha.value.data, 0.0, code.seed)

    code.add(op.x, contribution)


@gradient(graph.HardSwishOp)
def hard_swish(code: AdjointCode, op: graph.HardSwishOp) -> None:
    """x / 3 + 1/2 between -3 and 3, 0 below and 1 above."""

    def contribution() -> Term:
        x = code.term(op.x)
        inside = x.apply(graph.AbsOp).with_(graph.LessOp, 3.0)
        return code.seed * inside.where(x * (1 / 3) + 0.5, _positive(x).as_number(x), x)

    code.add(op.x, contribution)


@gradient(graph.GeluOp)
def gelu(code: AdjointCode, op: graph.GeluOp) -> None:
    """Phi(x) + x Phi'(x), with the normal distribution function or with what stands for it."""

    def contribution() -> Term:
        x = code.term(op.x)
        if op.approximate.data == "tanh":
            scale, cubic = math.sqrt(2 / math.pi), 0.044715
            square = x * x
            bent = (x * (square * cubic + 1) * scale).apply(graph.TanhOp)
            slope = (1 - bent * bent) * (square * (3 * cubic) + 1) * scale
            return code.seed * ((bent + 1) + x * slope) * 0.5
        phi = ((x * math.sqrt(0.5)).apply(graph.ErfOp) + 1) * 0.5
        density = (x * x * -0.5).apply(graph.ExpOp) * (1 / math.sqrt(2 * math.pi))
        return code.seed * (phi + x * density)

    code.add(op.x, contribution)


@gradient(graph.ClipOp)
def clip(code: AdjointCode, op: graph.ClipOp) -> None:
    """The seed where the operand is not outside the bounds."""

    def contribution() -> Term:
        x, found = code.term(op.x), code.seed
        if op.min is not None:
            found = x.with_(graph.LessOp, op.min.value.data).where(0.0, found, code.seed)
        if op.max is not None:
            found = x.with_(graph.GreaterOp, op.max.value.data).where(0.0, found, code.seed)
        return found

    code.add(op.x, contribution)


@gradient(graph.AddOp)
def add(code: AdjointCode, op: graph.AddOp) -> None:
    """The seed for both."""
    code.add(op.a, lambda: code.seed)
    code.add(op.b, lambda: code.seed)


@gradient(graph.SubOp)
def sub(code: AdjointCode, op: graph.SubOp) -> None:
    """The seed and its negative, which is taken last, of the smaller tensor."""
    code.add(op.a, lambda: code.seed)
    code.add(op.b, lambda: -code.seed.fit(tensor_of(op.b).get_shape()))


@gradient(graph.MulOp)
def mul(code: AdjointCode, op: graph.MulOp) -> None:
    """The seed times the other operand."""
    code.add(op.a, lambda: code.seed * code.term(op.b))
    code.add(op.b, lambda: code.seed * code.term(op.a))


@gradient(graph.DivOp)
def div(code: AdjointCode, op: graph.DivOp) -> None:
    """seed / b and -seed * (a / b) / b."""
    b = code.term(op.b)
    code.add(op.a, lambda: code.seed / b)
    code.add(op.b, lambda: -(code.seed * code.term(op.result) / b))


@gradient(graph.ModOp)
def mod(code: AdjointCode, op: graph.BinaryOp) -> None:
    """The seed, and minus the seed times the whole quotient, which is (a - a mod b) / b."""
    code.add(op.a, lambda: code.seed)
    code.add(op.b, lambda: code.seed * (code.term(op.result) - code.term(op.a)) / code.term(op.b))


@gradient(graph.PowOp)
def power(code: AdjointCode, op: graph.BinaryOp) -> None:
    """seed * b * a^(b - 1), 0 where b is, and seed * a^b * log(a), 0 where a is not positive."""
    a, b = code.term(op.a), code.term(op.b)

    def of_base() -> Term:
        exponent = _number_in(op.b)
        if exponent == 2:
            return code.seed * (a * 2)
        if exponent is not None:
            return code.seed * (a.with_(graph.PowOp, exponent - 1) * exponent if exponent else 0.0)
        slope = a.with_(graph.PowOp, b - 1) * b
        return code.seed * b.with_(graph.EqualOp, 0.0).where(0.0, slope, code.seed)

    def of_exponent() -> Term:
        positive = _positive(a)
        logarithm = positive.where(a, 1.0, a).apply(graph.LogOp)
        return code.seed * code.term(op.result) * positive.where(logarithm, 0.0, a)

    code.add(op.a, of_base)
    code.add(op.b, of_exponent)


def _number_in(value: SSAValue) -> float | None:
    """The number that every element of a constant in the text is."""
    if not isinstance(value.owner, graph.ConstantOp) or value.owner.weight is not None:
        return None
    array = dense_array(value.owner.dense)
    return float(array.flat[0]) if array.size and np.all(array == array.flat[0]) else None


@gradient(graph.MaxOp, graph.MinOp)
def extremum(code: AdjointCode, op: graph.MaxOp | graph.MinOp) -> None:
    """The seed for the operand that is taken, half of it for each of two equal ones."""
    compare = graph.GreaterOp if isinstance(op, graph.MaxOp) else graph.LessOp
    a, b = code.term(op.a), code.term(op.b)

    def contribution(this: Term, other: Term) -> Term:
        equal = this.with_(graph.EqualOp, other).where(code.seed * 0.5, 0.0, code.seed)
        return this.with_(compare, other).where(code.seed, equal, code.seed)

    code.add(op.a, lambda: contribution(a, b))
    code.add(op.b, lambda: contribution(b, a))


@gradient(graph.PreluOp)
def prelu(code: AdjointCode, op: graph.PreluOp) -> None:
    """The seed where `a` is positive, elsewhere the slope times it; and for the slope `a` times the seed."""
    a = code.term(op.a)
    code.add(op.a, lambda: _positive(a).where(code.seed, code.seed * code.term(op.b), code.seed))
    code.add(op.b, lambda: _positive(a).where(0.0, code.seed * a, code.seed))


@gradient(graph.WhereOp)
def where(code: AdjointCode, op: graph.WhereOp) -> None:
    """The seed for the operand that is taken."""
    condition = code.term(op.cond)
    code.add(op.a, lambda: condition.where(code.seed, 0.0, code.seed))
    code.add(op.b, lambda: condition.where(0.0, code.seed, code.seed))
