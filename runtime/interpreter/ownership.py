# SPDX-License-Identifier: Apache-2.0
"""
Which tensors may be overwritten.

Tensors are values, so an op that updates one yields a copy. That makes a loop that inserts its tiles into a tensor
quadratic. This analysis of one function finds the values whose array nothing else refers to (owned) and the ops
that use them last: these may update in place, unseen.

Escaping is what ends ownership: an op that may hand its operand on under another name. A loop carries ownership
from iteration to iteration, copying a value where it enters or is yielded without being owned.
"""

from __future__ import annotations

from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

_FRESH = (
    GenericOp,
    tensor.ConcatOp,
    tensor.EmptyOp,
    tensor.FromElementsOp,
    tensor.InsertOp,
    tensor.InsertSliceOp,
    tensor.PadOp,
    tensor.SplatOp,
)
"""Ops whose results are arrays of their own (or their last-used destination)."""
Loop = scf.ForOp | scf.WhileOp
RENAMING = (tensor.CastOp, tensor.CollapseShapeOp, tensor.ExpandShapeOp, tensor.ReshapeOp)
"""Ops whose result is their operand, seen otherwise."""
_READING = (tensor.DimOp, tensor.ExtractOp, tensor.ExtractSliceOp, func.ReturnOp)
"""Ops that hand nothing on while others can still write."""


class Ownership:
    """The owned values of a function and their last uses."""

    def __init__(self, function: func.FuncOp):
        self._escaped: set[SSAValue] = set()
        self._owned: dict[SSAValue, bool] = {}
        self._positions: dict[Operation, int] = {}
        loops: list[Loop] = []
        for op in function.walk():
            if isinstance(op, Loop):
                loops.append(op)
            self._positions[op] = len(self._positions)
            for operand in op.operands:
                if isinstance(operand.type, TensorType) and self._escapes(op):
                    self._escaped.add(operand)
        self._spread_through(loops)

    def _escapes(self, op: Operation) -> bool:
        if isinstance(op, scf.YieldOp | scf.ConditionOp):
            return not isinstance(op.parent_op(), Loop)
        return not isinstance(op, (*_FRESH, *RENAMING, *_READING, scf.ForOp, scf.WhileOp))

    def _spread_through(self, loops: list[Loop]) -> None:
        """What a loop carries escapes as one: where it enters, in the body, where it is yielded and after."""
        changed = True
        while changed:
            changed = False
            for loop in loops:
                for group in carried_values(loop):
                    if self._escaped.intersection(group) and not self._escaped.issuperset(group):
                        self._escaped.update(group)
                        changed = True

    def is_owned(self, value: SSAValue) -> bool:
        """Whether nothing else refers to the array of `value`."""
        if value not in self._owned:
            self._owned[value] = self._find_owned(value)
        return self._owned[value]

    def _find_owned(self, value: SSAValue) -> bool:
        if value in self._escaped or not isinstance(value.type, TensorType):
            return False
        if isinstance(value, BlockArgument):
            parent = value.owner.parent_op()
            return isinstance(parent, scf.WhileOp) or (isinstance(parent, scf.ForOp) and value.index > 0)
        assert isinstance(value, OpResult)
        op = value.op
        if isinstance(op, (scf.ForOp, scf.WhileOp, *_FRESH)):
            return True
        if isinstance(op, RENAMING):
            return self.is_owned(op.operands[0])
        # a slice of what may be overwritten is copied out, see `tensor.extract_slice`
        return isinstance(op, tensor.ExtractSliceOp) and self.is_owned(op.source)

    def may_take(self, op: Operation, number: int) -> bool:
        """Whether `op` may overwrite, or keep, the array of an operand: it is owned, and this is its last use."""
        value = op.operands[number]
        if not self.is_owned(value) or list(op.operands).count(value) > 1:
            return False
        block = value.owner if isinstance(value.owner, Block) else value.owner.parent
        if op.parent is not block:
            return False
        position = self._positions[op]
        for use in value.uses:
            user: Operation | None = use.operation
            while user is not None and user.parent is not block:
                user = user.parent_op()
            if user is None or (user is not op and self._positions[user] > position):
                return False
            if user is op and use.operation is not op:
                return False
        return True


def carried_values(loop: Loop) -> list[tuple[SSAValue, ...]]:
    """For each value that a loop carries: where it enters, in the body, where it is yielded, and after the loop."""
    if isinstance(loop, scf.WhileOp):
        before, after = loop.before_region.block, loop.after_region.block
        handed, yielded = before.last_op, after.last_op
        assert handed is not None
        assert yielded is not None
        groups = (loop.arguments, before.args, handed.operands[1:], after.args, yielded.operands, loop.results)
        return list(zip(*groups, strict=False))
    terminator = loop.body.block.last_op
    assert isinstance(terminator, scf.YieldOp)
    return list(zip(loop.iter_args, loop.body.block.args[1:], terminator.operands, loop.results, strict=True))


def is_tensor_select(op: Operation) -> bool:
    """Whether `op` chooses between whole tensors."""
    return isinstance(op, arith.SelectOp) and isinstance(op.result.type, TensorType)
