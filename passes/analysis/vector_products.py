# SPDX-License-Identifier: Apache-2.0
"""The intrinsics of a host that add products of several neighbours to each lane of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, Signedness
from xdsl.ir import Attribute
from xdsl.utils.hints import isa

from penstock.dialects.machine import REGISTERS, IntrinsicOp, TargetOp
from penstock.passes.analysis.intrinsics import pattern_of


@dataclass(frozen=True)
class VectorProduct:
    """An intrinsic that adds to each acc[n] the products of a[k] and b[n,k]."""

    intrinsic: IntrinsicOp
    lanes: int
    """The extent of n: elements of a vector of sums."""
    group: int
    """The extent of k: the products in a sum."""
    elements: tuple[Attribute, Attribute, Attribute]
    """The element types of a, b and acc at graph level, where integers say whether they have a sign."""


@lru_cache(maxsize=64)
def vector_products(target: TargetOp) -> tuple[VectorProduct, ...]:
    """Those of a host, the one with the most lanes first."""
    found = [each for op in target.intrinsics().values() if (each := _vector_product(op)) is not None]
    return tuple(sorted(found, key=lambda each: -each.lanes))


def products_at_once(products: Sequence[VectorProduct], outputs: int) -> int:
    """How many products of neighbouring input channels are added at once for so many outputs; 1 for none."""
    return next((each.group for each in products if outputs % each.lanes == 0), 1)


def _vector_product(op: IntrinsicOp) -> VectorProduct | None:
    pattern = pattern_of(op)
    maps = [[str(expr) for expr in operand.index_map.results] for operand in pattern.access.operands]
    extents = [None if each is None or each[0] != each[1] else each[0] for each in op.shape]
    if not op.macs_per_issue() or maps != [["d1"], ["d0", "d1"], ["d0"]] or None in extents:
        return None
    if [spec.scope == REGISTERS for spec in pattern.specs] != [False, False, True]:
        return None
    lanes, group = (extent for extent in extents if extent is not None)
    a, b, acc = (_graph_type(op, number) for number in range(3))
    return VectorProduct(op, lanes, group, (a, b, acc))


def _graph_type(op: IntrinsicOp, number: int) -> Attribute:
    """The element type of an operand at graph level."""
    arg = op.generic.body.block.args[number]
    element = arg.type
    if isa(element, IntegerType) and any(isinstance(use.operation, arith.ExtUIOp) for use in arg.uses):
        return IntegerType(element.width.data, Signedness.UNSIGNED)
    return element
