# SPDX-License-Identifier: Apache-2.0
"""
StableHLO as text: its operations as their pretty or generic form is read, whatever their names.

Their forms are of one kind, `stablehlo.op %a, %b, key = value {attributes} : types`, and few differ from it. Nothing is
verified here: what an operation must be is asked where it is converted. See https://openxla.org/stablehlo/spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, Operation, Region
from xdsl.irdl import IRDLOperation, irdl_op_definition, var_operand_def, var_region_def, var_result_def
from xdsl.parser import Parser

from penstock.dialects.context import make_context

PREFIXES = ("stablehlo.", "chlo.", "tosa.")


class ForeignOp(IRDLOperation):
    """An operation of StableHLO or of CHLO; what its form names is in its attributes."""

    arguments = var_operand_def()
    outcomes = var_result_def()
    bodies = var_region_def()

    @property
    def short(self) -> str:
        """Its name without that of the dialect."""
        return self.name.partition(".")[2]

    def get(self, name: str) -> Attribute | None:
        """What is called so in its form."""
        return self.properties.get(name) or self.attributes.get(name)

    @classmethod
    def parse(cls, parser: Parser) -> ForeignOp:
        return _Form(cls, parser).parse()


@cache
def _class_of(name: str) -> type[ForeignOp]:
    body = {"name": name, "__module__": __name__, "__doc__": f"`{name}`"}
    return irdl_op_definition(type(f"Hlo_{name}", (ForeignOp,), body))


def foreign_context() -> Context:
    """A context in which operations of StableHLO and CHLO are known, and attributes of theirs are text."""
    ctx = make_context(allow_unregistered=True)
    known = ctx.get_optional_op

    def get_optional_op(name: str, *, dialect_stack: Sequence[str] = ()) -> type[Operation] | None:
        return _class_of(name) if name.startswith(PREFIXES) else known(name, dialect_stack=dialect_stack)

    cast(Any, ctx).get_optional_op = get_optional_op
    return ctx


class _Form:
    """Reads what follows the name of one operation."""

    def __init__(self, op_class: type[ForeignOp], parser: Parser):
        self._class, self._parser = op_class, parser
        self._operands: list[Any] = []
        self._attributes: dict[str, Attribute] = {}

    def parse(self) -> ForeignOp:
        match self._class.name:
            case "stablehlo.constant":
                return self._constant()
            case "stablehlo.while":
                return self._while()
            case "stablehlo.reduce":
                return self._reduce()
            case _:
                return self._plain()

    def _made(
        self, operands: Sequence[Attribute], results: Sequence[Attribute], regions: Sequence[Region] = ()
    ) -> ForeignOp:
        values = self._parser.resolve_operands(self._operands, operands, self._parser.pos)
        return self._class.create(operands=values, result_types=results, attributes=self._attributes, regions=regions)

    def _constant(self) -> ForeignOp:
        self._attributes |= self._parser.parse_optional_attr_dict()
        value = self._parser.parse_attribute()
        self._attributes["value"] = value
        return self._made([], [cast(Any, value).type])

    def _plain(self) -> ForeignOp:
        parser = self._parser
        if (symbol := parser.parse_optional_symbol_name()) is not None:
            self._attributes["target"] = symbol
        if not self._at_end():
            self._item()
            while parser.parse_optional_punctuation(",") is not None:
                self._item()
        self._attributes |= parser.parse_optional_attr_dict()
        if parser.parse_optional_punctuation(":") is None:
            return self._made([], [])
        return self._made(*self._types())

    def _at_end(self) -> bool:
        return self._parser._current_token.text in (":", "{")  # pyright: ignore[reportPrivateUsage]

    def _item(self) -> None:
        """An operand, several in parentheses, a name with a value, or a word."""
        parser = self._parser
        if parser.parse_optional_punctuation("(") is not None:
            if parser.parse_optional_punctuation(")") is None:
                self._operands += parser.parse_comma_separated_list(
                    parser.Delimiter.NONE, parser.parse_unresolved_operand
                )
                parser.parse_punctuation(")")
            # `dim_numbers` of a convolution follows without a comma.
            if (name := parser.parse_optional_identifier()) is not None:
                self._named(name)
        elif (operand := parser.parse_optional_unresolved_operand()) is not None:
            self._operands.append(operand)
            if parser.parse_optional_punctuation("[") is not None:
                self._attributes["ranges"] = self._ranges()
        else:
            self._named(parser.parse_identifier("an operand or a name"))

    def _named(self, name: str) -> None:
        if self._parser.parse_optional_punctuation("=") is not None:
            self._attributes[name] = self._value()
        else:
            words = self._attributes.get("words", ArrayAttr[Attribute]([]))
            self._attributes["words"] = ArrayAttr([*cast(ArrayAttr[Attribute], words), StringAttr(name)])

    def _value(self) -> Attribute:
        """Numbers, words and lists of them; lists with `x` or `->` between are a list of lists."""
        parser = self._parser
        if parser.parse_optional_punctuation("[") is not None:
            lists = [self._list()]
            while parser.parse_optional_keyword("x") is not None or parser.parse_optional_punctuation("->") is not None:
                parser.parse_punctuation("[")
                lists.append(self._list())
            return lists[0] if len(lists) == 1 else ArrayAttr(lists)
        if parser.parse_optional_punctuation("{") is not None:
            entries: dict[str, Attribute] = {}
            while parser.parse_optional_punctuation("}") is None:
                name = parser.parse_identifier()
                parser.parse_punctuation("=")
                entries[name] = self._value()
                parser.parse_optional_punctuation(",")
            return DictionaryAttr(entries)
        if (number := parser.parse_optional_integer(allow_boolean=False)) is not None:
            return IntegerAttr(number, i64)
        if (word := parser.parse_optional_identifier()) is not None:
            return StringAttr(word)
        return parser.parse_attribute()

    def _list(self) -> Attribute:
        """What is left of a list behind its bracket."""
        items: list[Attribute] = []
        while self._parser.parse_optional_punctuation("]") is None:
            items.append(self._value())
            self._parser.parse_optional_punctuation(",")
        return ArrayAttr(items)

    def _ranges(self) -> Attribute:
        """`1:3, 0:6:2]` as a list of starts, limits and steps."""
        parser = self._parser
        found: list[Attribute] = []
        while parser.parse_optional_punctuation("]") is None:
            numbers = [parser.parse_integer()]
            while parser.parse_optional_punctuation(":") is not None:
                numbers.append(parser.parse_integer())
            found.append(ArrayAttr([IntegerAttr(number, i64) for number in (*numbers, 1)[:3]]))
            parser.parse_optional_punctuation(",")
        return ArrayAttr(found)

    def _types(self) -> tuple[Sequence[Attribute], Sequence[Attribute]]:
        """The types of the operands and of the results, of which a form may leave out those that follow."""
        parser, count = self._parser, len(self._operands)
        first = parser.parse_type()
        if isinstance(first, FunctionType):
            return list(first.inputs), list(first.outputs)
        given = [first]
        while parser.parse_optional_punctuation(",") is not None:
            given.append(parser.parse_type())
        if self._class.name.endswith(".return"):
            return given, []
        result = parser.parse_type() if parser.parse_optional_punctuation("->") is not None else given[-1]
        # The last type is that of all operands that are left: `select %p, %a, %b : tensor<i1>, tensor<f32>`.
        return [*given, *[given[-1]] * count][:count], [result]

    def _while(self) -> ForeignOp:
        parser, names = self._parser, list[Any]()

        def pair() -> None:
            names.append(parser.parse_argument(expect_type=False))
            parser.parse_punctuation("=")
            self._operands.append(parser.parse_unresolved_operand())

        parser.parse_comma_separated_list(parser.Delimiter.PAREN, pair)
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":") is not None:
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        if (more := parser.parse_optional_attr_dict_with_keyword()) is not None:
            self._attributes |= more.data
        regions: list[Region] = []
        for keyword in ("cond", "do"):
            parser.parse_keyword(keyword)
            regions.append(parser.parse_region([name.resolve(type) for name, type in zip(names, types, strict=True)]))
        return self._made(types, types, regions)

    def _reduce(self) -> ForeignOp:
        parser, values, starts = self._parser, list[Any](), list[Any]()

        def pair() -> None:
            parser.parse_punctuation("(")
            values.append(parser.parse_unresolved_operand())
            parser.parse_keyword("init")
            parser.parse_punctuation(":")
            starts.append(parser.parse_unresolved_operand())
            parser.parse_punctuation(")")

        parser.parse_comma_separated_list(parser.Delimiter.NONE, pair)
        self._operands = [*values, *starts]
        if parser.parse_optional_keyword("applies") is not None:
            self._attributes["reducer"] = StringAttr(parser.parse_identifier())
        parser.parse_keyword("across")
        self._named(parser.parse_identifier())
        self._attributes |= parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        operands, results = self._types()
        regions: list[Region] = []
        if parser.parse_optional_keyword("reducer") is not None:
            arguments: list[list[Parser.Argument]] = [
                parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument) for _ in values
            ]
            # Of each value both that are combined stand together; the region has all first ones before all others.
            regions = [parser.parse_region([pair[side] for side in (0, 1) for pair in arguments])]
        return self._made(operands, results, regions)
