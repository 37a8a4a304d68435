# SPDX-License-Identifier: Apache-2.0
"""The names of modules as sections of a page: classes with their fields and methods, functions, values."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from docs.generator.source import (
    Field,
    Function,
    Module,
    Name,
    decorators,
    fields,
    is_property,
    methods,
)

from penstock.tools.markdown import block, code, in_one_line, reflowed, table

_LONGEST = 100
"""Letters of a signature that stands in one line."""
_BASES = {"Enum": "an enumeration", "NamedTuple": "a named tuple", "Protocol": "a protocol"}
"""What a class is by its base."""


def module_section(module: Module, only: Collection[str] = ()) -> Iterator[list[str]]:
    """The parts of a page on a module: its docstring and every public name, or `only` some, as they are listed."""
    yield [f"## {code(module.name)}"]
    if not only:
        yield reflowed(module.docstring)
    names = {name.name: name for name in module.names()}
    assert set(names) >= set(only), f"{module.name} has no {', '.join(set(only) - set(names))}"
    for name in only or names:
        yield from name_section(names[name])


def name_section(name: Name) -> Iterator[list[str]]:
    """The parts of a page on a public name."""
    node = name.node
    yield [f"### {code(name.name)}"]
    if isinstance(node, ast.ClassDef):
        yield [class_line(name.module, node)]
        yield reflowed(name.docstring)
        yield from class_body(name.module, node)
    elif isinstance(node, Function):
        yield block(wrapped(f"def {name.name}{name.module.signature(node)}"), "py")
        yield reflowed(name.docstring)
    else:
        yield block(wrapped(assignment(name.module, node)), "py")
        yield reflowed(name.docstring)


def class_line(module: Module, node: ast.ClassDef) -> str:
    """What kind of class it is."""
    bases = [module.source_of(base) for base in node.bases]
    known = [_BASES[base] for base in bases if base in _BASES]
    others = [code(base) for base in bases if base not in _BASES]
    kind = known[0] if known else "a class"
    for decorator in node.decorator_list:
        if "dataclass" in module.source_of(decorator):
            kind = "a frozen dataclass" if "frozen=True" in module.source_of(decorator) else "a dataclass"
    return f"*{kind}{' derived from ' + ', '.join(others) if others else ''}*"


def class_body(module: Module, node: ast.ClassDef) -> Iterator[list[str]]:
    """The fields, properties and methods of a class."""
    yield fields_table(fields(module, node))
    found = methods(node)
    rows = [
        (code(each.name), code(_result(module, each)), in_one_line(docstring))
        for each, docstring in found
        if is_property(each)
    ]
    yield table(("property", "type", "meaning"), rows)
    yield [line for each, docstring in found if not is_property(each) for line in _item(module, each, docstring)]


def fields_table(found: Sequence[Field], kind: str = "field") -> list[str]:
    """A row for each field; one without a default must be given."""
    rows = [(code(each.name), code(each.type), code(each.default), in_one_line(each.docstring)) for each in found]
    return table((kind, "type", "default", "meaning"), rows)


def assignment(module: Module, node: ast.Assign | ast.AnnAssign) -> str:
    """A value as its source has it, or as much as fits a line of one that is long."""
    text = module.source_of(node)
    if len(text) <= _LONGEST:
        return text
    head = text.partition(" = ")[0]
    return f"{head} = ..."


def wrapped(signature: str) -> str:
    """A signature, a parameter a line if it is long."""
    start = signature.find("(")
    if len(signature) <= _LONGEST or start < 0:
        return signature
    parts, depth, begin = list[str](), 0, start + 1
    for number in range(start, len(signature)):
        letter = signature[number]
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(f"    {signature[begin:number].strip()},")
            begin = number + 1
        if depth == 0:
            break
    return "\n".join([signature[: start + 1], *parts, f"){signature[begin:]}"])


def _item(module: Module, node: Function, docstring: str) -> list[str]:
    """A method as an item of a list."""
    signature = module.signature(node)
    for receiver in ("self", "cls"):
        signature = signature.replace(f"({receiver}, ", "(", 1).replace(f"({receiver})", "()", 1)
    kind = next((f"{each} " for each in decorators(node) if each in ("classmethod", "staticmethod")), "")
    lines = reflowed(docstring)
    head = f"- {kind}{code(node.name + signature)}"
    if len(lines) <= 1:
        return [head + (f": {lines[0]}" if lines else "")]
    # Python-Markdown takes no less than four blanks for a part of the item.
    return [f"{head}:", "", *(f"    {line}" if line else "" for line in lines), ""]


def _result(module: Module, node: Function) -> str:
    return "" if node.returns is None else module.source_of(node.returns).strip("\"'")


def undocumented(name: Name) -> Iterator[str]:
    """What of a public name says nothing about itself: the name, and the fields of a class."""
    if not name.docstring:
        yield name.place
    if isinstance(name.node, ast.ClassDef):
        for each in fields(name.module, name.node):
            if not each.docstring:
                yield f"{name.place}.{each.name}"
