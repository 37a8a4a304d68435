# SPDX-License-Identifier: Apache-2.0
"""
Dense constants in text: what xDSL 0.74 lacks, attached to its classes when this module is imported.

A dense constant of more than 100 elements is printed as a string of its bytes. MLIR packs eight elements of `i1` into
a byte and pads all other integers to whole bytes with zeros; xDSL writes the bytes it keeps, one or more an element
and extended by the sign. Here the string is MLIR's in both directions, and a type that xDSL keeps no bytes of, or of
more bytes than a text should ask for, is refused at its place in the text.

See `floats` for the elements that are floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

from xdsl.dialects.builtin import (
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    Float80Type,
    Float128Type,
    IntegerType,
    RankedStructure,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer

MAX_BYTES = 1 << 30
"""The largest constant in the text, in bytes as it is held in memory: a splat of few letters may be of any size."""
_LIST_ELEMENTS = 100
"""A constant of more elements is printed as a string, as in MLIR."""


def _numbers(element: object) -> object:
    """The type of the numbers that an element is made of."""
    return cast(ComplexType, element).element_type if isinstance(element, ComplexType) else element


def has_bytes(element: object) -> bool:
    """Whether xDSL keeps elements of this type as bytes."""
    number = _numbers(element)
    if isinstance(number, IntegerType):
        return 1 <= cast(IntegerType, number).bitwidth <= 64
    return not isinstance(number, Float80Type | Float128Type)


def _odd_integer(element: object) -> IntegerType | None:
    """The integer type whose string does not have the bytes that xDSL keeps."""
    if not isinstance(number := _numbers(element), IntegerType):
        return None
    integer = cast(IntegerType, number)
    return None if integer.bitwidth in (8, 16, 32, 64) else integer


def string_of(data: bytes, element: object) -> bytes:
    """The bytes of a constant in MLIR's text, from those that xDSL keeps."""
    integer = _odd_integer(element)
    if integer is None:
        return data
    width = integer.bitwidth
    numbers = [number & ((1 << width) - 1) for number in integer.iter_unpack(data)]
    if element == IntegerType(1):
        return sum(bit << at for at, bit in enumerate(numbers)).to_bytes(-(-len(numbers) // 8), "little")
    return b"".join(number.to_bytes(integer.size, "little") for number in numbers)


def data_of(text: bytes, element: Any, count: int) -> bytes | None:
    """The bytes that xDSL keeps of `count` elements, from those of MLIR's text; None if there are not that many."""
    integer = _odd_integer(element)
    if integer is None:
        size = element.compile_time_size
        return text if len(text) == count * size else text * count if len(text) == size else None
    if element == IntegerType(1):
        if count > 8 and text in (b"\x00", b"\xff"):  # a splat
            numbers = [text[0] & 1] * count
        elif len(text) == -(-count // 8):
            numbers = [text[at // 8] >> at % 8 & 1 for at in range(count)]
        else:
            return None
    else:
        size, parts = integer.size, 2 if isinstance(element, ComplexType) else 1
        numbers = [int.from_bytes(text[at : at + size], "little") for at in range(0, len(text), size)]
        if len(text) % (size * parts) or len(numbers) not in (parts, parts * count):
            return None
        if any(number.bit_length() > integer.bitwidth for number in numbers):
            return None
        if len(numbers) == parts:
            numbers *= count
    return integer.pack([integer.get_normalized_value(number) for number in numbers])


_parse_dense = AttrParser.parse_dense_int_or_fp_elements_attr
_parse_dense_type = cast(
    Callable[[AttrParser], RankedStructure[Any]],
    AttrParser._parse_dense_literal_type,  # pyright: ignore[reportPrivateUsage]
)


def _checked_type(self: AttrParser) -> RankedStructure[Any]:
    start = self.pos
    type = _parse_dense_type(self)
    if not has_bytes(type.element_type):
        self.raise_error(f"constants of {type.element_type} are not supported", start, self.pos)
    size = prod(type.get_shape()) * type.element_type.compile_time_size
    if size > MAX_BYTES:
        self.raise_error(f"this constant has {size} bytes, more than the {MAX_BYTES} of one in text", start, self.pos)
    return type


def _parse_dense_attribute(self: AttrParser, type: RankedStructure[Any] | None) -> DenseIntOrFPElementsAttr[Any]:
    start = self.pos
    self.parse_punctuation("<", " in dense attribute")
    literal = self.pos
    if (text := self.parse_optional_str_literal()) is None:
        self._resume_from(start)  # pyright: ignore[reportPrivateUsage]
        return _parse_dense(self, type)
    end = self.pos
    self.parse_punctuation(">", " in dense attribute")
    if type is None:
        self.parse_punctuation(":", " in dense attribute")
        type = _checked_type(self)
    try:
        found = bytes.fromhex(text.removeprefix("0x")) if text.startswith("0x") else None
    except ValueError:
        found = None
    if found is None:
        self.raise_error("the elements in a string are hexadecimal digits after 0x, two a byte", literal, end)
    count = prod(type.get_shape())
    data = data_of(found, type.element_type, count)
    if data is None:
        self.raise_error(f"{len(found)} bytes are not the {count} elements of {type}", literal, end)
    return DenseIntOrFPElementsAttr(type, BytesAttr(data))


def _is_splat(self: DenseIntOrFPElementsAttr[Any]) -> bool:
    """Whether all elements have the same bits; 0.0 and -0.0 do not, one NaN twice does."""
    data = self.data.data
    return data == data[: self.get_element_type().compile_time_size] * len(self)


def _print_without_type(self: DenseIntOrFPElementsAttr[Any], printer: Printer) -> None:
    element, count = self.get_element_type(), len(self)
    printer.print_string("dense")
    with printer.in_angle_brackets():
        if count == 0:
            return
        if self.is_splat():
            first = element.unpack(self.data.data[: element.compile_time_size], 1)
            self._print_one_elem(first[0], printer)  # pyright: ignore[reportPrivateUsage]
        elif count > _LIST_ELEMENTS:
            printer.print_string(f'"0x{string_of(self.data.data, element).hex().upper()}"')
        else:
            shape: Sequence[int] = self.get_shape() if self.shape_is_complete else (count,)
            self._print_dense_list(self.get_values(), shape, printer)  # pyright: ignore[reportPrivateUsage]


setattr(AttrParser, "_parse_dense_literal_type", _checked_type)
setattr(AttrParser, "parse_dense_int_or_fp_elements_attr", _parse_dense_attribute)
setattr(DenseIntOrFPElementsAttr, "is_splat", _is_splat)
setattr(DenseIntOrFPElementsAttr, "print_without_type", _print_without_type)
