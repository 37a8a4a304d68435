# SPDX-License-Identifier: Apache-2.0
"""Importers of conversions between element types, of linear quantisation, and of products of integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import Float8E8M0FNUType, IntegerType, Signedness, f32, i32
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph.base import integer_bounds, is_float, normalized_axis, require
from penstock.dialects.graph.quantization import DEQUANTIZED, QUANTIZED
from penstock.lowering.from_onnx.node import OnnxNode, Unsupported, array_dtype, imports
from penstock.lowering.from_onnx.nodes_shape import repeated
from penstock.lowering.from_onnx.nodes_window import convolution
from penstock.passes.graph.terms import Term

UI8 = IntegerType(8, Signedness.UNSIGNED)

LIMITS = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float8_e5m2fnuz": 57344.0}
"""The largest numbers of the types to which Cast saturates, unless told not to."""

_FRACTION_BITS = 23
_INFINITY = 0xFF << _FRACTION_BITS
"""The bits of infinity in f32; those of a NaN are a larger number."""
_ROUND_MODES = ("up", "down", "nearest")


def limit_of(element: Attribute) -> float | None:
    """The largest number of an element type to which Cast saturates, None for all others."""
    return LIMITS.get(numpy_dtype(element).name)


def converted(node: OnnxNode, x: Term, element: Attribute, *, saturate: bool) -> Term:
    """`x` in another element type; `saturate` is what an attribute of that name says, for the types that mind."""
    if is_float(x.element_type):
        if isinstance(element, Float8E8M0FNUType):
            mode = node.string("round_mode", "up")
            require(mode in _ROUND_MODES, f'round_mode is one of {", ".join(_ROUND_MODES)}, not "{mode}"')
            return _exponent(x, mode, saturate)
        if saturate and (limit := limit_of(element)) is not None:
            x = x.clip(-limit, limit)
    return x.cast(element)


def _exponent(x: Term, mode: str, saturate: bool) -> Term:
    """
    The power of two next to the size of each element, above, below or nearest, as f8E8M0FNU, which is the exponent
    of an f32 and nothing else: what follows it is rounded into it as an integer. Infinities become NaN.
    """
    bits = x.emit(graph.BitcastOp(abs(x.cast(f32)).value, i32))
    whole = bits
    if mode == "up":
        whole = bits + ((1 << _FRACTION_BITS) - 1)
    elif mode == "nearest":
        half = 1 << (_FRACTION_BITS - 1)
        # A tie goes up, away from the even exponent of 0: only below the smallest normal number it does not.
        whole = bits + half - bits.equal(half).cast(i32)
    exponent = whole.apply("shift_right", _FRACTION_BITS)
    if saturate:
        exponent = exponent.apply("min", 0xFE)
    exponent = (bits < _INFINITY).where(exponent, 0xFF)
    return x.emit(graph.BitcastOp(exponent.cast(UI8).value, Float8E8M0FNUType()))


@imports("Cast")
def cast(node: OnnxNode) -> SSAValue:
    element = element_type(array_dtype(node.int("to", 1)))
    return converted(node, node.code.input(0), element, saturate=node.flag("saturate", True)).value


@imports("CastLike")
def cast_like(node: OnnxNode) -> SSAValue:
    return converted(node, node.code.input(0), node.type(1).element_type, saturate=node.flag("saturate", True)).value


@imports("BitCast")
def bit_cast(node: OnnxNode) -> SSAValue:
    return node.emit(graph.BitcastOp(node.value(0), element_type(array_dtype(node.int("to", 1)))))


def parameter(node: OnnxNode, index: int, element: Attribute | None = None) -> Term:
    """
    A scale or a zero point: a scalar where it is one number, however ONNX writes it, else a vector. What is known is
    brought to another element type at import: of weights of less than a byte it would be done in every run.
    """
    held = node.held(index)
    if element is not None and not isinstance(held, SSAValue) and element_type(held.dtype) != element:
        found = node.code.constant(held, node.proto.input[index], element)
    else:
        found = node.code.input(index, element)
    return found.reshape([]) if math.prod(found.shape) == 1 else found


def _element(node: OnnxNode, name: str, default: Attribute) -> Attribute:
    """An element type that is an attribute, 0 for the default."""
    given = node.int(name, 0)
    return element_type(array_dtype(given)) if given else default


def _is_short_float(element: Attribute) -> bool:
    return is_float(element) and numpy_dtype(element).itemsize == 1


def _blocked(node: OnnxNode, shape: Sequence[int]) -> list[int] | None:
    """A shape whose dimension of blocks is two, their number and their size; None if the last one is smaller."""
    block = node.int("block_size", 0)
    if not block:
        return None
    axis = normalized_axis(node.int("axis", 1), len(shape))
    return None if shape[axis] % block else [*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :]]


def _spread(node: OnnxNode, index: int, element: Attribute, *, apart: bool = False) -> Term:
    """
    A scale or a zero point, in an element type, in a shape that broadcasts to the first input, whose blocks may be a
    dimension `apart`.
    """
    value, x_shape = parameter(node, index, element), node.shape(0)
    if not value.shape:
        return value
    axis = normalized_axis(node.int("axis", 1), len(x_shape))
    if not (block := node.int("block_size", 0)):
        return value.reshape([x_shape[axis] if dim == axis else 1 for dim in range(len(x_shape))])
    require(
        len(value.shape) == len(x_shape) and value.shape[axis] == -(-x_shape[axis] // block),
        f"a scale of shape {list(value.shape)} for blocks of {block} along dimension {axis} of {list(x_shape)}",
    )
    if apart:
        return value.reshape([*value.shape[: axis + 1], 1, *value.shape[axis + 1 :]])
    return repeated(value, axis, block).cut(axis, 0, x_shape[axis])


@imports("QuantizeLinear")
def quantize_linear(node: OnnxNode) -> SSAValue:
    element = node.type(2).element_type if node.has(2) else _element(node, "output_dtype", UI8)
    if not QUANTIZED.contains(element) and not _is_short_float(element):
        raise Unsupported(f"to elements of type {element}")
    # The type in which a quotient is rounded.
    working = _element(node, "precision", f32)
    if QUANTIZED.contains(element) and working == f32 and not node.int("block_size", 0):
        zero, axis = parameter(node, 2).value if node.has(2) else None, node.int("axis", 1)
        x, scale = node.value(0), parameter(node, 1).value
        return node.emit(graph.QuantizeLinearOp(x, scale, zero, element_type=element, axis=axis))
    whole = node.code.input(0, working) / _spread(node, 1, working)
    bounds = integer_bounds(element)
    if bounds:
        whole = whole.apply("round")
    # The zero point of a float of 8 bits is 0: its type is what it is there for.
    if limit_of(element) is None and not is_zero(node, 2):
        whole = whole + _spread(node, 2, working)
    if bounds:
        return whole.clip(bounds[0], bounds[-1]).cast(element).value
    return converted(node, whole, element, saturate=node.flag("saturate", True)).value


@imports("DequantizeLinear")
def dequantize_linear(node: OnnxNode) -> SSAValue:
    x, scale = node.type(0).element_type, node.type(1).element_type
    element = _element(node, "output_dtype", scale)
    zero = not is_zero(node, 2)
    if DEQUANTIZED.contains(x) and not node.int("block_size", 0):
        factor = parameter(node, 1).cast(scale if element == scale else f32).value
        point = parameter(node, 2).value if zero else None
        result = graph.DequantizeLinearOp(node.value(0), factor, point, axis=node.int("axis", 1))
        return node.code.emit(result).cast(element).value
    if not (DEQUANTIZED.contains(x) or _is_short_float(x)):
        raise Unsupported(f"from elements of type {x}")
    shape = node.shape(0)
    sizes = _blocked(node, shape)
    number = node.code.input(0)
    if sizes is not None:
        number = number.reshape(sizes)
    if integer_bounds(x) and zero:
        number = number.cast(i32) - _spread(node, 2, i32, apart=sizes is not None)
    product = number.cast(f32) * _spread(node, 1, f32, apart=sizes is not None)
    return product.reshape(shape).cast(element).value


def is_zero(node: OnnxNode, index: int) -> bool:
    """Whether a zero point is left out, or known to be 0."""
    if not node.has(index):
        return True
    held = node.held(index)
    return isinstance(held, np.ndarray) and not np.any(held)


def _with_ones(x: Term, trailing: int) -> Term:
    """A vector with dimensions of size 1 after it, so that it lies along the dimension that as many others follow."""
    return x.reshape([*x.shape, *[1] * trailing]) if len(x.shape) == 1 else x


def centred_integers(node: OnnxNode, index: int, zero: int, trailing: int) -> SSAValue:
    """
    An integer operand minus its zero point: as it is stored where that is 0, else in i32. A zero point that is a
    vector lies along the dimension that `trailing` others follow.
    """
    x = node.code.input(index)
    if is_zero(node, zero):
        return x.value
    offset = _with_ones(parameter(node, zero), trailing)
    return (x.cast(i32) - offset.cast(i32)).value


@imports("MatMulInteger")
def matmul_integer(node: OnnxNode) -> SSAValue:
    """The product of the numbers that the operands encode, in i32; one zero point a row of a and a column of b."""
    a = centred_integers(node, 0, 2, trailing=1)
    return node.emit(graph.MatmulOp(a, centred_integers(node, 1, 3, trailing=0), accumulator=i32))


@imports("ConvInteger")
def conv_integer(node: OnnxNode) -> SSAValue:
    """The convolution of the numbers that the operands encode, in i32; the padding encodes 0."""
    w = centred_integers(node, 1, 3, trailing=len(node.shape(1)) - 1)
    return convolution(node, centred_integers(node, 0, 2, trailing=0), w, None, i32)


def _requantized(node: OnnxNode, total: SSAValue, trailing: int) -> SSAValue:
    """
    A sum of products in i32 as the integers that encode it: round(total * (a * b / y)) + zero point, with the scales
    of the operands and of the result, inputs 1, 4 and 6.
    """
    a, b, y = (parameter(node, index).cast(f32) for index in (1, 4, 6))
    factor = _with_ones(a * b / y, trailing)
    product = node.code.term(total).cast(f32) * factor
    point, one = parameter(node, 7), node.code.number(1.0, f32)
    return node.emit(graph.QuantizeLinearOp(product.value, one.value, point.value, element_type=point.element_type))


@imports("QLinearMatMul")
def qlinear_matmul(node: OnnxNode) -> SSAValue:
    """The integer product, encoded; one scale for each operand, or for each column of the second."""
    if any(math.prod(node.shape(index)) != 1 for index in (1, 2, 6, 7)):
        raise Unsupported("with a scale for each row")
    if any(math.prod(node.shape(index)) != 1 and len(node.shape(index)) > 1 for index in (4, 5)):
        raise Unsupported("with a scale for each column of each matrix")
    a, b = centred_integers(node, 0, 2, trailing=1), centred_integers(node, 3, 5, trailing=0)
    return _requantized(node, node.emit(graph.MatmulOp(a, b, accumulator=i32)), 0)


@imports("QLinearConv")
def qlinear_conv(node: OnnxNode) -> SSAValue:
    """The integer convolution plus its bias, encoded; one scale for each output channel at most."""
    rank = len(node.shape(3))
    w = centred_integers(node, 3, 5, trailing=rank - 1)
    total = convolution(node, centred_integers(node, 0, 2, trailing=0), w, node.optional(8), i32)
    return _requantized(node, total, rank - 2)
