# SPDX-License-Identifier: Apache-2.0
"""Instructions on scalars, or on vectors of them: one text for both."""

from __future__ import annotations

from typing import Any

from penstock.lowering.codegen.types import CType
from penstock.lowering.to_llvm.text import Instructions
from penstock.lowering.to_llvm.types import literal, splat, value_type, vector_of


class Lanes:
    """Where instructions go, and how many lanes they have."""

    asm: Instructions
    """Where they go."""
    lanes: int
    """Of the vectors that are computed now; 0 for scalars."""

    def type(self, type: str | CType) -> str:
        """A type of a value, of as many lanes as ops compute now."""
        return vector_of(value_type(type) if isinstance(type, CType) else type, self.lanes)

    def constant(self, type: str | CType, number: Any) -> str:
        """A number, in all lanes."""
        text = literal(type, number) if isinstance(type, CType) else str(number)
        name = value_type(type) if isinstance(type, CType) else type
        return splat(name, text) if self.lanes else text

    def inst(self, name: str, type: str | CType, *operands: str) -> str:
        """An instruction whose operands have one type."""
        return self.asm.value(f"{name} {self.type(type)} {', '.join(operands)}")

    def cast(self, name: str, source: str | CType, operand: str, target: str | CType) -> str:
        """A conversion."""
        return self.asm.value(f"{name} {self.type(source)} {operand} to {self.type(target)}")

    def select(self, condition: str, type: str | CType, then: str, otherwise: str) -> str:
        """One of two values."""
        full = self.type(type)
        return self.asm.value(f"select {self.type('i1')} {condition}, {full} {then}, {full} {otherwise}")

    def intrinsic(self, name: str, type: str | CType, *operands: str, flag: str = "") -> str:
        """A call of an intrinsic that takes and returns one type; `flag` is an i1 after the operands."""
        full, scalar = self.type(type), value_type(type) if isinstance(type, CType) else type
        letter = {"float": "f32", "double": "f64", "half": "f16"}.get(scalar, scalar)
        symbol = f"@llvm.{name}.{f'v{self.lanes}' if self.lanes else ''}{letter}"
        types = [full] * len(operands) + (["i1"] if flag else [])
        self.asm.module.declarations.setdefault(symbol, f"declare {full} {symbol}({', '.join(types)})")
        given = [*(f"{full} {each}" for each in operands), *([f"i1 {flag}"] if flag else [])]
        return self.asm.value(f"call {full} {symbol}({', '.join(given)})")

    def library(self, function: str, ctype: CType, *operands: str) -> str:
        """A call of a function of the C library, which LLVM must not replace by others; it takes scalars."""
        type = value_type(ctype)
        symbol = f"@{function}" if type == "double" else f"@{function}f"
        types = ", ".join([type] * len(operands))
        self.asm.module.declarations.setdefault(symbol, f"declare {type} {symbol}({types}) #2")
        return self.asm.value(f"call {type} {symbol}({', '.join(f'{type} {each}' for each in operands)}) #3")
