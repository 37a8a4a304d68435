# SPDX-License-Identifier: Apache-2.0
"""
Derivatives of ops that map elements one by one, and of those on operands that broadcast.

Where a function has a kink, one of its subgradients is taken: 0 for relu at 0 and for abs at 0, the slope to the left
for its relatives, the slope inside for a clip at a bound, and of two equal operands of a maximum half each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.ir import Operation

from penstock.dialects import graph
from penstock.passes.graph.gradients.code import AdjointCode, Term, derivative, gradient
from penstock.passes.graph.values import number_of

SLOPES: dict[type[Operation], Callable[[Term, Term], Term]] = {
    graph.AbsOp: lambda x, y: x.apply("sign"),
    graph.AcosOp: lambda x, y: -(1 / (1 - x * x).apply("sqrt")),
    graph.AcoshOp: lambda x, y: 1 / (x * x - 1).apply("sqrt"),
    graph.AsinOp: lambda x, y: 1 / (1 - x * x).apply("sqrt"),
    graph.AsinhOp: lambda x, y: 1 / (x * x + 1).apply("sqrt"),
    graph.AtanOp: lambda x, y: 1 / (x * x + 1),
    graph.AtanhOp: lambda x, y: 1 / (1 - x * x),
    graph.CosOp: lambda x, y: -x.apply("sin"),
    graph.CoshOp: lambda x, y: x.apply("sinh"),
    graph.ErfOp: lambda x, y: (-(x * x)).apply("exp") * (2 / math.sqrt(math.pi)),
    graph.ExpOp: lambda x, y: y,
    graph.ReciprocalOp: lambda x, y: -(y * y),
    graph.SigmoidOp: lambda x, y: y * (1 - y),
    graph.SinOp: lambda x, y: x.apply("cos"),
    graph.SinhOp: lambda x, y: x.apply("cosh"),
    graph.SoftplusOp: lambda x, y: x.apply("sigmoid"),
    graph.TanOp: lambda x, y: y * y + 1,
    graph.TanhOp: lambda x, y: 1 - y * y,
}
"""Ops without parameters -> their derivative, from the operand and the result."""


def _share(seed: Term, comparison: str, this: Term, other: Term) -> Term:
    """The seed where this is the one of two operands that is taken, half of it where they are equal."""
    half = this.apply("equal", other).where(seed * 0.5, 0.0)
    return this.apply(comparison, other).where(seed, half)


UNARY: dict[type[Operation], Callable[[Term, Term, Term], Term]] = {
    graph.IdentityOp: lambda seed, x, y: seed,
    graph.NegOp: lambda seed, x, y: -seed,
    graph.LogOp: lambda seed, x, y: seed / x,
    graph.SqrtOp: lambda seed, x, y: seed / (y * 2),
    graph.CastOp: lambda seed, x, y: seed.cast(x.element_type),
    # Of its result, so that nothing keeps what it was made of.
    graph.ReluOp: lambda seed, x, y: (y > 0.0).where(seed, 0.0),
    **{op: lambda seed, x, y, slope=slope: seed * slope(x, y) for op, slope in SLOPES.items()},
}
"""Ops without parameters -> the contribution to the adjoint of the operand, from seed, operand and result."""

Contribution = Callable[[Term, Term, Term, Term], Term]
BINARY: dict[type[Operation], tuple[Contribution, Contribution]] = {
    graph.AddOp: (lambda seed, a, b, y: seed, lambda seed, a, b, y: seed),
    # The negative is taken last, of the smaller tensor.
    graph.SubOp: (lambda seed, a, b, y: seed, lambda seed, a, b, y: -seed.fit(b.shape)),
    graph.MulOp: (lambda seed, a, b, y: seed * b, lambda seed, a, b, y: seed * a),
    graph.DivOp: (lambda seed, a, b, y: seed / b, lambda seed, a, b, y: -(seed * y / b)),
    # The whole quotient is (a - a mod b) / b.
    graph.ModOp: (lambda seed, a, b, y: seed, lambda seed, a, b, y: seed * (y - a) / b),
    graph.MaxOp: (
        lambda seed, a, b, y: _share(seed, "greater", a, b),
        lambda seed, a, b, y: _share(seed, "greater", b, a),
    ),
    graph.MinOp: (
        lambda seed, a, b, y: _share(seed, "less", a, b),
        lambda seed, a, b, y: _share(seed, "less", b, a),
    ),
    graph.PreluOp: (
        lambda seed, a, b, y: (a > 0.0).where(seed, seed * b),
        lambda seed, a, b, y: (a > 0.0).where(0.0, seed * a),
    ),
}
"""Ops without parameters -> the contributions to the adjoints of both operands."""


@derivative(*UNARY)
def unary(code: AdjointCode, op: graph.UnaryOp) -> Term:
    """As the table says."""
    return UNARY[type(op)](code.seed, code.term(op.x), code.term(op.result))


@gradient(*BINARY)
def binary(code: AdjointCode, op: graph.BinaryOp) -> None:
    """As the table says."""
    of_a, of_b = BINARY[type(op)]
    a, b, y = (code.term(value) for value in (op.a, op.b, op.result))
    code.add(op.a, lambda: of_a(code.seed, a, b, y))
    code.add(op.b, lambda: of_b(code.seed, a, b, y))


@gradient(graph.WhereOp)
def where(code: AdjointCode, op: graph.WhereOp) -> None:
    """The seed for the operand that is taken."""
    condition = code.term(op.cond)
    code.add(op.a, lambda: condition.where(code.seed, 0.0))
    code.add(op.b, lambda: condition.where(0.0, code.seed))


@derivative(graph.LeakyReluOp)
def leaky_relu(code: AdjointCode, op: graph.LeakyReluOp) -> Term:
    """The seed where the operand is positive, elsewhere alpha times the seed."""
    return (code.term(op.x) > 0.0).where(code.seed, code.seed * op.alpha.value.data)


@derivative(graph.EluOp, graph.SeluOp)
def elu(code: AdjointCode, op: graph.EluOp | graph.SeluOp) -> Term:
    """gamma where the operand is positive, elsewhere gamma * alpha * exp(x), which is the result plus gamma * alpha."""
    gamma = op.gamma.value.data if isinstance(op, graph.SeluOp) else 1.0
    x, y = code.term(op.x), code.term(op.result)
    return code.seed * (x > 0.0).where(gamma, y + gamma * op.alpha.value.data)


@derivative(graph.HardSigmoidOp)
def hard_sigmoid(code: AdjointCode, op: graph.HardSigmoidOp) -> Term:
    """alpha times the seed where the result is neither 0 nor 1."""
    y = code.term(op.result)
    return (y > 0.0).apply("and", y < 1.0).where(code.seed * op.alpha.value.data, 0.0)


@derivative(graph.HardSwishOp)
def hard_swish(code: AdjointCode, op: graph.HardSwishOp) -> Term:
    """x / 3 + 1/2 between -3 and 3, 0 below and 1 above."""
    x = code.term(op.x)
    inside = abs(x) < 3.0
    return code.seed * inside.where(x * (1 / 3) + 0.5, (x > 0.0).cast(x.element_type))


@derivative(graph.GeluOp)
def gelu(code: AdjointCode, op: graph.GeluOp) -> Term:
    """Phi(x) + x Phi'(x), with the normal distribution function or with its approximation by tanh."""
    x = code.term(op.x)
    if op.approximate.data == "tanh":
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        square = x * x
        bent = (x * (square * cubic + 1) * scale).apply("tanh")
        slope = (1 - bent * bent) * (square * (3 * cubic) + 1) * scale
        return code.seed * ((bent + 1) + x * slope) * 0.5
    phi = ((x * math.sqrt(0.5)).apply("erf") + 1) * 0.5
    density = (x * x * -0.5).apply("exp") * (1 / math.sqrt(2 * math.pi))
    return code.seed * (phi + x * density)


@derivative(graph.ClipOp)
def clip(code: AdjointCode, op: graph.ClipOp) -> Term:
    """The seed where the operand is not outside the bounds."""
    x, found = code.term(op.x), code.seed
    if op.min is not None:
        found = (x < op.min.value.data).where(0.0, found)
    if op.max is not None:
        found = (x > op.max.value.data).where(0.0, found)
    return found


@gradient(graph.PowOp)
def power(code: AdjointCode, op: graph.BinaryOp) -> None:
    """seed * b * a^(b - 1), 0 where b is, and seed * a^b * log(a), 0 where a is not positive."""
    a, b = code.term(op.a), code.term(op.b)

    def of_base() -> Term:
        constant = number_of(op.b)
        if constant is None:
            slope = a.apply("pow", b - 1) * b
            return code.seed * b.apply("equal", 0.0).where(0.0, slope)
        exponent = float(constant)  # pyright: ignore[reportArgumentType]
        if exponent == 2:
            return code.seed * (a * 2)
        return code.seed * (a.apply("pow", exponent - 1) * exponent if exponent else 0.0)

    def of_exponent() -> Term:
        positive = a > 0.0
        logarithm = positive.where(a, 1.0).apply("log")
        return code.seed * code.term(op.result) * positive.where(logarithm, 0.0)

    code.add(op.a, of_base)
    code.add(op.b, of_exponent)
