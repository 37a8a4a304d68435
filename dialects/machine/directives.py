"""How intrinsics write their operands and dims."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    StringAttr,
    i64,
)
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


def _strings(variable: AttributeVariable, op: IRDLOperation) -> list[str]:
    attr = variable.get(op)
    assert isa(attr, ArrayAttr[StringAttr])
    return [name.data for name in attr]


@irdl_custom_directive
class OperandList(CustomDirective):
    """`[a row, b granule, acc]`: the name of each operand and the strides it permits, `dense` where none is said."""

    names: AttributeVariable
    strides: AttributeVariable

    @staticmethod
    def _parse_operand(parser: Parser) -> tuple[StringAttr, StringAttr]:
        name = parser.parse_identifier()
        strides = parser.parse_optional_identifier() or DENSE
        return StringAttr(name), StringAttr(strides)

    def parse(self, parser: Parser, state: ParsingState) -> None:
        operands = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, lambda: self._parse_operand(parser))
        self.names.set(state, ArrayAttr(name for name, _ in operands))
        self.strides.set(state, ArrayAttr(strides for _, strides in operands))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        pairs = zip(_strings(self.names, op), _strings(self.strides, op), strict=True)
        texts = [name if strides == DENSE else f"{name} {strides}" for name, strides in pairs]
        with printer.in_square_brackets():
            printer.print_list(texts, printer.print_string)


@irdl_custom_directive
class DimList(CustomDirective):
    """`{m = 1, n = [1, 4], k = ?}`: each dim of the loops with its exact extent, its range, or any extent."""

    dims: AttributeVariable
    shape: AttributeVariable

    @staticmethod
    def _parse_dim(parser: Parser) -> tuple[StringAttr, DenseArrayBase]:
        name = parser.parse_identifier()
        parser.parse_punctuation("=")
        if parser.parse_optional_punctuation("?"):
            extents: list[int] = []
        else:
            listed = parser.parse_optional_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)
            extents = [parser.parse_integer()] if listed is None else listed
        return StringAttr(name), DenseArrayBase.from_list(i64, extents)

    def parse(self, parser: Parser, state: ParsingState) -> None:
        dims = parser.parse_comma_separated_list(Parser.Delimiter.BRACES, lambda: self._parse_dim(parser))
        self.dims.set(state, ArrayAttr(name for name, _ in dims))
        self.shape.set(state, ArrayAttr(extents for _, extents in dims))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        shape = self.shape.get(op)
        assert isa(shape, ArrayAttr[DenseArrayBase[I64]])
        texts: list[str] = []
        for name, extents in zip(_strings(self.dims, op), shape, strict=True):
            values = [str(value) for value in extents.iter_values()]
            match values:
                case []:
                    texts.append(f"{name} = ?")
                case [value]:
                    texts.append(f"{name} = {value}")
                case _:
                    texts.append(f"{name} = [{', '.join(values)}]")
        with printer.in_braces():
            printer.print_list(texts, printer.print_string)
