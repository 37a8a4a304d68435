# SPDX-License-Identifier: Apache-2.0
"""Affine expressions, whatever the language: divisors are positive, quotients round down."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import affine
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.views import unsupported
from penstock.passes.analysis.index import stays_in_range


def affine_expression(
    emitter: Emitter, expr: AffineExpr, dims: Sequence[Expr], symbols: Sequence[Expr] = (), *, may_wrap: bool = False
) -> Expr:
    """The value of an affine expression; with `may_wrap` of operands that may lead out of 64 bits."""
    match expr:
        case AffineConstantExpr():
            return _constant(expr.value)
        case AffineDimExpr():
            return dims[expr.position]
        case AffineSymExpr():
            return symbols[expr.position]
        case AffineBinaryOpExpr():
            left = affine_expression(emitter, expr.lhs, dims, symbols, may_wrap=may_wrap)
            right = affine_expression(emitter, expr.rhs, dims, symbols, may_wrap=may_wrap)
            if left.number is None or right.number is None:
                return emitter.affine_binary(expr.kind, left, right, may_wrap=may_wrap)
            known = (AffineConstantExpr(left.number), AffineConstantExpr(right.number))
            return _constant(AffineBinaryOpExpr(expr.kind, *known).eval([], []))
        case _:
            raise ValueError(f"{expr} is no affine expression")


def _has_unknown_divisor(expr: AffineExpr) -> bool:
    if not isinstance(expr, AffineBinaryOpExpr):
        return False
    divides = expr.kind not in (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul)
    is_known = isinstance(expr.rhs, AffineConstantExpr) and expr.rhs.value > 0
    return (divides and not is_known) or _has_unknown_divisor(expr.lhs) or _has_unknown_divisor(expr.rhs)


def _constant(value: int) -> Expr:
    return Expr(str(value), is_atom=value >= 0)


def affine_minimum(emitter: Emitter, op: affine.ApplyOp | affine.MinOp) -> Expr:
    """The result of `affine.apply`, or the least one of those of `affine.min`."""
    index_map, operands = op.map.data, [emitter.scalar(operand) for operand in op.operands]
    dims, symbols = operands[: index_map.num_dims], operands[index_map.num_dims :]
    if any(map(_has_unknown_divisor, index_map.results)):
        raise unsupported(op, "a divisor is no positive number", "arith.floordivsi divides by what is computed")
    may_wrap = not stays_in_range(op.result)
    least, *others = [
        affine_expression(emitter, result, dims, symbols, may_wrap=may_wrap) for result in index_map.results
    ]
    for other in others:
        least = emitter.minimum(least, other)
    return least
