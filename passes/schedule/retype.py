"""Another layout or scope for a buffer that is there."""

from __future__ import annotations

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import Rewriter

from penstock.passes.analysis.memory.storage import subview_type


def retype(value: SSAValue, type: MemRefType[Attribute]) -> None:
    """Give `value` a new layout and scope, and the views of it those that follow."""
    new = Rewriter.replace_value_with_new_type(value, type)
    for use in list(new.uses):
        if isinstance(use.operation, memref.SubviewOp):
            retype(use.operation.result, subview_type(use.operation, type))
