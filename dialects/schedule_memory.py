"""Ops of the `schedule` dialect on what lives in which scope, and which intrinsic computes it, at the loop level."""

from __future__ import annotations

from abc import ABC

from xdsl.dialects.builtin import FlatSymbolRefAttrConstr, IntegerAttr, StringAttr, SymbolRefAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream.transform import ANY_OP


class InScopeOp(IRDLOperation, ABC):
    """
    An op that makes a buffer in a scope of the machine.

    Rows are rounded up to the granule of the scope; a row is one of the last dim, or of the last `contiguous` ones,
    between which there are then no gaps.
    """

    scope = prop_def(StringAttr)
    contiguous = opt_prop_def(IntegerAttr.constr(i64))

    @property
    def contiguous_dims(self) -> int:
        """How many of the last dims are one row."""
        return 1 if self.contiguous is None else self.contiguous.value.data

    @staticmethod
    def place(scope: str, contiguous: int) -> dict[str, Attribute | None]:
        """The properties for a scope, and for how many dims are one row."""
        return {"scope": StringAttr(scope), "contiguous": IntegerAttr(contiguous, i64) if contiguous != 1 else None}

    def verify_(self) -> None:
        if self.contiguous_dims < 1:
            raise VerifyException(f"a row is of one dim or more, not of {self.contiguous_dims}")


@irdl_op_definition
class StageInOp(InScopeOp):
    """
    Read an operand in a scope: a buffer there takes its place, and a copy fills it. TVM's cache_read.

    `reader` is a `linalg.generic`, or a `mem.copy`, whose operand 0 is its source. What the kernel never writes is
    copied where the operand is defined, and another reader of the same operand takes the same buffer; anything else is
    copied just before the reader. With `at` all that the loop reads through this operand, a static box, is copied
    before the loop. The machine may need several engines in turn for the copy, if a stage in each scope between
    follows.

    Handles stay valid; that of a `mem.copy` stands for the copy from the buffer. Returns the copy that fills it.
    """

    name = "schedule.stage_in"
    reader = operand_def(ANY_OP)
    operand_number = prop_def(IntegerAttr.constr(i64))
    """Which operand it is, from 0."""
    loop = opt_operand_def(ANY_OP)
    transfer = result_def(ANY_OP)
    assembly_format = (
        "$reader `[` $operand_number `]` `in` $scope (`at` $loop^)? (`contiguous` $contiguous^)? attr-dict"
    )

    def __init__(
        self, reader: SSAValue, operand_number: int, scope: str, *, at: SSAValue | None = None, contiguous: int = 1
    ):
        super().__init__(
            operands=[reader, at],
            properties={"operand_number": IntegerAttr(operand_number, i64), **self.place(scope, contiguous)},
            result_types=[ANY_OP],
        )


@irdl_op_definition
class StageOutOp(InScopeOp):
    """
    Write an operand in a scope: a buffer there takes its place, and a copy empties it. TVM's cache_write.

    All ops of the kernel that use this view use the buffer instead, from before the first until after the last, where
    the copy is; where other views reach the same bytes, only `writer` does. The operand is copied in before, unless
    that first use overwrites it.

    Handles stay valid. Returns the copy that empties the buffer.
    """

    name = "schedule.stage_out"
    writer = operand_def(ANY_OP)
    operand_number = prop_def(IntegerAttr.constr(i64))
    """Which operand it is, from 0."""
    transfer = result_def(ANY_OP)
    assembly_format = "$writer `[` $operand_number `]` `in` $scope (`contiguous` $contiguous^)? attr-dict"

    def __init__(self, writer: SSAValue, operand_number: int, scope: str, *, contiguous: int = 1):
        super().__init__(
            operands=[writer],
            properties={"operand_number": IntegerAttr(operand_number, i64), **self.place(scope, contiguous)},
            result_types=[ANY_OP],
        )


@irdl_op_definition
class SetScopeOp(InScopeOp):
    """
    Let an allocation of the kernel live in a scope: a `memref.alloc` becomes a `mem.buffer` there. TVM's set_scope.

    Handles stay valid.
    """

    name = "schedule.set_scope"
    allocation = operand_def(ANY_OP)
    assembly_format = "$allocation $scope (`contiguous` $contiguous^)? attr-dict"

    def __init__(self, allocation: SSAValue, scope: str, *, contiguous: int = 1):
        super().__init__(operands=[allocation], properties=self.place(scope, contiguous))


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


OPS = (StageInOp, StageOutOp, SetScopeOp, TensorizeOp)
