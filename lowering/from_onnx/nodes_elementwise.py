"""Importers of operators on each element."""

from __future__ import annotations

import functools

import numpy as np
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import BinaryOp, tensor_of
from penstock.dialects.graph.base import is_float, is_unsigned, require
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Held, Importer, Node, Unsupported, imports

FLOAT32_LIMIT = 3.4028234663852886e38
"""The bounds of Clip that stood for "none" while they were attributes."""


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


@imports("IsNaN")
def is_nan(node: Node) -> SSAValue:
    x = node.value(0)
    return node.emit(graph.NotOp(node.emit(graph.EqualOp(x, x))))


@imports("IsInf")
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


@imports("Mod")
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


@imports("Xor")
def not_equal(node: Node) -> SSAValue:
    """The exclusive or of truth values."""
    return node.emit(graph.NotOp(node.emit(graph.EqualOp(node.value(0), node.value(1)))))


@imports("Clip")
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


@imports("Pow")
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


@imports("Identity")
def identity(node: Node) -> Held:
    return node.held(0)


@imports("Dropout")
def dropout(node: Node) -> list[Held]:
    """Nothing, since this is inference; the mask is all true."""
    if node.has(2) and bool(node.array(2, "training mode").ravel()[0]):
        raise Unsupported("in training mode")
    outputs = [node.held(0)]
    if any(node.used_outputs[1:]):
        outputs.append(np.ones(node.shape(0), np.bool_))
    return outputs


imports("Mean")(in_accumulator(mean, when=_has_several))
imports("Sum")(in_accumulator(variadic(graph.AddOp), when=_has_several))


@imports("BitwiseNot")
def bitwise_not(node: Node) -> SSAValue:
    """All bits against those of -1, which are all set."""
    x = node.value(0)
    dtype = numpy_dtype(tensor_of(x).element_type)
    ones = np.invert(np.zeros((), dtype))
    return node.emit(graph.BitwiseXorOp(x, node.constant(ones, "ones")))


@imports("BitShift")
def bit_shift(node: Node) -> SSAValue:
    direction = node.string("direction", "")
    require(direction in ("LEFT", "RIGHT"), f'direction is LEFT or RIGHT, not "{direction}"')
    op = graph.ShiftLeftOp if direction == "LEFT" else graph.ShiftRightOp
    return node.emit(op(node.value(0), node.value(1)))
