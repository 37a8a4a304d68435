# SPDX-License-Identifier: Apache-2.0
"""
What xDSL 0.74 lacks of the tensor dialect: `tensor.parallel_insert_slice`, the attributes of `tensor.empty`, reshapes
to and from rank 0, with sizes or ranks that are not known, and `tensor.pad` by unknown sizes to a size that is known.

See https://mlir.llvm.org/docs/Dialects/TensorOps/#tensorparallel_insert_slice-tensorparallelinsertsliceop
"""

from __future__ import annotations

from math import prod
from typing import ClassVar, Self, cast

from xdsl.dialects import tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, TensorType, UnrankedTensorType, i64
from xdsl.dialects.tensor import InsertSliceOp, Tensor
from xdsl.dialects.utils import DynamicIndexList, verify_dynamic_index_list
from xdsl.dialects.utils.reshape_ops_utils import verify_reshape_like_types
from xdsl.ir import Dialect
from xdsl.irdl import (
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream import amend

_ANY_RANK = BaseAttr(TensorType) | BaseAttr(UnrankedTensorType)


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


def _check_expand(op: tensor.ExpandShapeOp) -> None:
    source, result = cast(TensorType, op.src.type), op.result.type
    static = op.static_output_shape.get_values()
    if static != result.get_shape():
        raise VerifyException(f"its output shape {list(static)} is not that of {result}")
    verify_dynamic_index_list(static, op.dynamic_output_shape, DYNAMIC_INDEX, " in the output shape")
    if source.get_shape() or len(op.reassociation):
        verify_reshape_like_types(source, result, op.reassociation)
    elif any(size != 1 for size in result.get_shape()):
        raise VerifyException(f"expands a tensor of rank 0 to {result}, which has more elements than one")


def _check_reshape(op: tensor.ReshapeOp) -> None:
    shape = cast(TensorType, op.shape.type)
    source, result = (cast(TensorType | UnrankedTensorType, each.type) for each in (op.source, op.result))
    if source.element_type != result.element_type:
        raise VerifyException("element types of source and result tensor types should be the same")
    if len(shape.get_shape()) != 1:
        raise VerifyException("shape tensor must have a rank one")
    if isinstance(result, UnrankedTensorType):
        return
    if shape.get_shape()[0] not in (len(result.get_shape()), DYNAMIC_INDEX):
        raise VerifyException("length of shape operand differs from the result's tensor rank")
    if isinstance(source, UnrankedTensorType):
        return
    sizes = source.get_shape(), result.get_shape()
    if DYNAMIC_INDEX not in (*sizes[0], *sizes[1]) and prod(sizes[0]) != prod(sizes[1]):
        raise VerifyException("source and result tensor should have the same number of elements")


def _check_pad(op: tensor.PadOp) -> None:
    low, high = op.static_low.get_values(), op.static_high.get_values()
    source, result = cast(TensorType, op.source.type).get_shape(), op.result.type.get_shape()
    if not len(low) == len(high) == len(source) == len(result) == len(op.region.block.args):
        raise VerifyException(
            f"the source has {len(source)} dims, the result {len(result)}, the region {len(op.region.block.args)}, and"
            f" there are {len(low)} low and {len(high)} high pad sizes"
        )
    verify_dynamic_index_list(low, op.low, DYNAMIC_INDEX, " in the low pad sizes")
    verify_dynamic_index_list(high, op.high, DYNAMIC_INDEX, " in the high pad sizes")
    for dim, sizes in enumerate(zip(source, low, high, strict=True)):
        # A result of a known size asserts what the others come to; see `verification` for what is all known.
        if DYNAMIC_INDEX not in sizes and result[dim] == DYNAMIC_INDEX:
            raise VerifyException(f"dim {dim} of the result is {sum(sizes)} long, and is not unknown")


amend.check(tensor.ExpandShapeOp, _check_expand)
amend.values(tensor.ReshapeOp, source=_ANY_RANK, result=_ANY_RANK)
amend.check(tensor.ReshapeOp, _check_reshape)
amend.check(tensor.PadOp, _check_pad)

Insertion = InsertSliceOp | ParallelInsertSliceOp
"""An op that overwrites a slice of its operand 1, `dest`, with its operand 0, `source`."""

_KEPT = [op for op in Tensor.operations if op is not tensor.EmptyOp]
DIALECT = Dialect("tensor", [*_KEPT, EmptyOp, ParallelInsertSliceOp], list(Tensor.attributes))
"""xDSL's tensor dialect with these operations."""
