# SPDX-License-Identifier: Apache-2.0
"""Element types in LLVM IR: what a value is in memory and in a register, and its literals."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from penstock.lowering.codegen.types import CType


def value_type(ctype: CType) -> str:
    """The type of a value: floats of 16 bits or fewer are `float`, rounded after every operation, as in C."""
    if ctype.is_float:
        return "double" if ctype.bits == 64 else "float"
    return f"i{ctype.bits}"


def memory_type(ctype: CType) -> str:
    """The type of an element in memory: integers of less than a byte take one."""
    if ctype.name == "f16":
        return "half"
    if ctype.is_float and ctype.bits >= 32:
        return value_type(ctype)
    return f"i{max(8, ctype.bits)}"


def vector_of(type: str, lanes: int) -> str:
    """A vector type; a scalar one for no lanes."""
    return f"<{lanes} x {type}>" if lanes else type


def literal(ctype: CType, number: Any) -> str:
    """A number of a type, exactly."""
    if ctype.is_float:
        rounded = np.asarray(float(number)).astype(ctype.dtype())
        return float_literal(float(rounded))
    if ctype.is_bool:
        return "true" if number else "false"
    value = int(number) & ((1 << ctype.bits) - 1)
    return str(value - (1 << ctype.bits) if value >> (ctype.bits - 1) else value)


def float_literal(number: float) -> str:
    """A number of `float` or `double`; LLVM writes both as the bits of a double."""
    return f"0x{struct.unpack('>Q', struct.pack('>d', number))[0]:016X}"


def splat(type: str, text: str) -> str:
    """A literal in all lanes."""
    return f"splat ({type} {text})"
