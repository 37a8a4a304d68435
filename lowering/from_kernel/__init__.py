# SPDX-License-Identifier: Apache-2.0
"""
Into the IR: a text of the kernel language becomes kernels at tensor level.

`syntax` is the tree of a text, `parser` makes it, `printer` prints it. docs/language.md describes the language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import UserError

if TYPE_CHECKING:
    from penstock.lowering.from_kernel.syntax import Source
    from penstock.lowering.from_text import SourceText

__all__ = ["read_source"]


def read_source(text: SourceText) -> Source:
    """The syntax tree of a text. Raises UserError, at the token that is wrong, with what was expected there."""
    from penstock.lowering.from_kernel.parser import SyntaxFault, parse_source

    try:
        return parse_source(text.text)
    except SyntaxFault as fault:
        line = text.first_line - 1 + fault.at.line
        notes = [f"expected {_one_of(fault.expected)}"] if fault.expected else []
        raise UserError(fault.message, loc=f"{text.name}:{line}:{fault.at.column}", notes=notes) from None


def _one_of(words: tuple[str, ...]) -> str:
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"
