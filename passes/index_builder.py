"""Index arithmetic that folds: an index is an integer where it is known, and a value where it is not."""

from __future__ import annotations

from xdsl.builder import Builder
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter
from xdsl.transforms.dead_code_elimination import is_trivially_dead

Index = int | SSAValue


def materialize(builder: Builder, value: Index) -> SSAValue:
    """The index as a value."""
    if isinstance(value, SSAValue):
        return value
    return builder.insert(arith.ConstantOp(IntegerAttr(value, IndexType()))).result


def add(builder: Builder, left: Index, right: Index) -> Index:
    """The sum of two indices."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if left == 0 or right == 0:
        return right if left == 0 else left
    return builder.insert(arith.AddiOp(materialize(builder, left), materialize(builder, right))).result


def scale(builder: Builder, value: Index, factor: int) -> Index:
    """An index times an integer."""
    if isinstance(value, int):
        return value * factor
    if factor == 1:
        return value
    return builder.insert(arith.MuliOp(value, materialize(builder, factor))).result


def erase_unused(value: SSAValue) -> None:
    """Erase what computes a value, without effects, if nothing uses it; and then what only that used."""
    op = value.owner
    if isinstance(op, Operation) and is_trivially_dead(op):
        operands = list(op.operands)
        Rewriter.erase_op(op)
        for operand in operands:
            erase_unused(operand)
