# SPDX-License-Identifier: Apache-2.0
"""
Floats in text, exactly: what xDSL 0.74 lacks, attached to its classes when this module is imported.

A float constant is its bits, and its text must read back as the same bits. xDSL's does not: its parser takes a
hexadecimal element of a `dense<>` for an integer and refuses one in an `array<>`, while its printer writes what is
not finite and many a large number as hexadecimal bits; its codecs make every NaN a quiet one, or lose its payload and
sign. The text is MLIR's:

- a hexadecimal literal is the bits of the float, of any float type, without a sign;
- a decimal literal is rounded to the type; one too large for it is refused (MLIR makes it an infinity);
- infinities and NaNs are printed as their bits, all other numbers as a decimal or their bits.

A NaN in Python's floats keeps its sign and payload: the payload is in the upper bits of the fraction of a double.

xDSL's own classes are changed, not derived from, since everything that reads and prints IR uses them: our parser,
xDSL's, its targets, and `str` of any attribute.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    ComplexType,
    DenseArrayBase,
    Float16Type,
    Float32Type,
    Float80Type,
    Float128Type,
    FloatAttr,
    FloatNanEncoding,
    FloatNonfiniteBehavior,
    IndexType,
    IntegerAttr,
    IntegerType,
    ReducedPrecisionFloatType,
    f64,
    i64,
)
from xdsl.ir import Attribute, TypedAttribute
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.hints import isa
from xdsl.utils.lexer import Span

from penstock.dialects.upstream.dense import has_bytes

Number: TypeAlias = bool | int | float
_Codec: TypeAlias = Any

_FRACTION_BITS = 52
"""Bits of the fraction of a double, which carries the payload of every NaN."""
_WITHOUT_BITS = (Float80Type, Float128Type)
"""Types whose values xDSL keeps as doubles and never as bytes."""


# NaNs as doubles


def _nan_of(bits: int, exponent_bits: int, mantissa_bits: int) -> float:
    """The double that stands for the NaN `bits` of a type of this layout."""
    sign = bits >> (exponent_bits + mantissa_bits) & 1
    payload = (bits & ((1 << mantissa_bits) - 1)) << (_FRACTION_BITS - mantissa_bits)
    return struct.unpack("<d", struct.pack("<Q", sign << 63 | 0x7FF << _FRACTION_BITS | payload))[0]


def _bits_of_nan(value: float, exponent_bits: int, mantissa_bits: int) -> int:
    """The bits of the NaN that a double stands for; of a payload that does not fit, the upper bits."""
    double = struct.unpack("<Q", struct.pack("<d", value))[0]
    payload = (double & ((1 << _FRACTION_BITS) - 1)) >> (_FRACTION_BITS - mantissa_bits)
    exponent = ((1 << exponent_bits) - 1) << mantissa_bits
    return (double >> 63) << (exponent_bits + mantissa_bits) | exponent | (payload or 1 << (mantissa_bits - 1))


def _keep_nans(kind: type[_Codec], exponent_bits: int, mantissa_bits: int) -> None:
    """Make the codec of a type of 16 or 32 bits keep its NaNs, and do as before with all other values."""
    size = (1 + exponent_bits + mantissa_bits) // 8
    unpack, pack = kind.unpack, kind.pack

    def exact_unpack(self: _Codec, buffer: Any, num: int, /) -> tuple[float, ...]:
        values = unpack(self, buffer, num)
        if not any(value != value for value in values):
            return values
        raw = bytes(buffer)
        return tuple(
            value
            if value == value
            else _nan_of(int.from_bytes(raw[at * size : (at + 1) * size], "little"), exponent_bits, mantissa_bits)
            for at, value in enumerate(values)
        )

    def exact_iter_unpack(self: _Codec, buffer: Any, /) -> Iterator[float]:
        return iter(exact_unpack(self, buffer, len(memoryview(buffer)) // size))

    def exact_pack(self: _Codec, values: Sequence[float]) -> bytes:
        raw = pack(self, values)
        nans = [at for at, value in enumerate(values) if value != value]
        if not nans:
            return raw
        exact = bytearray(raw)
        for at in nans:
            bits = _bits_of_nan(values[at], exponent_bits, mantissa_bits)
            exact[at * size : (at + 1) * size] = bits.to_bytes(size, "little")
        return bytes(exact)

    _attach(kind, unpack=exact_unpack, iter_unpack=exact_iter_unpack, pack=exact_pack)


_decode_bits = ReducedPrecisionFloatType.decode_bits
_encode_bits = ReducedPrecisionFloatType.encode_bits


def _decode_reduced(self: ReducedPrecisionFloatType, bits: int) -> float:
    value, semantics = _decode_bits(self, bits), self.SEMANTICS
    if value == value or semantics.nan_encoding is FloatNanEncoding.NEGATIVE_ZERO or not semantics.has_sign:
        return value
    return _nan_of(bits, semantics.exponent_bits, semantics.mantissa_bits)


def _encode_reduced(self: ReducedPrecisionFloatType, value: float) -> int:
    semantics = self.SEMANTICS
    if value == value or semantics.nonfinite is not FloatNonfiniteBehavior.IEEE:
        return _encode_bits(self, value)
    return _bits_of_nan(value, semantics.exponent_bits, semantics.mantissa_bits)


# text to floats


class _Hexadecimal(int):
    """An integer that was written in hexadecimal: of a float, it is the bits."""


_parse_optional_number = cast(
    Callable[[AttrParser], tuple[Number, Span] | None],
    AttrParser._parse_optional_bool_int_or_float,  # pyright: ignore[reportPrivateUsage]
)


def _parse_optional_literal(self: AttrParser) -> tuple[Number, Span] | None:
    found = _parse_optional_number(self)
    if found is None or not isinstance(found[0], int) or not found[1].text.removeprefix("-").startswith("0x"):
        return found
    return _Hexadecimal(found[0]), found[1]


def float_of(parser: AttrParser, literal: object, span: Span, type: AnyFloat) -> float:
    """The float that a literal of the text is in `type`; a ParseError at `span` if it is none."""
    match literal:
        case _Hexadecimal():
            if span.text.startswith("-"):
                parser.raise_error("the bits of a float have no sign before them", span)
            if isinstance(type, _WITHOUT_BITS):
                parser.raise_error(f"the bits of an {type} are not supported, write a decimal", span)
            if literal.bit_length() > type.bitwidth:
                parser.raise_error(f"{span.text} has more bits than an {type}", span)
            return next(type.iter_unpack(int(literal).to_bytes(type.size, "little")))
        case int() | float() if not isinstance(literal, bool):
            return _rounded(parser, literal, span, type)
        case _:
            parser.raise_error(f"expected a number of type {type}", span)


def _rounded(parser: AttrParser, literal: float, span: Span, type: AnyFloat) -> float:
    try:
        value = float(literal)
        rounded = value if isinstance(type, _WITHOUT_BITS) else type.unpack(type.pack((value,)), 1)[0]
    except OverflowError:
        rounded = math.inf
    except ValueError as error:
        parser.raise_error(str(error), span)
    # A finite number too large becomes an infinity, a NaN, or in the types without either the largest number.
    limit = _largest(type)
    if not math.isfinite(rounded) or (limit is not None and abs(literal) > limit):
        parser.raise_error(f"{span.text} is too large for an {type}", span)
    return rounded


def _largest(type: AnyFloat) -> float | None:
    """What a type without infinity and NaN saturates at."""
    if not isinstance(type, ReducedPrecisionFloatType):
        return None
    semantics = type.SEMANTICS
    if semantics.nonfinite is not FloatNonfiniteBehavior.FINITE_ONLY:
        return None
    return type.decode_bits(semantics.max_exponent << semantics.mantissa_bits | semantics.max_mantissa)


_Element = AttrParser._TensorLiteralElement  # pyright: ignore[reportPrivateUsage]
_element_to_type = _Element.to_type


def _to_type(self: _Element, parser: AttrParser, type: Any) -> Any:
    """What an element of a `dense<>` is in the element type, which the text says after it."""
    if isinstance(type, AnyFloat):
        return float_of(parser, self.value, self.span, type)
    if not isinstance(type, ComplexType):
        if isinstance(self.value, _Hexadecimal):
            self.value = int(self.value)
        if isinstance(type, IndexType) and isinstance(self.value, int) and not -(1 << 63) <= self.value < 1 << 63:
            parser.raise_error(f"{self.span.text} does not fit into 64 bits", self.span)
        return _element_to_type(self, parser, type)
    if not isinstance(self.value, tuple):
        parser.raise_error("expected a complex number", self.span)
    parts = cast(tuple[tuple[Number, Span], ...], self.value)
    element = cast(ComplexType, type).element_type
    if isinstance(element, AnyFloat):
        return tuple(float_of(parser, value, span, element) for value, span in parts)
    for value, span in parts:
        if isinstance(value, float):
            parser.raise_error("expected an integer", span)
    return tuple(int(value) for value, _ in parts)


def _parse_optional_complex(self: AttrParser) -> tuple[tuple[tuple[Number, Span], ...], Span] | None:
    """A complex number, if present, as its parts and where each of them is."""
    start = self.pos
    if self.parse_optional_punctuation("(") is None:
        return None
    real = self._parse_bool_int_or_float()  # pyright: ignore[reportPrivateUsage]
    self.parse_punctuation(",")
    imaginary = self._parse_bool_int_or_float()  # pyright: ignore[reportPrivateUsage]
    span = Span(start, self.pos + 1, self.lexer.input)
    self.parse_punctuation(")")
    return (real, imaginary), span


def parse_float(parser: AttrParser, type: AnyFloat) -> float:
    """Parse a float of a type that is known before it, in any form; a ParseError if there is none."""
    start = parser.pos
    found = _parse_optional_literal(parser)
    if found is None:
        parser.raise_error(f"expected a number of type {type}", start, start)
    return float_of(parser, *found, type)


def _parse_float_with_type(parser: AttrParser, type: Attribute) -> TypedAttribute:
    assert isinstance(type, AnyFloat)
    return FloatAttr(parse_float(parser, type), type)


def _parse_int_or_float(self: AttrParser) -> IntegerAttr | FloatAttr | None:
    if (boolean := self.try_parse_builtin_boolean_attr()) is not None:
        return boolean
    if (found := _parse_optional_literal(self)) is None:
        return None
    value, span = found
    if self._current_token.text != ":":  # pyright: ignore[reportPrivateUsage]
        return FloatAttr(float_of(self, value, span, f64), f64) if isinstance(value, float) else IntegerAttr(value, i64)
    type = self._parse_attribute_type()  # pyright: ignore[reportPrivateUsage]
    if isinstance(type, AnyFloat):
        return FloatAttr(float_of(self, value, span, type), type)
    if not isa(type, IntegerType | IndexType):
        self.raise_error("Invalid type given for integer or float attribute.", span)
    if isinstance(value, float):
        self.raise_error("Floating point value is not valid for integer type.", span)
    if isinstance(type, IndexType) and not -(1 << 63) <= value < 1 << 64:
        self.raise_error(f"{span.text} does not fit into 64 bits", span)
    return IntegerAttr(int(value), type)


_parse_array = cast(
    Callable[[AttrParser], DenseArrayBase | None],
    AttrParser._parse_builtin_densearray_attr,  # pyright: ignore[reportPrivateUsage]
)


def _parse_densearray(self: AttrParser) -> DenseArrayBase | None:
    start = self.pos
    self.parse_punctuation("<", " in dense array")
    element = self.parse_optional_type()
    if element is not None and not has_bytes(element):
        self.raise_error(f"arrays of {element} are not supported", start, self.pos)
    if not isinstance(element, AnyFloat) or self.parse_optional_punctuation(":") is None:
        # Of integers, or without elements.
        self._resume_from(start)  # pyright: ignore[reportPrivateUsage]
        return _parse_array(self)
    values = self.parse_comma_separated_list(self.Delimiter.NONE, lambda: parse_float(self, element))
    self.parse_punctuation(">", " in dense array")
    return DenseArrayBase.from_list(element, values)


# floats to text

_print_float = Printer.print_float


def _print_any_float(self: Printer, value: float, type: AnyFloat) -> None:
    if isinstance(type, _WITHOUT_BITS):
        text = repr(value)
        self.print_string(text if "." in text else f"{value:.1e}")  # only one digit goes without a point
    else:
        _print_float(self, value, type)


def _attach(owner: type[Any], **functions: Callable[..., Any]) -> None:
    for name, function in functions.items():
        setattr(owner, name, function)


_keep_nans(Float16Type, 5, 10)
_keep_nans(BFloat16Type, 8, 7)
_keep_nans(Float32Type, 8, 23)
_attach(ReducedPrecisionFloatType, decode_bits=_decode_reduced, encode_bits=_encode_reduced)
_attach(_Element, to_type=_to_type)
_attach(
    AttrParser,
    _parse_optional_bool_int_or_float=_parse_optional_literal,
    _parse_optional_complex=_parse_optional_complex,
    parse_optional_builtin_int_or_float_attr=_parse_int_or_float,
    _parse_builtin_densearray_attr=_parse_densearray,
)
_attach(FloatAttr, parse_with_type=staticmethod(_parse_float_with_type))
_attach(Printer, print_float=_print_any_float)
