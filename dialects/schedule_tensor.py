"""The ops of the dialect `schedule` on structured ops on tensors."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def

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


@irdl_op_definition
class ReverseComputeAtOp(IRDLOperation):
    """
    Compute an op that reads the result of a nest of loops in the nest, for the box that an iteration makes.

    `loop` is the innermost one of the nest, `consumer` the op. Consumes its handle; returns that of what computes it
    there.
    """

    name = "schedule.reverse_compute_at"
    consumer = operand_def(ANY_OP)
    loop = operand_def(ANY_OP)
    tile = result_def(ANY_OP)
    assembly_format = "$consumer `at` $loop attr-dict"

    def __init__(self, consumer: SSAValue, loop: SSAValue):
        super().__init__(operands=[consumer, loop], result_types=[ANY_OP])


@irdl_op_definition
class InlineOp(IRDLOperation):
    """
    Put the body of a pointwise op, `producer`, into the ops that read it. Consumes the handles of all of them.

    Returns the handle of what the readers have become, in program order.
    """

    name = "schedule.inline"
    producer = operand_def(ANY_OP)
    merged = result_def(ANY_OP)
    assembly_format = "$producer attr-dict"

    def __init__(self, producer: SSAValue):
        super().__init__(operands=[producer], result_types=[ANY_OP])


@irdl_op_definition
class RfactorOp(IRDLOperation):
    """
    Split reduction `dim` of `target` into `factor` partial ones, side by side, and a reduction of their results.
    Consumes the handle.

    Returns the handles of what the partial results start from, of the partial reductions, and of the one that combines
    them. Sums of floats are rounded otherwise than before.
    """

    name = "schedule.rfactor"
    target = operand_def(ANY_OP)
    dim = prop_def(IntegerAttr.constr(i64))
    factor = prop_def(IntegerAttr.constr(i64))
    fill = result_def(ANY_OP)
    partial = result_def(ANY_OP)
    whole = result_def(ANY_OP)
    assembly_format = "$target `dim` $dim `factor` $factor attr-dict"

    def __init__(self, target: SSAValue, dim: int, factor: int):
        properties = {"dim": IntegerAttr(dim, i64), "factor": IntegerAttr(factor, i64)}
        super().__init__(operands=[target], properties=properties, result_types=[ANY_OP] * 3)


OPS = (ComputeAtOp, ReverseComputeAtOp, InlineOp, RfactorOp)
"""All of them."""
