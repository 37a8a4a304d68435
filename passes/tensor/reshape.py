"""
Reshapes as views: a collapse of neighbouring dims, an expansion, or the one after the other.

A scalar becomes a tensor of ones in rank by `tensor.reshape`: xDSL's `tensor.expand_shape` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import (
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    TensorType,
    i64,
)
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.passes.analysis.strides import reassociation, reassociation_attribute

Emit = Callable[[Operation], SSAValue]
"""Appends an op and returns its result."""


def emit_reshape(emit: Emit, value: SSAValue, target: Sequence[int]) -> SSAValue:
    """`value`, a static tensor, in the shape `target` of as many elements: at most two views."""
    assert isa(value.type, TensorType)
    source, element = value.type.get_shape(), value.type.element_type
    target = tuple(target)
    if source == target:
        return value
    if not source:
        sizes = TensorType(i64, [len(target)])
        ones = emit(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(sizes, [1] * len(target))))
        return emit(tensor.ReshapeOp(value, ones, TensorType(element, target)))
    pairs = reassociation(source, target)
    middle = tuple(prod(source[dim] for dim in left) for left, _ in pairs)
    if middle != source:
        value = emit(
            tensor.CollapseShapeOp.build(
                operands=[value],
                result_types=[TensorType(element, middle)],
                properties={"reassociation": reassociation_attribute(left for left, _ in pairs)},
            )
        )
    if middle != target:
        value = emit(
            tensor.ExpandShapeOp(
                value,
                (),
                reassociation_attribute(right for _, right in pairs),
                DenseArrayBase.from_list(i64, target),
                TensorType(element, target),
            )
        )
    return value
