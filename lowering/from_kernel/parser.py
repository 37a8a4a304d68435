"""
From the text of the kernel language to its syntax tree.

Statements end with their line, unless a bracket is open. `SyntaxFault` says at which token a text is wrong, and what
could stand there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.tree import Meta

from penstock.lowering.from_kernel.syntax import (
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
    Number,
    Position,
    Reducer,
    Slice,
    Source,
    Unary,
)

GRAMMAR = r"""
    source: _NL? [definition (_NL definition)* _NL?]
    ?definition: kernel | function | reducer
    kernel: "kernel" NAME [constants] "(" [declarators] ")" "->" "(" declarators ")" block
    function: "function" NAME "(" names ")" _EQUAL expression
    reducer: "reducer" NAME "(" NAME "," NAME ")" "from" expression _EQUAL expression
    constants: "[" constant ("," constant)* "]"
    constant: NAME [_EQUAL expression]
    declarators: declarator ("," declarator)*
    declarator: [NAME] NAME NAME [dims]
    dims: "[" expression ("," expression)* "]"
    names: NAME ("," NAME)*

    block: "{" _NL? [statement (_NL statement)* _NL?] "}"
    ?statement: declaration | assignment | call_statement | loop | if_
    declaration: declarator [_EQUAL expression]
    assignment: (access | name) (_EQUAL | ADD_ASSIGN) expression
    call_statement: call
    loop: (FOR | GRID) range ("," range)* block
    range: NAME "in" expression ":" expression [":" expression]
    if_: "if" expression block ["else" block]

    ?expression: conjunction | expression OR conjunction -> binary
    ?conjunction: negation | conjunction AND negation -> binary
    ?negation: relation | NOT negation -> unary
    ?relation: sum | sum RELATION sum -> binary
    ?sum: product | sum (PLUS | MINUS) product -> binary
    ?product: signed | product MULTIPLICATIVE signed -> binary
    ?signed: power | MINUS signed -> unary
    ?power: atom | atom POWER signed -> binary
    ?atom: NUMBER -> number | name | access | call | "(" expression ")"
    name: NAME
    access: NAME "[" index ("," index)* ["else" expression] "]"
    ?index: expression | slice | binding
    slice: [expression] ":" [expression] | [expression] ":+" expression -> sized_slice
    binding: NAME "in" expression ":" expression
    call: NAME "(" [argument ("," argument)*] ")"
    ?argument: expression | binding

    _EQUAL: "="
    ADD_ASSIGN: "+="
    FOR: "for"
    GRID: "grid"
    OR: "or"
    AND: "and"
    NOT: "not"
    RELATION: "==" | "!=" | "<=" | ">=" | "<" | ">"
    PLUS: "+"
    MINUS: "-"
    MULTIPLICATIVE: "*" | "//" | "/" | "%"
    POWER: "**"
    NAME: /[A-Za-z_][A-Za-z0-9_]*/
    NUMBER: /[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/
    COMMENT: /#[^\n]*/
    _NL: /\r?\n/
    %ignore /[ \t\r]+/
    %ignore COMMENT
"""

_WORDS = {
    "$END": "the end of the text",
    "_NL": "the end of the line",
    "NAME": "a name",
    "NUMBER": "a number",
    "RELATION": "a comparison",
    "MULTIPLICATIVE": '"*"',
}
"""What terminals are called in messages; the others are their own text."""


class SyntaxFault(Exception):
    """What is wrong with a text, where, and what was expected there."""

    def __init__(self, message: str, at: Position, expected: tuple[str, ...] = ()):
        super().__init__(message)
        self.message = message
        self.at = at
        self.expected = expected
        """The tokens that could have stood there, in words."""


def parse_source(text: str) -> Source:
    """The syntax tree of a whole text. Raises SyntaxFault."""
    return cast(Source, _parse(text, "source"))


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
        propagate_positions=True,
        maybe_placeholders=True,
    )


def _parse(text: str, start: str) -> object:
    try:
        tree = _parser().parse(text, start=start)  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as error:
        raise _fault(text, error) from None
    return _ToSyntax().transform(tree)


def _fault(text: str, error: UnexpectedInput) -> SyntaxFault:
    """A fault of the parser in words."""
    at = Position(error.line, error.column)
    if isinstance(error, UnexpectedCharacters):
        return SyntaxFault(f'unexpected character "{error.char}"', at)
    assert isinstance(error, UnexpectedToken)
    expected = tuple(sorted(_WORDS.get(name, _text_of(name)) for name in error.accepts or error.expected))
    match error.token.type:
        case "$END":
            lines = text.split("\n")
            return SyntaxFault("the text ends too early", Position(len(lines), len(lines[-1]) + 1), expected)
        case "_NL":
            return SyntaxFault("the line ends too early", at, expected)
        case _:
            return SyntaxFault(f'unexpected "{error.token}"', at, expected)


def _text_of(terminal: str) -> str:
    """A terminal that is one text, as it is written."""
    found = _parser().get_terminal(terminal)
    return f'"{found.pattern.value}"'


_Parts: TypeAlias = Sequence[Any]
"""What the rules of the grammar hand on: nodes, tokens, and None for an optional part that is absent."""


@v_args(meta=True)
class _ToSyntax(Transformer[Token, Any]):
    """One method a rule, which makes its node from its parts."""

    def source(self, meta: Meta, parts: _Parts) -> Source:
        return Source(tuple(part for part in parts if part is not None))

    def kernel(self, meta: Meta, parts: _Parts) -> Kernel:
        name, constants, parameters, results, body = parts
        return Kernel(str(name), constants or (), parameters or (), results, body, at=_at(meta))

    def function(self, meta: Meta, parts: _Parts) -> Function:
        name, parameters, value = parts
        return Function(str(name), parameters, value, at=_at(meta))

    def reducer(self, meta: Meta, parts: _Parts) -> Reducer:
        name, left, right, identity, value = parts
        return Reducer(str(name), str(left), str(right), identity, value, at=_at(meta))

    def constants(self, meta: Meta, parts: _Parts) -> tuple[Constant, ...]:
        return tuple(parts)

    def constant(self, meta: Meta, parts: _Parts) -> Constant:
        name, default = parts
        return Constant(str(name), default, at=_at(meta))

    def declarators(self, meta: Meta, parts: _Parts) -> tuple[Declarator, ...]:
        return tuple(parts)

    def declarator(self, meta: Meta, parts: _Parts) -> Declarator:
        scope, element, name, dims = parts
        return Declarator(str(element), str(name), dims or (), None if scope is None else str(scope), at=_at(meta))

    def dims(self, meta: Meta, parts: _Parts) -> tuple[Expression, ...]:
        return tuple(parts)

    def names(self, meta: Meta, parts: _Parts) -> tuple[str, ...]:
        return tuple(str(part) for part in parts)

    def block(self, meta: Meta, parts: _Parts) -> Block:
        return Block(tuple(part for part in parts if part is not None), at=_at(meta))

    def declaration(self, meta: Meta, parts: _Parts) -> Declaration:
        declared, value = parts
        return Declaration(declared, value, at=_at(meta))

    def assignment(self, meta: Meta, parts: _Parts) -> Assignment:
        target, *operator, value = parts
        return Assignment(target, str(*operator) or "=", value, at=_at(meta))

    def call_statement(self, meta: Meta, parts: _Parts) -> CallStatement:
        return CallStatement(parts[0], at=_at(meta))

    def loop(self, meta: Meta, parts: _Parts) -> Loop:
        kind, *ranges, body = parts
        return Loop(str(kind), tuple(ranges), body, at=_at(meta))

    def range(self, meta: Meta, parts: _Parts) -> LoopRange:
        name, start, stop, step = parts
        return LoopRange(str(name), start, stop, step, at=_at(meta))

    def if_(self, meta: Meta, parts: _Parts) -> If:
        return If(*parts, at=_at(meta))

    def binary(self, meta: Meta, parts: _Parts) -> Binary:
        left, operator, right = parts
        return Binary(str(operator), left, right, at=_at(meta))

    def unary(self, meta: Meta, parts: _Parts) -> Unary:
        operator, operand = parts
        return Unary(str(operator), operand, at=_at(meta))

    def number(self, meta: Meta, parts: _Parts) -> Number:
        return Number(str(parts[0]), at=_at(meta))

    def name(self, meta: Meta, parts: _Parts) -> Name:
        return Name(str(parts[0]), at=_at(meta))

    def access(self, meta: Meta, parts: _Parts) -> Access:
        name, *indices, otherwise = parts
        return Access(str(name), tuple(indices), otherwise, at=_at(meta))

    def slice(self, meta: Meta, parts: _Parts) -> Slice:
        start, stop = parts
        return Slice(start, stop, at=_at(meta))

    def sized_slice(self, meta: Meta, parts: _Parts) -> Slice:
        start, size = parts
        return Slice(start, None, size, at=_at(meta))

    def binding(self, meta: Meta, parts: _Parts) -> Binding:
        name, start, stop = parts
        return Binding(str(name), start, stop, at=_at(meta))

    def call(self, meta: Meta, parts: _Parts) -> Call:
        name, *arguments = parts
        return Call(str(name), tuple(part for part in arguments if part is not None), at=_at(meta))


def _at(meta: Meta) -> Position:
    return Position(meta.line, meta.column)
