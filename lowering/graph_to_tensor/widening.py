"""Casts that only widen what a contraction multiplies: its body does so, and no wide tensor is needed."""

from __future__ import annotations

from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.accumulator import holds
from penstock.dialects.graph.base import is_float, is_integer
from penstock.lowering.graph_to_tensor.shapes import element_of


def stored_factor(value: SSAValue) -> SSAValue:
    """A factor of a contraction before the casts that lose nothing."""
    while isinstance(value.owner, graph.CastOp) and _widens(value.owner):
        value = value.owner.x
    return value


def _widens(op: graph.CastOp) -> bool:
    if not isinstance(op.parent_op(), graph.FusedOp):
        return False  # outside groups every op is a kernel of its own
    source, target = element_of(op.x), element_of(op.result)
    alike = (is_float(source) and is_float(target)) or (is_integer(source) and is_integer(target))
    return alike and holds(target, source)
