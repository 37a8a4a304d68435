"""Ops of the `schedule` dialect on loops and buffers of the loop level, on the handles that `transform` uses."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream.transform import ANY_OP, ANY_PARAM


@irdl_op_definition
class SplitOp(IRDLOperation):
    """
    Split a loop in two: one over strips of `factor` iterations, and one in it over the iterations of a strip.

    Consumes the handle. Returns those of the outer and the inner loop, and of the loop over the iterations that are
    left over, which stands for nothing where the factor divides.

    ```mlir
    %outer, %inner, %tail = schedule.split %loop by 4
    %outer, %inner, %tail = schedule.split %loop by_param %factor
    ```
    """

    name = "schedule.split"
    loop = operand_def(ANY_OP)
    parameter = opt_operand_def(ANY_PARAM)
    """The factor, where it is a parameter."""
    factor = opt_prop_def(IntegerAttr.constr(i64))
    outer = result_def(ANY_OP)
    inner = result_def(ANY_OP)
    tail = result_def(ANY_OP)
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$loop (`by` $factor^)? (`by_param` $parameter^)? attr-dict"

    def __init__(self, loop: SSAValue, factor: int | SSAValue):
        super().__init__(
            operands=[loop, factor if isinstance(factor, SSAValue) else None],
            properties={"factor": IntegerAttr(factor, i64) if isinstance(factor, int) else None},
            result_types=[ANY_OP, ANY_OP, ANY_OP],
        )

    def verify_(self) -> None:
        if (self.parameter is None) == (self.factor is None):
            raise VerifyException("the factor is a number or a parameter")


@irdl_op_definition
class FuseLoopsOp(IRDLOperation):
    """
    Make one loop of two perfectly nested ones. Consumes the handles, and returns that of the new loop.

    ```mlir
    %both = schedule.fuse %outer, %inner
    ```
    """

    name = "schedule.fuse"
    outer = operand_def(ANY_OP)
    inner = operand_def(ANY_OP)
    fused = result_def(ANY_OP)
    assembly_format = "$outer `,` $inner attr-dict"

    def __init__(self, outer: SSAValue, inner: SSAValue):
        super().__init__(operands=[outer, inner], result_types=[ANY_OP])


@irdl_op_definition
class ReorderOp(IRDLOperation):
    """
    Nest loops of a perfect nest in the order in which they are listed, the outermost first.

    Loops in between that are not listed stay where they are. Sums of floats are added up in the same order as before,
    unless `reassociate` is there. The handles stay valid.

    ```mlir
    schedule.reorder %k, %i, %j
    schedule.reorder reassociate %kw, %kh
    ```
    """

    name = "schedule.reorder"
    loops = var_operand_def(ANY_OP)
    reassociate = opt_prop_def(UnitAttr)
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "(`reassociate` $reassociate^)? $loops attr-dict"

    def __init__(self, loops: Sequence[SSAValue], *, reassociate: bool = False):
        super().__init__(operands=[loops], properties={"reassociate": UnitAttr() if reassociate else None})


@irdl_op_definition
class DistributeOp(IRDLOperation):
    """
    Make two loops of one: the first with the ops of its body that are before `op`, the second with the others.

    Consumes the handle of the loop. Returns those of the two loops.

    ```mlir
    %first, %second = schedule.distribute %loop before %op
    ```
    """

    name = "schedule.distribute"
    loop = operand_def(ANY_OP)
    op = operand_def(ANY_OP)
    first = result_def(ANY_OP)
    second = result_def(ANY_OP)
    assembly_format = "$loop `before` $op attr-dict"

    def __init__(self, loop: SSAValue, op: SSAValue):
        super().__init__(operands=[loop, op], result_types=[ANY_OP, ANY_OP])


@irdl_op_definition
class VectorizeOp(IRDLOperation):
    """
    Say of an innermost loop that its iterations may be executed at once, in vectors; the handle stays valid.

    The loop gets the attribute `vectorize`. There is no vector type at the loop level: lowering to C, after it has
    proved the independence of the iterations anew, tells the C compiler of it, which chooses the width.

    ```mlir
    schedule.vectorize %loop
    ```
    """

    name = "schedule.vectorize"
    loop = operand_def(ANY_OP)
    assembly_format = "$loop attr-dict"

    def __init__(self, loop: SSAValue):
        super().__init__(operands=[loop])


@irdl_op_definition
class StorageAlignOp(IRDLOperation):
    """
    Place what follows in dim `dim` of a buffer at a multiple of `factor` elements, plus `offset`: its row pitch.

    An offset keeps rows from beginning in the same bank. The handle stays valid.

    ```mlir
    schedule.storage_align %buffer dim 0 to 8
    schedule.storage_align %buffer dim 0 to 8 plus 1
    ```
    """

    name = "schedule.storage_align"
    buffer = operand_def(ANY_OP)
    dim = prop_def(IntegerAttr.constr(i64))
    factor = prop_def(IntegerAttr.constr(i64))
    offset = opt_prop_def(IntegerAttr.constr(i64))
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$buffer `dim` $dim `to` $factor (`plus` $offset^)? attr-dict"

    def __init__(self, buffer: SSAValue, dim: int, factor: int, offset: int = 0):
        super().__init__(
            operands=[buffer],
            properties={
                "dim": IntegerAttr(dim, i64),
                "factor": IntegerAttr(factor, i64),
                "offset": IntegerAttr(offset, i64) if offset else None,
            },
        )


OPS = (SplitOp, FuseLoopsOp, ReorderOp, DistributeOp, VectorizeOp, StorageAlignOp)
"""All of them."""
