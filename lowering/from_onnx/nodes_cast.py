"""Importers of conversions between element types."""

from __future__ import annotations

from xdsl.dialects.builtin import Float8E8M0FNUType, IntegerType, Signedness, f32, i32
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph.base import is_float, require
from penstock.lowering.from_onnx.node import Node, array_dtype, imports
from penstock.passes.graph.terms import Term

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


def converted(node: Node, x: Term, element: Attribute, *, saturate: bool) -> Term:
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
    return x.emit(graph.BitcastOp(exponent.cast(_UI8).value, Float8E8M0FNUType()))


@imports("Cast")
def cast(node: Node) -> SSAValue:
    element = element_type(array_dtype(node.int("to", 1)))
    return converted(node, node.code.input(0), element, saturate=node.flag("saturate", True)).value


@imports("CastLike")
def cast_like(node: Node) -> SSAValue:
    return converted(node, node.code.input(0), node.type(1).element_type, saturate=node.flag("saturate", True)).value


@imports("BitCast")
def bit_cast(node: Node) -> SSAValue:
    return node.emit(graph.BitcastOp(node.value(0), element_type(array_dtype(node.int("to", 1)))))
