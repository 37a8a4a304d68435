# SPDX-License-Identifier: Apache-2.0
"""Passes: what their classes declare."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pkgutil import resolve_name
from typing import cast

from docs.generator.api import fields_table
from docs.generator.pairs import all_pairs
from docs.generator.source import ROOT, Field, Module, fields, module_called

from penstock.runtime.levels import LEVELS
from penstock.tools.markdown import anchor, block, code, in_one_line, reflowed, summary


def pass_section(name: str, place: str) -> Iterator[list[str]]:
    """The parts of a page on a pass, which is at `module:class`: its docstring and its options."""
    module, node = pass_source(place)
    yield [f"## {code(name)}"]
    yield [f"*{code(node.name)} of {code(module.path.as_posix())}*"]
    docstring = ast.get_docstring(node) or ""
    yield reflowed(docstring)
    if "Before:" not in docstring:
        yield from _pair_elsewhere(name)
    for each in fields(module, node):
        if each.type.startswith("ClassVar"):
            yield [f"{code(each.name)}: {in_one_line(each.docstring)}"]
    yield fields_table(options(place), "option")


def _pair_elsewhere(name: str) -> Iterator[list[str]]:
    """The pair of a pass that decides where to apply a primitive, which has it."""
    pair = next((each for each in all_pairs() if each.shows(name)), None)
    assert pair is not None, f"no docstring shows what {name} does"
    yield [f"The example of {code(pair.path.relative_to(ROOT).as_posix())}:"]
    yield ["Before:", *block(pair.before, "mlir")]
    machine = "" if pair.machine is None else f" on {code(pair.machine)}"
    yield [f"After ({code(pair.pipeline)}{machine}):", *block(pair.after, "mlir")]


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
