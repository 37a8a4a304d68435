# SPDX-License-Identifier: Apache-2.0
"""
Ops of MLIR's `transform` dialect on structured ops on tensors, as mlir-opt 19 reads and prints them.

See https://mlir.llvm.org/docs/Dialects/Transform/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects import transform as base
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DenseArrayBase,
    FunctionType,
    IntegerAttr,
    StringAttr,
    i32,
    i64,
)
from xdsl.dialects.utils import (
    parse_dynamic_index_list_without_types,
    print_dynamic_index_list,
    verify_dynamic_index_list,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream import amend
from penstock.dialects.upstream.gpu import DeviceMappingAttr
from penstock.dialects.upstream.handle_ops import I64_ARRAY, HandleOp


def parse_type_of(
    parser: Parser, operands: Sequence[UnresolvedOperand]
) -> tuple[Sequence[SSAValue], Sequence[Attribute]]:
    """The type of an op, `(...) -> ...`: its operands, and the types of its results."""
    at = parser.pos
    type = parser.parse_attribute()
    if not isinstance(type, FunctionType):
        parser.raise_error("the type of a function is expected", at, parser.pos)
    return parser.resolve_operands(operands, type.inputs.data, at), type.outputs.data


@irdl_op_definition
class FuseOp(HandleOp):
    """Tile an op, and compute its producers in the tile.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredfuse
    """

    name = "transform.structured.fuse"
    target = operand_def(base.TransformOpHandleType)
    tile_sizes = opt_prop_def(ArrayAttr[IntegerAttr])
    tile_interchange = opt_prop_def(ArrayAttr[IntegerAttr])
    transformed = result_def(base.TransformOpHandleType)
    loops = var_result_def(base.TransformOpHandleType)

    @classmethod
    def parse(cls, parser: Parser) -> FuseOp:
        target = parser.parse_unresolved_operand()
        properties: dict[str, Attribute] = {}
        for name, keyword in (("tile_sizes", ""), ("tile_interchange", "interchange")):
            if keyword and parser.parse_optional_keyword(keyword) is None:
                continue
            numbers = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
            if numbers is not None:
                properties[name] = ArrayAttr([IntegerAttr(number, i64) for number in numbers])
        attributes = parser.parse_optional_attr_dict()
        for name in ("tile_sizes", "tile_interchange"):
            if name in attributes:
                properties[name] = attributes.pop(name)
        parser.parse_punctuation(":")
        operands, results = parse_type_of(parser, [target])
        return cls.create(operands=operands, result_types=results, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.target)
        for keyword, numbers in (("", self.tile_sizes), ("interchange ", self.tile_interchange)):
            if numbers is not None:
                printer.print_string(f" {keyword}{[number.value.data for number in numbers]}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)


@irdl_op_definition
class TileUsingForallOp(HandleOp):
    """Tile an op in a loop whose iterations run at once.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredtile_using_forall
    """

    name = "transform.structured.tile_using_forall"
    target = operand_def(base.TransformOpHandleType)
    num_threads = var_operand_def(base.TransformHandleType)
    tile_sizes = var_operand_def(base.TransformHandleType)
    packed_num_threads = opt_operand_def(base.TransformHandleType)
    packed_tile_sizes = opt_operand_def(base.TransformHandleType)
    static_num_threads = opt_prop_def(I64_ARRAY)
    static_tile_sizes = opt_prop_def(I64_ARRAY)
    mapping = opt_prop_def(ArrayAttr[DeviceMappingAttr])
    tiled_op = result_def(base.TransformOpHandleType)
    forall_op = result_def(base.TransformOpHandleType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def verify_(self) -> None:
        for static, dynamic in (
            (self.static_num_threads, self.num_threads),
            (self.static_tile_sizes, self.tile_sizes),
        ):
            verify_dynamic_index_list(() if static is None else static.get_values(), dynamic, DYNAMIC_INDEX)
        given = (self.static_num_threads, self.static_tile_sizes, self.packed_num_threads, self.packed_tile_sizes)
        if all(each is None for each in given):
            raise VerifyException("either num_threads or tile_sizes must be specified")

    @classmethod
    def parse(cls, parser: Parser) -> TileUsingForallOp:
        target = parser.parse_unresolved_operand()
        lists: dict[str, Sequence[UnresolvedOperand]] = {"num_threads": (), "tile_sizes": ()}
        packed: dict[str, Sequence[UnresolvedOperand]] = {"num_threads": (), "tile_sizes": ()}
        properties: dict[str, Attribute] = {}
        while (name := next((name for name in lists if parser.parse_optional_keyword(name) is not None), "")) != "":
            if parser.parse_optional_punctuation("*") is not None:
                with parser.in_parens():
                    packed[name] = [parser.parse_unresolved_operand()]
            else:
                lists[name], static = parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX)
                properties[f"static_{name}"] = DenseArrayBase.from_list(i64, static)
        if parser.parse_optional_punctuation("(") is not None:
            parser.parse_keyword("mapping")
            parser.parse_punctuation("=")
            properties["mapping"] = parser.parse_attribute()
            parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        segments = [[target], *lists.values(), *packed.values()]
        operands, results = parse_type_of(parser, [operand for segment in segments for operand in segment])
        properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [len(segment) for segment in segments])
        return cls.create(operands=operands, result_types=results, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.target)
        for name, values, static, packed in (
            ("num_threads", self.num_threads, self.static_num_threads, self.packed_num_threads),
            ("tile_sizes", self.tile_sizes, self.static_tile_sizes, self.packed_tile_sizes),
        ):
            if packed is not None:
                printer.print_string(f" {name} *(")
                printer.print_operand(packed)
                printer.print_string(")")
            elif static is not None:
                printer.print_string(f" {name} ")
                print_dynamic_index_list(printer, DYNAMIC_INDEX, values, static.get_values())
        if self.mapping is not None:
            printer.print_string("(mapping = ")
            printer.print_attribute(self.mapping)
            printer.print_string(")")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)


@irdl_op_definition
class PadStructuredOp(HandleOp):
    """Pad the operands of an op, and compute it on them.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredpad
    """

    name = "transform.structured.pad"
    target = operand_def(base.TransformOpHandleType)
    pad_to_multiple_of = var_operand_def(base.TransformHandleType)
    padding_values = opt_prop_def(ArrayAttr)
    padding_dimensions = opt_prop_def(ArrayAttr[IntegerAttr])
    static_pad_to_multiple_of = opt_prop_def(I64_ARRAY)
    pack_paddings = opt_prop_def(ArrayAttr[IntegerAttr])
    transpose_paddings = opt_prop_def(ArrayAttr[ArrayAttr[IntegerAttr]])
    copy_back_op = opt_prop_def(StringAttr, StringAttr("bufferization.materialize_in_destination"))
    padded = result_def(base.TransformOpHandleType)
    pad = result_def(base.TransformOpHandleType)
    copy = result_def(base.TransformOpHandleType)

    def verify_(self) -> None:
        multiples = () if self.static_pad_to_multiple_of is None else self.static_pad_to_multiple_of.get_values()
        verify_dynamic_index_list(multiples, self.pad_to_multiple_of, DYNAMIC_INDEX)
        dims = [dim.value.data for dim in self.padding_dimensions or ()]
        if any(dim < 0 for dim in dims) or len({*dims}) < len(dims):
            raise VerifyException(f"padding_dimensions are different dims from 0, not {dims}")
        if multiples and len(multiples) != len(dims):
            raise VerifyException(f"there are {len(multiples)} multiples for {len(dims)} padding_dimensions")

    @classmethod
    def parse(cls, parser: Parser) -> PadStructuredOp:
        target = parser.parse_unresolved_operand()
        properties: dict[str, Attribute] = {}
        multiples: Sequence[UnresolvedOperand] = ()
        if parser.parse_optional_keyword("pad_to_multiple_of") is not None:
            multiples, static = parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX)
            properties["static_pad_to_multiple_of"] = DenseArrayBase.from_list(i64, static)
        attributes = parser.parse_optional_attr_dict()
        for name in cls.OPTIONS:
            if name in attributes:
                properties[name] = attributes.pop(name)
        parser.parse_punctuation(":")
        operands, results = parse_type_of(parser, [target, *multiples])
        return cls.create(operands=operands, result_types=results, properties=properties, attributes=attributes)

    OPTIONS: ClassVar = ("copy_back_op", "pack_paddings", "padding_dimensions", "padding_values", "transpose_paddings")
    """The properties that stand in the attribute dictionary."""

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.target)
        if self.static_pad_to_multiple_of is not None:
            printer.print_string(" pad_to_multiple_of ")
            static = self.static_pad_to_multiple_of.get_values()
            print_dynamic_index_list(printer, DYNAMIC_INDEX, self.pad_to_multiple_of, static)
        given = {name: self.properties[name] for name in self.OPTIONS if name in self.properties}
        printer.print_op_attributes(given | self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)


OPS = (FuseOp, TileUsingForallOp, PadStructuredOp)
"""All of them."""

amend.values(base.TileOp, loops=base.TransformOpHandleType)
