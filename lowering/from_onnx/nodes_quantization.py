"""Importers of linear quantisation and of products of integers."""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import element_type
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.quantization import DEQUANTIZED, QUANTIZED
from penstock.lowering.from_onnx.node import Importer, Node, Unsupported, array_dtype
from penstock.lowering.from_onnx.nodes_window import resolved_pads

UINT8, FLOAT = 2, 1
"""Numbers of element types in ONNX."""


def _reshaped(node: Node, value: SSAValue, shape: list[int]) -> SSAValue:
    return value if list(tensor_of(value).get_shape()) == shape else node.emit(graph.ReshapeOp(value, shape))


def _parameter(node: Node, index: int) -> SSAValue:
    """A scale or a zero point: a scalar where it is one number, however ONNX writes it, else a vector."""
    shape = node.shape(index)
    return _reshaped(node, node.value(index), []) if math.prod(shape) == 1 else node.value(index)


def _refuse_blocks(node: Node) -> None:
    if node.int("block_size", 0):
        raise Unsupported("quantised in blocks")
    if node.int("precision", FLOAT) not in (0, FLOAT):
        raise Unsupported("in another precision than float32")


def _quantized_type(node: Node) -> Attribute:
    if node.has(2):
        element = node.type(2).element_type
    else:
        element = element_type(array_dtype(node.int("output_dtype", 0) or UINT8))
    if not QUANTIZED.contains(element):
        raise Unsupported(f"to elements of type {element}")
    return element


def quantize_linear(node: Node) -> SSAValue:
    _refuse_blocks(node)
    element = _quantized_type(node)
    zero = _parameter(node, 2) if node.has(2) else None
    axis = node.int("axis", 1)
    return node.emit(graph.QuantizeLinearOp(node.value(0), _parameter(node, 1), zero, element_type=element, axis=axis))


def dequantize_linear(node: Node) -> SSAValue:
    _refuse_blocks(node)
    if not DEQUANTIZED.contains(node.type(0).element_type):
        raise Unsupported(f"from elements of type {node.type(0).element_type}")
    zero = None if _is_zero(node, 2) else _parameter(node, 2)
    return node.emit(graph.DequantizeLinearOp(node.value(0), _parameter(node, 1), zero, axis=node.int("axis", 1)))


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


def conv_integer(node: Node) -> SSAValue:
    """The convolution of what the operands stand for, in i32; the padding stands for 0."""
    w = _centred(node, 1, 3, trailing=len(node.shape(1)) - 1)
    return _convolution(node, _centred(node, 0, 2, trailing=0), w, None)


def _requantized(node: Node, total: SSAValue, scales: tuple[int, int, int], zero: int, trailing: int) -> SSAValue:
    """
    A sum of products in i32 as the integers that stand for it: round(total * (a * b / y)) + zero point, `scales`
    being the inputs with the scales of the operands and of the result.
    """
    a, b, y = (_scale(node, index) for index in scales)
    factor = node.emit(graph.DivOp(node.emit(graph.MulOp(a, b)), y))
    shape = tensor_of(factor).get_shape()
    if shape:
        factor = _reshaped(node, factor, [*shape, *[1] * trailing])
    product = node.emit(graph.MulOp(node.emit(graph.CastOp(total, f32)), factor))
    point = _parameter(node, zero)
    element = tensor_of(point).element_type
    return node.emit(graph.QuantizeLinearOp(product, node.scalar(1.0, product), point, element_type=element))


def _scale(node: Node, index: int) -> SSAValue:
    scale = _parameter(node, index)
    return scale if tensor_of(scale).element_type == f32 else node.emit(graph.CastOp(scale, f32))


def qlinear_matmul(node: Node) -> SSAValue:
    """The integer product, and what stands for it; one scale for each operand."""
    if any(math.prod(node.shape(index)) != 1 for index in (1, 2, 4, 5, 6, 7)):
        raise Unsupported("with a scale for each row or column")
    a, b = _centred(node, 0, 2, trailing=1), _centred(node, 3, 5, trailing=0)
    total = node.emit(graph.MatmulOp(a, b, accumulator=i32))
    return _requantized(node, total, (1, 4, 6), 7, 0)


def qlinear_conv(node: Node) -> SSAValue:
    """The integer convolution plus its bias, and what stands for it; one scale for each output channel at most."""
    rank = len(node.shape(3))
    w = _centred(node, 3, 5, trailing=rank - 1)
    total = _convolution(node, _centred(node, 0, 2, trailing=0), w, node.optional(8))
    return _requantized(node, total, (1, 4, 6), 7, rank - 2)


TABLE: dict[str, Importer] = {
    "ConvInteger": conv_integer,
    "DequantizeLinear": dequantize_linear,
    "MatMulInteger": matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
