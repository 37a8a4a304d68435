# SPDX-License-Identifier: Apache-2.0
"""
Elements that xDSL 0.74 does not read, attached to its parser when this module is imported: strings, in
`dense<["a", "b"]> : tensor<2x!t.string>`, and `sparse<[[0, 1]], [2.0]> : tensor<4x4xf32>`. See
https://mlir.llvm.org/docs/Dialects/Builtin/#denseintorfpelementsattr and the sections after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    RankedStructure,
    StringAttr,
    TensorType,
    VectorType,
    i64,
)
from xdsl.ir import Attribute, BuiltinAttribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer


@irdl_attr_definition
class DenseStringElementsAttr(ParametrizedAttribute, BuiltinAttribute):
    """Strings as the elements of a tensor or vector; a single one stands for all."""

    name = "builtin.dense_string_elements"

    type: Attribute
    strings: ArrayAttr[StringAttr]

    def print_elements(self, printer: Printer) -> None:
        """What stands between the angle brackets."""
        if len(self.strings) == 1:
            printer.print_attribute(self.strings.data[0])
        else:
            _print_nested(printer, self.strings.data, cast(TensorType, self.type).get_shape())

    def print_builtin(self, printer: Printer) -> None:
        """The text of the attribute."""
        printer.print_string("dense<")
        self.print_elements(printer)
        printer.print_string("> : ")
        printer.print_attribute(self.type)


@irdl_attr_definition
class SparseElementsAttr(ParametrizedAttribute, BuiltinAttribute):
    """A tensor or vector with values at some indices, a row of `indices` each, and zeros elsewhere."""

    name = "builtin.sparse_elements"

    type: Attribute
    indices: DenseIntOrFPElementsAttr
    values: DenseIntOrFPElementsAttr | DenseStringElementsAttr

    def print_builtin(self, printer: Printer) -> None:
        """The text of the attribute."""
        printer.print_string("sparse<")
        if len(self.indices):
            _print_elements(printer, self.indices)
            printer.print_string(", ")
            _print_elements(printer, self.values)
        printer.print_string("> : ")
        printer.print_attribute(self.type)


def _print_elements(printer: Printer, elements: DenseIntOrFPElementsAttr | DenseStringElementsAttr) -> None:
    if isinstance(elements, DenseStringElementsAttr):
        elements.print_elements(printer)
        return
    values = elements.get_values()
    single = elements.is_splat()
    one = elements._print_one_elem  # pyright: ignore[reportPrivateUsage]
    if single:
        one(values[0], printer)
    else:
        elements._print_dense_list(values, elements.get_shape(), printer)  # pyright: ignore[reportPrivateUsage]


def _print_nested(printer: Printer, strings: Sequence[Attribute], shape: Sequence[int]) -> None:
    with printer.in_square_brackets():
        if len(shape) < 2:
            printer.print_list(strings, printer.print_attribute)
            return
        size = prod(shape[1:])
        rows = [strings[at : at + size] for at in range(0, len(strings), size)]
        printer.print_list(rows, lambda row: _print_nested(printer, row, shape[1:]))


def _parse_strings(parser: AttrParser) -> tuple[list[StringAttr], list[int]] | None:
    """Strings and the shape that their brackets have, [] of one that stands for all; None if there are none."""
    if (text := parser.parse_optional_str_literal()) is not None:
        return [StringAttr(text)], []
    start = parser.pos
    rows = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_strings(parser))
    if rows is None:
        return None
    if not rows or None in rows:
        parser._resume_from(start)  # pyright: ignore[reportPrivateUsage]
        return None
    found = [row for row in rows if row is not None]
    if any(shape != found[0][1] for _, shape in found):
        parser.raise_error("the rows of a literal have one length", start, parser.pos)
    return [string for row, _ in found for string in row], [len(found), *found[0][1]]


def _starts_with_string(parser: AttrParser) -> bool:
    """Whether a string that is no hexadecimal constant is next, in brackets or not."""
    text = parser.lexer.input.content[parser.pos :].lstrip(" \t\n[")
    return text.startswith('"') and not text.startswith('"0x')


def _parse_shaped(parser: AttrParser) -> RankedStructure[Any]:
    parser.parse_punctuation(":")
    start = parser.pos
    type = parser.parse_type()
    if not isinstance(type, TensorType | VectorType):
        parser.raise_error(f"expected the type of a tensor or a vector, not {type}", start, parser.pos)
    return cast(RankedStructure[Any], type)


_Parse = Callable[[AttrParser], Attribute]
_parse_numbers = cast(_Parse, AttrParser._parse_builtin_dense_attr)  # pyright: ignore[reportPrivateUsage]
_parse_other = AttrParser._parse_optional_builtin_parametrized_attr  # pyright: ignore[reportPrivateUsage]


def _parse_dense(self: AttrParser) -> Attribute:
    start = self.pos
    self.parse_punctuation("<")
    if not _starts_with_string(self):
        self._resume_from(start)  # pyright: ignore[reportPrivateUsage]
        return _parse_numbers(self)
    strings = self.expect(lambda: _parse_strings(self), "expected strings")
    self.parse_punctuation(">")
    return _strings(self, strings, _parse_shaped(self), start)


def _strings(
    parser: AttrParser, found: tuple[list[StringAttr], list[int]], type: RankedStructure[Any], start: int
) -> DenseStringElementsAttr:
    strings, shape = found
    if shape and shape != list(type.get_shape()):
        parser.raise_error(f"strings of the shape {shape} are not the elements of {type}", start, parser.pos)
    if shape and len(set(strings)) == 1:
        strings = strings[:1]
    return DenseStringElementsAttr(cast(Attribute, type), ArrayAttr(strings))


def _parse_sparse(self: AttrParser) -> SparseElementsAttr:
    start = self.pos
    self.parse_punctuation("<")
    if self.parse_optional_punctuation(">") is not None:
        type = _parse_shaped(self)
        rank = len(type.get_shape())
        none = DenseIntOrFPElementsAttr.from_list(TensorType(i64, [0, rank]), [])
        return SparseElementsAttr(cast(Attribute, type), none, _empty(type))
    indices, index_shape = self._parse_tensor_literal()  # pyright: ignore[reportPrivateUsage]
    self.parse_punctuation(",")
    strings = self.expect(lambda: _parse_strings(self), "strings") if _starts_with_string(self) else None
    numbers = None if strings else self._parse_tensor_literal()  # pyright: ignore[reportPrivateUsage]
    self.parse_punctuation(">")
    type = _parse_shaped(self)
    shape = type.get_shape()
    count = index_shape[0] if index_shape else 1
    if index_shape not in ([], [count, len(shape)], [count] if len(shape) == 1 else []):
        self.raise_error(f"indices of the shape {index_shape} are not those of {type}", start, self.pos)
    places = [element.to_int(self) for element in indices] * (1 if index_shape else len(shape))
    if any(not 0 <= place < shape[at % len(shape)] for at, place in enumerate(places)):
        self.raise_error(f"an index is out of the bounds of {type}", start, self.pos)
    rows = DenseIntOrFPElementsAttr.from_list(TensorType(i64, [count, len(shape)]), places)
    held = TensorType(type.element_type, [count])
    if strings is not None:
        return SparseElementsAttr(cast(Attribute, type), rows, _strings(self, strings, held, start))
    elements, value_shape = numbers or ([], [])
    if value_shape not in ([], [count]):
        self.raise_error(f"{prod(value_shape)} values for {count} indices", start, self.pos)
    values = [element.to_type(self, type.element_type) for element in elements] * (1 if value_shape else count)
    return SparseElementsAttr(cast(Attribute, type), rows, DenseIntOrFPElementsAttr.from_list(held, cast(Any, values)))


def _empty(type: RankedStructure[Any]) -> DenseIntOrFPElementsAttr | DenseStringElementsAttr:
    from penstock.dialects.upstream.dense import has_bytes

    held = TensorType(type.element_type, [0])
    return (
        DenseIntOrFPElementsAttr.from_list(held, []) if has_bytes(type.element_type)
        else DenseStringElementsAttr(held, ArrayAttr[StringAttr]([]))
    )  # fmt: skip


def _parse_optional(self: AttrParser) -> Attribute | None:
    if self.parse_optional_keyword("sparse") is not None:
        return _parse_sparse(self)
    return _parse_other(self)


setattr(AttrParser, "_parse_builtin_dense_attr", _parse_dense)
setattr(AttrParser, "_parse_optional_builtin_parametrized_attr", _parse_optional)
