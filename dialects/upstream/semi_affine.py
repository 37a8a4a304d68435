# SPDX-License-Identifier: Apache-2.0
"""
Semi-affine expressions: what xDSL 0.74 lacks, attached to its classes when this module is imported.

In MLIR a symbol may be a factor or a divisor: `d0 * s0`, `d0 floordiv s0`, `d0 ceildiv (s0 + 1)`, `d0 mod s0`, see
https://mlir.llvm.org/docs/Dialects/Affine/#affine-expressions. xDSL has the expressions and evaluates them, but
refuses to make them. Here they are made; the parser refuses, at the operator, what is neither, and a divisor that is a
constant less than 1, for which MLIR defines no value. And a product stays the one that the text has: xDSL
multiplies out `(d0 + s0) * -2`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineDimExpr, AffineExpr
from xdsl.parser.affine_parser import AffineParser
from xdsl.utils.exceptions import ParseError
from xdsl.utils.mlir_lexer import MLIRToken, MLIRTokenKind

_METHODS = {
    "__mul__": AffineBinaryOpKind.Mul,
    "__floordiv__": AffineBinaryOpKind.FloorDiv,
    "ceil_div": AffineBinaryOpKind.CeilDiv,
    "__mod__": AffineBinaryOpKind.Mod,
}
_Operator = Callable[[AffineExpr, AffineExpr | int], AffineExpr]
_BinaryParser = Callable[[AffineParser, AffineExpr, AffineExpr, MLIRToken], AffineExpr]


def is_symbolic(expr: AffineExpr) -> bool:
    """Whether an expression is made of symbols and constants only."""
    return not any(isinstance(part, AffineDimExpr) for part in expr.dfs())


def _extended(operator: _Operator, kind: AffineBinaryOpKind) -> _Operator:
    def make(self: AffineExpr, other: AffineExpr | int) -> AffineExpr:
        if isinstance(other, int) or isinstance(other, AffineConstantExpr):
            return operator(self, other)
        if kind is AffineBinaryOpKind.Mul and isinstance(self, AffineConstantExpr):
            return operator(other, self)
        return AffineBinaryOpExpr(kind, self, other)

    return make


def _product(lhs: AffineExpr, rhs: AffineExpr) -> AffineExpr:
    """The product as MLIR has it, which does not multiply out the sums that a text has."""
    if isinstance(lhs, AffineConstantExpr):
        lhs, rhs = rhs, lhs
    if not isinstance(rhs, AffineConstantExpr) or not isinstance(lhs, AffineBinaryOpExpr):
        return lhs * rhs
    if rhs.value in (0, 1):
        return lhs if rhs.value else rhs
    if lhs.kind is AffineBinaryOpKind.Mul and isinstance(lhs.rhs, AffineConstantExpr):
        return _product(lhs.lhs, AffineConstantExpr(lhs.rhs.value * rhs.value))
    return AffineBinaryOpExpr(AffineBinaryOpKind.Mul, lhs, rhs)


_Primary = Callable[[AffineParser, Callable[[], AffineExpr | None]], AffineExpr]
_parse_unsigned = cast(_Primary, AffineParser._parse_primary)  # pyright: ignore[reportPrivateUsage]


def _parse_primary(self: AffineParser, parse_name: Callable[[], AffineExpr | None]) -> AffineExpr:
    if self._current_token.kind is not MLIRTokenKind.MINUS:  # pyright: ignore[reportPrivateUsage]
        return _parse_unsigned(self, parse_name)
    self._consume_token()  # pyright: ignore[reportPrivateUsage]
    return _product(_parse_primary(self, parse_name), AffineConstantExpr(-1))


_parse_binary = cast(_BinaryParser, AffineParser._create_binop_expr)  # pyright: ignore[reportPrivateUsage]


def _parse_checked(self: AffineParser, lhs: AffineExpr, rhs: AffineExpr, binop: MLIRToken) -> AffineExpr:
    if binop.text == "*":
        if not is_symbolic(lhs) and not is_symbolic(rhs):
            raise ParseError(binop.span, "not affine: one of two factors has to be a constant or made of symbols")
        return _product(lhs, rhs)
    if binop.text == "-":
        return lhs + _product(rhs, AffineConstantExpr(-1))
    if binop.text != "+":
        if not is_symbolic(rhs):
            raise ParseError(binop.span, "not affine: a divisor has to be a constant or made of symbols")
        if isinstance(rhs, AffineConstantExpr) and rhs.value < 1:
            raise ParseError(binop.span, f"the divisor is {rhs.value}, and has to be at least 1")
    return _parse_binary(self, lhs, rhs, binop)


for _name, _kind in _METHODS.items():
    setattr(AffineExpr, _name, _extended(getattr(AffineExpr, _name), _kind))
setattr(AffineParser, "_parse_primary", _parse_primary)
setattr(AffineParser, "_create_binop_expr", _parse_checked)
