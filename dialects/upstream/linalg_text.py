# SPDX-License-Identifier: Apache-2.0
"""
The text of structured operations of linalg: operands and results, and the attributes that say what is computed.

See https://mlir.llvm.org/docs/Dialects/Linalg/#attributes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, OpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum


class TypeFn(StrEnum):
    """How a named operation casts its operands."""

    CAST_SIGNED = "cast_signed"
    CAST_UNSIGNED = "cast_unsigned"


class UnaryFn(StrEnum):
    """What `linalg.elemwise_unary` computes."""

    EXP = "exp"
    LOG = "log"
    ABS = "abs"
    CEIL = "ceil"
    FLOOR = "floor"
    NEGF = "negf"
    RECIPROCAL = "reciprocal"
    ROUND = "round"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    SQUARE = "square"
    TANH = "tanh"
    ERF = "erf"


class BinaryFn(StrEnum):
    """What `linalg.elemwise_binary` computes."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    DIV_UNSIGNED = "div_unsigned"
    MAX_SIGNED = "max_signed"
    MIN_SIGNED = "min_signed"
    MAX_UNSIGNED = "max_unsigned"
    MIN_UNSIGNED = "min_unsigned"
    POWF = "powf"


class _InAngles(OpaqueSyntaxAttribute):
    """The parameter stands in angle brackets."""

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Any:
        """The name in angle brackets."""
        with parser.in_angle_brackets():
            return super().parse_parameter(parser)  # pyright: ignore

    def print_parameter(self, printer: Printer) -> None:
        """The name in angle brackets."""
        with printer.in_angle_brackets():
            super().print_parameter(printer)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@irdl_attr_definition
class TypeFnAttr(_InAngles, EnumAttribute[TypeFn]):
    """How a named operation casts its operands to the type of its accumulator."""

    name = "linalg.type_fn"


@irdl_attr_definition
class UnaryFnAttr(_InAngles, EnumAttribute[UnaryFn]):
    """What `linalg.elemwise_unary` computes."""

    name = "linalg.unary_fn"


@irdl_attr_definition
class BinaryFnAttr(_InAngles, EnumAttribute[BinaryFn]):
    """What `linalg.elemwise_binary` computes."""

    name = "linalg.binary_fn"


FUNCTIONS = (TypeFnAttr, UnaryFnAttr, BinaryFnAttr)


def parse_operands(parser: Parser, keyword: str) -> Sequence[SSAValue]:
    """The operands `keyword(%a, %b : t, t)`, if the keyword is there."""
    if parser.parse_optional_keyword(keyword) is None:
        return ()
    with parser.in_parens():
        if parser.parse_optional_punctuation(":") is not None:
            return ()
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        start = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return parser.resolve_operands(names, types, start)


def parse_results(parser: Parser) -> Sequence[Attribute]:
    """The types `-> t`, or `-> (t, t)`, if there are any."""
    if parser.parse_optional_punctuation("->") is None:
        return ()
    listed = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if listed is not None:
        return listed
    return parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
