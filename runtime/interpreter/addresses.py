"""Addresses and scalar accesses as Python source: `affine.apply`, `affine.min`, `memref.load`, `memref.store`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import affine, memref
from xdsl.ir import SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from penstock.runtime.interpreter.registry import emits
from penstock.runtime.interpreter.source import Writer


def _outside() -> None:
    raise IndexError("an index is negative")


def _affine(expr: AffineExpr, names: Sequence[str], num_dims: int) -> str:
    match expr:
        case AffineConstantExpr():
            return f"({expr.value})" if expr.value < 0 else str(expr.value)
        case AffineDimExpr():
            return names[expr.position]
        case AffineSymExpr():
            return names[num_dims + expr.position]
        case AffineBinaryOpExpr():
            a, b = _affine(expr.lhs, names, num_dims), _affine(expr.rhs, names, num_dims)
            match expr.kind:
                case AffineBinaryOpKind.Add:
                    return f"({a} + {b})"
                case AffineBinaryOpKind.Mul:
                    return f"({a} * {b})"
                case AffineBinaryOpKind.Mod:
                    return f"({a} % {b})"
                case AffineBinaryOpKind.FloorDiv:
                    return f"({a} // {b})"
                case AffineBinaryOpKind.CeilDiv:
                    return f"-(-{a} // {b})"
        case _:
            raise TypeError(f"{expr} is no affine expression")


@emits(affine.ApplyOp, affine.MinOp)
def _emit_affine(writer: Writer, op: affine.ApplyOp | affine.MinOp) -> None:
    index_map = op.map.data
    names = [writer.name(operand) for operand in op.operands]
    results = [_affine(expr, names, index_map.num_dims) for expr in index_map.results]
    writer.assign(op.result, results[0] if len(results) == 1 else f"min({', '.join(results)})")
    if writer.non_negative.issuperset(op.operands) and all("-" not in result for result in results):
        writer.non_negative.add(op.result)


def _index(writer: Writer, indices: Sequence[SSAValue]) -> str:
    """The subscript of an access, after the checks that it needs: Python would count a negative index from the end."""
    unchecked = [writer.name(index) for index in indices if index not in writer.non_negative]
    if unchecked:
        condition = " or ".join(f"{name} < 0" for name in unchecked)
        writer.line(f"if {condition}: {writer.bind(_outside, 'outside')}()")
    names = [writer.name(index) for index in indices]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


@emits(memref.LoadOp)
def _emit_load(writer: Writer, op: memref.LoadOp) -> None:
    index = _index(writer, op.indices)
    writer.assign(op.res, f"{writer.view_name(op.memref)}[{index}]")


@emits(memref.StoreOp)
def _emit_store(writer: Writer, op: memref.StoreOp) -> None:
    index = _index(writer, op.indices)
    writer.line(f"{writer.view_name(op.memref)}[{index}] = {writer.name(op.value)}")
