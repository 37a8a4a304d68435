# SPDX-License-Identifier: Apache-2.0
"""
Reshapes as views: a collapse of adjacent dims, an expansion, or the one after the other; and kernels on other shapes.

A scalar becomes a tensor of ones in rank by `tensor.reshape`: xDSL's `tensor.expand_shape` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import (
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    TensorType,
    i64,
)
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
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


def reshape_kernel(kernel: func.FuncOp, calls: Sequence[func.CallOp], shapes: Mapping[SSAValue, Sequence[int]]) -> None:
    """
    Give the static tensors of a kernel of one block, of which `shapes` has every one, other shapes of as many elements.

    Its `calls` get views of their arguments, and view the results as they were. The attributes of its ops have to fit
    the new shapes.
    """
    for call in calls:
        _reshape_call(call, kernel, shapes)
    for value, shape in shapes.items():
        assert isa(value.type, TensorType)
        Rewriter.replace_value_with_new_type(value, TensorType(value.type.element_type, shape))
    kernel.update_function_type()


def _reshape_call(call: func.CallOp, kernel: func.FuncOp, shapes: Mapping[SSAValue, Sequence[int]]) -> None:
    returned = kernel.body.block.last_op
    assert isinstance(returned, func.ReturnOp)

    def before(op: Operation) -> SSAValue:
        op.location = call.location
        Rewriter.insert_op(op, InsertPoint.before(call))
        return op.results[0]

    arguments = [
        emit_reshape(before, value, shapes[arg]) if arg in shapes else value
        for value, arg in zip(call.arguments, kernel.body.block.args, strict=True)
    ]
    types = [
        TensorType(type.element_type, shapes[value]) if isa(type := value.type, TensorType) else type
        for value in returned.operands
    ]
    made = func.CallOp(call.callee, arguments, types)
    made.attributes.update(call.attributes)
    made.location = call.location
    Rewriter.insert_op(made, InsertPoint.before(call))
    results: list[SSAValue] = []
    for old, new in zip(call.results, made.results, strict=True):
        new.name_hint = old.name_hint
        results.append(emit_reshape(before, new, old.type.get_shape()) if isa(old.type, TensorType) else new)
    Rewriter.replace_op(call, [], results)
