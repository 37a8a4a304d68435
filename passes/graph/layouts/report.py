"""What changes of layout cost in a module: the figures of a report."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.graph import GraphOp, LayoutTransformOp, TransposeOp
from penstock.passes.graph.layouts.forms import bytes_of, moves_units_only, shape_of
from penstock.passes.graph.values import is_constant


def changes_of_layout(module: ModuleOp) -> list[int]:
    """The bytes read and written by each change of layout or transpose in which elements of no constant move."""
    return [
        bytes_of(op.operands[0]) + bytes_of(op.result)
        for op in module.walk()
        if isinstance(op, GraphOp) and _moves(op) and not is_constant(op.result)
    ]


def _moves(op: GraphOp) -> bool:
    if isinstance(op, LayoutTransformOp):
        return not op.is_view
    return isinstance(op, TransposeOp) and not moves_units_only(shape_of(op.x), op.perm.get_values())
