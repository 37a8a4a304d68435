# SPDX-License-Identifier: Apache-2.0
"""Element types: how a value is kept in memory, and what it is in an expression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, IntegerType
from xdsl.ir import Attribute, Operation

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_bits import DType
from penstock.dialects.element_types import FLOATS, numpy_dtype
from penstock.lowering.codegen.text import Expr


@dataclass(frozen=True)
class CType:
    """
    An element type in C.

    Floats of 16 bits or fewer are unsigned integers in memory and `float` in expressions, rounded after every
    operation; i1 is a byte that holds 0 or 1; i2 and i4 are bytes that hold numbers of their signed range. Integers
    are signless: an operation that reads them as unsigned casts.
    """

    name: str
    """As in MLIR: `f32`, `i8`, `index`."""
    storage: str
    """The type of an element in memory."""
    value: str
    """The type of a variable that holds one."""
    bits: int
    """Bits of the type in the IR."""
    is_float: bool = False
    """Whether it is a floating point type."""

    @property
    def size(self) -> int:
        """Bytes of an element in memory."""
        return max(1, self.bits // 8)

    @property
    def value_size(self) -> int:
        """Bytes of a variable."""
        return 4 if self.is_small else self.size

    @property
    def is_small(self) -> bool:
        """Whether memory and expressions differ."""
        return self.is_float and self.bits <= 16

    @property
    def is_narrow(self) -> bool:
        """Whether it is an integer of less than a byte, but no truth value: it is converted, not computed with."""
        return not self.is_float and 1 < self.bits < 8

    @property
    def is_bool(self) -> bool:
        return self.name == "i1"

    @property
    def helpers(self) -> tuple[str, ...]:
        """The helpers that loads, stores and rounding of this type call."""
        return (f"bits_{self.name}",) if self.is_small else ()

    def load(self, lvalue: str) -> Expr:
        """The value of an element in memory."""
        return Expr(f"pen_load_{self.name}({lvalue})" if self.is_small else lvalue, is_atom=True)

    def store(self, value: str) -> str:
        """What an element in memory becomes, so that it holds `value`."""
        return f"pen_store_{self.name}({value})" if self.is_small else value

    def rounded(self, text: str) -> Expr:
        """The result of an operation that was computed as the C expression `text`."""
        return Expr(f"pen_round_{self.name}({text})", is_atom=True) if self.is_small else Expr(text)

    def dtype(self) -> DType:
        """The NumPy type of an element in memory, integers of less than a byte in one."""
        if self.is_narrow:
            return np.dtype(np.int8)
        return numpy_dtype(_ATTRIBUTES[self.name])


_FLOATS: dict[type[Attribute], CType] = {
    kind: CType(
        str(kind()),
        {1: "uint8_t", 2: "uint16_t", 4: "float", 8: "double"}[dtype.itemsize],
        "double" if dtype.itemsize == 8 else "float",
        kind().bitwidth,
        is_float=True,
    )
    for kind, dtype in FLOATS.items()
}
_INDEX = CType("index", "int64_t", "int64_t", 64)
_INTEGERS = {
    1: CType("i1", "uint8_t", "uint8_t", 1),
    **{bits: CType(f"i{bits}", f"int{max(8, bits)}_t", f"int{max(8, bits)}_t", bits) for bits in (2, 4, 8, 16, 32, 64)},
}
I32 = _INTEGERS[32]
"""The type of the 32-bit sums of bytes."""

_ATTRIBUTES: dict[str, Attribute] = {
    **{ctype.name: kind() for kind, ctype in _FLOATS.items()},
    "index": IndexType(),
    **{ctype.name: IntegerType(bits) for bits, ctype in _INTEGERS.items()},
}


def c_type(type: Attribute, op: Operation) -> CType:
    """The C type of an element type; raises UserError, located at `op`, where C has none."""
    found = _FLOATS.get(type.__class__)
    if found is not None:
        return found
    match type:
        case IndexType():
            return _INDEX
        case IntegerType() if type.width.data in _INTEGERS:
            return _INTEGERS[type.width.data]
        case _:
            raise UserError(
                f"elements of type {type} cannot be lowered to C",
                loc=location_of(op),
                notes=[f"C has {', '.join(_ATTRIBUTES)}"],
                status=UNSUPPORTED,
            )


def attribute_number(attribute: Attribute) -> float | int | None:
    """The number that a scalar attribute holds, or None if it is no scalar."""
    match attribute:
        case FloatAttr() | IntegerAttr():
            return attribute.value.data
        case _:
            return None
