# SPDX-License-Identifier: Apache-2.0
"""How a package adds parts: groups of entry points, and registries that a decorator fills."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import resolve_name

from docs.generator.api import wrapped
from docs.generator.source import PACKAGE, ROOT, Module, Name, module_called, modules_with
from xdsl.ir import Operation

from penstock.tools.markdown import block, code, reflowed, summary, table


@cache
def _groups() -> Mapping[str, Mapping[str, str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["entry-points"]


def entry_points(group: str) -> dict[str, Name]:
    """What the project itself registers in a group of entry points, by name, in alphabetical order."""
    found: dict[str, Name] = {}
    for name, place in sorted(_groups().get(group, {}).items()):
        module, _, attribute = place.partition(":")
        source = module_called(module)
        where = None if source is None else source.find(attribute)
        assert where is not None, f"the entry point {name} of {group} leads to nothing: {place}"
        # What a function makes may be given its docstring there.
        found[name] = where if where.docstring else replace(where, docstring=resolve_name(place).__doc__ or "")
    return found


def entry_points_table(group: str) -> list[str]:
    """A row for each of ours in a group of entry points; nothing for a group that has none."""
    found = entry_points(group)
    rows = [(code(name), summary(each.docstring), code(each.module.path.as_posix())) for name, each in found.items()]
    return table(("name", "what it does", "file"), rows)


@dataclass(frozen=True)
class Door:
    """A registry of functions by the class of an op, and the decorator that fills it."""

    decorator: str
    docstring: str
    registry: Name
    module: Module

    @property
    def path(self) -> str:
        """Where it is imported from."""
        return f"{self.module.name}.{self.decorator}"

    @property
    def function(self) -> Name | None:
        """The alias of the type of what it registers."""
        node = self.registry.node
        annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
        is_alias = isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Name)
        return self.registry.module.find(annotation.slice.id) if is_alias else None  # pyright: ignore


def doors() -> Iterator[Door]:
    """Every decorator that is the `register` of a `Registry`, by its path."""
    for module in modules_with(".register\n"):
        for name in module.defined.values():
            node = name.node
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)):
                continue
            if node.value.attr != "register" or not isinstance(node.value.value, ast.Name):
                continue
            registry = module.defined[node.value.value.id]
            yield Door(name.name, name.docstring, registry, module)


def door_section(door: Door) -> Iterator[list[str]]:
    """The parts of a page on a registry: its decorator, the function that it takes, and the ops that have one."""
    yield [f"## {code(door.decorator)}"]
    yield [f"{code(f'@{door.decorator}(MyOp, ...)')} of {code(door.module.name)}."]
    yield reflowed(door.docstring)
    if (function := door.function) is not None:
        assert isinstance(function.node, ast.Assign | ast.AnnAssign)
        yield block(wrapped(function.module.source_of(function.node)), "py")
        yield reflowed(function.docstring)
    yield [f"There is one for {', '.join(map(code, registered(door)))}."]


def registered(door: Door) -> list[str]:
    """What our own modules register: ops by their names, and classes that others are derived from."""
    for module in modules_with(f"@{door.decorator}("):
        import_module(module.name)
    return classes_in(resolve_name(f"{door.registry.module.name}:{door.registry.name}"))


def classes_in(registry: Mapping[type[Operation], object]) -> list[str]:
    """The classes of ops that are keys, those of ours and of xDSL, in alphabetical order of what they are called."""
    ours = [each for each in registry if each.__module__.split(".")[0] in (PACKAGE, "xdsl")]
    return sorted(str(getattr(each, "name", each.__name__)) for each in ours)
