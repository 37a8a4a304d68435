# SPDX-License-Identifier: Apache-2.0
"""Sums that a command begins: the zeros before it need not be written where it can overwrite what it adds to."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.dialects.linalg.ops import YieldOp

from penstock.dialects.accel import ExecOp
from penstock.dialects.machine import CommandForm, IntrinsicOp, TargetOp
from penstock.dialects.machine.spelling import EARLIER
from penstock.dialects.mem import memref_of
from penstock.passes.analysis.access import linear_form


def sums_begun_after(zeros: ExecOp, target: TargetOp) -> ExecOp | None:
    """
    The command that begins the sums which `zeros` clears, if it can do without: it is what touches the buffer next, it
    adds to every element, and its spelling tells the first addition from the others.
    """
    if not _writes_zeros(target.intrinsics()[zeros.intrinsic_name]) or not _reaches_all(zeros):
        return None
    buffer = zeros.buffers[-1]
    op = zeros.next_op
    while op is not None and not any(value is buffer for inner in op.walk() for value in inner.operands):
        op = op.next_op
    if not isinstance(op, ExecOp) or any(value is buffer for value in op.buffers[:-1]) or not _reaches_all(op):
        return None
    intrinsic = target.intrinsics()[op.intrinsic_name]
    template, form = intrinsic.template, CommandForm.of(intrinsic)
    return op if template is not None and form is not None and EARLIER in template.names and form.adds else None


def _writes_zeros(intrinsic: IntrinsicOp) -> bool:
    generic = intrinsic.generic
    last = generic.body.block.last_op
    if generic.inputs or not isinstance(last, YieldOp) or not isinstance(last.operands[0].owner, arith.ConstantOp):
        return False
    value = last.operands[0].owner.value
    return isinstance(value, IntegerAttr | FloatAttr) and value.value.data == 0


def _reaches_all(op: ExecOp) -> bool:
    """Whether each dim of the written memref is walked from end to end, by a dim of the domain of its own."""
    extents = op.extents.get_values()
    constants, rows = linear_form(op.maps.data[-1].data)
    walked: list[int] = []
    for size, constant, row in zip(memref_of(op.buffers[-1]).get_shape(), constants, rows, strict=True):
        dims = [dim for dim, factor in enumerate(row) if factor and extents[dim] > 1]
        if constant or len(dims) != (size > 1) or any(row[dim] != 1 or extents[dim] != size for dim in dims):
            return False
        walked += dims
    return len(walked) == len(set(walked))
