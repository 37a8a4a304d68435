# SPDX-License-Identifier: Apache-2.0
"""
What the verifier of an op refuses: the messages in the source of `verify_`, of `infer`, of its traits, and of all that
these call. What a message fills in stands in braces, by the name that the source has for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import FunctionType, MethodType
from typing import Any

from docs.generator.source import PACKAGE, Function, module_called
from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation

_MESSAGES = {"VerifyException": 0, "UnknownName": 0, "UserError": 0, "ValueError": 0, "PartFault": 1, "require": 1}
"""What is called with a message, and the position of that."""
_ROOTS = ("verify_", "infer")
OP_NAME = "{op}"
"""The name of the op in a message."""
_OP_NAMES = ("cls.name", "self.name", "op.name", "op_name")
"""What the source has for it."""


@cache
def refusals(op: type[IRDLOperation]) -> Sequence[str]:
    """The messages of the verifier of an op, in the order in which its source comes to them, each once."""
    reader = _Reader(op, {})
    for name in _ROOTS:
        root = getattr(op, name, None)
        # xDSL puts the check of what is declared around the verifier of a class.
        inside = [cell.cell_contents for cell in getattr(root, "__closure__", None) or ()]
        for each in (root, *inside):
            reader.follow(each, op)
    for trait in op.get_irdl_definition().traits.traits:
        reader.follow(trait.verify, trait)
    return tuple(reader.found)


@dataclass
class _Reader:
    op: type[Operation]
    found: dict[str, None]
    """The messages, as keys."""

    def __post_init__(self) -> None:
        self._seen = set[tuple[FunctionType, int]]()

    def follow(self, function: object, receiver: object) -> None:
        """Read a function of ours, called on an object, a class, or nothing, unless it has been read."""
        if isinstance(function, MethodType):
            function = function.__func__
        if not isinstance(function, FunctionType) or not function.__module__.startswith(f"{PACKAGE}.dialects"):
            return
        if (function, id(receiver)) in self._seen:
            return
        self._seen.add((function, id(receiver)))
        if (node := _node(function)) is None:
            return
        for call in _calls(node):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in _MESSAGES:
                self.found.update(dict.fromkeys(self._messages(call, _MESSAGES[name], function, receiver)))
            else:
                self._follow_call(call.func, function, receiver)

    def _follow_call(self, callee: ast.expr, function: FunctionType, receiver: object) -> None:
        match callee:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr):
                self.follow(_next_in_order(self.op, function, attr), receiver)
            case ast.Attribute(value=value, attr=attr):
                owner = self._value(value, function, receiver)
                self.follow(getattr(owner, attr, None), owner)
            case _:
                self.follow(self._value(callee, function, receiver), None)

    def _value(self, node: ast.expr, function: FunctionType, receiver: object) -> Any:
        """What an expression of names and attributes is, as far as that is known without an op; None elsewhere."""
        match node:
            case ast.Name(id="self" | "cls"):
                return receiver
            case ast.Name(id=name):
                return function.__globals__.get(name)
            case ast.Attribute(value=value, attr=attr):
                return getattr(self._value(value, function, receiver), attr, None)
            case _:
                return None

    def _messages(self, call: ast.Call, position: int, function: FunctionType, receiver: object) -> Iterator[str]:
        node = _node(function)
        if node is None or position >= len(call.args):
            return
        for text in _texts(call.args[position], node):
            # A message that has no words hands on another one.
            if any(any(map(str.isalpha, part)) for part in text if isinstance(part, str)):
                parts = (part if isinstance(part, str) else self._filled(part, function, receiver) for part in text)
                yield "".join(parts)

    def _filled(self, node: ast.expr, function: FunctionType, receiver: object) -> str:
        text = ast.unparse(node)
        if text in _OP_NAMES:
            return OP_NAME
        if isinstance(value := self._value(node, function, receiver), str):
            return value
        name = re.match(r"(?:(?:self|cls)\.)?(\w+)(?:\.\w+)*$", text)
        return "{...}" if name is None else f"{{{name[1]}}}"


_Text = list[str | ast.expr]


def _texts(node: ast.expr, function: Function) -> Iterator[_Text]:
    """What a message may be: words, and what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            yield [text]
        case ast.JoinedStr(values=values):
            # Words are constants, whose value is the text; of what is filled in it is the expression.
            yield [part.value for part in values if isinstance(part, ast.FormattedValue | ast.Constant)]  # pyright: ignore[reportReturnType]
        case ast.Lambda(body=body):
            yield from _texts(body, function)
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body, function)
            yield from _texts(other, function)
        case ast.Name(id=name):
            for each in ast.walk(function):
                if isinstance(each, ast.Assign) and any(
                    isinstance(to, ast.Name) and to.id == name for to in each.targets
                ):
                    yield from _texts(each.value, function)
        case _:
            pass


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a function, in the order of its source."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child
        yield from _calls(child)


def _node(function: FunctionType) -> Function | None:
    """The source of a function of ours, which is in a module or in a class of one."""
    module = module_called(function.__module__)
    body: list[ast.stmt] = [] if module is None else module.tree.body
    found: ast.stmt | None = None
    for name in function.__qualname__.split("."):
        found = next((each for each in body if isinstance(each, ast.ClassDef | Function) and each.name == name), None)
        body = found.body if isinstance(found, ast.ClassDef) else []
    return found if isinstance(found, Function) else None


def _next_in_order(op: type, function: FunctionType, name: str) -> object:
    """What `super()` finds in a method of a class that `op` is derived from."""
    owner = function.__qualname__.rpartition(".")[0]
    names = [each.__name__ for each in op.__mro__]
    after = op.__mro__[names.index(owner) + 1 :] if owner in names else ()
    members: list[Mapping[str, object]] = [vars(each) for each in after]
    found = next((each[name] for each in members if name in each), None)
    return found.__func__ if isinstance(found, classmethod | staticmethod) else found  # pyright: ignore
