# SPDX-License-Identifier: Apache-2.0
"""Ops of the `schedule` dialect on iterations that run at once, on the handles that `transform` uses."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def

from penstock.dialects.upstream.gpu import DeviceMappingAttr
from penstock.dialects.upstream.handle_ops import ANY_OP, HandleOp


@irdl_op_definition
class ParallelizeOp(HandleOp):
    """
    Let the iterations of a loop, or of a perfect nest listed from the outermost loop on, run at once: `scf.forall`.

    Legal where no two iterations access the same bytes, one of them writing. Consumes the handles, and returns that of
    the `scf.forall`.

    ```mlir
    %iterations = schedule.parallel %i, %j
    ```
    """

    name = "schedule.parallel"
    loops = var_operand_def(ANY_OP)
    """The loop, or those of a perfect nest from the outermost on."""
    forall = result_def(ANY_OP)
    assembly_format = "$loops attr-dict"


@irdl_op_definition
class BindOp(HandleOp):
    """
    Let iterations run at once, as `schedule.parallel` does, each on a processor of the kind that is named.

    ```mlir
    %threads = schedule.bind %i, %j to [#gpu.thread<y>, #gpu.thread<x>]
    ```
    """

    name = "schedule.bind"
    loops = var_operand_def(ANY_OP)
    """The loop, or those of a perfect nest from the outermost on."""
    mapping = prop_def(ArrayAttr[DeviceMappingAttr])
    """The kind of processor for each loop."""
    forall = result_def(ANY_OP)
    assembly_format = "$loops `to` $mapping attr-dict"


@irdl_op_definition
class CooperateOp(HandleOp):
    """
    Let the iterations of `scf.forall` share a buffer that each of them fills with the same, and split the load.

    Each copies a part of it, and the barriers are put in that this needs. Legal where the copy is the same in all
    iterations. Consumes the handle of the copy, and returns that of the part that an iteration copies.

    ```mlir
    %part = schedule.cooperate %copy
    ```
    """

    name = "schedule.cooperate"
    copy = operand_def(ANY_OP)
    part = result_def(ANY_OP)
    assembly_format = "$copy attr-dict"


@irdl_op_definition
class InsertBarriersOp(HandleOp):
    """
    Put the barriers into a `scf.forall` that its iterations need, and take out those that they do not. The handle stays
    valid.

    ```mlir
    schedule.insert_barriers %iterations
    ```
    """

    name = "schedule.insert_barriers"
    forall = operand_def(ANY_OP)
    assembly_format = "$forall attr-dict"


OPS = (ParallelizeOp, BindOp, CooperateOp, InsertBarriersOp)
