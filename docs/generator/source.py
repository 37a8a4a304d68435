# SPDX-License-Identifier: Apache-2.0
"""What modules offer, read from their source: no module is imported, so that nothing depends on what is installed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of the project."""
PACKAGE = "penstock"
FLOORS = ("dialects", "passes", "lowering", "runtime", "tools")

Function = ast.FunctionDef | ast.AsyncFunctionDef
_TYPE_VARIABLES = ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType")
_HIDDEN_DECORATORS = ("overload",)


@dataclass(frozen=True)
class Name:
    """A public name of a module, at the place where it is defined."""

    module: Module
    name: str
    node: ast.ClassDef | Function | ast.Assign | ast.AnnAssign
    docstring: str
    """Empty without one."""

    @property
    def place(self) -> str:
        """The module and the name, for messages."""
        return f"{self.module.name}.{self.name}"


@dataclass(frozen=True)
class Field:
    """A field of a class, or a value beside it: a name with a type, and the string under it."""

    name: str
    type: str
    default: str
    """As the source has it; empty where a value must be given."""
    docstring: str


class Module:
    """The source of one module."""

    def __init__(self, path: Path):
        self.path = path
        """From the folder of the project."""
        parts = path.with_suffix("").parts
        self.name = ".".join(parts[1:] if parts[0] == "src" else (PACKAGE, *parts)).removesuffix(".__init__")
        self.text = (ROOT / path).read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self._lines = self.text.encode().splitlines(keepends=True)
        self.docstring = ast.get_docstring(self.tree) or ""

    def names(self) -> Iterator[Name]:
        """
        What the module offers, in the order of its source: the names in `__all__`, wherever they are defined, or else
        all that it defines and that begin with a letter, without type variables.
        """
        exported = self._exported()
        if exported is None:
            yield from (each for each in self.defined.values() if not each.name.startswith("_"))
            return
        for name in exported:
            if (found := self.find(name)) is not None:
                yield found

    def find(self, name: str) -> Name | None:
        """What a name of this module is, followed through the imports of our own modules."""
        if name in self.defined:
            return self.defined[name]
        path, there = self._imported.get(name, ("", ""))
        module = module_called(path)
        # A package may import its own modules.
        return None if module is None or module is self else module.find(there)

    def source_of(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node, in one line."""
        # What `ast.get_source_segment` does, without splitting the text anew for each node.
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        lines = self._lines[first : last + 1]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return _in_one_line(b"".join(lines).decode())

    def signature(self, node: Function) -> str:
        """The text from the parentheses of a function to the type of its result, in one line."""
        last = node.body[0].end_lineno or node.lineno
        segment = b"".join(self._lines[node.lineno - 1 : last]).decode()
        start = segment.index(f"def {node.name}") + len(f"def {node.name}")
        depth, end = 0, start
        for end in range(start, len(segment)):
            depth += (segment[end] in "([{") - (segment[end] in ")]}")
            if segment[end] == ":" and depth == 0:
                break
        return _in_one_line(segment[start:end])

    def _exported(self) -> list[str] | None:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and _target(node) == "__all__":
                return [each.value for each in node.value.elts]  # pyright: ignore
        return None

    @cached_property
    def defined(self) -> dict[str, Name]:
        """All that the module defines, in the order of its source, without type variables."""
        found: dict[str, Name] = {}
        for node, docstring in documented(self.tree.body):
            if isinstance(node, ast.ClassDef | Function):
                found[node.name] = Name(self, node.name, node, docstring)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and _callee(node.value) not in _TYPE_VARIABLES:
                found |= {name: Name(self, name, node, docstring) for name in _targets(node)}
        return found

    @cached_property
    def _imported(self) -> dict[str, tuple[str, str]]:
        """
        What the module imports from others: the name of the module, and the name there. What it loads when it is asked
        for stands in a block of `if`, for type checkers.
        """
        blocks = [node.body for node in self.tree.body if isinstance(node, ast.If)]
        return {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in (*self.tree.body, *(each for block in blocks for each in block))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }


def documented(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """The statements of a body, each with its docstring: its own, or the string under it."""
    for number, node in enumerate(body):
        if isinstance(node, ast.ClassDef | Function):
            if not any(_callee(each) in _HIDDEN_DECORATORS for each in node.decorator_list):
                yield node, ast.get_docstring(node) or ""
            continue
        after = body[number + 1] if number + 1 < len(body) else None
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        yield node, text if isinstance(text, str) else ""


def decorators(node: ast.ClassDef | Function) -> list[str]:
    """The names of the decorators."""
    return [_callee(each) for each in node.decorator_list]


def fields(module: Module, node: ast.ClassDef) -> list[Field]:
    """The public fields of a class, and the attributes that its constructor documents."""
    found: list[Field] = []
    for each, docstring in documented(node.body):
        if isinstance(each, ast.AnnAssign | ast.Assign) and (name := _target(each)) and not name.startswith("_"):
            type = module.source_of(each.annotation).strip("\"'") if isinstance(each, ast.AnnAssign) else ""
            found.append(Field(name, type, _default(module, each.value), docstring))
        if isinstance(each, Function) and each.name == "__init__":
            found += _attributes(module, each)
    return found


def methods(node: ast.ClassDef) -> list[tuple[Function, str]]:
    """The public methods and properties of a class, each with its docstring."""
    return [
        (each, docstring)
        for each, docstring in documented(node.body)
        if isinstance(each, Function) and not each.name.startswith("_") and each.name != "verify_"
    ]


def is_property(node: Function) -> bool:
    """Whether a method is read like a field."""
    return any(name in ("property", "cached_property") for name in decorators(node))


@cache
def module_at(path: Path) -> Module:
    """The module in a file, whose path is from the folder of the project."""
    return Module(path)


@cache
def module_called(name: str | None) -> Module | None:
    """A module of ours; None where there is none."""
    parts = (name or "").split(".")[1:]
    found = (Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")) if parts else ()
    return next((module_at(path) for path in found if (ROOT / path).is_file()), None)


def modules_matching(*patterns: str) -> list[Module]:
    """The modules whose files match patterns, those of one pattern in alphabetical order, each once."""
    paths = [path.relative_to(ROOT) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [module_at(path) for path in dict.fromkeys(paths)]


def modules_with(text: str) -> list[Module]:
    """The modules of the package that have a text in them, in alphabetical order of files."""
    return [module_at(path) for path, source in _all_sources().items() if text in source]


@cache
def _all_sources() -> dict[Path, str]:
    # Parsing all of them would take most of the time that the pages take.
    paths = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}


def _attributes(module: Module, init: Function) -> Iterator[Field]:
    """The attributes with a string under them in a constructor, with the types of its parameters."""
    parameters = [*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs]
    types = {each.arg: module.source_of(each.annotation) for each in parameters if each.annotation is not None}
    for each, docstring in documented(init.body):
        if not (docstring and isinstance(each, ast.Assign | ast.AnnAssign)):
            continue
        target = each.target if isinstance(each, ast.AnnAssign) else each.targets[0]
        if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            type = module.source_of(each.annotation) if isinstance(each, ast.AnnAssign) else ""
            given = types.get(each.value.id, "") if isinstance(each.value, ast.Name) else ""
            yield Field(target.attr, type or given, "", docstring)


def _default(module: Module, value: ast.expr | None) -> str:
    """What a field is if it is not given, as the source has it."""
    if value is None:
        return ""
    if _callee(value) != "field":
        return module.source_of(value)
    assert isinstance(value, ast.Call)
    given = {each.arg: module.source_of(each.value) for each in value.keywords}
    factory = re.sub(r"\[.*\]", "", given.get("default_factory", ""))
    return given.get("default", f"{factory}()" if factory else "")


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    """The one name that a statement defines; empty for several, or for none."""
    names = _targets(node)
    return names[0] if len(names) == 1 else ""


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names that a statement defines: one, or several of a tuple."""
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _callee(node: ast.expr | None) -> str:
    """The last word of what an expression calls or names."""
    if isinstance(node, ast.Call):
        return _callee(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _in_one_line(text: str) -> str:
    text = " ".join(text.split())
    return re.sub(r",? ?([)\]])", r"\1", re.sub(r"([(\[]) ", r"\1", text)) if "\n" not in text else text
