"""
What xDSL 0.74 lacks of the tensor dialect: `tensor.parallel_insert_slice`, and the attributes of `tensor.empty`.

See https://mlir.llvm.org/docs/Dialects/TensorOps/#tensorparallel_insert_slice-tensorparallelinsertsliceop
"""

from __future__ import annotations

from typing import ClassVar, Self

from xdsl.dialects import tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, TensorType, i64
from xdsl.dialects.tensor import InsertSliceOp, Tensor
from xdsl.dialects.utils import DynamicIndexList, verify_dynamic_index_list
from xdsl.ir import Dialect
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer


class EmptyOp(tensor.EmptyOp):
    """`tensor.empty`, with its attributes in the text, where MLIR has them."""

    VERIFIES_ALONE: ClassVar[bool] = True

    def print(self, printer: Printer) -> None:
        """The custom form."""
        printer.print_string("(")
        printer.print_list(self.dynamic_sizes, printer.print_ssa_value)
        printer.print_string(")")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.tensor.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """The custom form."""
        unresolved = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        sizes = [parser.resolve_operand(size, IndexType()) for size in unresolved]
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        empty = cls(sizes, parser.parse_type())
        empty.attributes.update(attributes)
        return empty


@irdl_op_definition
class ParallelInsertSliceOp(IRDLOperation):
    """One iteration's part of a tensor that the iterations of `scf.forall` share; it has no result."""

    name = "tensor.parallel_insert_slice"

    source = operand_def(TensorType)
    dest = operand_def(TensorType)
    offsets = var_operand_def(IndexType)
    sizes = var_operand_def(IndexType)
    strides = var_operand_def(IndexType)
    static_offsets = prop_def(DenseArrayBase.constr(i64))
    static_sizes = prop_def(DenseArrayBase.constr(i64))
    static_strides = prop_def(DenseArrayBase.constr(i64))

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    assembly_format = (
        "$source `into` $dest ``"
        "custom<DynamicIndexList>($offsets, $static_offsets)"
        "custom<DynamicIndexList>($sizes, $static_sizes)"
        "custom<DynamicIndexList>($strides, $static_strides)"
        "attr-dict `:` type($source) `into` type($dest)"
    )

    custom_directives = (DynamicIndexList,)

    def verify_(self) -> None:
        for values, static, title in (
            (self.offsets, self.static_offsets, "offset"),
            (self.sizes, self.static_sizes, "size"),
            (self.strides, self.static_strides, "stride"),
        ):
            verify_dynamic_index_list(static.get_values(), values, DYNAMIC_INDEX, f" in the {title} arguments")


Insertion = InsertSliceOp | ParallelInsertSliceOp
"""An op that overwrites a slice of its operand 1, `dest`, with its operand 0, `source`."""

_KEPT = [op for op in Tensor.operations if op is not tensor.EmptyOp]
DIALECT = Dialect("tensor", [*_KEPT, EmptyOp, ParallelInsertSliceOp], list(Tensor.attributes))
"""xDSL's tensor dialect with these operations."""
