"""Affine expressions as C, and as linear forms where they are linear."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from penstock.lowering.to_c.text import Expr


def affine_expression(expr: AffineExpr, dims: Sequence[Expr], symbols: Sequence[Expr] = ()) -> Expr:
    """The value of an affine expression; divisors are positive, quotients round down."""
    match expr:
        case AffineConstantExpr():
            return Expr(str(expr.value), is_atom=expr.value >= 0)
        case AffineDimExpr():
            return dims[expr.position]
        case AffineSymExpr():
            return symbols[expr.position]
        case AffineBinaryOpExpr():
            left = affine_expression(expr.lhs, dims, symbols)
            right = affine_expression(expr.rhs, dims, symbols)
            return _binary(expr.kind, left, right)
        case _:
            raise ValueError(f"{expr} is no affine expression")


def _binary(kind: AffineBinaryOpKind, left: Expr, right: Expr) -> Expr:
    a, b = left.atom, right.atom
    if left.number is not None and right.number is not None:
        value = _evaluate(kind, left.number, right.number)
        return Expr(str(value), is_atom=value >= 0)
    match kind:
        case AffineBinaryOpKind.Add:
            return Expr(f"{a} - {-right.number}" if right.number is not None and right.number < 0 else f"{a} + {b}")
        case AffineBinaryOpKind.Mul:
            return Expr(f"{a} * {b}")
        case AffineBinaryOpKind.Mod:
            return Expr(f"(({a} % {b}) + {b}) % {b}")
        case AffineBinaryOpKind.FloorDiv:
            return Expr(f"({a} - (({a} % {b}) + {b}) % {b}) / {b}")
        case AffineBinaryOpKind.CeilDiv:
            return Expr(f"({a} + ((-{a} % {b}) + {b}) % {b}) / {b}")


def _evaluate(kind: AffineBinaryOpKind, a: int, b: int) -> int:
    match kind:
        case AffineBinaryOpKind.Add:
            return a + b
        case AffineBinaryOpKind.Mul:
            return a * b
        case AffineBinaryOpKind.Mod:
            return a % b
        case AffineBinaryOpKind.FloorDiv:
            return a // b
        case AffineBinaryOpKind.CeilDiv:
            return -(-a // b)


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
