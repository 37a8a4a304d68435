# SPDX-License-Identifier: Apache-2.0
"""
What a tuner chooses in a schedule: ops of MLIR's `transform` dialect that mlir-opt 19 does not have yet, in their text.

See https://mlir.llvm.org/docs/Dialects/Transform/
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import transform as base
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_region_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.upstream.handle_ops import ANY_PARAM


@irdl_op_definition
class KnobOp(IRDLOperation):
    """A parameter with the values that a tuner may give it, and the one that it has, if any.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformtuneknob
    """

    name = "transform.tune.knob"
    knob_name = prop_def(StringAttr, prop_name="name")
    options = prop_def(Attribute)
    selected = opt_prop_def(Attribute)
    result = result_def(base.TransformParamHandleType)
    assembly_format = "`<` $name `>` (`=` $selected^ `from`)? `options` `=` $options attr-dict `->` type($result)"

    def __init__(self, name: str, options: Sequence[int], selected: int | None = None):
        properties: dict[str, Attribute | None] = {
            "name": StringAttr(name),
            "options": ArrayAttr([IntegerAttr(option, i64) for option in options]),
            "selected": IntegerAttr(selected, i64) if selected is not None else None,
        }
        super().__init__(properties=properties, result_types=[ANY_PARAM])

    def verify_(self) -> None:
        if self.selected is not None and isa(self.options, ArrayAttr) and self.selected not in self.options.data:
            raise VerifyException(f"{self.selected} is none of the options of knob {self.knob_name}")


@irdl_op_definition
class AlternativesOp(IRDLOperation):
    """Regions of which a tuner may choose one, and the number of the one that is chosen, if any.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformtunealternatives
    """

    name = "transform.tune.alternatives"
    choice_name = prop_def(StringAttr, prop_name="name")
    selected_region_attr = opt_prop_def(IntegerAttr)
    selected_region_param = opt_operand_def(base.TransformParamHandleType)
    results_ = var_result_def(base.TransformHandleType)
    alternatives = var_region_def("single_block")

    def verify_(self) -> None:
        if self.selected_region_attr is not None and self.selected_region_param is not None:
            raise VerifyException("the selected region is a number or a parameter, not both")
        number = self.selected_region_attr.value.data if self.selected_region_attr is not None else 0
        if not 0 <= number < len(self.alternatives):
            raise VerifyException(f"there is no region {number}: there are {len(self.alternatives)}")
        for region in self.alternatives:
            last = region.block.last_op
            types = tuple(last.operand_types) if isinstance(last, base.YieldOp) else None
            if types != tuple(self.result_types):
                raise VerifyException("a region ends in transform.yield of the results")

    @classmethod
    def parse(cls, parser: Parser) -> AlternativesOp:
        parser.parse_punctuation("<")
        properties: dict[str, Attribute] = {"name": StringAttr(parser.parse_str_literal())}
        parser.parse_punctuation(">")
        selected = None
        if parser.parse_optional_keyword("selected_region") is not None:
            parser.parse_punctuation("=")
            selected = parser.parse_optional_unresolved_operand()
            if selected is None:
                properties["selected_region_attr"] = IntegerAttr(parser.parse_integer(allow_negative=False), i64)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        operands: list[SSAValue] = []
        if selected is not None:
            parser.parse_punctuation(":")
            operands.append(parser.resolve_operand(selected, parser.parse_type()))
        types: list[Attribute] = []
        if parser.parse_optional_punctuation("->") is not None:
            types = list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type))
        regions = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_region)
        return cls.create(
            operands=operands,
            result_types=types,
            properties=properties,
            attributes=attributes.data if attributes is not None else {},
            regions=regions,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string("<")
        printer.print_attribute(self.choice_name)
        printer.print_string(">")
        if self.selected_region_param is not None:
            printer.print_string(" selected_region = ")
            printer.print_operand(self.selected_region_param)
        elif self.selected_region_attr is not None:
            printer.print_string(f" selected_region = {self.selected_region_attr.value.data}")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        if self.selected_region_param is not None:
            printer.print_string(" : ")
            printer.print_attribute(self.selected_region_param.type)
        if self.results_:
            printer.print_string(" -> ")
            printer.print_list(self.result_types, printer.print_attribute)
        printer.print_string(" ")
        printer.print_list(self.alternatives, printer.print_region)


OPS = (KnobOp, AlternativesOp)
"""All of them."""
