# SPDX-License-Identifier: Apache-2.0
"""How intrinsics write their operands, their dims, and cycles that depend on them."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from xdsl.dialects.builtin import I64, ArrayAttr, DenseArrayBase, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.hints import isa

from penstock.dialects.machine.part import DENSE


class _NamedList(CustomDirective):
    """Names, and an attribute for each, in two arrays of the operation."""

    DELIMITER: ClassVar[Parser.Delimiter]
    names: AttributeVariable
    values: AttributeVariable

    @abstractmethod
    def parse_value(self, parser: Parser) -> Attribute:
        """What follows a name."""

    @abstractmethod
    def text_of(self, value: Attribute) -> str:
        """The same, with what separates it from the name."""

    def parse(self, parser: Parser, state: ParsingState) -> None:
        pairs = parser.parse_comma_separated_list(
            self.DELIMITER, lambda: (StringAttr(parser.parse_identifier()), self.parse_value(parser))
        )
        self.names.set(state, ArrayAttr(name for name, _ in pairs))
        self.values.set(state, ArrayAttr(value for _, value in pairs))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        names, values = self.names.get(op), self.values.get(op)
        assert isa(names, ArrayAttr[StringAttr])
        assert isa(values, ArrayAttr)
        texts = [f"{name.data}{self.text_of(value)}" for name, value in zip(names, values, strict=True)]
        brackets = self.DELIMITER.value
        assert brackets is not None
        with printer.delimited(*brackets):
            printer.print_list(texts, printer.print_string)


@irdl_custom_directive
class OperandList(_NamedList):
    """`[a row, b granule, acc]`: the name of each operand and the strides it permits, `dense` where none is said."""

    DELIMITER: ClassVar[Parser.Delimiter] = Parser.Delimiter.SQUARE
    names: AttributeVariable
    values: AttributeVariable

    def parse_value(self, parser: Parser) -> Attribute:
        return StringAttr(parser.parse_optional_identifier() or DENSE)

    def text_of(self, value: Attribute) -> str:
        assert isinstance(value, StringAttr)
        return "" if value.data == DENSE else f" {value.data}"


@irdl_custom_directive
class DimList(_NamedList):
    """`{m = 1, n = [1, 4], k = ?}`: each dim of the loops with its exact extent, its range, or any extent."""

    DELIMITER: ClassVar[Parser.Delimiter] = Parser.Delimiter.BRACES
    names: AttributeVariable
    values: AttributeVariable

    def parse_value(self, parser: Parser) -> Attribute:
        parser.parse_punctuation("=")
        if parser.parse_optional_punctuation("?"):
            return DenseArrayBase.from_list(i64, [])
        listed = parser.parse_optional_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)
        return DenseArrayBase.from_list(i64, [parser.parse_integer()] if listed is None else listed)

    def text_of(self, value: Attribute) -> str:
        assert isa(value, DenseArrayBase[I64])
        match [str(extent) for extent in value.iter_values()]:
            case []:
                return " = ?"
            case [extent]:
                return f" = {extent}"
            case extents:
                return f" = [{', '.join(extents)}]"


@irdl_custom_directive
class CycleCount(CustomDirective):
    """`16`, or an expression of the dims, `"max(m, 256)"`: cycles of one application."""

    count: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        text = parser.parse_optional_str_literal()
        self.count.set(state, IntegerAttr(parser.parse_integer(), i64) if text is None else StringAttr(text))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        match self.count.get(op):
            case IntegerAttr() as number:
                printer.print_string(str(number.value.data))
            case text:
                assert text is not None
                printer.print_attribute(text)

    def is_anchorable(self) -> bool:
        return True

    def is_present(self, op: IRDLOperation) -> bool:
        return self.count.get(op) is not None
