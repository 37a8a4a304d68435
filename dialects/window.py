# SPDX-License-Identifier: Apache-2.0
"""
Windows: what `mem.copy` and `accel.dma` have in common.

A transfer moves a static box between two memrefs of equal rank and element type. One side is a whole
memref, whose shape is the box; the other may be a *window*: the box at an offset that may be dynamic and
may be negative, so that the box is partly or wholly out of bounds of that side.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    IndexType,
    IntegerType,
    MemRefType,
    i64,
)
from xdsl.dialects.utils import get_dynamic_index_list, print_dynamic_index_list, split_dynamic_index_list
from xdsl.dialects.utils.dynamic_index_list import parse_dynamic_index_without_type
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    operand_def,
    opt_operand_def,
    prop_def,
    var_operand_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa


@irdl_custom_directive
class Window(CustomDirective):
    """The offsets of a window, `[%i, -1]`, or nothing where the side is taken whole."""

    dynamic_offsets: VariadicOperandVariable
    static_offsets: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        static: list[int] = []
        dynamic: list[Attribute | SSAValue] = []
        if parser.parse_optional_punctuation("["):
            while True:
                value = parse_dynamic_index_without_type(parser)
                if isinstance(value, int):
                    static.append(value)
                else:
                    static.append(DYNAMIC_INDEX)
                    dynamic.append(value)  # pyright: ignore[reportArgumentType]
                if not parser.parse_optional_punctuation(","):
                    break
            parser.parse_punctuation("]")
        self.dynamic_offsets.set(state, dynamic)  # pyright: ignore[reportArgumentType]
        self.static_offsets.set(state, DenseArrayBase.from_list(i64, static))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        static = self.static_offsets.get(op)
        assert isa(static, DenseArrayBase[IntegerType])
        values = static.get_values()
        if values:
            print_dynamic_index_list(printer, DYNAMIC_INDEX, self.dynamic_offsets.get(op), values)
        state.last_was_punctuation = False
        state.should_emit_space = True


@irdl_custom_directive
class IntegerList(CustomDirective):
    """A list of integers as people write it, `[16, 32]`."""

    values: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        values = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        self.values.set(state, DenseArrayBase.from_list(i64, values))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        values = self.values.get(op)
        assert isa(values, DenseArrayBase[IntegerType])
        with printer.in_square_brackets():
            printer.print_list(values.get_values(), lambda value: printer.print_string(str(value)))
        state.last_was_punctuation = False
        state.should_emit_space = True

    def is_present(self, op: IRDLOperation) -> bool:
        return self.values.get(op) is not None

    def is_anchorable(self) -> bool:
        return True


class WindowedTransfer(IRDLOperation, ABC):
    """The fields and checks of a transfer of a box; the docstring of this file says what a window is."""

    T: ClassVar = VarConstraint("T", AnyAttr())

    source = operand_def(MemRefType.constr(T))
    """Where the box is read."""
    dest = operand_def(MemRefType.constr(T))
    """Where it is written; one of the two sides is the box as a whole."""
    source_offsets = var_operand_def(IndexType)
    """The first element of the window of the source, in each dimension, where it is not a number."""
    dest_offsets = var_operand_def(IndexType)
    """The same of the destination."""
    static_source_offsets = prop_def(DenseArrayBase.constr(i64))
    """The numbers among the offsets of the source; empty where it is taken whole."""
    static_dest_offsets = prop_def(DenseArrayBase.constr(i64))
    """The same of the destination."""
    padding = opt_operand_def(T)
    """The scalar read where the window of the source lies outside it."""

    @staticmethod
    def split_offsets(
        source: Sequence[int | SSAValue], dest: Sequence[int | SSAValue]
    ) -> tuple[list[Sequence[SSAValue]], dict[str, Attribute]]:
        """The dynamic offsets of both sides, as operands, and the static ones, as properties."""
        dynamic: list[Sequence[SSAValue]] = []
        static: dict[str, Attribute] = {}
        for side, offsets in (("source", source), ("dest", dest)):
            numbers, values = split_dynamic_index_list(offsets, DYNAMIC_INDEX)
            dynamic.append(values)
            static[f"static_{side}_offsets"] = DenseArrayBase.from_list(i64, numbers)
        return dynamic, static

    @property
    def source_type(self) -> MemRefType[Attribute]:
        assert isa(self.source.type, MemRefType)
        return self.source.type

    @property
    def dest_type(self) -> MemRefType[Attribute]:
        assert isa(self.dest.type, MemRefType)
        return self.dest.type

    @property
    def box(self) -> tuple[int, ...]:
        """The shape of the box that is moved, in elements."""
        has_window = len(self.static_source_offsets.get_values()) > 0
        return (self.dest_type if has_window else self.source_type).get_shape()

    @property
    def window_side(self) -> str | None:
        """Which side is a window, "source" or "dest"; None if both are whole."""
        if len(self.static_source_offsets.get_values()):
            return "source"
        return "dest" if len(self.static_dest_offsets.get_values()) else None

    def mixed_source_offsets(self) -> list[int | SSAValue]:
        """Where the box begins in the source, one entry a dim; zeros where the source is whole."""
        return self._mixed(self.static_source_offsets, self.source_offsets)

    def mixed_dest_offsets(self) -> list[int | SSAValue]:
        """Where the box begins in the destination, one entry a dim; zeros where it is whole."""
        return self._mixed(self.static_dest_offsets, self.dest_offsets)

    def _mixed(self, static: DenseArrayBase[IntegerType], dynamic: Sequence[SSAValue]) -> list[int | SSAValue]:
        values = static.get_values()
        if not values:
            return [0] * self.source_type.get_num_dims()
        return list(get_dynamic_index_list(values, dynamic, DYNAMIC_INDEX))

    def window_lies_inside(self, at: Sequence[int | SSAValue], whole: Sequence[int]) -> bool | None:
        """Whether the box at `at` lies in `whole`; None where an offset or size is dynamic and the rest fits."""
        known = True
        for offset, size, bound in zip(at, self.box, whole, strict=True):
            if DYNAMIC_INDEX in (size, bound):
                known = known and offset == 0 and size == bound
            elif not isinstance(offset, int):
                if size > bound:
                    return False
                known = False
            elif offset < 0 or offset + size > bound:
                return False
        return True if known else None

    def may_be_open(self) -> bool:
        """Whether sizes may be known only in a run."""
        return False

    def verify_window(self, *, may_be_out_of_bounds: bool) -> None:
        """The checks of every transfer; `may_be_out_of_bounds` says whether a source window may leave the source."""
        source, dest = self.source_type, self.dest_type
        if not (source.has_static_shape() and dest.has_static_shape()) and not self.may_be_open():
            raise VerifyException("a transfer moves a static box: both shapes must be static")
        if source.get_num_dims() != dest.get_num_dims():
            raise VerifyException(f"source has {source.get_num_dims()} dims, destination {dest.get_num_dims()}")
        for side, static, dynamic in (
            ("source", self.static_source_offsets, self.source_offsets),
            ("destination", self.static_dest_offsets, self.dest_offsets),
        ):
            values = static.get_values()
            if values and len(values) != source.get_num_dims():
                raise VerifyException(
                    f"the window of the {side} has {len(values)} offsets for {source.get_num_dims()} dims"
                )
            if list(values).count(DYNAMIC_INDEX) != len(dynamic):
                raise VerifyException(
                    f"the window of the {side} marks {list(values).count(DYNAMIC_INDEX)} dynamic "
                    f"offsets, but {len(dynamic)} are given"
                )
        if self.static_source_offsets.get_values() and self.static_dest_offsets.get_values():
            raise VerifyException("only one side of a transfer may be a window")
        if self.window_side is None and source.get_shape() != dest.get_shape():
            raise VerifyException(
                f"source is {_shape(source)}, destination {_shape(dest)}: without a window they must agree"
            )
        if self.padding is not None and self.window_side != "source":
            raise VerifyException("`else` needs a window of the source")
        if (
            self.window_side == "source"
            and not may_be_out_of_bounds
            and self.window_lies_inside(self.mixed_source_offsets(), source.get_shape()) is False
        ):
            raise VerifyException(
                f"the window {_shape(dest)} leaves the source {_shape(source)}: say `else` what is read there"
            )


def _shape(type: MemRefType[Attribute]) -> str:
    return "x".join(str(size) for size in type.get_shape()) or "a scalar"
