# SPDX-License-Identifier: Apache-2.0
"""
The text of a declared `func.func`: what xDSL 0.74 lacks, attached to its class when this module is imported.

xDSL reads the attributes of the arguments of a declaration and forgets them, and prints none of arguments and results.
Here both are kept: `func.func private @f(tensor<4xf32> {graph.name = "x"}) -> (f32 {graph.name = "y"})`.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import Func, FuncOp
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.printer import Printer

_Typed = tuple[Attribute, dict[str, Attribute]]
_parse_function = FuncOp.parse
_print_function = FuncOp.print
_RESERVED = ("sym_name", "function_type", "sym_visibility")


def _parse_typed(parser: Parser) -> _Typed:
    typed = parser.parse_type(), parser.parse_optional_dictionary_attr_dict()
    parser.parse_optional_location()
    return typed


def _parse_results(parser: Parser) -> Sequence[_Typed]:
    if parser.parse_optional_punctuation("->") is None:
        return []
    listed = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_typed(parser))
    return [(parser.parse_type(), {})] if listed is None else listed


def _attributes(typed: Sequence[_Typed]) -> ArrayAttr[DictionaryAttr] | None:
    if not any(attributes for _, attributes in typed):
        return None
    return ArrayAttr([DictionaryAttr(attributes) for _, attributes in typed])


def _parse(cls: type[FuncOp], parser: Parser) -> FuncOp:
    start = parser.pos
    visibility = parser.parse_optional_visibility_keyword()
    name = parser.parse_symbol_name()
    parser.parse_punctuation("(")
    if parser.parse_optional_punctuation(")") is not None or parser.parse_optional_argument(False) is not None:
        # No arguments, or named ones, of a definition.
        parser._resume_from(start)  # pyright: ignore[reportPrivateUsage]
        return _parse_function(parser)
    inputs = parser.parse_comma_separated_list(parser.Delimiter.NONE, lambda: _parse_typed(parser))
    parser.parse_punctuation(")")
    results = _parse_results(parser)
    others = parser.parse_optional_attr_dict_with_keyword(_RESERVED)
    if parser.pos < len(parser.lexer.input.content) and parser.lexer.input.at(parser.pos) == "{":
        parser.raise_error("the arguments of a function with a body have names")
    types = [type for type, _ in inputs], [type for type, _ in results]
    op = cls.external(name.data, *types)
    op.sym_visibility = visibility
    op.arg_attrs, op.res_attrs = _attributes(inputs), _attributes(results)
    if others is not None:
        op.attributes |= others.data
    return op


def _print(self: FuncOp, printer: Printer) -> None:
    if self.body.blocks or (self.arg_attrs is None and self.res_attrs is None):
        _print_function(self, printer)
        return

    def print_typed(typed: tuple[Attribute, DictionaryAttr]) -> None:
        printer.print_attribute(typed[0])
        printer.print_op_attributes(typed[1].data)

    none = DictionaryAttr({})
    types = self.function_type
    inputs = zip(types.inputs, self.arg_attrs or [none] * len(types.inputs), strict=True)
    results = zip(types.outputs, self.res_attrs or [none] * len(types.outputs), strict=True)
    printer.print_string(f" {self.sym_visibility.data} " if self.sym_visibility else " ")
    printer.print_symbol_name(self.sym_name.data)
    with printer.in_parens():
        printer.print_list(inputs, print_typed)
    if types.outputs:
        printer.print_string(" -> ")
        with printer.in_parens():
            printer.print_list(results, print_typed)
    printer.print_op_attributes(self.attributes, print_keyword=True)


setattr(FuncOp, "parse", classmethod(_parse))
setattr(FuncOp, "print", _print)

DIALECT = Func
