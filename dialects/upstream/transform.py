# SPDX-License-Identifier: Apache-2.0
"""
MLIR's `transform` dialect as mlir-opt 19 reads and prints it: what xDSL 0.74 lacks, and the text of what it has.

xDSL's ops without an assembly format print in generic form only; those that schedules use stand here in MLIR's own.
See https://mlir.llvm.org/docs/Dialects/Transform/
"""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from xdsl.dialects import transform as base
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FunctionType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    i1,
    i32,
)
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.upstream import transform_loops, transform_structured, transform_tune
from penstock.dialects.upstream.handle_ops import FUNCTIONAL, I64, I64_ARRAY, HandleOp
from penstock.dialects.window import IntegerList


@irdl_op_definition
class SplitHandleOp(HandleOp):
    """A handle for each of the operations of one. https://mlir.llvm.org/docs/Dialects/Transform/#transformsplit_handle"""

    name = "transform.split_handle"
    handle = operand_def(base.TransformHandleType)
    results_ = var_result_def(base.TransformHandleType)
    pass_through_empty_handle = opt_prop_def(IntegerAttr.constr(i1))
    fail_on_payload_too_small = opt_prop_def(IntegerAttr.constr(i1))
    overflow_result = opt_prop_def(I64)
    assembly_format = "$handle attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class GetParentOp(HandleOp):
    """The operation around one. https://mlir.llvm.org/docs/Dialects/Transform/#transformget_parent_op"""

    name = "transform.get_parent_op"
    target = operand_def(base.TransformOpHandleType)
    parent_result = result_def(base.TransformOpHandleType)
    isolated_from_above = opt_prop_def(UnitAttr)
    allow_empty_results = opt_prop_def(UnitAttr)
    op_name = opt_prop_def(StringAttr)
    deduplicate = opt_prop_def(UnitAttr)
    nth_parent = opt_prop_def(I64)
    assembly_format = FUNCTIONAL


@irdl_op_definition
class GetProducerOfOperandOp(HandleOp):
    """What computes an operand. https://mlir.llvm.org/docs/Dialects/Transform/#transformget_producer_of_operand"""

    name = "transform.get_producer_of_operand"
    target = operand_def(base.TransformOpHandleType)
    operand_number = prop_def(I64)
    producer = result_def(base.TransformOpHandleType)
    assembly_format = "$target `[` $operand_number `]` attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class GetConsumersOfResultOp(HandleOp):
    """What reads a result. https://mlir.llvm.org/docs/Dialects/Transform/#transformget_consumers_of_result"""

    name = "transform.get_consumers_of_result"
    target = operand_def(base.TransformOpHandleType)
    result_number = prop_def(I64)
    consumers = result_def(base.TransformOpHandleType)
    assembly_format = "$target `[` $result_number `]` attr-dict `:` functional-type(operands, results)"


class PositionsOp(HandleOp, ABC):
    """Values of an operation, at some positions."""

    target = operand_def(base.TransformOpHandleType)
    raw_position_list = prop_def(I64_ARRAY)
    result = result_def(base.AnyValueType)
    custom_directives = (IntegerList,)
    assembly_format = (
        "$target `` custom<IntegerList>($raw_position_list) attr-dict `:` functional-type(operands, results)"
    )


@irdl_op_definition
class GetOperandOp(PositionsOp):
    """Operands of an operation. https://mlir.llvm.org/docs/Dialects/Transform/#transformget_operand"""

    name = "transform.get_operand"


@irdl_op_definition
class GetResultOp(PositionsOp):
    """Results of an operation. https://mlir.llvm.org/docs/Dialects/Transform/#transformget_result"""

    name = "transform.get_result"


@irdl_op_definition
class GetDefiningOp(HandleOp):
    """What computes a value. https://mlir.llvm.org/docs/Dialects/Transform/#transformget_defining_op"""

    name = "transform.get_defining_op"
    target = operand_def(base.AnyValueType)
    result = result_def(base.TransformOpHandleType)
    assembly_format = FUNCTIONAL


@irdl_op_definition
class MergeHandlesOp(HandleOp):
    """One handle for what several stand for. https://mlir.llvm.org/docs/Dialects/Transform/#transformmerge_handles"""

    name = "transform.merge_handles"
    deduplicate = opt_prop_def(UnitAttr)
    T: ClassVar = VarConstraint("T", BaseAttr(base.TransformHandleType))
    handles = var_operand_def(T)
    result = result_def(T)
    assembly_format = "(`deduplicate` $deduplicate^)? $handles attr-dict `:` type($result)"


@irdl_op_definition
class CastHandleOp(IRDLOperation):
    """A handle of another type. https://mlir.llvm.org/docs/Dialects/Transform/#transformcast"""

    name = "transform.cast"
    input = operand_def(base.TransformOpHandleType)
    output = result_def(base.TransformOpHandleType)
    assembly_format = "$input attr-dict `:` type($input) `to` type($output)"

    def __init__(self, input: SSAValue, type: Attribute):
        super().__init__(operands=[input], result_types=[type])


@irdl_op_definition
class ParamConstantOp(IRDLOperation):
    """A parameter that is known. https://mlir.llvm.org/docs/Dialects/Transform/#transformparamconstant"""

    name = "transform.param.constant"
    value = prop_def(Attribute)
    param = result_def(base.TransformParamHandleType)
    assembly_format = "$value attr-dict `->` type($param)"


@irdl_op_definition
class FuseIntoContainingOp(HandleOp):
    """Compute the part of a producer that a loop reads in the loop.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredfuse_into_containing_op
    """

    name = "transform.structured.fuse_into_containing_op"
    producer_op = operand_def(base.TransformOpHandleType)
    containing_op = operand_def(base.TransformOpHandleType)
    fused_op = result_def(base.TransformOpHandleType)
    new_containing_op = result_def(base.TransformOpHandleType)
    assembly_format = "$producer_op `into` $containing_op attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class GeneralizeOp(HandleOp):
    """A structured op as `linalg.generic`. https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredgeneralize"""

    name = "transform.structured.generalize"
    target = operand_def(base.TransformOpHandleType)
    transformed = result_def(base.TransformOpHandleType)
    assembly_format = FUNCTIONAL


@irdl_op_definition
class SplitReductionOp(HandleOp):
    """Make partial reductions of one, and combine them.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredsplit_reduction
    """

    name = "transform.structured.split_reduction"
    target = operand_def(base.TransformOpHandleType)
    split_factor = opt_prop_def(I64)
    insert_split_dimension = opt_prop_def(I64)
    inner_parallel = opt_prop_def(UnitAttr)
    use_scaling_algorithm = opt_prop_def(UnitAttr)
    use_alloc = opt_prop_def(UnitAttr)
    init_or_alloc_op = result_def(base.TransformOpHandleType)
    fill_op = result_def(base.TransformOpHandleType)
    split_linalg_op = result_def(base.TransformOpHandleType)
    combining_linalg_op = result_def(base.TransformOpHandleType)
    assembly_format = FUNCTIONAL


@irdl_op_definition
class IncludeOp(IRDLOperation):
    """The ops of another named sequence. https://mlir.llvm.org/docs/Dialects/Transform/#transforminclude"""

    name = "transform.include"
    target = prop_def(SymbolRefAttr)
    failure_propagation_mode = prop_def(IntegerAttr.constr(i32))
    arguments = var_operand_def(base.TransformHandleType)
    results_ = var_result_def(base.TransformHandleType)

    MODES: ClassVar = {"propagate": 1, "suppress": 2}

    def verify_(self) -> None:
        if self.failure_propagation_mode.value.data not in self.MODES.values():
            raise VerifyException("failures are propagated (1) or suppressed (2)")

    @classmethod
    def parse(cls, parser: Parser) -> IncludeOp:
        target = SymbolRefAttr(parser.parse_symbol_name())
        parser.parse_keyword("failures")
        with parser.in_parens():
            mode = "propagate" if parser.parse_optional_keyword("propagate") is not None else "suppress"
            if mode == "suppress":
                parser.parse_keyword("suppress")
        at = parser.pos
        operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_attribute()
        if not isinstance(type, FunctionType):
            parser.raise_error("the type of a function is expected", at, parser.pos)
        return cls.create(
            operands=parser.resolve_operands(operands, type.inputs.data, at),
            result_types=type.outputs.data,
            properties={"target": target, "failure_propagation_mode": IntegerAttr(cls.MODES[mode], i32)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        modes = {number: mode for mode, number in self.MODES.items()}
        mode = modes[self.failure_propagation_mode.value.data]
        printer.print_string(f" @{self.target.string_value()} failures({mode}) (")
        printer.print_list(self.arguments, printer.print_operand)
        printer.print_string(")")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)


def sizes_of(attribute: Attribute | None) -> tuple[int, ...]:
    """The integers of a list of sizes; none without one."""
    if isa(attribute, DenseArrayBase[IntegerType]):
        return attribute.get_values()
    listed = attribute.data if isa(attribute, ArrayAttr[Attribute]) else ()
    return tuple(size.value.data for size in listed if isa(size, IntegerAttr))


OWN = (
    *(
        SplitHandleOp,
        GetParentOp,
        GetProducerOfOperandOp,
        GetConsumersOfResultOp,
        GetOperandOp,
        GetResultOp,
        GetDefiningOp,
        MergeHandlesOp,
        ParamConstantOp,
    ),
    *(CastHandleOp, FuseIntoContainingOp, GeneralizeOp, SplitReductionOp, IncludeOp),
    *(*transform_loops.OPS, *transform_structured.OPS, *transform_tune.OPS),
)
_NAMES = {op.name for op in OWN}

DIALECT = Dialect(
    "transform",
    [*(op for op in base.Transform.operations if op.name not in _NAMES), *OWN],
    list(base.Transform.attributes),
)
