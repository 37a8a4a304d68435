"""The ops of the dialect `schedule` on structured ops on tensors."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def

from penstock.dialects.upstream.transform import ANY_OP


@irdl_op_definition
class ComputeAtOp(IRDLOperation):
    """
    Compute what a loop reads of a producer in the loop, where it is read, as `structured.fuse_into_containing_op` does.

    Returns the handle of what computes it there. The loop stays what it is; the producer goes if nothing else reads it.
    """

    name = "schedule.compute_at"
    producer = operand_def(ANY_OP)
    loop = operand_def(ANY_OP)
    tiles = result_def(ANY_OP)
    assembly_format = "$producer `at` $loop attr-dict"

    def __init__(self, producer: SSAValue, loop: SSAValue):
        super().__init__(operands=[producer, loop], result_types=[ANY_OP])


OPS = (ComputeAtOp,)
"""All of them."""
