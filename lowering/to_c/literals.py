# SPDX-License-Identifier: Apache-2.0
"""Numbers in C."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.types import CType


def literal(ctype: CType, number: Any) -> Expr:
    """A number of a type as a C expression that denotes exactly it."""
    if ctype.is_float:
        return Expr(_float_literal(ctype, float(number)), is_atom=True)
    if ctype.is_bool:
        return Expr("1" if number else "0", is_atom=True)
    bits = ctype.bits
    value = int(number) & ((1 << bits) - 1)
    value -= (1 << bits) if value >> (bits - 1) else 0
    if bits >= 8 and value == -(1 << (bits - 1)):
        return Expr(f"INT{bits}_MIN", is_atom=True)
    if abs(value) >= 1 << 31:
        return Expr(f"INT64_C({value})", is_atom=True)
    return Expr(str(value), is_atom=value >= 0)


def _float_literal(ctype: CType, number: float) -> str:
    """The shortest decimal number that reads back as `number`, rounded to the type first."""
    suffix = "" if ctype.bits == 64 else "f"
    rounded = float(np.asarray(number).astype(ctype.dtype()))
    if math.isnan(rounded):
        return "(-NAN)" if math.copysign(1, number) < 0 else "NAN"
    if math.isinf(rounded):
        return "(-INFINITY)" if rounded < 0 else "INFINITY"
    text = repr(np.float64(rounded) if ctype.bits == 64 else np.float32(rounded))
    text = text[text.index("(") + 1 : -1] if "(" in text else text
    if "." not in text and "e" not in text:
        text += ".0"
    text += suffix
    return f"({text})" if text.startswith("-") else text
