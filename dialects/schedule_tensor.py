# SPDX-License-Identifier: Apache-2.0
"""The ops of the dialect `schedule` on structured ops on tensors."""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def

from penstock.dialects.upstream.handle_ops import ANY_OP, I64, HandleOp


@irdl_op_definition
class ComputeAtOp(HandleOp):
    """
    Compute what a loop reads of a producer in the loop, where it is read, as `structured.fuse_into_containing_op` does.

    Returns the handle of what computes it there. The loop stays what it is; the producer goes if nothing else reads it.

    ```mlir
    %tiles = schedule.compute_at %producer at %loop
    ```
    """

    name = "schedule.compute_at"
    producer = operand_def(ANY_OP)
    loop = operand_def(ANY_OP)
    tiles = result_def(ANY_OP)
    assembly_format = "$producer `at` $loop attr-dict"


@irdl_op_definition
class ReverseComputeAtOp(HandleOp):
    """
    Compute an op that reads the result of a nest of loops in the nest, for the box that an iteration makes.

    `loop` is the innermost one of the nest, `consumer` the op. Consumes its handle; returns that of what computes it
    there.

    ```mlir
    %tile = schedule.reverse_compute_at %consumer at %loop
    ```
    """

    name = "schedule.reverse_compute_at"
    consumer = operand_def(ANY_OP)
    loop = operand_def(ANY_OP)
    tile = result_def(ANY_OP)
    assembly_format = "$consumer `at` $loop attr-dict"


@irdl_op_definition
class InlineOp(HandleOp):
    """
    Put the body of a pointwise op, `producer`, into the ops that read it. Consumes the handles of all of them.

    Returns the handle of what the readers have become, in program order.

    ```mlir
    %merged = schedule.inline %producer
    ```
    """

    name = "schedule.inline"
    producer = operand_def(ANY_OP)
    merged = result_def(ANY_OP)
    assembly_format = "$producer attr-dict"


@irdl_op_definition
class RfactorOp(HandleOp):
    """
    Split reduction `dim` of `target` into `factor` partial ones, side by side, and a reduction of their results.
    Consumes the handle.

    Returns the handles of what the partial results start from, of the partial reductions, and of the one that combines
    them. Sums of floats are rounded otherwise than before. With `strided` each partial result takes every factor-th
    point, so that neighbouring points are lanes of a vector; where the factor does not divide, the first ones take one
    point more.

    ```mlir
    %fill, %partial, %whole = schedule.rfactor %sum dim 1 factor 4
    %fill_1, %partial_1, %whole_1 = schedule.rfactor %product dim 2 factor 8 strided
    ```
    """

    name = "schedule.rfactor"
    target = operand_def(ANY_OP)
    dim = prop_def(I64)
    factor = prop_def(I64)
    strided = opt_prop_def(UnitAttr)
    fill = result_def(ANY_OP)
    partial = result_def(ANY_OP)
    whole = result_def(ANY_OP)
    assembly_format = "$target `dim` $dim `factor` $factor (`strided` $strided^)? attr-dict"


@irdl_op_definition
class MaterializeOp(HandleOp):
    """
    Compute a `tensor.pad` once and whole, before the tiles that read it, and not the box of each tile in the tile.

    The pad becomes an explicit copy (`mem.explicit`); the handle stays valid.

    ```mlir
    schedule.materialize %pad
    ```
    """

    name = "schedule.materialize"
    pad = operand_def(ANY_OP)
    assembly_format = "$pad attr-dict"


OPS = (ComputeAtOp, ReverseComputeAtOp, InlineOp, RfactorOp, MaterializeOp)
"""All of them."""
