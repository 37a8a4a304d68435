"""Affine expressions as C."""

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
