# SPDX-License-Identifier: Apache-2.0
"""
The syntax tree of the kernel language: what `parser` makes of a text, `printer` makes a text of, and `lower` lowers.

Nodes are plain data. Two are equal if their texts are, wherever they stand and whatever comments are beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TypeAlias, cast


@dataclass(frozen=True)
class Position:
    """A line and a column of the text, both from 1."""

    line: int
    column: int


_NOWHERE = Position(0, 0)


@dataclass(frozen=True, kw_only=True)
class Node:
    """Anything that has a place in the text: that of its first token, or of its operator."""

    at: Position = field(default=_NOWHERE, compare=False, repr=False)


# expressions


@dataclass(frozen=True)
class Number(Node):
    """A number as it is written; it takes the element type of what it stands beside."""

    text: str


@dataclass(frozen=True)
class Name(Node):
    """A tensor as a whole, an index, a size or a constant, by its name."""

    name: str


@dataclass(frozen=True)
class Slice(Node):
    """The elements `start:stop` of a dim, or the `size` elements `start:+size`; all of them where nothing is said."""

    start: Expression | None = None
    stop: Expression | None = None
    size: Expression | None = None


@dataclass(frozen=True)
class Binding(Node):
    """An index with its range, `i in start:stop`: on the left of an assignment, or in a reduction."""

    name: str
    start: Expression
    stop: Expression


@dataclass(frozen=True)
class Access(Node):
    """Elements of a tensor: `x[i, j]`, `x[i:+64, :]`, `x[i + k - 1 else 0]`."""

    tensor: str
    indices: tuple[Expression | Slice | Binding, ...]
    otherwise: Expression | None = None
    """What is read out of bounds; None where that is an error."""


@dataclass(frozen=True)
class Unary(Node):
    """`-x`, `not x`."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class Binary(Node):
    """`x + y` and its like, by the operator as it is written."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Call(Node):
    """A function, `exp(x)`, or a reduction over the indices before the last argument, `sum(i, j, x[i, j])`."""

    function: str
    arguments: tuple[Expression | Binding, ...]


Expression: TypeAlias = Number | Name | Access | Unary | Binary | Call
Target: TypeAlias = Name | Access
"""What is assigned to: a tensor, or elements of one."""


_LEVELS = (("or",), ("and",), (), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "//", "%"), (), ("**",))
PRECEDENCE = {operator: level for level, operators in enumerate(_LEVELS) for operator in operators}
"""How much an operator between two operands binds. `**` associates to the right, comparisons do not chain."""
PREFIX_PRECEDENCE = {"not": PRECEDENCE["and"] + 1, "-": PRECEDENCE["*"] + 1}
"""How much an operator before its operand binds."""


# statements


@dataclass(frozen=True)
class Declarator(Node):
    """A tensor that is declared, `f32 x[N, M]`, or a scalar, `f32 x`; in a scope, if one is named first."""

    element: str
    name: str
    dims: tuple[Expression, ...] = ()
    scope: str | None = None


@dataclass(frozen=True, kw_only=True)
class Commented(Node):
    """What comments may stand beside."""

    before: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The lines of comment above it, from `#` on; an empty one is an empty line."""
    beside: str = field(default="", compare=False, repr=False)
    """The comment at the end of its first line, from `#` on."""
    last_line: int = field(default=0, compare=False, repr=False)
    """The line of its closing brace, if it has one."""


@dataclass(frozen=True)
class Declaration(Commented):
    """A local tensor, with what it holds from the start if anything."""

    declared: Declarator
    value: Expression | None = None


@dataclass(frozen=True)
class Assignment(Commented):
    """`target = value`, or `target += value`, which sums over the indices that only the value has."""

    target: Target
    operator: str
    value: Expression


@dataclass(frozen=True)
class CallStatement(Commented):
    """A call for its effect, `store(y[i, :], row)`."""

    call: Call


@dataclass(frozen=True)
class LoopRange(Node):
    """`i in start:stop`, or `i in start:stop:step`."""

    name: str
    start: Expression
    stop: Expression
    step: Expression | None = None


@dataclass(frozen=True)
class Loop(Commented):
    """Iterations in order (`for`), or independent of each other (`grid`); the last range is the innermost."""

    kind: str
    ranges: tuple[LoopRange, ...]
    body: Block


@dataclass(frozen=True)
class If(Commented):
    """One of two blocks."""

    condition: Expression
    then: Block
    otherwise: Block | None = None


Statement: TypeAlias = Declaration | Assignment | CallStatement | Loop | If


@dataclass(frozen=True)
class Block(Node):
    """Statements in their order."""

    statements: tuple[Statement, ...]
    after: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The lines of comment after the last statement."""
    last_line: int = field(default=0, compare=False, repr=False)
    """The line of its closing brace."""


# definitions


@dataclass(frozen=True)
class Constant(Node):
    """A size or a number that is known when the kernel is compiled, with its default."""

    name: str
    default: Expression | None = None


@dataclass(frozen=True)
class Kernel(Commented):
    """A kernel: it reads its parameters, and has no effect but its results."""

    name: str
    constants: tuple[Constant, ...]
    parameters: tuple[Declarator, ...]
    results: tuple[Declarator, ...]
    body: Block


@dataclass(frozen=True)
class Function(Commented):
    """A scalar function, which stands for its value wherever it is called."""

    name: str
    parameters: tuple[str, ...]
    value: Expression


@dataclass(frozen=True)
class Reducer(Commented):
    """A reduction of one's own: an associative and commutative combination of two scalars, and its identity."""

    name: str
    left: str
    right: str
    identity: Expression
    value: Expression


Definition: TypeAlias = Kernel | Function | Reducer


@dataclass(frozen=True)
class Source(Node):
    """A whole text."""

    definitions: tuple[Definition, ...]
    after: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The lines of comment after the last definition."""


def children(node: Node) -> Iterator[Node]:
    """The nodes that a node is made of, in the order of its fields."""
    for name in _fields_of(type(node)):
        value = getattr(node, name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (each for each in cast(tuple[object, ...], value) if isinstance(each, Node))


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in the order of the text."""
    yield node
    for child in children(node):
        yield from walk(child)


def rewritten(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """A copy of a tree with what `change` gives in the place of a node; where that is None, its parts are rewritten."""
    if (found := change(node)) is not None:
        return found
    changed: dict[str, object] = {}
    for name in _fields_of(type(node)):
        value = getattr(node, name)
        if isinstance(value, Node):
            changed[name] = rewritten(value, change)
        elif isinstance(value, tuple):
            parts = cast(tuple[object, ...], value)
            changed[name] = tuple(rewritten(part, change) if isinstance(part, Node) else part for part in parts)
    return replace(node, **changed) if changed else node


_PLAIN = ("str", "str | None", "tuple[str, ...]")


@cache
def _fields_of(kind: type[Node]) -> tuple[str, ...]:
    """The fields that may hold nodes; names and positions are most of them."""
    return tuple(each.name for each in fields(kind) if each.compare and each.type not in _PLAIN)
