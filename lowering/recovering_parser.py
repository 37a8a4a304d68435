# SPDX-License-Identifier: Apache-2.0
"""
The parser of `from_text`, which here goes on behind a fault, and notes faults and the places of names.

What follows an operation that cannot be read is looked for at the next line that begins like one. What such an
operation would have defined is taken for defined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import AttributeInvT, Block, Operation, Region, SSAValue
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.parser.core import ForwardDeclaredValue
from xdsl.utils.exceptions import MultipleSpansParseError, ParseError
from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRToken, MLIRTokenKind, PunctuationSpelling

from penstock.lowering.from_text import ForwardUse, SourceParser, SourceText
from penstock.lowering.lexer import SourceLexer
from penstock.lowering.text_places import Extent, NamedPlace, OpPlace, TextFault

_RESULTS = re.compile(r"%[\w$.-]+(?::\d+)?(?:\s*,\s*%[\w$.-]+(?::\d+)?)*\s*=[^=]")
"""What begins an operation with results."""
_BEGINS = (MLIRTokenKind.PERCENT_IDENT, MLIRTokenKind.BARE_IDENT, MLIRTokenKind.STRING_LIT)
"""The tokens that an operation begins with."""
_ENDS = (MLIRTokenKind.CARET_IDENT, MLIRTokenKind.R_BRACE)
"""The tokens that end a block."""
MOST_FAULTS = 100
"""Faults that are noted of one text; behind the last of them it is not read."""
_MALFORMED = "this operation is malformed"
_REFUSED = (Exception,)
"""What dialects raise that take for granted what a half-typed text has to be."""


def _token_extent(text: str, position: int) -> Extent:
    """The token at a position of a text of IR; a letter where there is none."""
    lexer = SourceLexer(Input(text, ""))
    lexer.pos = position
    with suppress(ParseError):
        token = lexer.lex()
        # The token at the end of a text lies behind it.
        if token.span.start < len(text):
            return Extent(token.span.start, token.span.end)
    return Extent(position, min(position + 1, len(text)))


class _RecoveringLexer(SourceLexer):
    """A lexer that notes what is no token, and goes on in the next line."""

    def __init__(self, input: Input[str]) -> None:
        super().__init__(input)
        self.faults: dict[int, ParseError] = {}
        """By where the lexer was."""

    def lex(self) -> MLIRToken:
        while True:
            start = self.pos
            try:
                return super().lex()
            except ParseError as error:
                self.faults.setdefault(error.span.start, error)
                self.pos = _line_behind(self.input.content, max(start, error.span.start))


def _line_behind(text: str, position: int) -> int:
    """Where the next line begins."""
    found = text.find("\n", position)
    return len(text) if found < 0 else found + 1


class RecoveringParser(SourceParser):
    """A parser that notes faults and goes on, and the places of names."""

    def __init__(self, ctx: Context, source: SourceText) -> None:
        self.faults: list[TextFault] = []
        self.ops: list[OpPlace] = []
        self.op_names: dict[Extent, type[Operation]] = {}
        self._aliases: list[NamedPlace] = []
        self._blocks: list[NamedPlace] = []
        self._values: list[tuple[Extent, SSAValue, int, bool]] = []
        self._resolved: dict[SSAValue, SSAValue] = {}
        """What values are that were used before they were defined."""
        self._groups: dict[SSAValue, SSAValue] = {}
        """The first of several values that have one name, by the others."""
        self._defined: dict[SSAValue, Span] = {}
        self._symbols: list[list[Extent]] = []
        """References to symbols in the operation that is being read: the root, and what is nested in it."""
        self.symbol_references: list[tuple[Operation, list[list[Extent]]]] = []
        """Those of each operation."""
        self._lost: set[str] = set()
        """The names that operations define which could not be read."""
        self._top: list[Operation] = []
        self._regions = 0
        self._opened: Span[str] | Span[bytes] = Span(0, 1, Input(source.text, source.name))
        """Where the last region begins."""
        self._is_open = False
        """Whether the text ends in a region."""
        self._done = 0
        """Where the last operation ends that was read, or given up."""
        self._text = source.text
        self._lexer = _RecoveringLexer(Input(source.text, source.name))
        super().__init__(ctx, source, lexer=self._lexer)

    def read(self) -> ModuleOp:
        """What the text holds, as far as it can be read."""
        is_whole = True
        module: ModuleOp | None = None
        while module is None:
            try:
                module = Parser.parse_module(self)
            except ParseError as error:
                is_end = self._current_token.kind is MLIRTokenKind.EOF
                if not is_end or self._regions:
                    self._note(error)
                is_whole, self._regions = False, 0
                if is_end:
                    break
                self._go_on_behind(self.pos)
            except _REFUSED as error:
                self._note(ParseError(self._spot(self.pos), str(error) or _MALFORMED))
                break
        for error in self._lexer.faults.values():
            self._note(error)
        self._note_undefined()
        if module is None or not is_whole:
            for op in self._top:
                if op.parent is not None:
                    op.detach()
            only = self._top[0] if len(self._top) == 1 else None
            module = only if isinstance(only, ModuleOp) else ModuleOp(self._top)
        return module

    # going on behind a fault

    def parse_optional_operation(self) -> Operation | None:
        while (kind := self._current_token.kind) is not MLIRTokenKind.EOF:
            start = self.pos
            if kind not in _BEGINS:
                if not self._regions or kind in _ENDS:
                    return None
                self._note(ParseError(self._current_token.span, "expected an operation"))
                self._go_on_behind(start)
                continue
            depth, symbols = len(self._parser_state.dialect_stack), len(self._symbols)
            try:
                op = self.parse_operation()
            except ParseError as error:
                self._note_of_op(error, start)
            except _REFUSED as error:
                self._note_of_op(ParseError(self._spot(start), str(error) or _MALFORMED), start)
            else:
                if not self._regions:
                    self._top.append(op)
                return op
            del self._parser_state.dialect_stack[depth:]
            del self._symbols[symbols:]
            self._go_on_behind(start)
        return None

    def parse_optional_region(self, arguments: Iterable[Parser.Argument] | None = None) -> Region | None:
        if self._current_token.kind is not MLIRTokenKind.L_BRACE:
            return None
        outside = self.ssa_values.copy(), self.blocks, self.forward_block_references, self._regions
        self._regions += 1
        self._opened = self._current_token.span
        try:
            return super().parse_optional_region(arguments)
        finally:
            self.ssa_values, self.blocks, self.forward_block_references, self._regions = outside

    def parse_optional_punctuation(self, punctuation: PunctuationSpelling) -> PunctuationSpelling | None:
        if punctuation == "}" and self._regions and self._current_token.kind is MLIRTokenKind.EOF:
            # What is not closed is taken for closed where the text ends, or nothing around it would be known.
            if not self._is_open:
                refs: list[tuple[Span[str] | Span[bytes], str | None]] = [(self._opened, None)]
                self._note(MultipleSpansParseError(self._current_token.span, "expected '}'", "opened here:", refs))
            self._is_open = True
            return punctuation
        return super().parse_optional_punctuation(punctuation)

    def _go_on_behind(self, start: int) -> None:
        """Give up what begins at `start`, and move to where the next operation, block or end of a region begins."""
        if (named := _RESULTS.match(self._text, start)) is not None:
            self._lost.update(name[1:] for name in re.findall(r"%[\w$.-]+", named[0]))
        least = max(start + 1, self._done)
        is_enough = len(self.faults) >= MOST_FAULTS
        places = () if is_enough else (self._next_place(start, least, depth) for depth in (True, False))
        self._done = next((place for place in places if place is not None), len(self._text))
        self._resume_from(self._done)

    def _next_place(self, start: int, least: int, counts_braces: bool) -> int | None:
        """
        Where something begins, at `least` somewhere, that could be read; within what is braced only where braces do not
        count, as one may be missing.
        """
        lexer, depth = _RecoveringLexer(self._lexer.input), 0
        lexer.pos = start if counts_braces else least
        while True:
            token = lexer.lex()
            if token.kind is MLIRTokenKind.EOF:
                return None
            place = token.span.start
            if place >= least and depth == 0 and self._can_go_on(token, counts_braces):
                return place
            if counts_braces:
                depth += (token.kind is MLIRTokenKind.L_BRACE) - (token.kind is MLIRTokenKind.R_BRACE)
                depth = max(depth, 0)

    def _can_go_on(self, token: MLIRToken, counts_braces: bool) -> bool:
        place, end = token.span.start, token.span.end
        if token.kind is MLIRTokenKind.R_BRACE:
            return counts_braces and self._regions > 0
        if self._text[self._text.rfind("\n", 0, place) + 1 : place].strip():
            return False
        match token.kind:
            case MLIRTokenKind.PERCENT_IDENT:
                return _RESULTS.match(self._text, place) is not None
            case MLIRTokenKind.BARE_IDENT:
                stack = self._parser_state.dialect_stack
                return "." in token.text or self.ctx.get_optional_op(token.text, dialect_stack=stack) is not None
            case MLIRTokenKind.STRING_LIT:
                return self._text.startswith("(", end)
            case MLIRTokenKind.CARET_IDENT:
                return self._regions > 0
            case MLIRTokenKind.HASH_IDENT | MLIRTokenKind.EXCLAMATION_IDENT:
                return not self._regions and self._text[end:].lstrip(" \t").startswith("=")
            case _:
                return False

    def _note_of_op(self, error: ParseError, start: int) -> None:
        """Note why an operation cannot be read, unless that is because something in it is no token."""
        if not any(start <= place < self.pos for place in self._lexer.faults):
            self._note(error)

    def _note(self, error: ParseError) -> None:
        if len(self.faults) >= MOST_FAULTS:
            return
        extent, related = self._extent(error.span), list[tuple[Extent, str]]()
        if isinstance(error, MultipleSpansParseError):
            reason = (error.ref_text or "see").removesuffix(":")
            related = [(self._extent(span), text or reason) for span, text in error.refs]
            if "missing block" in error.msg:
                extent = related[0][0]
        message = error.msg.strip().rstrip("!")
        self.faults.append(TextFault(extent, message, tuple(getattr(error, "__notes__", ())), tuple(related)))

    def _extent(self, span: Span[str] | Span[bytes]) -> Extent:
        """The place of a span; of one that is only where something begins, the token there."""
        last = len(self._text)
        if span.end - span.start > 1:
            return Extent(min(span.start, last), min(span.end, last))
        return _token_extent(self._text, min(span.start, last))

    def _note_undefined(self) -> None:
        """Note each name that is used and never defined, where it is used first."""
        uses: dict[str, ForwardUse] = {}
        for use in self._forward_uses:
            if use.value.first_use is not None and use.value not in self._resolved:
                uses.setdefault(use.span.text, use)
        for use in uses.values():
            self._note(self._undefined_value([use]))

    # the places of names

    def parse_operation(self) -> Operation:
        start, number = self.pos, len(self._symbols)
        op = super().parse_operation()
        end = start + len(self._text[start : self.pos].rstrip())
        self.ops.append(OpPlace(op, Extent(start, end)))
        if len(self._symbols) > number:
            self.symbol_references.append((op, self._symbols[number:]))
            del self._symbols[number:]
        self._done = self.pos
        return op

    def _get_op_by_name(self, name: str) -> type[Operation]:
        at = self._text.rfind(name, self._op_start, self.pos)
        try:
            found = super()._get_op_by_name(name)
        except ParseError as error:
            error.span = Span(at, at + len(name), self.lexer.input)
            raise
        self.op_names[Extent(at, at + len(name))] = found
        return found

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span) -> None:
        forward = dict(self.forward_ssa_references.get(name, {}))
        if (known := self.ssa_values.get(name)) and known[0] in self._defined:
            message = f"SSA value %{name} is already defined"
            raise MultipleSpansParseError(span, message, "defined here:", [(self._defined[known[0]], None)])
        super()._register_ssa_definition(name, values, span)
        for index, value in forward.items():
            self._resolved[value] = values[index]
        if not values:
            return
        self._groups |= dict.fromkeys(values[1:], values[0])
        self._defined |= dict.fromkeys(values, span)
        self._values.append((Extent(span.start, span.end), values[0], 0, True))

    def resolve_operand(self, operand: UnresolvedOperand, type: AttributeInvT) -> SSAValue[AttributeInvT]:
        name = operand.operand_name
        if name in self._lost and name not in self.ssa_values:
            return ForwardDeclaredValue(type)
        try:
            value = super().resolve_operand(operand, type)
        except ParseError as error:
            values = self.ssa_values.get(name)
            if values and (span := self._defined.get(values[0])) is not None:
                raise MultipleSpansParseError(error.span, error.msg, "defined here:", [(span, None)]) from None
            raise
        self._values.append((Extent(operand.span.start, operand.span.end), value, operand.index, False))
        return value

    def names(self) -> Iterator[NamedPlace]:
        """Where values and blocks are named."""
        for extent, value, index, is_definition in self._values:
            value = self._resolved.get(value, value)
            if not isinstance(value, ForwardDeclaredValue):
                yield NamedPlace(extent, self._groups.get(value, value), is_definition, index)
        yield from self._blocks

    def _parse_block(self) -> Block:
        token = self._current_token
        place = len(self._blocks)
        block = super()._parse_block()
        self._blocks.insert(place, NamedPlace(Extent(token.span.start, token.span.end), block, True))
        return block

    def parse_optional_successor(self) -> Block | None:
        token = self._current_token
        block = super().parse_optional_successor()
        if block is not None:
            self._blocks.append(NamedPlace(Extent(token.span.start, token.span.end), block))
        return block

    def _parse_alias_def(self) -> None:
        token = self._current_token
        super()._parse_alias_def()
        self._aliases.append(NamedPlace(Extent(token.span.start, token.span.end), token.text, True))

    def alias_places(self) -> Iterator[NamedPlace]:
        """Where aliases are defined and used."""
        definitions = {each.extent for each in self._aliases}
        yield from self._aliases
        if not definitions:
            return
        names = "|".join(re.escape(each) for each in sorted(self.attribute_aliases, key=len, reverse=True))
        # Those in strings and comments are none.
        token = rf'"(?:[^"\\\n]|\\.)*"|//[^\n]*|(?<![\w$.-])({names})(?![\w$.<-])'
        for found in re.finditer(token, self._text):
            if found[1] and (extent := Extent(*found.span())) not in definitions:
                yield NamedPlace(extent, found[1])

    def parse_optional_symbol_name(self) -> StringAttr | None:
        token = self._current_token
        name = super().parse_optional_symbol_name()
        if name is not None:
            self._symbols.append([Extent(token.span.start, token.span.end)])
        return name

    def _parse_optional_symref_attr(self) -> SymbolRefAttr | None:
        number = len(self._symbols)
        found = super()._parse_optional_symref_attr()
        if len(self._symbols) > number + 1:
            self._symbols[number:] = [[extent for part in self._symbols[number:] for extent in part]]
        return found
