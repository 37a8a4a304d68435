# SPDX-License-Identifier: Apache-2.0
"""Affine expressions as linear forms."""

from __future__ import annotations

from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineDimExpr, AffineExpr


def linear_form(expr: AffineExpr, dims: int) -> tuple[int, tuple[int, ...]] | None:
    """(constant, coefficient of each dim) of an expression without symbols; None if it is not linear."""
    match expr:
        case AffineConstantExpr():
            return expr.value, (0,) * dims
        case AffineDimExpr():
            return 0, tuple(int(dim == expr.position) for dim in range(dims))
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Add | AffineBinaryOpKind.Mul):
            left, right = linear_form(expr.lhs, dims), linear_form(expr.rhs, dims)
            if left is None or right is None:
                return None
            if expr.kind == AffineBinaryOpKind.Add:
                return left[0] + right[0], tuple(a + b for a, b in zip(left[1], right[1], strict=True))
            if any(left[1]) and any(right[1]):
                return None
            factor, scaled = (left[0], right) if not any(left[1]) else (right[0], left)
            return factor * scaled[0], tuple(factor * coefficient for coefficient in scaled[1])
        case _:
            return None
