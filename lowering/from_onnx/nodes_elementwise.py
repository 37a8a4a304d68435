# SPDX-License-Identifier: Apache-2.0
"""Importers of operators on each element."""

from __future__ import annotations

import functools
import math
import operator

import numpy as np
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import is_float, is_unsigned, require
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Held, OnnxNode, Unsupported, imports, one_of
from penstock.passes.graph.terms import Term

FLOAT32_LIMIT = 3.4028234663852886e38
"""The bounds of Clip that meant "none" while they were attributes."""


def total(node: OnnxNode) -> Term:
    """The sum of any number of operands, from the left."""
    return functools.reduce(operator.add, map(node.code.term, node.values()))


def mean(node: OnnxNode) -> SSAValue:
    return (total(node) / len(node.inputs)).value


def _has_several(node: OnnxNode) -> bool:
    """Whether more than one operation rounds."""
    return len(node.inputs) > 2


imports("Mean")(in_accumulator(mean, when=_has_several))
imports("Sum")(in_accumulator(lambda node: total(node).value, when=_has_several))


@imports("IsNaN")
def is_nan(node: OnnxNode) -> SSAValue:
    x = node.code.input(0)
    return x.equal(x).apply("not").value


@imports("IsInf")
def is_inf(node: OnnxNode) -> SSAValue:
    x = node.code.input(0)
    positive, negative = node.flag("detect_positive", True), node.flag("detect_negative", True)
    if not positive and not negative:
        raise Unsupported("detect_positive=0 with detect_negative=0")
    if positive and negative:
        return abs(x).equal(math.inf).value
    return x.equal(math.inf if positive else -math.inf).value


@imports("Mod")
def modulo(node: OnnxNode) -> SSAValue:
    """The remainder: with the sign of the divisor, or, if `fmod`, of the dividend."""
    a, b = node.code.input(0), node.code.input(1)
    rest = a.apply("mod", b) if is_float(a.element_type) else a - a / b * b
    if node.flag("fmod", False) or is_unsigned(a.element_type):
        return rest.value
    sign = b.apply("sign")
    moved = (rest.apply("sign") * sign < 0).where(rest + b, rest)
    # A remainder of zero has the sign of the divisor too.
    return (rest.equal(0).where(sign * 0, moved) if is_float(a.element_type) else moved).value


@imports("Xor")
def not_equal(node: OnnxNode) -> SSAValue:
    """The exclusive or of truth values."""
    return node.code.input(0).equal(node.code.input(1)).apply("not").value


@imports("Celu")
def celu(node: OnnxNode) -> SSAValue:
    """x, or below 0 alpha * (exp(x / alpha) - 1)."""
    x, alpha = node.code.input(0), node.float("alpha", 1.0)
    return (x < 0).where((x / alpha).apply("elu") * alpha, x).value


@imports("Clip")
def clip(node: OnnxNode) -> SSAValue:
    if node.opset < 11:
        low, high = node.float("min", -FLOAT32_LIMIT), node.float("max", FLOAT32_LIMIT)
        low, high = low if low > -FLOAT32_LIMIT else None, high if high < FLOAT32_LIMIT else None
        return node.code.input(0).clip(low, high).value
    bounds = [_bound(node, index) for index in (1, 2)]
    x = node.code.input(0)
    if all(bound is None or isinstance(bound, float) for bound in bounds):
        low, high = (bound if isinstance(bound, float) else None for bound in bounds)
        return x.clip(low, high).value
    for index, function in ((1, "max"), (2, "min")):
        if node.has(index):
            # Some exporters write a tensor of one element.
            x = x.apply(function, node.code.input(index).reshape([]))
    return x.value


def _bound(node: OnnxNode, index: int) -> float | Held | None:
    """A bound of Clip as a float where it is known and exact as one."""
    if not node.has(index):
        return None
    held = node.held(index)
    if isinstance(held, SSAValue):
        return held
    number = one_of(held, "bound")
    return float(number) if held.dtype.kind not in "iu" or int(float(number)) == number else held


@imports("Pow")
def power(node: OnnxNode) -> SSAValue:
    """The exponent may have another type than the base: the result has that of the base."""
    base, exponent = node.code.input(0), node.code.input(1)
    element = base.element_type
    is_mixed_integer = not is_float(element) and exponent.element_type != element
    wide = f64 if is_mixed_integer else element
    return base.cast(wide).apply("pow", exponent.cast(wide)).cast(element).value


@imports("Dropout")
def dropout(node: OnnxNode) -> list[Held]:
    """Nothing, since this is inference; the mask is all true."""
    if node.has(2) and one_of(node.array(2, "training mode"), "training mode"):
        raise Unsupported("in training mode")
    outputs = [node.held(0)]
    if any(node.used_outputs[1:]):
        outputs.append(np.ones(node.shape(0), np.bool_))
    return outputs


@imports("BitwiseNot")
def bitwise_not(node: OnnxNode) -> SSAValue:
    """All bits against those of -1, which are all set."""
    x = node.code.input(0)
    ones = node.code.constant(np.invert(np.zeros((), numpy_dtype(x.element_type))), "ones")
    return x.apply("bitwise_xor", ones).value


@imports("BitShift")
def bit_shift(node: OnnxNode) -> SSAValue:
    direction = node.string("direction", "")
    require(direction in ("LEFT", "RIGHT"), f'direction is LEFT or RIGHT, not "{direction}"')
    op = graph.ShiftLeftOp if direction == "LEFT" else graph.ShiftRightOp
    return node.emit(op(node.value(0), node.value(1)))
