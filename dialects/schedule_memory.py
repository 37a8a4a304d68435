"""Ops of the `schedule` dialect on what lives in which scope, and which intrinsic computes it, at the loop level."""

from __future__ import annotations

from xdsl.dialects.builtin import FlatSymbolRefAttrConstr, IntegerAttr, StringAttr, SymbolRefAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)

from penstock.dialects.upstream.transform import ANY_OP


@irdl_op_definition
class StageInOp(IRDLOperation):
    """
    Read an operand in a scope: a buffer there takes its place, and a copy fills it. TVM's cache_read.

    `reader` is a `linalg.generic`, or a `mem.copy`, whose operand 0 is its source. What the kernel never writes is
    copied where the operand is defined, and another reader of the same operand takes the same buffer; anything else is
    copied just before the reader. With `at` all that the loop reads through this operand, a static box, is copied
    before the loop. The machine may need several engines in turn for the copy, if a stage in each scope between
    follows.

    Rows are rounded up to the granule of the scope; a row is one of the last dim, or of the last `contiguous` ones,
    between which there are then no gaps.

    Handles stay valid; that of a `mem.copy` stands for the copy from the buffer. Returns the copy that fills it.
    """

    name = "schedule.stage_in"
    reader = operand_def(ANY_OP)
    operand_number = prop_def(IntegerAttr.constr(i64))
    """Which operand it is, from 0."""
    scope = prop_def(StringAttr)
    loop = opt_operand_def(ANY_OP)
    contiguous = opt_prop_def(IntegerAttr.constr(i64))
    transfer = result_def(ANY_OP)
    assembly_format = (
        "$reader `[` $operand_number `]` `in` $scope (`at` $loop^)? (`contiguous` $contiguous^)? attr-dict"
    )

    def __init__(
        self, reader: SSAValue, operand_number: int, scope: str, *, at: SSAValue | None = None, contiguous: int = 1
    ):
        super().__init__(
            operands=[reader, at],
            properties={
                "operand_number": IntegerAttr(operand_number, i64),
                "scope": StringAttr(scope),
                "contiguous": _unless_one(contiguous),
            },
            result_types=[ANY_OP],
        )


@irdl_op_definition
class StageOutOp(IRDLOperation):
    """
    Write an operand in a scope: a buffer there takes its place, and a copy empties it. TVM's cache_write.

    All ops of the kernel that use this view use the buffer instead, from before the first until after the last, where
    the copy is; where other views reach the same bytes, only `writer` does. The operand is copied in before, unless
    that first use overwrites it. For `contiguous` see `schedule.stage_in`.

    Handles stay valid. Returns the copy that empties the buffer.
    """

    name = "schedule.stage_out"
    writer = operand_def(ANY_OP)
    operand_number = prop_def(IntegerAttr.constr(i64))
    """Which operand it is, from 0."""
    scope = prop_def(StringAttr)
    contiguous = opt_prop_def(IntegerAttr.constr(i64))
    transfer = result_def(ANY_OP)
    assembly_format = "$writer `[` $operand_number `]` `in` $scope (`contiguous` $contiguous^)? attr-dict"

    def __init__(self, writer: SSAValue, operand_number: int, scope: str, *, contiguous: int = 1):
        super().__init__(
            operands=[writer],
            properties={
                "operand_number": IntegerAttr(operand_number, i64),
                "scope": StringAttr(scope),
                "contiguous": _unless_one(contiguous),
            },
            result_types=[ANY_OP],
        )


@irdl_op_definition
class SetScopeOp(IRDLOperation):
    """
    Let an allocation of the kernel live in a scope: a `memref.alloc` becomes a `mem.buffer` there. TVM's set_scope.

    For `contiguous` see `schedule.stage_in`. Handles stay valid.
    """

    name = "schedule.set_scope"
    allocation = operand_def(ANY_OP)
    scope = prop_def(StringAttr)
    contiguous = opt_prop_def(IntegerAttr.constr(i64))
    assembly_format = "$allocation $scope (`contiguous` $contiguous^)? attr-dict"

    def __init__(self, allocation: SSAValue, scope: str, *, contiguous: int = 1):
        super().__init__(
            operands=[allocation],
            properties={"scope": StringAttr(scope), "contiguous": _unless_one(contiguous)},
        )


@irdl_op_definition
class TensorizeOp(IRDLOperation):
    """
    Compute ops by an intrinsic of the machine, which each of them is shown to be, with its operands where they are.

    The op stays what it is, and names the intrinsic in its `library_call`. Handles stay valid.
    """

    name = "schedule.tensorize"
    target = operand_def(ANY_OP)
    """The ops that are computed so."""
    intrinsic = prop_def(FlatSymbolRefAttrConstr)
    assembly_format = "$target $intrinsic attr-dict"

    def __init__(self, target: SSAValue, intrinsic: str):
        super().__init__(operands=[target], properties={"intrinsic": SymbolRefAttr(intrinsic)})


def _unless_one(count: int) -> IntegerAttr | None:
    return IntegerAttr(count, i64) if count != 1 else None


OPS = (StageInOp, StageOutOp, SetScopeOp, TensorizeOp)
