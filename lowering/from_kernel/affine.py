# SPDX-License-Identifier: Apache-2.0
"""Indices as affine expressions of names."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir.affine import AffineConstantExpr, AffineExpr

from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import Numbers, number_of
from penstock.lowering.from_kernel.syntax import Access, Binary, Call, Name, Node, Unary

NOT_AFFINE = "an index must be affine in the dims"


def affine_of(node: Node, dim_of: Callable[[Name], AffineExpr], numbers: Numbers) -> AffineExpr:
    """
    An index as an affine expression, in which `dim_of` says what a name is that is no number.

    Raises Fault for what is not affine, and what `dim_of` raises.
    """
    if (number := number_of(node, numbers)) is not None:
        if isinstance(number, bool) or not isinstance(number, int):
            raise Fault(NOT_AFFINE, node)
        return AffineConstantExpr(number)
    match node:
        case Name():
            return dim_of(node)
        case Unary(operator="-"):
            return affine_of(node.operand, dim_of, numbers) * -1
        case Binary(operator="+" | "-" | "*"):
            left, right = (affine_of(part, dim_of, numbers) for part in (node.left, node.right))
            if node.operator != "*":
                return left + right if node.operator == "+" else left - right
            if isinstance(left, AffineConstantExpr) or isinstance(right, AffineConstantExpr):
                return left * right
        case Binary(operator="//" | "%"):
            notes = ["// and % are of an index alone, over a range that begins at 0 and that the divisor divides"]
            raise Fault(NOT_AFFINE, node, notes)
        case Access() | Call():
            notes = [
                "what stands at computed indices is a gather: graph.gather computes it, before or after the kernel"
            ]
            raise Fault(NOT_AFFINE, node, notes)
        case _:
            pass
    raise Fault(NOT_AFFINE, node, ["indices and loop variables may be added, and multiplied by sizes and integers"])
