# SPDX-License-Identifier: Apache-2.0
"""Ops of the `schedule` dialect on loops and buffers of the loop level, on the handles that `transform` uses."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream.handle_ops import ANY_OP, ANY_PARAM, I64, HandleOp


@irdl_op_definition
class SplitOp(HandleOp):
    """
    Split a loop in two: one over strips of `factor` iterations, and one in it over the iterations of a strip.

    Consumes the handle. Returns those of the outer and the inner loop, and of the loop over the iterations that are
    left over, which stands for nothing where the factor divides.

    ```mlir
    %outer, %inner, %tail = schedule.split %loop by 4
    %outer_1, %inner_1, %tail_1 = schedule.split %outer by_param %factor
    ```
    """

    name = "schedule.split"
    loop = operand_def(ANY_OP)
    parameter = opt_operand_def(ANY_PARAM)
    """The factor, where it is a parameter."""
    factor = opt_prop_def(I64)
    outer = result_def(ANY_OP)
    inner = result_def(ANY_OP)
    tail = result_def(ANY_OP)
    assembly_format = "$loop (`by` $factor^)? (`by_param` $parameter^)? attr-dict"

    def verify_(self) -> None:
        if (self.parameter is None) == (self.factor is None):
            raise VerifyException("the factor is a number or a parameter")


@irdl_op_definition
class FuseLoopsOp(HandleOp):
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


@irdl_op_definition
class ReorderOp(HandleOp):
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
    assembly_format = "(`reassociate` $reassociate^)? $loops attr-dict"


@irdl_op_definition
class DistributeOp(HandleOp):
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


@irdl_op_definition
class VectorizeOp(HandleOp):
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


@irdl_op_definition
class StorageAlignOp(HandleOp):
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
    dim = prop_def(I64)
    factor = prop_def(I64)
    offset = opt_prop_def(I64, IntegerAttr(0, i64))
    assembly_format = "$buffer `dim` $dim `to` $factor (`plus` $offset^)? attr-dict"


OPS = (SplitOp, FuseLoopsOp, ReorderOp, DistributeOp, VectorizeOp, StorageAlignOp)
"""All of them."""
