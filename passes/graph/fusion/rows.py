# SPDX-License-Identifier: Apache-2.0
"""
Which ops of a graph are computed row by row: reductions along the same dims of tensors of one shape, and what is
computed of each element and of what its row was reduced to, such as a softmax and the parts of a normalization.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import Operation

from penstock.dialects.graph import PatternKind, pattern_kind, tensor_of
from penstock.dialects.graph.nn import SoftmaxBase
from penstock.dialects.graph.reduction import ReductionOp

Rows = tuple[tuple[int, ...], tuple[int, ...]]
"""The shape of what is reduced, and the dims along which it is."""


def are_rows(ops: Sequence[Operation]) -> bool:
    """Whether one kernel of the host computes these ops a row at a time, each of them once."""
    found = {rows for op in ops if (rows := _rows_of(op)) is not None}
    if len(found) != 1:
        return False
    ((shape, axes),) = found
    kept = tuple(1 if dim in axes else size for dim, size in enumerate(shape))
    dropped = tuple(size for dim, size in enumerate(shape) if dim not in axes)
    shapes = {tensor_of(op.results[0]).get_shape() for op in ops}
    # Rows that are all of the tensor are one tile: nothing is nearer for being in one kernel.
    return prod(kept) > 1 and shapes <= {shape, kept, dropped} and all(map(_is_of_rows, ops))


def _rows_of(op: Operation) -> Rows | None:
    if isinstance(op, ReductionOp):
        return tensor_of(op.x).get_shape(), tuple(op.axes.get_values())
    if isinstance(op, SoftmaxBase):
        return tensor_of(op.x).get_shape(), (op.axis.value.data,)
    return None


def _is_of_rows(op: Operation) -> bool:
    kinds = (PatternKind.ELEMENTWISE, PatternKind.BROADCAST)
    return _rows_of(op) is not None or pattern_kind(op) in kinds
