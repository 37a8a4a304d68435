# SPDX-License-Identifier: Apache-2.0
"""
Integers in text, within bounds: what xDSL 0.74 lacks, attached to its classes when this module is imported.

Python's integers are as large as the text says, and what is computed with them then fails far from it. As in MLIR a
size, a stride, a position, a constant of an affine expression and every other integer that is no constant of a type of
its own has 64 bits, and an integer type has at most 16777215.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import TypeAttribute
from xdsl.ir.affine import AffineConstantExpr, AffineExpr
from xdsl.parser import AttrParser
from xdsl.parser.affine_parser import AffineParser
from xdsl.parser.base_parser import BaseParser

MAX_WIDTH_BITS = 16777215
"""The largest width of an integer type: MLIR's."""
_MAX_SIGNED = (1 << 63) - 1
_MAX_UNSIGNED = (1 << 64) - 1
_Primary = Callable[[AffineParser, Callable[[], AffineExpr | None]], AffineExpr]

_parse_integer = BaseParser.parse_optional_integer
_parse_dimension = AttrParser.parse_shape_dimension
_parse_primary = cast(_Primary, AffineParser._parse_primary)  # pyright: ignore[reportPrivateUsage]
_parse_type = cast(
    Callable[[AttrParser], TypeAttribute | None],
    AttrParser._parse_optional_integer_or_float_type,  # pyright: ignore[reportPrivateUsage]
)


def _fitting(parser: BaseParser, value: int, start: int, largest: int) -> int:
    if not -_MAX_SIGNED - 1 <= value <= largest:
        parser.raise_error(f"{value} does not fit into 64 bits", start, start + 1)
    return value


def _parse_fitting_integer(self: BaseParser, *args: Any, **options: Any) -> int | None:
    start = self.pos
    value = _parse_integer(self, *args, **options)
    return None if value is None else _fitting(self, value, start, _MAX_UNSIGNED)


def _parse_fitting_dimension(self: AttrParser, *args: Any, **options: Any) -> int:
    start = self.pos
    return _fitting(self, _parse_dimension(self, *args, **options), start, _MAX_SIGNED)


def _parse_fitting_primary(self: AffineParser, parse_name: Callable[[], AffineExpr | None]) -> AffineExpr:
    start = self.pos
    expr = _parse_primary(self, parse_name)
    if isinstance(expr, AffineConstantExpr):
        _fitting(self, expr.value, start, _MAX_SIGNED)
    return expr


def _parse_limited_type(self: AttrParser) -> TypeAttribute | None:
    start = self.pos
    found = _parse_type(self)
    if isinstance(found, IntegerType) and cast(IntegerType, found).bitwidth > MAX_WIDTH_BITS:
        self.raise_error(f"an integer type has at most {MAX_WIDTH_BITS} bits", start, start + 1)
    return cast(TypeAttribute | None, found)


setattr(BaseParser, "parse_optional_integer", _parse_fitting_integer)
setattr(AttrParser, "parse_shape_dimension", _parse_fitting_dimension)
setattr(AffineParser, "_parse_primary", _parse_fitting_primary)
setattr(AttrParser, "_parse_optional_integer_or_float_type", _parse_limited_type)
