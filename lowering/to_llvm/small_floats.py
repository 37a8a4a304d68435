# SPDX-License-Identifier: Apache-2.0
"""
Floats of 16 bits or fewer: `float` in registers, their bits in memory, to nearest even.

What a format is, its codes of NaN and of what is too large, is taken from the NumPy type. All is done on whole vectors,
without branches; f16 is converted by the CPU.
"""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np

from penstock.lowering.codegen.types import CType
from penstock.lowering.to_llvm.lanes import Lanes
from penstock.lowering.to_llvm.types import float_literal, memory_type

FLOAT_BIAS, FLOAT_FRACTION = 127, 23


def is_byte_float(ctype: CType) -> bool:
    """Whether it is a float of 8 bits or fewer."""
    return ctype.is_float and ctype.bits <= 8


def from_storage(emitter: Lanes, ctype: CType, bits: str) -> str:
    """The `float` of an element in memory."""
    if ctype.name == "f16":
        return emitter.cast("fpext", "half", bits, "float")
    if ctype.name == "bf16":
        whole = emitter.inst("shl", "i32", emitter.cast("zext", "i16", bits, "i32"), emitter.constant("i32", 16))
        return emitter.cast("bitcast", "i32", whole, "float")
    assert not emitter.lanes, "a table is looked up for one element"
    numbers = np.arange(1 << ctype.bits, dtype=np.uint8).view(ctype.dtype()).astype(np.float64)
    symbol = f"@pen_{ctype.name}"
    values = ", ".join(f"float {float_literal(float(number))}" for number in numbers)
    emitter.asm.module.helpers.setdefault(
        symbol, f"{symbol} = internal unnamed_addr constant [{len(numbers)} x float] [{values}]"
    )
    code = emitter.cast("zext", "i8", bits, "i64")
    code = emitter.inst("and", "i64", code, str(len(numbers) - 1))
    return emitter.asm.load("float", emitter.asm.at(symbol, "float", code), 4)


def to_storage(emitter: Lanes, ctype: CType, value: str) -> str:
    """What an element in memory becomes, so that it holds a `float`."""
    if ctype.name == "f16":
        return emitter.cast("fptrunc", "float", value, "half")
    if ctype.name == "bf16":
        return _to_bf16(emitter, value)
    return _to_exponent(emitter, value) if ctype.name == "f8E8M0FNU" else _to_byte(emitter, ctype, value)


def _to_bf16(emitter: Lanes, value: str) -> str:
    def number(value: int) -> str:
        return emitter.constant("i32", value)

    whole = emitter.cast("bitcast", "float", value, "i32")
    high = emitter.inst("lshr", "i32", whole, number(16))
    odd = emitter.inst("and", "i32", high, number(1))
    bias = emitter.inst("add", "i32", odd, number(0x7FFF))
    near = emitter.inst("lshr", "i32", emitter.inst("add", "i32", whole, bias), number(16))
    is_nan = emitter.inst("fcmp uno", "float", value, value)
    chosen = emitter.select(is_nan, "i32", emitter.inst("or", "i32", high, number(0x40)), near)
    return emitter.cast("trunc", "i32", chosen, "i16")


def _code(ctype: CType, number: float) -> int:
    """The bits of a number."""
    return int(np.asarray(number).astype(ctype.dtype()).view(np.uint8))


def _power(emitter: Lanes, exponent: str) -> str:
    """2 to a power that is one of a normal `float`."""
    biased = emitter.inst("add", "i32", exponent, emitter.constant("i32", FLOAT_BIAS))
    bits = emitter.inst("shl", "i32", biased, emitter.constant("i32", FLOAT_FRACTION))
    return emitter.cast("bitcast", "i32", bits, "float")


def _exponent(emitter: Lanes, size: str) -> str:
    """The exponent of a normal `float` without a sign."""
    bits = emitter.cast("bitcast", "float", size, "i32")
    biased = emitter.inst("lshr", "i32", bits, emitter.constant("i32", FLOAT_FRACTION))
    return emitter.inst("sub", "i32", biased, emitter.constant("i32", FLOAT_BIAS))


def _to_byte(emitter: Lanes, ctype: CType, value: str) -> str:
    info = cast("Any", ml_dtypes.finfo)(ctype.dtype())
    sign, least, fraction = 1 << (ctype.bits - 1), int(info.minexp), int(info.nmant)
    largest = _code(ctype, float(info.max))

    def number(value: int) -> str:
        return emitter.constant("i32", value)

    def by_sign(positive: int, negative: int) -> str:
        return emitter.select(is_negative, "i32", number(negative), number(positive))

    whole = emitter.cast("bitcast", "float", value, "i32")
    is_negative = emitter.inst("icmp slt", "i32", whole, number(0))
    size = emitter.intrinsic("fabs", "float", value)
    # The last bit of a number of this size stands for 2^(exponent - fraction).
    exponent = emitter.intrinsic("smax", "i32", _exponent(emitter, size), number(least))
    exponent = emitter.intrinsic("smin", "i32", exponent, number(FLOAT_BIAS - 1))
    scale = _power(emitter, emitter.inst("sub", "i32", number(fraction), exponent))
    steps = emitter.intrinsic("rint", "float", emitter.inst("fmul", "float", size, scale))
    is_sane = emitter.inst("fcmp olt", "float", steps, emitter.constant("float", float_literal(2.0**16)))
    steps = emitter.cast("fptosi", "float", emitter.select(is_sane, "float", steps, _zero(emitter)), "i32")
    steps_before = emitter.inst("sub", "i32", exponent, number(least))
    code = emitter.inst("add", "i32", emitter.inst("shl", "i32", steps_before, number(fraction)), steps)
    signed = emitter.inst("or", "i32", code, by_sign(0, sign))
    if _code(ctype, -0.0) != sign:
        signed = emitter.select(emitter.inst("icmp eq", "i32", code, number(0)), "i32", number(0), signed)
    is_large = emitter.inst("icmp sgt", "i32", code, number(largest))
    found = emitter.select(is_large, "i32", by_sign(_code(ctype, np.inf), _code(ctype, -np.inf)), signed)
    is_nan = emitter.inst("fcmp uno", "float", value, value)
    found = emitter.select(is_nan, "i32", by_sign(_code(ctype, np.nan), _code(ctype, -np.nan)), found)
    return emitter.cast("trunc", "i32", found, memory_type(ctype))


def _zero(emitter: Lanes) -> str:
    return emitter.constant("float", float_literal(0.0))


def _to_exponent(emitter: Lanes, value: str) -> str:
    """A power of two without a sign: NaN for what is not positive and finite."""

    def number(value: int) -> str:
        return emitter.constant("i32", value)

    bits = emitter.cast("bitcast", "float", value, "i32")
    half = emitter.inst("lshr", "i32", bits, number(FLOAT_FRACTION - 1))
    up = emitter.inst("and", "i32", half, number(1))
    code = emitter.inst("add", "i32", emitter.inst("lshr", "i32", bits, number(FLOAT_FRACTION)), up)
    is_subnormal = emitter.inst("icmp ult", "i32", bits, number(1 << FLOAT_FRACTION))
    is_more = emitter.inst("icmp ugt", "i32", bits, number(1 << (FLOAT_FRACTION - 1)))
    least = emitter.select(is_more, "i32", number(1), number(0))
    code = emitter.select(is_subnormal, "i32", least, code)
    is_positive = emitter.inst("fcmp ogt", "float", value, _zero(emitter))
    is_finite = emitter.inst("fcmp olt", "float", value, emitter.constant("float", float_literal(float("inf"))))
    is_sane = emitter.inst("and", "i1", is_positive, is_finite)
    return emitter.cast("trunc", "i32", emitter.select(is_sane, "i32", code, number(0xFF)), "i8")
