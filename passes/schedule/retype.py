# SPDX-License-Identifier: Apache-2.0
"""Another layout or scope for a buffer that is there."""

from __future__ import annotations

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType, NoneAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, memref_of, scope_of, span_in_bytes
from penstock.passes.analysis.memory.storage import subview_type, uses_through

_ANY_LAYOUT = (CopyOp, GenericOp, memref.LoadOp, memref.StoreOp)
"""Ops that access a memref of any strides."""


def retype(value: SSAValue, type: MemRefType[Attribute]) -> None:
    """Give `value` a new layout and scope, and the views of it those that follow."""
    new = Rewriter.replace_value_with_new_type(value, type)
    for use in list(new.uses):
        if isinstance(use.operation, memref.SubviewOp):
            retype(use.operation.result, subview_type(use.operation, type))
        elif isinstance(use.operation, memref.ExpandShapeOp) and isinstance(type.layout, NoneAttr):
            old = memref_of(use.operation.result)
            retype(use.operation.result, MemRefType(old.element_type, old.shape, old.layout, type.memory_space))


def require_any_layout(buffer: BufferOp | memref.AllocOp, type: MemRefType[Attribute], target: TargetOp | None) -> None:
    """
    Raise UserError for a buffer that cannot be of this type, of the same shape and scope: it has a place already, what
    uses it needs the strides that it has, or its scope is too small.
    """
    if isinstance(buffer, BufferOp) and buffer.byte_offset is not None:
        raise UserError(
            "this buffer has its place already, and its size would be another one",
            loc=location_of(buffer),
            notes=["say it before mem-plan"],
        )
    for use in uses_through(buffer.memref, (memref.SubviewOp,)):
        if not isinstance(use.operation, _ANY_LAYOUT):
            raise UserError(
                f"{use.operation.name} needs the layout that this buffer has", loc=location_of(use.operation)
            )
    name = scope_of(type)
    if target is not None and name is not None and span_in_bytes(type) > (scope := target.scope(name)).size_bytes:
        raise UserError(
            f'the buffer would take {span_in_bytes(type)} bytes, and "{name}" has {scope.size_bytes}',
            loc=location_of(buffer),
        )
