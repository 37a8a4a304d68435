# SPDX-License-Identifier: Apache-2.0
"""
From the text of the kernel language to its syntax tree.

Statements end with their line, unless a bracket is open. `SyntaxFault` says at which token a text is wrong, and what
could stand there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, TypeAlias, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput
from lark.lexer import PatternRE

from penstock.lowering.from_kernel.comments import with_comments
from penstock.lowering.from_kernel.syntax import (
    PRECEDENCE,
    PREFIX_PRECEDENCE,
    Access,
    Assignment,
    Binary,
    Binding,
    Block,
    Call,
    CallStatement,
    Constant,
    Declaration,
    Declarator,
    Expression,
    Function,
    If,
    Kernel,
    Loop,
    LoopRange,
    Name,
    Node,
    Number,
    Position,
    Reducer,
    Slice,
    Source,
    Unary,
    children,
)

KEYWORDS = ("and", "else", "for", "from", "function", "grid", "if", "in", "kernel", "not", "or", "reducer")
"""The words that are no names."""
GRAMMAR = r"""
    source: _NL? [definition (_NL definition)* _NL?]
    ?definition: kernel | function | reducer
    kernel: KERNEL NAME [constants] "(" [declarators] ")" "->" "(" declarators ")" block
    function: FUNCTION NAME "(" names ")" _EQUAL expression
    reducer: REDUCER NAME "(" NAME "," NAME ")" "from" expression _EQUAL expression
    constants: "[" constant ("," constant)* "]"
    constant: NAME [_EQUAL expression]
    declarators: declarator ("," declarator)*
    declarator: [NAME] NAME NAME [dims]
    dims: "[" expression ("," expression)* "]"
    names: NAME ("," NAME)*

    block: LBRACE _NL? [statement (_NL statement)* _NL?] RBRACE
    ?statement: declaration | assignment | call_statement | loop | if_
    declaration: declarator [_EQUAL expression]
    assignment: (access | name) (_EQUAL | ADD_ASSIGN) expression
    call_statement: call
    loop: (FOR | GRID) range ("," range)* block
    range: NAME "in" expression COLON expression [COLON expression]
    if_: IF expression block ["else" block]

    expression: (MINUS | NOT)* atom ((MINUS | OPERATOR) (MINUS | NOT)* atom)*
    ?atom: NUMBER -> number | name | access | call | "(" expression ")"
    name: NAME
    access: NAME "[" index ("," index)* ["else" expression] "]"
    ?index: expression | slice | binding
    slice: [expression] (COLON [expression] | SIZED expression)
    binding: NAME "in" expression COLON expression
    call: NAME "(" [argument ("," argument)*] ")"
    ?argument: expression | binding

    _EQUAL: "="
    ADD_ASSIGN: "+="
    KERNEL: "kernel"
    FUNCTION: "function"
    REDUCER: "reducer"
    LBRACE: "{"
    RBRACE: "}"
    COLON: ":"
    SIZED: ":+"
    IF: "if"
    FOR: "for"
    GRID: "grid"
    NOT: "not"
    MINUS: "-"
    OPERATOR: /or\b|and\b|==|!=|<=|>=|<|>|\+(?!=)|\*\*|\*|\/\/|\/|%/
    NAME: /(?!(?:KEYWORDS)\b)[A-Za-z_][A-Za-z0-9_]*/
    NUMBER: /[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/
    COMMENT: /#[^\n]*/
    _NL: /\r?\n/
    %ignore /[ \t\r]+/
    %ignore COMMENT
""".replace("KEYWORDS", "|".join(KEYWORDS))

MAX_NESTING = 150
"""How deep expressions and blocks nest at most."""

_WORD = re.compile(r"\w+")
_EXPRESSION = frozenset({"NAME", "NUMBER", "LPAR", "MINUS", "NOT"})
"""The tokens that an expression begins with."""
_WORDS = {"$END": "the end of the text", "_NL": "the end of the line", "NAME": "a name", "NUMBER": "a number"}
"""What terminals are called in messages; the others are their own text."""


class SyntaxFault(Exception):
    """What is wrong with a text, where, and what was expected there."""

    def __init__(self, message: str, at: Position, expected: tuple[str, ...] = ()):
        super().__init__(message)
        self.message = message
        self.at = at
        self.expected = expected
        """What could have stood there, in words."""


def parse_source(text: str) -> Source:
    """The syntax tree of a whole text, with its comments. Raises SyntaxFault."""
    return with_comments(cast(Source, _parse(text, "source")), text)


def parse_assignment(text: str) -> Assignment:
    """The syntax tree of one assignment, as a machine file holds it. Raises SyntaxFault."""
    return cast(Assignment, _parse(text, "assignment"))


class _Lines:
    """The ends of lines that the grammar knows: one between two lines, none in an open bracket."""

    always_accept = ("_NL",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth, was_end = 0, False
        for token in stream:
            is_end = token.type == "_NL"
            if not is_end:
                depth += (token.value in ("(", "[")) - (token.value in (")", "]"))
            if not is_end or (depth == 0 and not was_end):
                yield token
                was_end = is_end


@cache
def _parser() -> Lark:
    return Lark(
        GRAMMAR,
        parser="lalr",
        start=["source", "assignment"],
        postlex=_Lines(),
        maybe_placeholders=True,
        # Nodes are made while parsing, without a tree between: it would be walked by recursion.
        transformer=_ToSyntax(),
    )


def _parse(text: str, start: str) -> Node:
    try:
        node = cast(Node, _parser().parse(text, start=start))  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as error:
        raise _fault(text, start, error) from None
    _require_shallow(node)
    return node


def _require_shallow(root: Node) -> None:
    """Refuse what a recursive function could not walk."""
    stack = [(root, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_NESTING:
            raise SyntaxFault(f"this is nested more than {MAX_NESTING} deep", node.at)
        stack += [(child, depth + 1) for child in children(node)]


def _fault(text: str, start: str, error: Any) -> SyntaxFault:
    """An UnexpectedInput of the parser in words."""
    at = Position(error.line, error.column)
    offset: int | None = error.pos_in_stream
    token = cast("Token | None", getattr(error, "token", None))
    is_end = token is not None and token.type == "$END"
    expected = _in_words(_accepted(text if is_end else text[:offset], start))
    if is_end:
        lines = text.split("\n")
        return SyntaxFault("the text ends too early", Position(len(lines), len(lines[-1]) + 1), expected)
    if token is not None and token.type == "_NL":
        return SyntaxFault("the line ends too early", at, expected)
    if token is not None:
        return SyntaxFault(f'unexpected "{token}"', at, expected)
    word = _WORD.match(text, offset or 0)
    return SyntaxFault(f'unexpected "{word[0]}"' if word else f'unexpected character "{error.char}"', at, expected)


def _accepted(text: str, start: str) -> AbstractSet[str]:
    """
    The terminals that the parser accepts after a text.

    The error itself holds those of a state after reductions that were made for the token that is wrong.
    """
    parser: Any = _parser().parse_interactive(text, start=start)  # pyright: ignore[reportUnknownMemberType]
    try:
        parser.exhaust_lexer()
    except UnexpectedInput:
        return frozenset()
    return parser.accepts()


def _in_words(terminals: AbstractSet[str]) -> tuple[str, ...]:
    """What is expected where these terminals are accepted, the most general first."""
    words: list[str] = []
    if terminals >= _EXPRESSION:
        words.append("an expression")
        terminals = terminals - _EXPRESSION
    if "OPERATOR" in terminals:
        words.append("an operator")
        terminals = terminals - {"OPERATOR", "MINUS"}
    return (*words, *sorted(_WORDS.get(name) or f'"{_text_of(name)}"' for name in terminals))


def _text_of(terminal: str) -> str:
    """A terminal that is one text, as it is written."""
    found = _parser().get_terminal(terminal).pattern
    return found.value.replace("\\", "") if isinstance(found, PatternRE) else found.value


_Parts: TypeAlias = Sequence[Any]
"""What the rules of the grammar hand on: nodes, tokens, and None for an optional part that is absent."""


class _ToSyntax(Transformer[Token, Any]):
    """One method a rule, which makes its node from its parts."""

    def source(self, parts: _Parts) -> Source:
        return Source(tuple(part for part in parts if part is not None))

    def kernel(self, parts: _Parts) -> Kernel:
        first, name, constants, parameters, results, body = parts
        at, last = _at(first), body.last_line
        return Kernel(str(name), constants or (), parameters or (), results, body, at=at, last_line=last)

    def function(self, parts: _Parts) -> Function:
        first, name, parameters, value = parts
        return Function(str(name), parameters, value, at=_at(first))

    def reducer(self, parts: _Parts) -> Reducer:
        first, name, left, right, identity, value = parts
        return Reducer(str(name), str(left), str(right), identity, value, at=_at(first))

    def constants(self, parts: _Parts) -> tuple[Constant, ...]:
        return tuple(parts)

    def constant(self, parts: _Parts) -> Constant:
        name, default = parts
        return Constant(str(name), default, at=_at(name))

    def declarators(self, parts: _Parts) -> tuple[Declarator, ...]:
        return tuple(parts)

    def declarator(self, parts: _Parts) -> Declarator:
        scope, element, name, dims = parts
        first = element if scope is None else scope
        return Declarator(str(element), str(name), dims or (), None if scope is None else str(scope), at=_at(first))

    def dims(self, parts: _Parts) -> tuple[Expression, ...]:
        return tuple(parts)

    def names(self, parts: _Parts) -> tuple[str, ...]:
        return tuple(str(part) for part in parts)

    def block(self, parts: _Parts) -> Block:
        first, *statements, last = parts
        return Block(tuple(part for part in statements if part is not None), at=_at(first), last_line=last.line)

    def declaration(self, parts: _Parts) -> Declaration:
        declared, value = parts
        return Declaration(declared, value, at=declared.at)

    def assignment(self, parts: _Parts) -> Assignment:
        target, *operator, value = parts
        return Assignment(target, str(*operator) or "=", value, at=target.at)

    def call_statement(self, parts: _Parts) -> CallStatement:
        return CallStatement(parts[0], at=parts[0].at)

    def loop(self, parts: _Parts) -> Loop:
        kind, *ranges, body = parts
        return Loop(str(kind), tuple(ranges), body, at=_at(kind), last_line=body.last_line)

    def range(self, parts: _Parts) -> LoopRange:
        name, start, _, stop, _, step = parts
        return LoopRange(str(name), start, stop, step, at=_at(name))

    def if_(self, parts: _Parts) -> If:
        first, condition, then, otherwise = parts
        last = (otherwise or then).last_line
        return If(condition, then, otherwise, at=_at(first), last_line=last)

    def expression(self, parts: _Parts) -> Expression:
        return parts[0] if len(parts) == 1 else _Operators().joined(parts)

    def number(self, parts: _Parts) -> Number:
        return Number(str(parts[0]), at=_at(parts[0]))

    def name(self, parts: _Parts) -> Name:
        return Name(str(parts[0]), at=_at(parts[0]))

    def access(self, parts: _Parts) -> Access:
        name, *indices, otherwise = parts
        return Access(str(name), tuple(indices), otherwise, at=_at(name))

    def slice(self, parts: _Parts) -> Slice:
        start, sign, end = parts
        first = _at(sign) if start is None else start.at
        return Slice(start, None, end, at=first) if sign == ":+" else Slice(start, end, at=first)

    def binding(self, parts: _Parts) -> Binding:
        name, start, _, stop = parts
        return Binding(str(name), start, stop, at=_at(name))

    def call(self, parts: _Parts) -> Call:
        name, *arguments = parts
        return Call(str(name), tuple(part for part in arguments if part is not None), at=_at(name))


class _Operators:
    """Operands and operators in a row, made an expression by what binds more: Dijkstra's two stacks."""

    def __init__(self) -> None:
        self._operands: list[Expression] = []
        self._operators: list[tuple[Token, int, bool]] = []
        """Those that wait for their operand on the right: how they bind, and whether they have one on the left."""

    def joined(self, parts: _Parts) -> Expression:
        is_operand = False
        for part in parts:
            if not isinstance(part, Token):
                self._operands.append(part)
                is_operand = True
            elif is_operand:
                level = PRECEDENCE[part]
                self._apply(level + (part == "**"), part)
                self._operators.append((part, level, True))
                is_operand = False
            else:
                self._operators.append((part, PREFIX_PRECEDENCE[part], False))
        self._apply(0)
        return self._operands[0]

    def _apply(self, level: int, following: Token | None = None) -> None:
        """Give the operators that bind as much as `level` their operands."""
        while self._operators and self._operators[-1][1] >= level:
            operator, own, is_binary = self._operators.pop()
            right = self._operands.pop()
            place = _at(operator)
            if is_binary:
                if following is not None and own == PRECEDENCE["=="] == level:
                    raise SyntaxFault("comparisons do not chain", _at(following), ('"and"',))
                self._operands.append(Binary(str(operator), self._operands.pop(), right, at=place))
            else:
                self._operands.append(Unary(str(operator), right, at=place))


def _at(token: Token) -> Position:
    return Position(token.line or 0, token.column or 0)
