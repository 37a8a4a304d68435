"""Dialects and passes: what their classes declare."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from pkgutil import resolve_name
from typing import cast

from docs.generator.api import fields_table
from docs.generator.source import PACKAGE, Field, Module, fields, module_called
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import IRDLOperation
from xdsl.traits import OpTrait

from penstock.runtime.levels import LEVELS
from penstock.tools.markdown import anchor, block, code, in_one_line, reflowed, summary, table
from penstock.tools.op_documentation import SEGMENTS, op_strings, op_table, type_text

# dialects


def dialect_parts(dialect: Dialect, module: Module) -> Iterator[list[str]]:
    """The parts of a page on a dialect, which `module` defines: its types and attributes, and its ops by name."""
    yield [f"# The dialect {code(dialect.name)}"]
    yield reflowed(module.docstring)
    ops = sorted(dialect.operations, key=lambda op: op.name)
    rows = [(f"[{code(op.name)}](#{anchor(op.name)})", summary(_docstring(op))) for op in ops]
    yield table(("op", "what it is"), rows)
    for attribute in sorted(dialect.attributes, key=lambda each: each.name):
        yield from _attribute_section(attribute)
    for op in ops:
        yield from _op_section(op)
    if bases := list(dict.fromkeys(base for op in ops for base in _bases(op))):
        yield ["## Classes that ops share"]
    for base in sorted(bases, key=lambda base: base.__name__):
        yield [f"### {code(base.__name__)}"]
        yield _place(base)
        yield reflowed(_docstring(base))


def _attribute_section(attribute: type[Attribute]) -> Iterator[list[str]]:
    sigil = "!" if issubclass(attribute, TypeAttribute) else "#"
    yield [f"## {code(f'{sigil}{attribute.name}')}"]
    yield _place(attribute)
    yield reflowed(_docstring(attribute))
    source = _source(attribute)
    if source is not None and issubclass(attribute, ParametrizedAttribute):
        meanings = {field.name: field.docstring for field in fields(*source)}
        parameters = attribute.get_irdl_definition().parameters
        rows = [(code(name), type_text(each.constr), in_one_line(meanings.get(name, ""))) for name, each in parameters]
        yield table(("parameter", "type", "meaning"), rows)


def _op_section(op: type[Operation]) -> Iterator[list[str]]:
    assert issubclass(op, IRDLOperation)
    definition = op.get_irdl_definition()
    yield [f"## {code(op.name)}"]
    yield _place(op)
    yield reflowed(_docstring(op))
    if definition.assembly_format is not None:
        yield block(f"{op.name} {definition.assembly_format}", "text")
    yield op_table(op)
    if traits := sorted({_trait(each) for each in definition.traits.traits}):
        yield [f"Traits: {', '.join(map(code, traits))}."]


def _bases(op: type) -> list[type[Operation]]:
    """The classes of ours that a class of ops is derived from, the nearest first."""
    found = [base for base in op.__mro__[1:] if _source(base) is not None and issubclass(base, Operation)]
    return [base for base in found if "name" not in vars(base)]


def _place(of: type) -> list[str]:
    module = module_called(of.__module__)
    file = "" if module is None else f" of {code(module.path.as_posix())}"
    near = [base for base in of.__bases__ if base in _bases(of)]
    links = ", ".join(f"[{code(base.__name__)}](#{anchor(base.__name__)})" for base in near)
    return [f"*{code(of.__name__)}{file}{f', derived from {links}' if links else ''}*"]


def undescribed(op: type[IRDLOperation]) -> list[str]:
    """The operands, properties and regions of an op with no string under them, and with no word in a docstring."""
    definition, meanings = op.get_irdl_definition(), op_strings(op)
    accessors = {name: accessor for accessor, (name, _) in definition.accessor_names.items()}
    names = [name for name, _ in (*definition.operands, *definition.regions)]
    names += [name for name in (*definition.properties, *definition.attributes) if name not in SEGMENTS]
    words = set(re.findall(r"\w+", " ".join(_docstring(each) for each in (op, *_bases(op)))))
    return [name for name in names if name not in words and not meanings.get(accessors.get(name, name))]


def _source(of: type) -> tuple[Module, ast.ClassDef] | None:
    """The class as its module has it; None for a class of others."""
    module = module_called(of.__module__) if of.__module__.startswith(f"{PACKAGE}.") else None
    found = None if module is None else module.defined.get(of.__name__)
    return None if found is None or not isinstance(found.node, ast.ClassDef) else (found.module, found.node)


def _docstring(of: type) -> str:
    return vars(of).get("__doc__") or ""


def _trait(trait: OpTrait) -> str:
    """A trait, with what it is told, as its class prints it."""
    told = [str(value.value if isinstance(value, Enum) else value) for value in vars(trait).values()]
    told = [word for word in told if word and "object at" not in word and "<" not in word]
    return type(trait).__name__ + (f"({', '.join(told)})" if told else "")


# passes


def pass_section(name: str, place: str) -> Iterator[list[str]]:
    """The parts of a page on a pass, which is at `module:class`: its docstring and its options."""
    module, node = pass_source(place)
    yield [f"## {code(name)}"]
    yield [f"*{code(node.name)} of {code(module.path.as_posix())}*"]
    yield reflowed(ast.get_docstring(node) or "")
    for each in fields(module, node):
        if each.type.startswith("ClassVar"):
            yield [f"{code(each.name)}: {in_one_line(each.docstring)}"]
    yield fields_table(options(place), "option")


def pass_row(name: str, place: str, page: str) -> tuple[str, str, str]:
    """A pass in a table: its name with a link to its section, the first paragraph of its docstring, its options."""
    _, node = pass_source(place)
    defaults = [f"{each.name}={each.default}" if each.default else each.name for each in options(place)]
    return (
        f"[{code(name)}]({page}#{anchor(name)})",
        summary(ast.get_docstring(node) or ""),
        ", ".join(map(code, defaults)),
    )


def pass_level(place: str) -> str:
    """The folder of the level at which a pass works; empty for one that works at several."""
    module, _ = pass_source(place)
    floor, folder = module.path.parts[:2]
    return folder.partition("_to_")[0] if floor == "lowering" else folder if folder in LEVELS else ""


def pass_source(place: str) -> tuple[Module, ast.ClassDef]:
    """The source of a pass that is at `module:class`."""
    path, _, name = place.partition(":")
    module = module_called(path)
    found = None if module is None else module.find(name)
    assert found is not None, f"there is no pass at {place}"
    assert isinstance(found.node, ast.ClassDef), f"{place} is no class"
    return found.module, found.node


def options(place: str) -> list[Field]:
    """The options of a pass: the fields of its class, by the names and the defaults that a pipeline has for them."""
    module, node = pass_source(place)
    defaults = {each.name: each.default for each in dataclasses.fields(resolve_name(place))}
    return [
        replace(each, name=each.name.replace("_", "-"), default=spelled(defaults[each.name]))
        for each in fields(module, node)
        if each.name in defaults
    ]


def spelled(default: object) -> str:
    """A default as a pipeline has it; empty where there is none."""
    match default:
        case dataclasses.MISSING:
            return ""
        case None | bool():
            return str(default).lower()
        case str():
            return f'"{default}"'
        case tuple():
            return ",".join(map(spelled, cast(tuple[object, ...], default)))
        case _:
            return str(default)
