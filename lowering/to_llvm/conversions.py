# SPDX-License-Identifier: Apache-2.0
"""Conversions between element types as LLVM instructions, on scalars or on vectors of them."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Operation

from penstock.dialects.upstream.arith import refuse_rounding_mode
from penstock.lowering.codegen.types import CType
from penstock.lowering.to_llvm.emitter import LlvmEmitter, Rule
from penstock.lowering.to_llvm.small_floats import from_storage, to_storage
from penstock.lowering.to_llvm.types import float_literal, value_type


def _convert_integer(emitter: LlvmEmitter, op: Operation) -> str:
    """Sign extension, truncation, and between index and integers."""
    return _resized(emitter, "sext", op)


def _extend_unsigned(emitter: LlvmEmitter, op: Operation) -> str:
    return _resized(emitter, "zext", op)


def _resized(emitter: LlvmEmitter, extension: str, op: Operation) -> str:
    source, ctype = emitter.ctype(op.operands[0]), emitter.result_type(op)
    operand = emitter.operand(op.operands[0])
    if source.bits == ctype.bits:
        return operand
    return emitter.cast(extension if source.bits < ctype.bits else "trunc", source, operand, ctype)


def _integer_to_float(emitter: LlvmEmitter, op: arith.SIToFPOp | arith.UIToFPOp) -> str:
    source, ctype = emitter.ctype(op.input), emitter.result_type(op)
    name = "uitofp" if isinstance(op, arith.UIToFPOp) else "sitofp"
    return emitter.rounded(ctype, emitter.cast(name, source, emitter.operand(op.input), ctype))


def _float_to_integer(emitter: LlvmEmitter, op: arith.FPToSIOp | arith.FPToUIOp) -> str:
    """Towards zero; by way of 64 bits, so that what does not fit wraps. Beyond those it is the least number."""
    source, ctype = emitter.ctype(op.input), emitter.result_type(op)
    operand = emitter.operand(op.input)

    def below(number: float) -> str:
        return emitter.inst("fcmp olt", source, operand, float_constant(emitter, source, number))

    fits = emitter.inst("fcmp oge", source, operand, float_constant(emitter, source, -(2.0**63)))
    fits = emitter.inst("and", "i1", fits, below(2.0**63))
    signed = emitter.cast("fptosi", source, operand, "i64")
    least = emitter.constant("i64", -(1 << 63))
    found = emitter.select(fits, "i64", signed, least)
    if isinstance(op, arith.FPToUIOp) and ctype.bits == 64:
        is_large = emitter.inst("fcmp oge", source, operand, float_constant(emitter, source, 2.0**63))
        is_large = emitter.inst("and", "i1", is_large, below(2.0**64))
        found = emitter.select(is_large, "i64", emitter.cast("fptoui", source, operand, "i64"), found)
    return found if ctype.bits == 64 else emitter.cast("trunc", "i64", found, ctype)


def float_constant(emitter: LlvmEmitter, ctype: CType, number: float) -> str:
    """A number of a type of floats, in all lanes."""
    return emitter.constant(value_type(ctype), float_literal(number))


def _convert_float(emitter: LlvmEmitter, op: arith.ExtFOp | arith.TruncFOp) -> str:
    refuse_rounding_mode(op)
    source, ctype = emitter.ctype(op.input), emitter.result_type(op)
    operand = emitter.operand(op.input)
    if source.bits == 64 and (ctype.name == "f16" or ctype.bits < 16):
        return emitter.rounded(ctype, _to_odd(emitter, operand))
    if value_type(source) != value_type(ctype):
        operand = emitter.cast("fptrunc" if source.bits == 64 else "fpext", source, operand, ctype)
    return emitter.rounded(ctype, operand)


def _is_zero(emitter: LlvmEmitter, bits: str) -> str:
    return emitter.inst("icmp eq", "i32", bits, emitter.constant("i32", 0))


def _to_odd(emitter: LlvmEmitter, value: str) -> str:
    """A `double` as a `float` that rounds to a smaller float as the `double` would: to odd if it is not exact."""
    narrow = emitter.cast("fptrunc", "double", value, "float")
    wide = emitter.cast("fpext", "float", narrow, "double")
    bits = emitter.cast("bitcast", "float", narrow, "i32")
    low = emitter.inst("and", "i32", bits, emitter.constant("i32", 1))
    size, limit = emitter.intrinsic("fabs", "double", wide), emitter.constant("double", float_literal(float("inf")))
    changes = emitter.inst("and", "i1", _is_zero(emitter, low), emitter.inst("fcmp one", "double", wide, value))
    changes = emitter.inst("and", "i1", changes, emitter.inst("fcmp olt", "double", size, limit))
    is_less = emitter.inst("fcmp olt", "double", size, emitter.intrinsic("fabs", "double", value))
    step = emitter.select(is_less, "i32", emitter.constant("i32", 1), emitter.constant("i32", -1))
    moved = emitter.inst("add", "i32", bits, step)
    return emitter.cast("bitcast", "i32", emitter.select(changes, "i32", moved, bits), "float")


def _bitcast(emitter: LlvmEmitter, op: arith.BitcastOp) -> str:
    source, ctype = emitter.ctype(op.input), emitter.result_type(op)
    operand = emitter.operand(op.input)
    has_same_bits = source.is_float == ctype.is_float and source.bits == ctype.bits and not source.is_small
    if has_same_bits or source.name == ctype.name:
        return operand
    if source.bits != ctype.bits or source.is_bool or source.bits < 8:
        raise emitter.refuse(op, f"a bitcast of {op.input.type} to {op.result.type}")
    if source.bits > 16:
        return emitter.cast("bitcast", source, operand, ctype)
    bits = operand
    if source.is_small:
        bits = to_storage(emitter, source, operand)
        if source.name == "f16":
            bits = emitter.cast("bitcast", "half", bits, "i16")
    if not ctype.is_small:
        return bits
    if ctype.name == "f16":
        bits = emitter.cast("bitcast", "i16", bits, "half")
    return from_storage(emitter, ctype, bits)


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
"""Class of an op -> how it is written."""
