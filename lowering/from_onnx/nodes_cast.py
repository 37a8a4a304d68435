"""Importers of conversions between element types."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import Float8E8M0FNUType, IntegerType, Signedness, f32, i32
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float, require
from penstock.lowering.from_onnx.node import Node, array_dtype, imports

LIMITS = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float8_e5m2fnuz": 57344.0}
"""The largest numbers of the types to which Cast saturates, unless told not to."""

_UI8 = IntegerType(8, Signedness.UNSIGNED)

_FRACTION_BITS = 23
_INFINITY = 0xFF << _FRACTION_BITS
"""The bits of infinity in f32; those of a NaN are a larger number."""
_ROUND_MODES = ("up", "down", "nearest")


def limit_of(element: Attribute) -> float | None:
    """The largest number of an element type to which Cast saturates, None for all others."""
    return LIMITS.get(numpy_dtype(element).name)


def converted(node: Node, x: SSAValue, element: Attribute, *, saturate: bool) -> SSAValue:
    """`x` in another element type; `saturate` is what an attribute of that name says, for the types that mind."""
    if isinstance(element, Float8E8M0FNUType) and is_float(tensor_of(x).element_type):
        mode = node.string("round_mode", "up")
        require(mode in _ROUND_MODES, f'round_mode is one of {", ".join(_ROUND_MODES)}, not "{mode}"')
        return _exponent(node, x, mode, saturate)
    limit = limit_of(element)
    if limit is not None and is_float(tensor_of(x).element_type) and saturate:
        x = node.emit(graph.ClipOp(x, min=-limit, max=limit))
    return node.emit(graph.CastOp(x, element))


def _exponent(node: Node, x: SSAValue, mode: str, saturate: bool) -> SSAValue:
    """
    The power of two next to the size of each element, above, below or nearest, as f8E8M0FNU, which is the exponent
    of an f32 and nothing else: what follows it is rounded into it as an integer. Infinities become NaN.
    """
    if tensor_of(x).element_type != f32:
        x = node.emit(graph.CastOp(x, f32))
    bits = node.emit(graph.BitcastOp(node.emit(graph.AbsOp(x)), i32))

    def number(value: int) -> SSAValue:
        return node.constant(np.array(value, np.int32), "bits")

    whole = bits
    if mode == "up":
        whole = node.emit(graph.AddOp(bits, number((1 << _FRACTION_BITS) - 1)))
    elif mode == "nearest":
        half = 1 << (_FRACTION_BITS - 1)
        # A tie goes up, away from the even exponent of 0: only below the smallest normal number it does not.
        tie = node.emit(graph.CastOp(node.emit(graph.EqualOp(bits, number(half))), i32))
        whole = node.emit(graph.SubOp(node.emit(graph.AddOp(bits, number(half))), tie))
    exponent = node.emit(graph.ShiftRightOp(whole, number(_FRACTION_BITS)))
    if saturate:
        exponent = node.emit(graph.MinOp(exponent, number(0xFE)))
    is_number = node.emit(graph.LessOp(bits, number(_INFINITY)))
    exponent = node.emit(graph.WhereOp(is_number, exponent, number(0xFF)))
    return node.emit(graph.BitcastOp(node.emit(graph.CastOp(exponent, _UI8)), Float8E8M0FNUType()))


@imports("Cast")
def cast(node: Node) -> SSAValue:
    element = element_type(array_dtype(node.int("to", 1)))
    return converted(node, node.value(0), element, saturate=node.flag("saturate", True))


@imports("CastLike")
def cast_like(node: Node) -> SSAValue:
    return converted(node, node.value(0), node.type(1).element_type, saturate=node.flag("saturate", True))


@imports("BitCast")
def bit_cast(node: Node) -> SSAValue:
    return node.emit(graph.BitcastOp(node.value(0), element_type(array_dtype(node.int("to", 1)))))
