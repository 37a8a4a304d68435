# SPDX-License-Identifier: Apache-2.0
"""MLIR as a language of Pygments: names, types, attributes and operations of its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

__all__ = ["MlirLexer"]


class MlirLexer(RegexLexer):
    """The text of IR, of any dialect."""

    name = "MLIR"
    aliases: ClassVar[Sequence[str]] = ["mlir"]
    tokens: ClassVar = {
        "root": [
            (r"\s+", Text),
            (r"//.*$", Comment.Single),
            (r'"(?:[^"\\]|\\.)*"', String),
            (r"%[\w$.#-]+", Name.Variable),
            (r"\^\w+", Name.Label),
            (r"@[\w$.-]+", Name.Function),
            (r"![\w.]+", Keyword.Type),
            (r"#[\w.]+", Name.Decorator),
            (r"\b(?:tensor|memref|vector|index|none|complex|tuple|strided|affine_map|dense|array)\b", Keyword.Type),
            (r"\b(?:[su]?i\d+|f\d+\w*|bf16|tf32)\b", Keyword.Type),
            # The sizes of a shape stand before its element type without a blank.
            (r"(?:\d+|\?)(?=x)", Number.Integer),
            (r"x(?=[\d?a-z])", Punctuation),
            (r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", Number),
            (r"[a-z_]\w*(?:\.\w+)+", Name.Builtin),
            (r"[A-Za-z_]\w*", Keyword),
            (r"->|[=:*+-]", Operator),
            (r".", Punctuation),
        ]
    }
