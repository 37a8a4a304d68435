"""Affine expressions, whatever the language: divisors are positive, quotients round down."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import affine
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.text import Expr


def affine_expression(emitter: Emitter, expr: AffineExpr, dims: Sequence[Expr], symbols: Sequence[Expr] = ()) -> Expr:
    """The value of an affine expression."""
    match expr:
        case AffineConstantExpr():
            return _constant(expr.value)
        case AffineDimExpr():
            return dims[expr.position]
        case AffineSymExpr():
            return symbols[expr.position]
        case AffineBinaryOpExpr():
            left = affine_expression(emitter, expr.lhs, dims, symbols)
            right = affine_expression(emitter, expr.rhs, dims, symbols)
            if left.number is None or right.number is None:
                return emitter.affine_binary(expr.kind, left, right)
            known = (AffineConstantExpr(left.number), AffineConstantExpr(right.number))
            return _constant(AffineBinaryOpExpr(expr.kind, *known).eval([], []))
        case _:
            raise ValueError(f"{expr} is no affine expression")


def _constant(value: int) -> Expr:
    return Expr(str(value), is_atom=value >= 0)


def affine_minimum(emitter: Emitter, op: affine.ApplyOp | affine.MinOp) -> Expr:
    """The result of `affine.apply`, or the least one of those of `affine.min`."""
    index_map, operands = op.map.data, [emitter.scalar(operand) for operand in op.operands]
    dims, symbols = operands[: index_map.num_dims], operands[index_map.num_dims :]
    least, *others = [affine_expression(emitter, result, dims, symbols) for result in index_map.results]
    for other in others:
        least = emitter.minimum(least, other)
    return least
