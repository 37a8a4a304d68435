# SPDX-License-Identifier: Apache-2.0
"""
The assembly format of a float property: its shortest decimal text, or `inf`, `-inf`, `nan`, or the bits of another NaN.
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import AnyFloat, Float32Type, FloatAttr, f64
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    CustomDirective,
    ParsingState,
    PrintingState,
    TypedAttributeVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.hints import isa

from penstock.dialects.upstream.floats import parse_float


def number_text(value: float, element: AnyFloat = f64) -> str:
    """The shortest decimal that parses back to `value` in the type `element`, f32 or f64."""
    if math.isnan(value):
        bits = element.pack((value,))
        return "nan" if bits == element.pack((math.nan,)) else f"0x{bits[::-1].hex()}"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    import numpy as np  # most texts have no number

    number = np.float32(value) if isinstance(element, Float32Type) else np.float64(value)
    if value != 0 and not 1e-4 <= abs(value) < 1e16:
        return np.format_float_scientific(number, unique=True, trim="0")
    return np.format_float_positional(number, unique=True, trim="0")


@irdl_custom_directive
class Number(CustomDirective):
    """
    A float property printed without its type.

    The directive that PyRDL would choose prints six digits and the exponent of every number.
    """

    value: TypedAttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        element = self.value.unique_type
        assert isinstance(element, AnyFloat)
        start = parser.pos
        negative = parser.parse_optional_punctuation("-") is not None
        if parser.parse_optional_keyword("inf") is not None:
            number = -math.inf if negative else math.inf
        elif not negative and parser.parse_optional_keyword("nan") is not None:
            number = math.nan
        else:
            parser._resume_from(start)  # pyright: ignore[reportPrivateUsage]
            number = parse_float(parser, element)
        self.value.set(state, FloatAttr(number, element))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        attribute = self.value.get(op)
        assert isa(attribute, FloatAttr)
        state.print_whitespace(printer)
        printer.print_string(number_text(attribute.value.data, attribute.type))

    def is_present(self, op: IRDLOperation) -> bool:
        return self.value.is_present(op)

    def is_anchorable(self) -> bool:
        return self.value.is_anchorable()
