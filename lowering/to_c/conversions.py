# SPDX-License-Identifier: Apache-2.0
"""Conversions between element types as C expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import arith
from xdsl.ir import Operation

from penstock.dialects.upstream.arith import refuse_rounding_mode
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.types import CType
from penstock.lowering.to_c.emitter import FunctionEmitter

Rule = Callable[[FunctionEmitter, Any], Expr]
"""The expression of a pure op with one result."""


def unsigned_of(ctype: CType) -> str:
    """The unsigned type of the same width."""
    return f"uint{ctype.bits}_t" if not ctype.is_bool else "uint8_t"


def call(function: str, *operands: Expr | str) -> Expr:
    """A call of a C function."""
    texts = [each.text if isinstance(each, Expr) else each for each in operands]
    return Expr(f"{function}({', '.join(texts)})", is_atom=True)


def cast(type: str, operand: Expr) -> Expr:
    """A conversion."""
    return Expr(f"({type}){operand.atom}")


def _wrapped(ctype: CType, operand: Expr) -> Expr:
    """The low bits of an integer, as a number of a type of less than a byte."""
    half = 1 << (ctype.bits - 1)
    return Expr(f"({ctype.value})((({operand.atom} & {2 * half - 1}) ^ {half}) - {half})", is_atom=True)


def _as_unsigned(ctype: CType, operand: Expr) -> Expr:
    """An integer read without its sign."""
    if ctype.is_narrow:
        return Expr(f"({operand.atom} & {(1 << ctype.bits) - 1})", is_atom=True)
    return cast(unsigned_of(ctype), operand)


def _convert_integer(emitter: FunctionEmitter, op: Operation) -> Expr:
    """Sign extension, truncation, and between index and integers."""
    source, ctype = emitter.ctype(op.operands[0]), emitter.result_type(op)
    operand = emitter.scalar(op.operands[0])
    if ctype.is_bool:
        return operand if source.is_bool else Expr(f"{operand.atom} & 1")
    if ctype.is_narrow:
        return _wrapped(ctype, Expr(f"-{operand.atom}") if source.is_bool else operand)
    if source.is_bool:
        return Expr(f"({ctype.value})-{operand.atom}")
    return operand if source.value == ctype.value else cast(ctype.value, operand)


def _extend_unsigned(emitter: FunctionEmitter, op: arith.ExtUIOp) -> Expr:
    source, ctype = emitter.ctype(op.input), emitter.result_type(op)
    operand = _as_unsigned(source, emitter.scalar(op.input))
    return _wrapped(ctype, operand) if ctype.is_narrow else cast(ctype.value, operand)


def _integer_to_float(emitter: FunctionEmitter, op: arith.SIToFPOp | arith.UIToFPOp) -> Expr:
    source, ctype = emitter.ctype(op.input), emitter.result_type(op)
    operand = emitter.scalar(op.input)
    if isinstance(op, arith.UIToFPOp):
        operand = _as_unsigned(source, operand)
    elif source.is_bool:
        operand = Expr(f"-{operand.atom}")
    return emitter.rounded(ctype, f"({ctype.value}){operand.atom}")


def _float_to_integer(emitter: FunctionEmitter, op: arith.FPToSIOp | arith.FPToUIOp) -> Expr:
    """Towards zero; by way of 64 bits, so that what does not fit wraps."""
    ctype = emitter.result_type(op)
    operand = emitter.scalar(op.input)
    if isinstance(op, arith.FPToUIOp) and ctype.bits == 64:
        return Expr(f"(int64_t)(uint64_t){operand.atom}")
    whole = cast("int64_t", operand)
    if ctype.is_narrow:
        return _wrapped(ctype, whole)
    if ctype.is_bool:
        return Expr(f"{whole.atom} & 1")
    return whole if ctype.bits == 64 else cast(ctype.value, whole)


def _convert_float(emitter: FunctionEmitter, op: arith.ExtFOp | arith.TruncFOp) -> Expr:
    refuse_rounding_mode(op)
    source, ctype = emitter.ctype(op.input), emitter.result_type(op)
    operand = emitter.scalar(op.input)
    if source.bits == 64 and (ctype.name == "f16" or ctype.bits < 16):
        emitter.program.helpers.add("odd_f16")
        return emitter.rounded(ctype, f"pen_odd_f16({operand.text})")
    if ctype.is_small:
        return emitter.rounded(ctype, f"(float){operand.atom}")
    return operand if source.value == ctype.value else cast(ctype.value, operand)


def _bitcast(emitter: FunctionEmitter, op: arith.BitcastOp) -> Expr:
    source, ctype = emitter.ctype(op.input), emitter.result_type(op)
    operand = emitter.scalar(op.input)
    if source.is_float == ctype.is_float and source.bits == ctype.bits and not source.is_small:
        return operand
    if source.bits != ctype.bits or source.is_bool or source.bits < 8:
        raise emitter.refuse(op, f"a bitcast of {op.input.type} to {op.result.type}")
    if source.bits > 16:
        return call(emitter.helper("bitcast", ctype), operand)
    bits = cast(f"uint{source.bits}_t", operand)
    if source.is_small:
        emitter.program.helpers.update(source.helpers)
        bits = Expr(source.store(operand.text), is_atom=True)
    return emitter.load(ctype, bits.text) if ctype.is_small else cast(ctype.value, bits)


CONVERSIONS: dict[type[Operation], Rule] = {
    arith.IndexCastOp: _convert_integer,
    arith.ExtSIOp: _convert_integer,
    arith.TruncIOp: _convert_integer,
    arith.ExtUIOp: _extend_unsigned,
    arith.SIToFPOp: _integer_to_float,
    arith.UIToFPOp: _integer_to_float,
    arith.FPToSIOp: _float_to_integer,
    arith.FPToUIOp: _float_to_integer,
    arith.ExtFOp: _convert_float,
    arith.TruncFOp: _convert_float,
    arith.BitcastOp: _bitcast,
}
"""Class of an op -> its expression."""
