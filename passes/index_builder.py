# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic that folds, and loops: an index is an integer where it is known, and a value where it is not."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
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


def for_loop(
    builder: Builder,
    bounds: tuple[Index, Index, Index],
    carried: Sequence[SSAValue] = (),
    *,
    like: Operation | None = None,
    counter: SSAValue | None = None,
) -> tuple[scf.ForOp, Builder]:
    """
    Insert a loop from the first to below the second bound by the third, without body, and return a builder in it.

    It has the location of `like`, and its counter the name and the type of `counter`, else that of an index.
    """
    lower, upper, step = (materialize(builder, bound) for bound in bounds)
    type = IndexType() if counter is None else counter.type
    block = Block(arg_types=[type, *(value.type for value in carried)])
    loop = builder.insert(scf.ForOp(lower, upper, step, carried, Region(block)))
    if like is not None:
        loop.location = like.location
    block.args[0].name_hint = counter.name_hint if counter is not None else None
    return loop, Builder(InsertPoint.at_end(block))


def erase_unused(value: SSAValue) -> None:
    """Erase what computes a value, without effects, if nothing uses it; and then what only that used."""
    pending = [value]
    while pending:
        op = pending.pop().owner
        if isinstance(op, Operation) and op.parent is not None and is_trivially_dead(op):
            pending += op.operands
            Rewriter.erase_op(op)
