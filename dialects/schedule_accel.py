"""Ops of the `schedule` dialect on buffers in scopes, and on the commands of units that run beside each other."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream.transform import ANY_OP


@irdl_op_definition
class MultiBufferOp(IRDLOperation):
    """
    Let a buffer that each iteration fills anew be a ring of `slots` buffers, before the loops around it.

    The slots take turns over all iterations of the nest, so that a transfer of the next iteration does not write where
    this one still reads. With commands, the ring gets a place in its scope, and the order is derived anew, which
    replaces the loops. Consumes the handle, and returns that of the ring.
    """

    name = "schedule.multi_buffer"
    target = operand_def(ANY_OP)
    slots = prop_def(IntegerAttr.constr(i64))
    ring = result_def(ANY_OP)
    assembly_format = "$target `slots` $slots attr-dict"

    def __init__(self, target: SSAValue, slots: int):
        super().__init__(operands=[target], properties={"slots": IntegerAttr(slots, i64)}, result_types=[ANY_OP])

    def verify_(self) -> None:
        if self.slots.value.data < 1:
            raise VerifyException(f"a ring has at least one slot, not {self.slots.value.data}")


OPS = (MultiBufferOp,)
