# SPDX-License-Identifier: Apache-2.0
"""Ops on tensors: values, which are copied when they change, unless no other value shares them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import memref, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.upstream.tensor import EmptyOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.body import captured_values, compile_block
from penstock.runtime.interpreter.execution import Execution
from penstock.runtime.interpreter.generic import as_operand, evaluator_of, extents_of
from penstock.runtime.interpreter.registry import interprets
from penstock.runtime.interpreter.slices import SliceSpec, filled
from penstock.runtime.interpreter.values import dtype_of, scalar_of, undefined


def _type_of(value: SSAValue) -> TensorType[Attribute]:
    assert isa(value.type, TensorType)
    return value.type


@interprets(EmptyOp)
@interprets(tensor.EmptyOp)
def _empty(execution: Execution, op: tensor.EmptyOp, args: Sequence[Any]) -> Sequence[Any]:
    type = _type_of(op.tensor)
    return (undefined(filled(type.get_shape(), args), dtype_of(type.element_type, op)),)


def run_generic(execution: Execution, op: GenericOp, args: Sequence[Any]) -> Sequence[Array]:
    """A generic on tensors; an output without later uses is updated in place."""
    evaluator = execution.kept(op, lambda: evaluator_of(op))
    count, first = len(op.operands), len(op.inputs)
    values = [as_operand(value, operand, op) for value, operand in zip(args, op.operands, strict=False)]
    captured = [as_operand(value, outside, op) for value, outside in zip(args[count:], evaluator.captured, strict=True)]
    extents = extents_of(op, values)
    outputs: list[Array] = []
    for number in range(first, count):
        value: Array = values[number]
        if execution.may_take(op, number):
            outputs.append(value)
        elif evaluator.reads[number] or not evaluator.covers(number - first, value.shape, extents):
            outputs.append(np.array(value))
        else:
            outputs.append(np.empty(value.shape, value.dtype))
    evaluator.run([*values[:first], *outputs], extents, captured, ordered=execution.ordered)
    return outputs


@interprets(tensor.ExtractSliceOp)
def _extract_slice(execution: Execution, op: tensor.ExtractSliceOp, args: Sequence[Any]) -> Sequence[Any]:
    source = args[0]
    box = execution.kept((op, "slice"), lambda: SliceSpec.of(op)).box(source.shape, args[1:])
    part = source[box].reshape(_shape_of(op.result, source[box].shape))
    return (part.copy() if execution.is_owned(op, 0) else part,)


def _shape_of(result: SSAValue, sizes: Sequence[int]) -> Sequence[int]:
    """The shape of a result whose type may drop dims of size 1, and may not know all sizes."""
    shape = _type_of(result).get_shape()
    if DYNAMIC_INDEX not in shape:
        return shape
    return sizes if len(sizes) == len(shape) else [size for size in sizes if size != 1]


@interprets(tensor.InsertSliceOp)
def _insert_slice(execution: Execution, op: tensor.InsertSliceOp, args: Sequence[Any]) -> Sequence[Any]:
    source, dest = args[0], args[1]
    box = execution.kept((op, "slice"), lambda: SliceSpec.of(op)).box(dest.shape, args[2:])
    result = dest if execution.may_take(op, 1) else np.array(dest)
    part = result[box]
    part[...] = source.reshape(part.shape)
    return (result,)


@interprets(tensor.PadOp)
def _pad(execution: Execution, op: tensor.PadOp, args: Sequence[Any]) -> Sequence[Any]:
    source: Array = args[0]
    count = len(op.operands)
    low_args, high_args = args[1 : 1 + len(op.low)], args[1 + len(op.low) : count]
    low = filled(op.static_low.get_values(), low_args)
    high = filled(op.static_high.get_values(), high_args)
    outside = captured_values(op)
    body = execution.kept(op, lambda: compile_block(op.region.block, outside))
    if any(body.reads):
        raise UserError("padding that depends on the index is not interpreted", loc=location_of(op), status=UNSUPPORTED)
    captured = [as_operand(value, inner, op) for value, inner in zip(args[count:], outside, strict=True)]
    (value,) = body.function(*[None] * len(op.region.block.args), *captured)
    shape: list[int] = []
    source_box: list[slice] = []
    result_box: list[slice] = []
    for size, before, after in zip(source.shape, low, high, strict=True):
        # negative padding crops
        first, last = max(-before, 0), size - max(-after, 0)
        shape.append(size + before + after)
        source_box.append(slice(first, last))
        result_box.append(slice(max(before, 0), max(before, 0) + last - first))
    if any(size < 0 for size in shape):
        raise UserError(f"the padded shape is {shape}", loc=location_of(op))
    if any(given >= 0 and given != size for given, size in zip(op.result.type.get_shape(), shape, strict=True)):
        raise UserError(f"the padded shape is {shape}, and not that of {op.result.type}", loc=location_of(op))
    result = np.full(shape, value, source.dtype)
    result[tuple(result_box)] = source[tuple(source_box)]
    return (result,)


@interprets(tensor.CollapseShapeOp, tensor.ExpandShapeOp, tensor.ReshapeOp, tensor.CastOp)
def _rename(execution: Execution, op: Operation, args: Sequence[Any]) -> Sequence[Any]:
    """The same elements in a result shape of which at most one size is unknown."""
    source: Array = args[0]
    shape: Sequence[int] = source.shape
    if isinstance(op, tensor.CastOp):
        check_cast(op, shape, _type_of(op.dest).get_shape())
    elif isinstance(op, tensor.ReshapeOp):
        shape = [int(size) for size in args[1]]
        if min(shape, default=1) < 0 or prod(shape) != source.size:
            raise UserError(f"{source.size} elements are given the shape {shape}", loc=location_of(op))
    elif isinstance(op, tensor.CollapseShapeOp | tensor.ExpandShapeOp):
        shape = regrouped(op, shape, args[1:])
    result = source.reshape(shape)
    shared = execution.is_owned(op, 0) and not execution.may_take(op, 0)
    return (result.copy() if shared else result,)


def regrouped(
    op: tensor.CollapseShapeOp | tensor.ExpandShapeOp | memref.CollapseShapeOp | memref.ExpandShapeOp,
    shape: Sequence[int],
    dynamic: Sequence[int],
) -> list[int]:
    """The shape that results where dims are collapsed or expanded. Raises UserError for another number of elements."""
    if isinstance(op, tensor.ExpandShapeOp | memref.ExpandShapeOp):
        expanded = filled(op.static_output_shape.get_values(), dynamic)
        for dim, group in enumerate(op.reassociation):
            sizes = [expanded[inner.value.data] for inner in group]
            if min(sizes, default=1) < 0 or prod(sizes) != shape[dim]:
                raise UserError(f"dim {dim} of size {shape[dim]} is expanded to {sizes}", loc=location_of(op))
        return expanded
    return [prod(shape[dim.value.data] for dim in group) for group in op.reassociation]


def check_cast(op: Operation, shape: Sequence[int], target: Sequence[int]) -> None:
    """Raises UserError where a cast claims another size."""
    for dim, (size, expected) in enumerate(zip(shape, target, strict=True)):
        if expected not in (DYNAMIC_INDEX, size):
            raise UserError(f"dim {dim} has size {size}, cast to {expected}", loc=location_of(op))


@interprets(tensor.ConcatOp)
def _concat(execution: Execution, op: tensor.ConcatOp, args: Sequence[Any]) -> Sequence[Any]:
    return (np.concatenate(args, axis=op.dim.value.data),)


@interprets(tensor.SplatOp)
def _splat(execution: Execution, op: tensor.SplatOp, args: Sequence[Any]) -> Sequence[Any]:
    type = _type_of(op.result)
    return (np.full(filled(type.get_shape(), args[1:]), args[0], dtype_of(type.element_type, op)),)


@interprets(tensor.FromElementsOp)
def _from_elements(execution: Execution, op: tensor.FromElementsOp, args: Sequence[Any]) -> Sequence[Any]:
    type = _type_of(op.result)
    return (np.array(args, dtype_of(type.element_type, op)).reshape(type.get_shape()),)


def _checked_index(op: Operation, shape: Sequence[int], index: Sequence[int]) -> tuple[int, ...]:
    for dim, (position, size) in enumerate(zip(index, shape, strict=True)):
        if not 0 <= position < size:
            raise UserError(f"index {position} in dim {dim}, which has size {size}", loc=location_of(op))
    return tuple(index)


@interprets(tensor.ExtractOp)
def _extract(execution: Execution, op: tensor.ExtractOp, args: Sequence[Any]) -> Sequence[Any]:
    return (scalar_of(args[0][_checked_index(op, args[0].shape, args[1:])]),)


@interprets(tensor.InsertOp)
def _insert(execution: Execution, op: tensor.InsertOp, args: Sequence[Any]) -> Sequence[Any]:
    result = args[1] if execution.may_take(op, 1) else np.array(args[1])
    result[_checked_index(op, result.shape, args[2:])] = args[0]
    return (result,)


@interprets(tensor.DimOp)
def _dim(execution: Execution, op: tensor.DimOp, args: Sequence[Any]) -> Sequence[Any]:
    return (args[0].shape[_checked_index(op, [args[0].ndim], [args[1]])[0]],)
