"""Elementwise and broadcasting operators: one generic each, whose body is the formula of the op."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from xdsl.dialects import arith
from xdsl.dialects import math as math_ops
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.graph_to_tensor.body import Body, highest, lowest
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.lowering.graph_to_tensor.shapes import element_of, signless

OpT = TypeVar("OpT", bound=Operation)
Formula = TypeVar("Formula", bound=Callable[..., SSAValue])


def pointwise(op_class: type[Operation]) -> Callable[[Formula], Formula]:
    """
    Register the decorated formula `(body, op, *elements) -> element` as the lowering of `op_class`, whose
    operands broadcast to its result by NumPy's rule.
    """

    def register(formula: Formula) -> Formula:
        def lower(kernel: KernelBuilder, op: Operation) -> SSAValue:
            def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
                return formula(body, op, *elements)

            return kernel.pointwise(op.operands, op.results[0], compute)

        lowers(op_class)(lower)
        return formula

    return register


SIMPLE: dict[type[Operation], Callable[..., SSAValue]] = {
    graph.AbsOp: Body.abs,
    graph.NegOp: Body.neg,
    graph.ExpOp: Body.exp,
    graph.LogOp: Body.log,
    graph.SqrtOp: Body.sqrt,
    graph.AddOp: Body.add,
    graph.SubOp: Body.sub,
    graph.MulOp: Body.mul,
    graph.DivOp: Body.div,
    graph.PowOp: Body.pow,
    graph.MaxOp: Body.max,
    graph.MinOp: Body.min,
    graph.ModOp: Body.rem,
    graph.WhereOp: Body.select,
}
"""The ops that are one scalar op."""


def _register_simple(op_class: type[Operation], step: Callable[..., SSAValue]) -> None:
    def lower(kernel: KernelBuilder, op: Operation) -> SSAValue:
        return kernel.pointwise(op.operands, op.results[0], lambda body, elements: step(body, *elements))

    lowers(op_class)(lower)


for _op_class, _step in SIMPLE.items():
    _register_simple(_op_class, _step)


@lowers(graph.IdentityOp)
def identity(kernel: KernelBuilder, op: graph.IdentityOp) -> SSAValue:
    """Nothing: the tensor itself."""
    return kernel.value(op.x)


@pointwise(graph.ReciprocalOp)
def reciprocal(body: Body, op: graph.ReciprocalOp, x: SSAValue) -> SSAValue:
    """1 / x."""
    return body.div(body.like(1, x), x)


@pointwise(graph.FloorOp)
def floor(body: Body, op: graph.FloorOp, x: SSAValue) -> SSAValue:
    """The next integral number below."""
    return body.emit(math_ops.FloorOp(x))


@pointwise(graph.CeilOp)
def ceil(body: Body, op: graph.CeilOp, x: SSAValue) -> SSAValue:
    """-floor(-x): the math dialect at hand has no ceil."""
    return body.neg(body.emit(math_ops.FloorOp(body.neg(x))))


@pointwise(graph.RoundOp)
def round_to_even(body: Body, op: graph.RoundOp, x: SSAValue) -> SSAValue:
    """The nearest integral number; of two, the even one."""
    return body.emit(math_ops.RoundEvenOp(x))


@pointwise(graph.SignOp)
def sign(body: Body, op: graph.SignOp, x: SSAValue) -> SSAValue:
    """1 above 0 and -1 below, else x, which is 0 or NaN."""
    zero = body.like(0, x)
    above = body.compare("gt", x, zero)
    if body.unsigned:
        return body.select(above, body.like(1, x), x)
    below = body.select(body.compare("lt", x, zero), body.like(-1, x), x)
    return body.select(above, body.like(1, x), below)


@pointwise(graph.ErfOp)
def erf(body: Body, op: graph.ErfOp, x: SSAValue) -> SSAValue:
    """The error function."""
    return body.emit(math_ops.ErfOp(x))


@pointwise(graph.ReluOp)
def relu(body: Body, op: graph.ReluOp, x: SSAValue) -> SSAValue:
    """max(x, 0)."""
    return body.max(x, body.like(0, x))


@pointwise(graph.SigmoidOp)
def sigmoid(body: Body, op: graph.SigmoidOp, x: SSAValue) -> SSAValue:
    """1 / (1 + exp(-x)); where exp overflows to infinity the result is the right 0."""
    one = body.like(1, x)
    return body.div(one, body.add(one, body.exp(body.neg(x))))


@pointwise(graph.TanhOp)
def tanh(body: Body, op: graph.TanhOp, x: SSAValue) -> SSAValue:
    """The hyperbolic tangent."""
    return body.emit(math_ops.TanhOp(x))


@pointwise(graph.SoftplusOp)
def softplus(body: Body, op: graph.SoftplusOp, x: SSAValue) -> SSAValue:
    """max(x, 0) + log1p(exp(-|x|)), which is log(1 + exp(x)) without its overflow."""
    rest = body.emit(math_ops.Log1pOp(body.exp(body.neg(body.abs(x)))))
    return body.add(body.max(x, body.like(0, x)), rest)


@pointwise(graph.HardSwishOp)
def hard_swish(body: Body, op: graph.HardSwishOp, x: SSAValue) -> SSAValue:
    """x * clamp(x / 6 + 1/2, 0, 1)."""
    line = body.add(body.mul(x, body.like(1 / 6, x)), body.like(0.5, x))
    return body.mul(x, body.clamp(line, 0, 1))


@pointwise(graph.HardSigmoidOp)
def hard_sigmoid(body: Body, op: graph.HardSigmoidOp, x: SSAValue) -> SSAValue:
    """clamp(alpha * x + beta, 0, 1)."""
    line = body.mul(x, body.like(op.alpha.value.data, x))
    return body.clamp(body.add(line, body.like(op.beta.value.data, x)), 0, 1)


@pointwise(graph.NotOp)
def logical_not(body: Body, op: graph.NotOp, x: SSAValue) -> SSAValue:
    """x xor true."""
    return body.emit(arith.XOrIOp(x, body.like(1, x)))


@pointwise(graph.LeakyReluOp)
def leaky_relu(body: Body, op: graph.LeakyReluOp, x: SSAValue) -> SSAValue:
    """x, negatives times alpha."""
    bent = body.mul(x, body.like(op.alpha.value.data, x))
    return body.select(body.compare("ge", x, body.like(0, x)), x, bent)


@pointwise(graph.EluOp)
def elu(body: Body, op: graph.EluOp, x: SSAValue) -> SSAValue:
    """x, negatives as alpha * expm1(x)."""
    bent = body.mul(body.like(op.alpha.value.data, x), body.emit(math_ops.ExpM1Op(x)))
    return body.select(body.compare("ge", x, body.like(0, x)), x, bent)


@pointwise(graph.SeluOp)
def selu(body: Body, op: graph.SeluOp, x: SSAValue) -> SSAValue:
    """gamma times: x, negatives as alpha * expm1(x)."""
    bent = body.mul(body.like(op.alpha.value.data, x), body.emit(math_ops.ExpM1Op(x)))
    line = body.select(body.compare("gt", x, body.like(0, x)), x, bent)
    return body.mul(body.like(op.gamma.value.data, x), line)


@pointwise(graph.GeluOp)
def gelu(body: Body, op: graph.GeluOp, x: SSAValue) -> SSAValue:
    """x / 2 * (1 + erf(x / sqrt 2)), or the approximation of that by tanh."""
    if op.approximate.data == "tanh":
        cube = body.mul(body.mul(body.mul(body.like(0.044715, x), x), x), x)
        inner = body.mul(body.like(math.sqrt(2 / math.pi), x), body.add(x, cube))
        bent = body.emit(math_ops.TanhOp(inner))
    else:
        bent = body.emit(math_ops.ErfOp(body.mul(x, body.like(math.sqrt(0.5), x))))
    half = body.mul(body.like(0.5, x), x)
    return body.mul(half, body.add(body.like(1, x), bent))


@pointwise(graph.ClipOp)
def clip(body: Body, op: graph.ClipOp, x: SSAValue) -> SSAValue:
    """min(max(x, lower bound), upper bound)."""
    element = element_of(op.x)
    if op.min is not None:
        x = body.max(x, body.like(saturated(op.min.value.data, element), x))
    if op.max is not None:
        x = body.min(x, body.like(saturated(op.max.value.data, element), x))
    return x


def saturated(value: float, element: Attribute) -> float:
    """`value`, or for an integer type the nearest of its numbers."""
    if isinstance(element, AnyFloat):
        return value
    unsigned = is_unsigned(element)
    low, high = lowest(signless(element), unsigned), highest(signless(element), unsigned)
    if value >= high:
        return high
    return low if value <= low else int(value)


@pointwise(graph.CastOp)
def cast(body: Body, op: graph.CastOp, x: SSAValue) -> SSAValue:
    """The number in another type."""
    target = element_of(op.result)
    return body.cast(x, signless(target), is_unsigned(target))


@pointwise(graph.PreluOp)
def prelu(body: Body, op: graph.PreluOp, x: SSAValue, slope: SSAValue) -> SSAValue:
    """x, negatives times the slope."""
    return body.select(body.compare("ge", x, body.like(0, x)), x, body.mul(x, slope))


@pointwise(graph.EqualOp)
def equal(body: Body, op: graph.EqualOp, a: SSAValue, b: SSAValue) -> SSAValue:
    """a == b."""
    return body.compare("eq", a, b)


@pointwise(graph.LessOp)
def less(body: Body, op: graph.LessOp, a: SSAValue, b: SSAValue) -> SSAValue:
    """a < b."""
    return body.compare("lt", a, b)


@pointwise(graph.GreaterOp)
def greater(body: Body, op: graph.GreaterOp, a: SSAValue, b: SSAValue) -> SSAValue:
    """a > b."""
    return body.compare("gt", a, b)


@pointwise(graph.AndOp)
def logical_and(body: Body, op: graph.AndOp, a: SSAValue, b: SSAValue) -> SSAValue:
    """Both."""
    return body.emit(arith.AndIOp(a, b))


@pointwise(graph.OrOp)
def logical_or(body: Body, op: graph.OrOp, a: SSAValue, b: SSAValue) -> SSAValue:
    """Either."""
    return body.emit(arith.OrIOp(a, b))
