"""Importers of operators on each element."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import BinaryOp, UnaryOp, tensor_of
from penstock.dialects.graph.base import is_float, is_unsigned, require
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Held, Importer, Node, Unsupported

FLOAT32_LIMIT = 3.4028234663852886e38
"""The bounds of Clip that stood for "none" while they were attributes."""


def unary(op: type[UnaryOp]) -> Importer:
    """An operator that is one of ours, without attributes."""
    return lambda node: node.emit(op(node.value(0)))


def binary(op: type[BinaryOp]) -> Importer:
    """An operator on two operands that is one of ours."""
    return lambda node: node.emit(op(node.value(0), node.value(1)))


def variadic(op: type[BinaryOp]) -> Importer:
    """An operator on any number of operands, as a chain from the left."""

    def build(node: Node) -> SSAValue:
        return functools.reduce(lambda a, b: node.emit(op(a, b)), node.values())

    return build


def mean(node: Node) -> SSAValue:
    total = variadic(graph.AddOp)(node)
    assert isinstance(total, SSAValue)
    return node.emit(graph.DivOp(total, node.scalar(len(node.inputs), total)))


def _has_several(node: Node) -> bool:
    """Whether more than one operation rounds."""
    return len(node.inputs) > 2


def leaky_relu(node: Node) -> SSAValue:
    return node.emit(graph.LeakyReluOp(node.value(0), alpha=node.float("alpha", 0.01)))


def elu(node: Node) -> SSAValue:
    return node.emit(graph.EluOp(node.value(0), alpha=node.float("alpha", 1.0)))


def selu(node: Node) -> SSAValue:
    alpha = node.float("alpha", 1.67326319217681884765625)
    gamma = node.float("gamma", 1.05070102214813232421875)
    return node.emit(graph.SeluOp(node.value(0), alpha=alpha, gamma=gamma))


def hard_sigmoid(node: Node) -> SSAValue:
    alpha, beta = node.float("alpha", 0.2), node.float("beta", 0.5)
    return node.emit(graph.HardSigmoidOp(node.value(0), alpha=alpha, beta=beta))


def gelu(node: Node) -> SSAValue:
    approximate = node.string("approximate", "none")
    require(approximate in ("none", "tanh"), f'approximate is "none" or "tanh", not "{approximate}"')
    return node.emit(graph.GeluOp(node.value(0), approximate=approximate))


def celu(node: Node) -> SSAValue:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    x, alpha = node.value(0), node.float("alpha", 1.0)
    scaled = node.emit(graph.DivOp(x, node.scalar(alpha, x)))
    grown = node.emit(graph.SubOp(node.emit(graph.ExpOp(scaled)), node.scalar(1.0, x)))
    negative = node.emit(graph.MulOp(grown, node.scalar(alpha, x)))
    below = node.emit(graph.MinOp(negative, node.scalar(0.0, x)))
    return node.emit(graph.AddOp(node.emit(graph.ReluOp(x)), below))


def thresholded_relu(node: Node) -> SSAValue:
    """x where x > alpha, else 0."""
    x = node.value(0)
    above = node.emit(graph.GreaterOp(x, node.scalar(node.float("alpha", 1.0), x)))
    return node.emit(graph.WhereOp(above, x, node.scalar(0.0, x)))


def softsign(node: Node) -> SSAValue:
    """x / (1 + |x|)."""
    x = node.value(0)
    size = node.emit(graph.AddOp(node.emit(graph.AbsOp(x)), node.scalar(1.0, x)))
    return node.emit(graph.DivOp(x, size))


def mish(node: Node) -> SSAValue:
    """x * tanh(softplus(x))."""
    x = node.value(0)
    return node.emit(graph.MulOp(x, node.emit(graph.TanhOp(node.emit(graph.SoftplusOp(x))))))


def shrink(node: Node) -> SSAValue:
    """x + bias where x < -lambd, x - bias where x > lambd, else 0."""
    x = node.value(0)
    bias, lambd = node.float("bias", 0.0), node.float("lambd", 0.5)
    zero = node.scalar(0.0, x)
    low = node.emit(graph.LessOp(x, node.scalar(-lambd, x)))
    high = node.emit(graph.GreaterOp(x, node.scalar(lambd, x)))
    raised = node.emit(graph.AddOp(x, node.scalar(bias, x)))
    lowered = node.emit(graph.SubOp(x, node.scalar(bias, x)))
    upper = node.emit(graph.WhereOp(high, lowered, zero))
    return node.emit(graph.WhereOp(low, raised, upper))


def is_nan(node: Node) -> SSAValue:
    x = node.value(0)
    return node.emit(graph.NotOp(node.emit(graph.EqualOp(x, x))))


def is_inf(node: Node) -> SSAValue:
    x = node.value(0)
    limit = np.array(np.inf).astype(numpy_dtype(tensor_of(x).element_type))
    positive = node.flag("detect_positive", True)
    negative = node.flag("detect_negative", True)
    if not positive and not negative:
        raise Unsupported("detect_positive=0 with detect_negative=0")
    if positive and negative:
        return node.emit(graph.EqualOp(node.emit(graph.AbsOp(x)), node.constant(limit, "inf")))
    return node.emit(graph.EqualOp(x, node.constant(limit if positive else -limit, "inf")))


def modulo(node: Node) -> SSAValue:
    """The remainder: with the sign of the divisor, or, if `fmod`, of the dividend."""
    a, b = node.value(0), node.value(1)
    element = tensor_of(a).element_type
    if is_float(element):
        rest = node.emit(graph.ModOp(a, b))
    else:
        whole = node.emit(graph.MulOp(node.emit(graph.DivOp(a, b)), b))
        rest = node.emit(graph.SubOp(a, whole))
    if node.flag("fmod", False) or is_unsigned(element):
        return rest
    zero, sign = node.scalar(0, rest), node.emit(graph.SignOp(b))
    signs = node.emit(graph.MulOp(node.emit(graph.SignOp(rest)), sign))
    other_side = node.emit(graph.LessOp(signs, zero))
    moved = node.emit(graph.WhereOp(other_side, node.emit(graph.AddOp(rest, b)), rest))
    if not is_float(element):
        return moved
    # A remainder of zero has the sign of the divisor too.
    return node.emit(graph.WhereOp(node.emit(graph.EqualOp(rest, zero)), node.emit(graph.MulOp(sign, zero)), moved))


def not_equal(node: Node) -> SSAValue:
    """The exclusive or of truth values."""
    return node.emit(graph.NotOp(node.emit(graph.EqualOp(node.value(0), node.value(1)))))


def or_equal(op: Callable[[SSAValue, SSAValue], BinaryOp]) -> Importer:
    """A comparison or equality: not the negation of the opposite one, which differs for NaN."""

    def build(node: Node) -> SSAValue:
        a, b = node.value(0), node.value(1)
        return node.emit(graph.OrOp(node.emit(op(a, b)), node.emit(graph.EqualOp(a, b))))

    return build


def clip(node: Node) -> SSAValue:
    if node.opset < 11:
        low, high = node.float("min", -FLOAT32_LIMIT), node.float("max", FLOAT32_LIMIT)
        return node.emit(
            graph.ClipOp(
                node.value(0),
                min=low if low > -FLOAT32_LIMIT else None,
                max=high if high < FLOAT32_LIMIT else None,
            )
        )
    bounds = [_bound(node, index) for index in (1, 2)]
    x = node.value(0)
    if all(bound is None or isinstance(bound, float) for bound in bounds):
        low, high = (bound if isinstance(bound, float) else None for bound in bounds)
        return node.emit(graph.ClipOp(x, min=low, max=high))
    for index, op in ((1, graph.MaxOp), (2, graph.MinOp)):
        if node.has(index):
            x = node.emit(op(x, _scalar_value(node, index)))
    return x


def _bound(node: Node, index: int) -> float | Held | None:
    """A bound of Clip as a float where it is known and exact as one."""
    if not node.has(index):
        return None
    held = node.held(index)
    if isinstance(held, SSAValue):
        return held
    number = held.ravel()[0]
    return float(number) if held.dtype.kind not in "iu" or int(float(number)) == number else held


def _scalar_value(node: Node, index: int) -> SSAValue:
    """A bound as a scalar: some exporters write a tensor of one element."""
    value = node.value(index)
    return node.emit(graph.ReshapeOp(value, [])) if tensor_of(value).get_num_dims() else value


def power(node: Node) -> SSAValue:
    """The exponent may have another type than the base: the result has that of the base."""
    base, exponent = node.value(0), node.value(1)
    element = tensor_of(base).element_type
    if tensor_of(exponent).element_type == element:
        return node.emit(graph.PowOp(base, exponent))
    if is_float(element):
        return node.emit(graph.PowOp(base, node.emit(graph.CastOp(exponent, element))))
    wide = graph.PowOp(node.emit(graph.CastOp(base, f64)), node.emit(graph.CastOp(exponent, f64)))
    return node.emit(graph.CastOp(node.emit(wide), element))


def where(node: Node) -> SSAValue:
    return node.emit(graph.WhereOp(node.value(0), node.value(1), node.value(2)))


def identity(node: Node) -> Held:
    return node.held(0)


def dropout(node: Node) -> list[Held]:
    """Nothing, since this is inference; the mask is all true."""
    if node.has(2) and bool(node.array(2, "training mode").ravel()[0]):
        raise Unsupported("in training mode")
    outputs = [node.held(0)]
    if any(node.used_outputs[1:]):
        outputs.append(np.ones(node.shape(0), np.bool_))
    return outputs


TABLE: dict[str, Importer] = {
    "Abs": unary(graph.AbsOp),
    "Add": binary(graph.AddOp),
    "And": binary(graph.AndOp),
    "Ceil": unary(graph.CeilOp),
    "Celu": celu,
    "Clip": clip,
    "Div": binary(graph.DivOp),
    "Dropout": dropout,
    "Elu": elu,
    "Equal": binary(graph.EqualOp),
    "Erf": unary(graph.ErfOp),
    "Exp": unary(graph.ExpOp),
    "Floor": unary(graph.FloorOp),
    "Gelu": gelu,
    "Greater": binary(graph.GreaterOp),
    "GreaterOrEqual": or_equal(graph.GreaterOp),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": unary(graph.HardSwishOp),
    "Identity": identity,
    "IsInf": is_inf,
    "IsNaN": is_nan,
    "LeakyRelu": leaky_relu,
    "Less": binary(graph.LessOp),
    "LessOrEqual": or_equal(graph.LessOp),
    "Log": unary(graph.LogOp),
    "Max": variadic(graph.MaxOp),
    "Mean": in_accumulator(mean, when=_has_several),
    "Min": variadic(graph.MinOp),
    "Mish": mish,
    "Mod": modulo,
    "Mul": binary(graph.MulOp),
    "Neg": unary(graph.NegOp),
    "Not": unary(graph.NotOp),
    "Or": binary(graph.OrOp),
    "PRelu": binary(graph.PreluOp),
    "Pow": power,
    "Reciprocal": unary(graph.ReciprocalOp),
    "Relu": unary(graph.ReluOp),
    "Round": unary(graph.RoundOp),
    "Selu": selu,
    "Shrink": shrink,
    "Sigmoid": unary(graph.SigmoidOp),
    "Sign": unary(graph.SignOp),
    "Softplus": unary(graph.SoftplusOp),
    "Softsign": softsign,
    "Sqrt": unary(graph.SqrtOp),
    "Sub": binary(graph.SubOp),
    "Sum": in_accumulator(variadic(graph.AddOp), when=_has_several),
    "Tanh": unary(graph.TanhOp),
    "ThresholdedRelu": thresholded_relu,
    "Where": where,
    "Xor": not_equal,
}
