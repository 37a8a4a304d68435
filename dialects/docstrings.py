# SPDX-License-Identifier: Apache-2.0
"""The strings under the fields of classes, which Python does not keep: they are read from the source."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise


def strings_under_fields(of: type, root: type) -> dict[str, str]:
    """
    The strings under the fields of a class and of those that it is derived from, down from `root`, which is left out:
    by the names of the fields, each in one line. A class whose source cannot be read has none.
    """
    found: dict[str, str] = {}
    for base in reversed(of.__mro__):
        if base is not root and issubclass(base, root):
            found |= _own_strings(base)
    return found


@cache
def _own_strings(of: type) -> dict[str, str]:
    try:
        file = inspect.getsourcefile(of)
        bodies = {} if file is None else _bodies(file)
    except (OSError, SyntaxError, TypeError, ValueError):
        return {}
    found: dict[str, str] = {}
    for field, under in pairwise(bodies.get(of.__qualname__, ())):
        target = field.target if isinstance(field, ast.AnnAssign) else None
        if isinstance(field, ast.Assign) and len(field.targets) == 1:
            target = field.targets[0]
        text = under.value.value if isinstance(under, ast.Expr) and isinstance(under.value, ast.Constant) else None
        if isinstance(target, ast.Name) and isinstance(text, str):
            found[target.id] = " ".join(text.split())
    return found


@cache
def _bodies(file: str) -> dict[str, list[ast.stmt]]:
    """The bodies of the classes in a file, by their qualified names."""
    found: dict[str, list[ast.stmt]] = {}

    def enter(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.ClassDef):
                found[prefix + child.name] = child.body
                inner = f"{prefix}{child.name}."
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{prefix}{child.name}.<locals>."
            enter(child, inner)

    with open(file, encoding="utf-8") as source:
        enter(ast.parse(source.read()), "")
    return found
