# SPDX-License-Identifier: Apache-2.0
"""
Scalar ops as Python source: `arith`, `math`, `affine.apply`, `affine.min`, `memref.load` and `memref.store`.

What `arithmetic` has a template for is inline. A float is rounded to its type by a store and a load, which is correct
(see `_Rounder`); f32 goes through an `array('f')` cell, the quickest way there is.
"""

from __future__ import annotations

import math as python_math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects import affine, arith, memref
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, Float32Type, Float64Type, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.runtime.interpreter.arithmetic import ARITHMETIC, constant_of
from penstock.runtime.interpreter.ownership import is_tensor_select
from penstock.runtime.interpreter.registry import EMITTERS, emits
from penstock.runtime.interpreter.source import SourceWriter
from penstock.runtime.interpreter.values import dense_array, dtype_of, scalar_of, width_of


def _emit_arithmetic(writer: SourceWriter, op: Operation) -> None:
    rule, result = ARITHMETIC[type(op)], op.results[0]
    template = None if rule.template is None else rule.template(op)
    if template is None:
        _call_on_arrays(writer, op)
        return
    is_non_negative = writer.non_negative.issuperset(op.operands)
    needs_wrap = rule.wraps
    if is_non_negative and rule.on_non_negative is not None:
        template, needs_wrap = rule.on_non_negative, False
    width, operand_width = width_of(result.type), width_of(op.operands[0].type) or 64
    names = dict(zip("ab", map(writer.name, op.operands), strict=False))
    for letter, name in list(names.items()):
        names[f"u{letter}"] = f"({name} & {(1 << operand_width) - 1})"
    helper = writer.bind(rule.helper, "h") if rule.helper is not None else ""
    expression = template.format(**names, w=operand_width - 1, h=helper)
    if rule.rounds:
        assign_rounded(writer, result, expression)
        return
    if width is None:
        count = _bits_of(op, [writer.bits.get(operand) for operand in op.operands])
        if count is not None and count < 64:
            writer.bits[result] = count
        if count is None or count >= 64 or "{ua}" in template:
            width = 64
    if needs_wrap and width is not None:
        half = 1 << (width - 1)
        expression = f"(({expression}) + {half} & {2 * half - 1}) - {half}"
    writer.assign(result, expression)
    if is_non_negative and rule.keeps_non_negative and not (needs_wrap and width is not None):
        writer.non_negative.add(result)


def _bits_of(op: Operation, operands: Sequence[int | None]) -> int | None:
    """The bits of an index that is computed of indices of so many; None where that is not known."""
    known = [count for count in operands if count is not None]
    if len(known) < len(operands):
        return None
    match op:
        case arith.MuliOp():
            return sum(known)
        case arith.AddiOp() | arith.SubiOp() | arith.FloorDivSIOp() | arith.CeilDivSIOp():
            return max(known) + 1
        case arith.DivSIOp() | arith.RemSIOp() | arith.MinSIOp() | arith.MaxSIOp():
            return max(known)
        case _:
            return None


def _call_on_arrays(writer: SourceWriter, op: Operation) -> None:
    """Compute an op of scalars by its function on arrays."""
    function = ARITHMETIC[type(op)].on_arrays(op)
    # Arrays of one element: NumPy computes some functions of its scalars another way, and rounds them differently.
    cells = [np.zeros(1, dtype_of(operand.type, op)) for operand in op.operands]

    def compute(*numbers: Any) -> Any:
        for cell, number in zip(cells, numbers, strict=True):
            cell[0] = number
        return scalar_of(function(*cells)[0])

    arguments = ", ".join(writer.name(operand) for operand in op.operands)
    writer.assign(op.results[0], f"{writer.bind(compute, 'compute')}({arguments})")


for _op in ARITHMETIC:
    EMITTERS[_op] = _emit_arithmetic


class _Rounder:
    """
    Cells that round a Python float to a narrower type: store, then load.

    One operation on operands of the narrow type, done in float64 and then rounded, is correctly rounded for +, -,
    *, / and the square root, as 53 >= 2 * 24 + 2 (Figueroa, When is double rounding innocuous, 1995).
    """

    def __init__(self, dtype: np.dtype[Any]):
        self._cell = np.zeros(1, dtype)

    def __call__(self, number: float) -> float:
        self._cell[0] = number
        return float(self._cell[0])


def assign_rounded(writer: SourceWriter, value: SSAValue, expression: str) -> None:
    """Define a float value by an expression in float64."""
    if isinstance(value.type, Float64Type) or _stored_only(value):
        writer.assign(value, expression)
    elif isinstance(value.type, Float32Type):
        cell = writer.bind(writer.execution.kept("f32 cell", lambda: array("f", [0.0])), "cell")
        writer.line(f"{cell}[0] = {expression}")
        writer.assign(value, f"{cell}[0]")
    else:
        dtype = dtype_of(value.type)
        rounder = writer.bind(writer.execution.kept(f"{dtype} cell", lambda: _Rounder(dtype)), "round")
        writer.assign(value, f"{rounder}({expression})")


def _stored_only(value: SSAValue) -> bool:
    """Whether the only thing that happens to an f32 value is a store, which rounds it."""
    return isinstance(value.type, Float32Type) and all(
        isinstance(use.operation, memref.StoreOp) and use.index == 0 for use in value.uses
    )


@emits(arith.SelectOp)
def _emit_select(writer: SourceWriter, op: arith.SelectOp) -> None:
    chosen = f"{writer.name(op.lhs)} if {writer.name(op.cond)} else {writer.name(op.rhs)}"
    # A tensor chosen as a whole gets an array of its own, so that no other name can change it.
    writer.assign(op.result, f"({chosen}).copy()" if is_tensor_select(op) else chosen)
    if {op.lhs, op.rhs} <= writer.non_negative:
        writer.non_negative.add(op.result)
    if op.lhs in writer.bits and op.rhs in writer.bits:
        writer.bits[op.result] = max(writer.bits[op.lhs], writer.bits[op.rhs])
    writer.defined(op.results)


@emits(arith.ConstantOp)
def _emit_constant(writer: SourceWriter, op: arith.ConstantOp) -> None:
    if isinstance(op.result.type, TensorType):
        if not isinstance(op.value, DenseIntOrFPElementsAttr):
            raise UserError("this constant is not interpreted", loc=location_of(op), status=UNSUPPORTED)
        writer.assign(op.result, writer.bind(dense_array(op.value, dtype_of(op.value.get_element_type(), op)), "dense"))
        return
    number = scalar_of(constant_of(op))
    writer.constants[op.result] = number
    if isinstance(number, float) and not python_math.isfinite(number):
        writer.assign(op.result, writer.bind(number, "constant"))
    else:
        writer.alias(op.result, f"({number!r})")
    if not isinstance(number, float):
        writer.bits[op.result] = number.bit_length()
        if number >= 0:
            writer.non_negative.add(op.result)


# addresses


def _outside() -> None:
    raise IndexError("an index is negative")


_HALF = 1 << 63


def _affine(expr: AffineExpr, names: Sequence[str], num_dims: int, *, may_wrap: bool) -> str:
    match expr:
        case AffineConstantExpr():
            return f"({expr.value})" if expr.value < 0 else str(expr.value)
        case AffineDimExpr():
            return names[expr.position]
        case AffineSymExpr():
            return names[num_dims + expr.position]
        case AffineBinaryOpExpr():
            a, b = (_affine(each, names, num_dims, may_wrap=may_wrap) for each in (expr.lhs, expr.rhs))
            match expr.kind:
                case AffineBinaryOpKind.Add | AffineBinaryOpKind.Mul:
                    symbol = "+" if expr.kind is AffineBinaryOpKind.Add else "*"
                    found = f"({a} {symbol} {b})"
                    return f"((({found} + {_HALF}) & {2 * _HALF - 1}) - {_HALF})" if may_wrap else found
                case AffineBinaryOpKind.Mod:
                    return f"({a} % {b})"
                case AffineBinaryOpKind.FloorDiv:
                    return f"({a} // {b})"
                case AffineBinaryOpKind.CeilDiv:
                    return f"(-(-{a} // {b}))"
        case _:
            raise TypeError(f"{expr} is no affine expression")


def _affine_bits(expr: AffineExpr, known: Sequence[int], num_dims: int) -> int:
    """The bits of an expression of indices of so many."""
    match expr:
        case AffineConstantExpr():
            return expr.value.bit_length()
        case AffineDimExpr():
            return known[expr.position]
        case AffineSymExpr():
            return known[num_dims + expr.position]
        case AffineBinaryOpExpr():
            left, right = (_affine_bits(each, known, num_dims) for each in (expr.lhs, expr.rhs))
            return left + right if expr.kind is AffineBinaryOpKind.Mul else max(left, right) + 1
        case _:
            raise TypeError(f"{expr} is no affine expression")


@emits(affine.ApplyOp, affine.MinOp)
def _emit_affine(writer: SourceWriter, op: affine.ApplyOp | affine.MinOp) -> None:
    index_map = op.map.data
    names = [writer.name(operand) for operand in op.operands]
    known = [writer.bits[operand] for operand in op.operands if operand in writer.bits]
    bits = [_affine_bits(expr, known, index_map.num_dims) for expr in index_map.results if len(known) == len(names)]
    may_wrap = not bits or max(bits) > 63
    results = [_affine(expr, names, index_map.num_dims, may_wrap=may_wrap) for expr in index_map.results]
    writer.assign(op.result, results[0] if len(results) == 1 else f"min({', '.join(results)})")
    if writer.non_negative.issuperset(op.operands) and all("-" not in result for result in results):
        writer.non_negative.add(op.result)
    if bits:
        writer.bits[op.result] = min(63, max(bits))


def _index(writer: SourceWriter, indices: Sequence[SSAValue]) -> str:
    """The subscript of an access, after the checks that it needs: Python would count a negative index from the end."""
    unchecked = [writer.name(index) for index in indices if index not in writer.non_negative]
    if unchecked:
        condition = " or ".join(f"{name} < 0" for name in unchecked)
        writer.line(f"if {condition}: {writer.bind(_outside, 'outside')}()")
    names = [writer.name(index) for index in indices]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


@emits(memref.LoadOp)
def _emit_load(writer: SourceWriter, op: memref.LoadOp) -> None:
    index = _index(writer, op.indices)
    writer.assign(op.res, f"{writer.view_name(op.memref)}[{index}]")


@emits(memref.StoreOp)
def _emit_store(writer: SourceWriter, op: memref.StoreOp) -> None:
    index = _index(writer, op.indices)
    writer.line(f"{writer.view_name(op.memref)}[{index}] = {writer.name(op.value)}")
