"""Importers of linear quantisation and of products of integers."""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import integer_bounds, is_float, normalized_axis, require
from penstock.dialects.graph.quantization import DEQUANTIZED, QUANTIZED
from penstock.lowering.from_onnx.accumulation import cast
from penstock.lowering.from_onnx.node import Node, Unsupported, array_dtype, imports
from penstock.lowering.from_onnx.nodes_cast import converted, limit_of
from penstock.lowering.from_onnx.nodes_shape import sliced
from penstock.lowering.from_onnx.nodes_window import resolved_pads

UINT8, FLOAT = 2, 1
"""Numbers of element types in ONNX."""


def _reshaped(node: Node, value: SSAValue, shape: list[int]) -> SSAValue:
    return value if list(tensor_of(value).get_shape()) == shape else node.emit(graph.ReshapeOp(value, shape))


def _parameter(node: Node, index: int) -> SSAValue:
    """A scale or a zero point: a scalar where it is one number, however ONNX writes it, else a vector."""
    shape = node.shape(index)
    return _reshaped(node, node.value(index), []) if math.prod(shape) == 1 else node.value(index)


def _working_type(node: Node) -> Attribute:
    """The type in which a quotient is rounded."""
    return element_type(array_dtype(node.int("precision", 0) or FLOAT))


def _quantized_type(node: Node) -> Attribute:
    if node.has(2):
        element = node.type(2).element_type
    else:
        element = element_type(array_dtype(node.int("output_dtype", 0) or UINT8))
    if not QUANTIZED.contains(element) and not (is_float(element) and numpy_dtype(element).itemsize == 1):
        raise Unsupported(f"to elements of type {element}")
    return element


def _spread(node: Node, index: int, element: Attribute) -> SSAValue:
    """A scale or a zero point, in an element type, in a shape that broadcasts to the first input."""
    value = cast(node, _parameter(node, index), element)
    shape, x_shape = list(tensor_of(value).get_shape()), node.shape(0)
    if not shape:
        return value
    axis = normalized_axis(node.int("axis", 1), len(x_shape))
    if not (block := node.int("block_size", 0)):
        return _reshaped(node, value, [x_shape[axis] if dim == axis else 1 for dim in range(len(x_shape))])
    require(
        len(shape) == len(x_shape) and shape[axis] == -(-x_shape[axis] // block),
        f"a scale of shape {shape} for blocks of {block} along dimension {axis} of {list(x_shape)}",
    )
    apart = node.emit(graph.ReshapeOp(value, [*shape[: axis + 1], 1, *shape[axis + 1 :]]))
    wide = node.emit(graph.ExpandOp(apart, [*shape[: axis + 1], block, *shape[axis + 1 :]]))
    joined = node.emit(graph.ReshapeOp(wide, [*shape[:axis], shape[axis] * block, *shape[axis + 1 :]]))
    return sliced(node, joined, axis, 0, x_shape[axis])


@imports("QuantizeLinear")
def quantize_linear(node: Node) -> SSAValue:
    element, working = _quantized_type(node), _working_type(node)
    if QUANTIZED.contains(element) and working == f32 and not node.int("block_size", 0):
        zero = _parameter(node, 2) if node.has(2) else None
        axis = node.int("axis", 1)
        return node.emit(
            graph.QuantizeLinearOp(node.value(0), _parameter(node, 1), zero, element_type=element, axis=axis)
        )
    whole = node.emit(graph.DivOp(cast(node, node.value(0), working), _spread(node, 1, working)))
    if bounds := integer_bounds(element):
        whole = node.emit(graph.RoundOp(whole))
        if not _is_zero(node, 2):
            whole = node.emit(graph.AddOp(whole, _spread(node, 2, working)))
        return cast(node, node.emit(graph.ClipOp(whole, min=bounds[0], max=bounds[-1])), element)
    # The zero point of a float of 8 bits is 0: its type is what it is there for.
    if limit_of(element) is None and not _is_zero(node, 2):
        whole = node.emit(graph.AddOp(whole, _spread(node, 2, working)))
    return converted(node, whole, element, saturate=node.flag("saturate", True))


@imports("DequantizeLinear")
def dequantize_linear(node: Node) -> SSAValue:
    x, scale = node.type(0).element_type, node.type(1).element_type
    given = node.int("output_dtype", 0)
    element = element_type(array_dtype(given)) if given else scale
    zero = not _is_zero(node, 2)
    if DEQUANTIZED.contains(x) and not node.int("block_size", 0):
        factor = _parameter(node, 1) if element == scale else cast(node, _parameter(node, 1), f32)
        point = _parameter(node, 2) if zero else None
        result = node.emit(graph.DequantizeLinearOp(node.value(0), factor, point, axis=node.int("axis", 1)))
        return cast(node, result, element)
    if not (DEQUANTIZED.contains(x) or (is_float(x) and numpy_dtype(x).itemsize == 1)):
        raise Unsupported(f"from elements of type {x}")
    number = node.value(0)
    if integer_bounds(x) and zero:
        number = node.emit(graph.SubOp(cast(node, number, i32), _spread(node, 2, i32)))
    return cast(node, node.emit(graph.MulOp(cast(node, number, f32), _spread(node, 1, f32))), element)


def _is_zero(node: Node, index: int) -> bool:
    """Whether a zero point is left out, or known to be 0."""
    if not node.has(index):
        return True
    held = node.held(index)
    return isinstance(held, np.ndarray) and not np.any(held)


def _centred(node: Node, index: int, zero: int, trailing: int) -> SSAValue:
    """
    An integer operand minus its zero point: as it is stored where that is 0, else in i32. A zero point that is a
    vector lies along the dimension that `trailing` others follow.
    """
    x = node.value(index)
    if _is_zero(node, zero):
        return x
    offset = _parameter(node, zero)
    shape = tensor_of(offset).get_shape()
    if len(shape) == 1:
        offset = _reshaped(node, offset, [*shape, *[1] * trailing])
    return node.emit(graph.SubOp(*(node.emit(graph.CastOp(value, i32)) for value in (x, offset))))


@imports("MatMulInteger")
def matmul_integer(node: Node) -> SSAValue:
    """The product of what the operands stand for, in i32; one zero point for each row of a and column of b."""
    a = _centred(node, 0, 2, trailing=1)
    return node.emit(graph.MatmulOp(a, _centred(node, 1, 3, trailing=0), accumulator=i32))


def _convolution(node: Node, x: SSAValue, w: SSAValue, b: SSAValue | None) -> SSAValue:
    spatial, kernel = tensor_of(x).get_shape()[2:], tensor_of(w).get_shape()[2:]
    strides = node.ints("strides") or [1] * len(spatial)
    dilations = node.ints("dilations") or [1] * len(spatial)
    pads = resolved_pads(node, spatial, kernel, strides, dilations)
    group = node.int("group", 1)
    op = graph.ConvOp(x, w, b, strides=strides, pads=pads, dilations=dilations, group=group, accumulator=i32)
    return node.emit(op)


@imports("ConvInteger")
def conv_integer(node: Node) -> SSAValue:
    """The convolution of what the operands stand for, in i32; the padding stands for 0."""
    w = _centred(node, 1, 3, trailing=len(node.shape(1)) - 1)
    return _convolution(node, _centred(node, 0, 2, trailing=0), w, None)


def _requantized(node: Node, total: SSAValue, scales: tuple[int, int, int], zero: int, trailing: int) -> SSAValue:
    """
    A sum of products in i32 as the integers that stand for it: round(total * (a * b / y)) + zero point, `scales`
    being the inputs with the scales of the operands and of the result.
    """
    a, b, y = (cast(node, _parameter(node, index), f32) for index in scales)
    factor = node.emit(graph.DivOp(node.emit(graph.MulOp(a, b)), y))
    shape = tensor_of(factor).get_shape()
    if shape:
        factor = _reshaped(node, factor, [*shape, *[1] * trailing])
    product = node.emit(graph.MulOp(node.emit(graph.CastOp(total, f32)), factor))
    point = _parameter(node, zero)
    element = tensor_of(point).element_type
    return node.emit(graph.QuantizeLinearOp(product, node.scalar(1.0, product), point, element_type=element))


@imports("QLinearMatMul")
def qlinear_matmul(node: Node) -> SSAValue:
    """The integer product, and what stands for it; one scale for each operand, or for each column of the second."""
    if any(math.prod(node.shape(index)) != 1 for index in (1, 2, 6, 7)):
        raise Unsupported("with a scale for each row")
    if any(math.prod(node.shape(index)) != 1 and len(node.shape(index)) > 1 for index in (4, 5)):
        raise Unsupported("with a scale for each column of each matrix")
    a, b = _centred(node, 0, 2, trailing=1), _centred(node, 3, 5, trailing=0)
    total = node.emit(graph.MatmulOp(a, b, accumulator=i32))
    return _requantized(node, total, (1, 4, 6), 7, 0)


@imports("QLinearConv")
def qlinear_conv(node: Node) -> SSAValue:
    """The integer convolution plus its bias, and what stands for it; one scale for each output channel at most."""
    rank = len(node.shape(3))
    w = _centred(node, 3, 5, trailing=rank - 1)
    total = _convolution(node, _centred(node, 0, 2, trailing=0), w, node.optional(8))
    return _requantized(node, total, (1, 4, 6), 7, rank - 2)
