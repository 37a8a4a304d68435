# SPDX-License-Identifier: Apache-2.0
"""Ops that ONNX has no operator for, written with ops that it has operators for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeAlias, TypeVar

from xdsl.dialects.builtin import IntegerType, Signedness
from xdsl.ir import Attribute

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.base import integer_bounds, is_float, is_unsigned
from penstock.dialects.graph.layout import NCHW, layout_of_rank, steps_between
from penstock.dialects.graph.window import window_counts
from penstock.lowering.to_onnx.nodes import is_conv_integer
from penstock.passes.graph.terms import Term, TermBuilder

OpT = TypeVar("OpT", bound=GraphOp)
Form: TypeAlias = Callable[[Any, TermBuilder], "Term | None"]

FORMS: dict[type[GraphOp], Form] = {}
"""By op: what computes its result; None where the op needs no other form."""


def written_as(*ops: type[GraphOp]) -> Callable[[Form], Form]:
    """Register the decorated function as the form of ops."""

    def register(form: Form) -> Form:
        FORMS.update(dict.fromkeys(ops, form))
        return form

    return register


def _like(op: GraphOp, operands: Sequence[Term | None], **changed: Any) -> GraphOp:
    """An op of the same kind on other operands, with other properties."""
    values = [None if term is None else term.value for term in operands]
    make: Any = type(op)
    return make(*values, **{**op.properties, **changed})


def _terms(op: GraphOp, code: TermBuilder) -> list[Term | None]:
    """The operands in the order of their definition."""
    held = (getattr(op, name) for name, _ in op.get_irdl_definition().operands)
    return [None if value is None else code.term(value) for value in held]


# Layouts.


@written_as(graph.LayoutTransformOp)
def _layout_transform(op: graph.LayoutTransformOp, code: TermBuilder) -> Term:
    x, result = code.term(op.x), op.result_type.get_shape()
    source, target = layout_of_rank(op.source.data, len(x.shape)), layout_of_rank(op.target.data, len(result))
    steps = steps_between(source, target, x.shape, result)
    after = [want - have for want, have in zip(steps.grown, x.shape, strict=True)]
    joined = x.padded([0] * len(after), after).reshape(steps.split).transpose(steps.perm).reshape(steps.joined)
    return joined if joined.shape == result else joined.slice([0] * len(result), result)


def _in_layout(x: Term, source: str, target: str, **more: Any) -> Term:
    return x if source == target else x.emit(graph.LayoutTransformOp(x.value, source=source, target=target, **more))


@written_as(graph.MaxPoolOp, graph.AveragePoolOp, graph.GlobalAveragePoolOp, graph.GlobalMaxPoolOp, graph.LrnOp)
def _image(op: Any, code: TermBuilder) -> Term | None:
    """An op on images in another layout than that of ONNX."""
    if (layout := op.layout.data) == NCHW:
        return None
    x = _in_layout(code.term(op.x), layout, NCHW)
    return _in_layout(code.emit(_like(op, [x], layout=NCHW)), NCHW, layout, result_type=op.result_type)


@written_as(graph.ConvOp)
def _conv(op: graph.ConvOp, code: TermBuilder) -> Term | None:
    layout, x, w, b = op.layout.data, *_terms(op, code)
    assert x is not None
    assert w is not None
    if layout != NCHW or op.filters is not None:
        filters = str(op.filter_layout)
        spatial = "".join(dim for dim in op.filter_layout.dims if dim in "DHW")
        operands = [
            _in_layout(x, layout, NCHW),
            _in_layout(w, filters, f"OI{spatial}"),
            b and b.reshape([-1]),
        ]
        y = code.emit(_like(op, operands, layout=NCHW, filters=None))
        return _in_layout(y, NCHW, layout, result_type=op.result_type)
    if op.accumulator is None or is_conv_integer(op):
        return None
    if is_float(op.accumulator):
        return _widened(op, code, op.accumulator)
    if b is not None:
        plain = code.emit(_like(op, [x, w, None]))
        return plain + b.reshape([-1, *[1] * (len(x.shape) - 2)])
    return _tap_by_tap(op, x.cast(op.accumulator), w.cast(op.accumulator))


def _tap_by_tap(op: graph.ConvOp, x: Term, w: Term) -> Term:
    """A convolution of integers as the sum over the taps of its filters of a product of matrices each."""
    strides, pads, dilations = (list(each.get_values()) for each in (op.strides, op.pads, op.dilations))
    kernel, group, rank = op.kernel_shape, op.group.value.data, len(strides)
    counts = window_counts(x.shape[2:], kernel, strides, pads, dilations)
    padded = x.padded([0, 0, *pads[:rank]], [0, 0, *pads[rank:]])
    batch, channels, outputs = x.shape[0], x.shape[1], w.shape[0]
    total: Term | None = None
    for tap in product(*map(range, kernel)):
        starts = [0, 0, *(step * dilation for step, dilation in zip(tap, dilations, strict=True))]
        part = padded.slice(starts, [batch, channels, *counts], [1, 1, *strides])
        matrix = w.slice([0, 0, *tap], [outputs, w.shape[1], *[1] * rank])
        of_group = [group, outputs // group, channels // group]
        summed = matrix.reshape(of_group) @ part.reshape([batch, group, channels // group, math.prod(counts)])
        total = summed if total is None else total + summed
    assert total is not None
    return total.reshape([batch, outputs, *counts])


# Products.


def _widened(op: Any, code: TermBuilder, accumulator: Attribute) -> Term:
    """A contraction of operands that have been widened to the type that it sums in."""
    wide = [None if term is None else term.cast(accumulator) for term in _terms(op, code)]
    return code.emit(_like(op, wide, accumulator=None))


@written_as(graph.MatmulOp)
def _matmul(op: graph.MatmulOp, code: TermBuilder) -> Term | None:
    return None if op.accumulator is None else _widened(op, code, op.accumulator)


@written_as(graph.GemmOp)
def _gemm(op: graph.GemmOp, code: TermBuilder) -> Term | None:
    """Of integers a MatMul and an Add, which more tools have for them."""
    is_integral = integer_bounds(op.result_type.element_type) is not None
    if is_integral and op.alpha.value.data == op.beta.value.data == 1:
        a, b, c = _terms(op, code)
        assert a is not None
        assert b is not None
        left, right = (x.transpose([1, 0]) if bool(flag) else x for x, flag in ((a, op.trans_a), (b, op.trans_b)))
        found = code.emit(graph.MatmulOp(left.value, right.value, accumulator=op.accumulator))
        return found if c is None else found + c
    return None if op.accumulator is None else _widened(op, code, op.accumulator)


@written_as(graph.AttentionOp)
def _attention(op: graph.AttentionOp, code: TermBuilder) -> Term:
    """
    Its definition. With `zero_masked`, rows whose scores are all -inf are zeros. In an accumulator the powers are
    rounded to the type of v between.
    """
    element = tensor_of(op.v).element_type
    wide = op.accumulator or element
    q, k, v = (code.term(value).transpose(perm) for value, perm in zip((op.q, op.k, op.v), op.perms, strict=False))
    swapped = [*range(len(k.shape) - 2), len(k.shape) - 1, len(k.shape) - 2]
    scores = q.cast(wide) @ k.transpose(swapped).cast(wide)
    if op.scale.value.data != 1:
        scores = scores * op.scale.value.data
    if op.mask is not None:
        scores = scores + code.term(op.mask)
    last = len(scores.shape) - 1
    weights = code.emit(graph.SoftmaxOp(scores.value, axis=last))
    if bool(op.zero_masked):
        largest = code.emit(graph.ReduceMaxOp(scores.value, axes=[last]))
        weights = largest.equal(-math.inf).where(0, weights)
    found = weights.cast(element).cast(wide) @ v.cast(wide)
    return found.cast(element).transpose(op.perms[3])


# Bits.


@written_as(graph.ShiftLeftOp, graph.ShiftRightOp)
def _shift(op: GraphOp, code: TermBuilder) -> Term | None:
    """Of integers with a sign by shifts of those without one, which alone ONNX has; it has none by all bits or more."""
    element = op.result_type.element_type
    if is_unsigned(element):
        return None
    width = 8 * numpy_dtype(element).itemsize
    plain = IntegerType(width, Signedness.UNSIGNED)
    a, by = (code.term(value) for value in op.operands)
    by = by.cast(plain)
    some, by = by < width, by.apply("min", width - 1)
    if op.name == "graph.shift_left":
        return some.where(a.cast(plain).apply("shift_left", by).cast(element), 0)
    negative = a < 0
    # Those of a negative number are the others of a number that is not negative.
    bits = negative.where(a.apply("bitwise_xor", -1), a)
    shifted = some.where(bits.cast(plain).apply("shift_right", by).cast(element), 0)
    return negative.where(shifted.apply("bitwise_xor", -1), shifted)


# Channels.


@written_as(graph.BatchNormalizationOp)
def _batch_normalization(op: graph.BatchNormalizationOp, code: TermBuilder) -> Term | None:
    """Of channels that are not dimension 1."""
    axis = op.axis.value.data
    if axis == 1:
        return None
    x, *vectors = _terms(op, code)
    assert x is not None
    rank = len(x.shape)
    x = x if rank > 1 else x.reshape([1, *x.shape])
    if rank == 1:
        return code.emit(_like(op, [x, *vectors], axis=1)).reshape(op.result_type.get_shape())
    others = [dim for dim in range(rank) if dim != axis]
    perm = [others[0], axis, *others[1:]]
    back = [perm.index(dim) for dim in range(rank)]
    return code.emit(_like(op, [x.transpose(perm), *vectors], axis=1)).transpose(back)
