# SPDX-License-Identifier: Apache-2.0
"""Ops of the `schedule` dialect on what lives in which scope, and which intrinsic computes it, at the loop level."""

from __future__ import annotations

from abc import ABC

from xdsl.dialects.builtin import FlatSymbolRefAttrConstr, IntegerAttr, StringAttr, i64
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream.handle_ops import ANY_OP, I64, I64_ARRAY, HandleOp
from penstock.dialects.window import IntegerList


class InScopeOp(HandleOp, ABC):
    """
    An op that makes a buffer in a scope of the machine.

    Rows are rounded up to the granule of the scope; a row is one of the last dim, or of the last `contiguous` ones,
    between which there are then no gaps. With `slots` the iterations of the loops around take turns at so many buffers,
    as `schedule.multi_buffer` lets them.
    """

    scope = prop_def(StringAttr)
    contiguous = opt_prop_def(I64, IntegerAttr(1, i64))
    slots = opt_prop_def(I64, IntegerAttr(1, i64))

    def verify_(self) -> None:
        if self.contiguous.value.data < 1:
            raise VerifyException(f"a row is of one dim or more, not of {self.contiguous.value.data}")
        if self.slots.value.data < 1:
            raise VerifyException(f"a buffer has one slot or more, not {self.slots.value.data}")


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

    ```mlir
    %copy = schedule.stage_in %product[0] in "spad"
    %copy_1 = schedule.stage_in %product[1] in "spad" at %loop contiguous 2 slots 2
    ```
    """

    name = "schedule.stage_in"
    reader = operand_def(ANY_OP)
    operand_number = prop_def(I64)
    """Which operand it is, from 0."""
    loop = opt_operand_def(ANY_OP)
    transfer = result_def(ANY_OP)
    assembly_format = (
        "$reader `[` $operand_number `]` `in` $scope (`at` $loop^)? (`contiguous` $contiguous^)? (`slots` $slots^)?"
        " attr-dict"
    )


@irdl_op_definition
class StageOutOp(InScopeOp):
    """
    Write an operand in a scope: a buffer there takes its place, and a copy empties it. TVM's cache_write.

    All ops of the kernel that use this view use the buffer instead, from before the first until after the last, where
    the copy is; where other views reach the same bytes, only `writer` does. The operand is copied in before, unless
    that first use overwrites it, or is the first of all uses of an allocation, which is undefined before.

    Handles stay valid. Returns the copy that empties the buffer; there is none where none of these ops writes.

    ```mlir
    %copy = schedule.stage_out %product[2] in "acc"
    %copy_1 = schedule.stage_out %product[2] in "acc" slots 2
    ```
    """

    name = "schedule.stage_out"
    writer = operand_def(ANY_OP)
    operand_number = prop_def(I64)
    """Which operand it is, from 0."""
    transfer = result_def(ANY_OP)
    assembly_format = (
        "$writer `[` $operand_number `]` `in` $scope (`contiguous` $contiguous^)? (`slots` $slots^)? attr-dict"
    )


@irdl_op_definition
class SetScopeOp(InScopeOp):
    """
    Let an allocation of the kernel live in a scope: a `memref.alloc` becomes a `mem.buffer` there. TVM's set_scope.

    Handles stay valid.

    ```mlir
    schedule.set_scope %sum "acc"
    ```
    """

    name = "schedule.set_scope"
    allocation = operand_def(ANY_OP)
    assembly_format = "$allocation $scope (`contiguous` $contiguous^)? (`slots` $slots^)? attr-dict"


@irdl_op_definition
class LayoutOp(HandleOp):
    """
    Store a buffer in another order of its dims: `order` lists them, the one whose neighbours are farthest apart first.
    TVM's transform_layout, of a permutation.

    Its strides change, and so do those of the views of it; indices are what they were. Rows, of the dim that is listed
    last, are rounded up to the granule of the scope. The handle stays valid.

    ```mlir
    schedule.layout %buffer order [1, 0]
    ```
    """

    name = "schedule.layout"
    buffer = operand_def(ANY_OP)
    order = prop_def(I64_ARRAY)
    custom_directives = (IntegerList,)
    assembly_format = "$buffer `order` custom<IntegerList>($order) attr-dict"


@irdl_op_definition
class TensorizeOp(HandleOp):
    """
    Compute ops by an intrinsic of the machine, which each of them is shown to be, with its operands where they are.

    The op stays what it is, and names the intrinsic in its `library_call`. Handles stay valid. Ops on tensors may be
    calls of a library of the host, which sums in an order of its own. `remark` is for people.

    ```mlir
    schedule.tensorize %product @gemm
    schedule.tensorize %sum @add {remark = "one of three that fit"}
    ```
    """

    name = "schedule.tensorize"
    target = operand_def(ANY_OP)
    """The ops that are computed so."""
    intrinsic = prop_def(FlatSymbolRefAttrConstr)
    remark = opt_prop_def(StringAttr)
    assembly_format = "$target $intrinsic attr-dict"


OPS = (StageInOp, StageOutOp, SetScopeOp, LayoutOp, TensorizeOp)
