"""What an intrinsic of the machine fills with a constant."""

from __future__ import annotations

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Attribute
from xdsl.ir.affine import AffineMap

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import scope_of, static_strides
from penstock.passes.analysis.access import Access, Node, Operand
from penstock.passes.analysis.intrinsics import candidates

Number = IntegerAttr | FloatAttr
"""The value of an `arith.constant`."""


def can_fill(type: MemRefType[Attribute], value: Attribute, target: TargetOp) -> bool:
    """Whether some intrinsic of the machine fills a buffer of this type with `value`."""
    shape = type.get_shape()
    dest = Operand(
        None, scope_of(type), type.element_type, static_strides(type), AffineMap.identity(len(shape)), tuple(shape)
    )
    constant = Node("arith.constant", (("value", value),), type.element_type, ())
    access = Access(tuple(shape), (IteratorType.PARALLEL,) * len(shape), (dest,), constant)
    return bool(candidates(access, target)[0])
