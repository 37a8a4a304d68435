# SPDX-License-Identifier: Apache-2.0
"""
What the names of a text of kernels stand for, and every place where they are named, by the rules of docs/language.md.

Nothing is lowered: no sizes are needed, and what is wrong with the text elsewhere does not matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice

from penstock.lowering.from_kernel.printer import print_declarator, print_head
from penstock.lowering.from_kernel.reductions import PLACES, REDUCTIONS
from penstock.lowering.from_kernel.syntax import (
    Access,
    Assignment,
    Binding,
    Block,
    Call,
    Declaration,
    Declarator,
    Definition,
    Function,
    If,
    Kernel,
    Loop,
    Name,
    Node,
    Position,
    Reducer,
    Source,
    children,
)

_WORD = re.compile(r"#[^\n]*|(\w+)")


@dataclass(eq=False)
class NamedThing:
    """What a name stands for."""

    name: str
    kind: str
    """In words: `size`, `parameter`, `local`, `index`, ..."""
    text: str
    """How it is declared; its name where that says nothing."""
    places: list[int] = field(default_factory=list[int])
    """Offsets of the places that name it; the first one defines it, and the others are in the order of the text."""
    owner: NamedThing | None = None
    """The definition that it is in."""


def names_of(source: Source, text: str) -> list[NamedThing]:
    """All that has a name in a text, in the order in which it is defined."""
    return _Names(source, text).things


class _Names:
    def __init__(self, source: Source, text: str):
        self._text = text
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self.things: list[NamedThing] = []
        self._frames: list[dict[str, NamedThing]] = [{}]
        self._owner: NamedThing | None = None
        self._reducers = [each.name for each in source.definitions if isinstance(each, Reducer)]
        for each in source.definitions:
            # What is called may be defined below.
            kind = type(each).__name__.lower()
            self._define(each.name, kind, _head(each), self._word(each, 1))
        for each in source.definitions:
            self._owner = self._frames[0][each.name]
            self._frames.append({})
            self._definition(each)
            self._frames.pop()
        for thing in self.things:
            thing.places[1:] = sorted(set(thing.places[1:]) - {thing.places[0]})

    def _definition(self, each: Definition) -> None:
        match each:
            case Kernel():
                for constant in each.constants:
                    self._visit(constant)
                    self._define(constant.name, "constant", constant.name, self._offset(constant.at))
                for parameter in each.parameters:
                    self._declare(parameter, "parameter", binds_sizes=True)
                for result in each.results:
                    self._declare(result, "result")
                self._block(each.body)
            case Function():
                for number, name in enumerate(each.parameters, 2):
                    self._define(name, "parameter", name, self._word(each, number))
                self._visit(each.value)
            case Reducer():
                self._visit(each.identity)
                for number, name in enumerate((each.left, each.right), 2):
                    self._define(name, "parameter", name, self._word(each, number))
                self._visit(each.value)

    def _block(self, block: Block) -> None:
        for statement in block.statements:
            match statement:
                case Declaration():
                    self._visit(statement)
                    self._declare(statement.declared, "local")
                case Assignment():
                    self._assign(statement)
                case Loop():
                    self._frames.append({})
                    for over in statement.ranges:
                        self._visit(over)
                        self._define(over.name, "loop variable", over.name, self._offset(over.at))
                    self._block(statement.body)
                    self._frames.pop()
                case If():
                    self._visit(statement.condition)
                    for inner in (statement.then, statement.otherwise):
                        if inner is not None:
                            self._frames.append({})
                            self._block(inner)
                            self._frames.pop()
                case _:
                    self._visit(statement)

    def _assign(self, statement: Assignment) -> None:
        target = statement.target
        name = target.tensor if isinstance(target, Access) else target.name
        if self._find(name) is None:
            indices = self._text_of(target) if isinstance(target, Access) else name
            self._define(name, "local", indices, self._offset(target.at))
        else:
            self._use(name, target)
        self._frames.append({})
        for part in target.indices if isinstance(target, Access) else ():
            self._visit(part, binds="index")
        self._visit(statement.value)
        self._frames.pop()

    def _text_of(self, access: Access) -> str:
        start = self._offset(access.at)
        end = self._text.find("]", start)
        return self._text[start : end + 1] if end >= 0 and "\n" not in self._text[start:end] else access.tensor

    def _declare(self, declared: Declarator, kind: str, *, binds_sizes: bool = False) -> None:
        for dim in declared.dims:
            is_size = binds_sizes and isinstance(dim, Name)
            self._visit(dim, binds="size" if is_size else None)
        place = self._word(declared, 1 if declared.scope is None else 2)
        self._define(declared.name, kind, print_declarator(declared), place)

    def _visit(self, node: Node, binds: str | None = None) -> None:
        """Resolve the names in an expression; those that stand for nothing yet are bound as something, if that is."""
        match node:
            case Name():
                self._use(node.name, node, binds)
            case Binding():
                self._visit(node.start)
                self._visit(node.stop)
                self._define(node.name, "index", node.name, self._offset(node.at))
            case Call():
                self._use(node.function, node)
                self._frames.append({})
                *indices, last = node.arguments or (None,)
                is_reduction = node.function in {*REDUCTIONS, *PLACES, *self._reducers}
                for each in indices:
                    assert each is not None
                    self._visit(each, binds="index" if is_reduction else None)
                if last is not None:
                    self._visit(last)
                self._frames.pop()
            case Declarator():
                pass
            case _:
                if isinstance(node, Access):
                    self._use(node.tensor, node)
                for each in children(node):
                    self._visit(each, binds)

    def _use(self, name: str, node: Node, binds: str | None = None) -> None:
        thing = self._find(name)
        if thing is not None:
            thing.places.append(self._offset(node.at))
        elif binds is not None:
            self._define(name, binds, name, self._offset(node.at))

    def _define(self, name: str, kind: str, text: str, place: int) -> None:
        thing = NamedThing(name, kind, text, [place], self._owner)
        self.things.append(thing)
        self._frames[-1][name] = thing

    def _find(self, name: str) -> NamedThing | None:
        return next((frame[name] for frame in reversed(self._frames) if name in frame), None)

    def _offset(self, at: Position) -> int:
        return self._starts[at.line - 1] + at.column - 1

    def _word(self, node: Node, number: int) -> int:
        """Where a word begins that is one of the first of a declaration or a definition."""
        words = (each.start() for each in _WORD.finditer(self._text, self._offset(node.at)) if each[1])
        return next(islice(words, number, None))


def _head(definition: Definition) -> str:
    match definition:
        case Kernel():
            return print_head(definition)
        case Function():
            return f"function {definition.name}({', '.join(definition.parameters)})"
        case Reducer():
            return f"reducer {definition.name}({definition.left}, {definition.right})"
