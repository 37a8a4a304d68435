# SPDX-License-Identifier: Apache-2.0
"""The import rule of the house, checked on the imports that stand in the files, those inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

FLOORS = ("dialects", "passes", "lowering", "runtime", "tools")
"""From the ground up: a file imports from its own floor and those before it."""

INTERPRETER = "penstock.runtime.interpreter"
"""Imports floor 1 only, and may therefore be imported from floor 2 on."""


PASSES = "penstock.passes"
LEVELS = tuple(f"{PASSES}.{level}" for level in ("graph", "tensor", "loop", "accel"))
"""The rooms of the passes, one a level."""
ASKS = {LEVELS[0]: (LEVELS[1],), LEVELS[3]: (LEVELS[2],)}
"""What the passes of a level may import of others: those of graphs ask what a machine covers, and those of commands let
the buffers off chip have places, and calls an order, as loops have them."""
BELOW = tuple(f"{PASSES}.{room}" for room in ("planning", "analysis", "schedule"))
"""What the passes of all levels stand on, from the ground up: solvers without IR, what reads it, what schedules do."""


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(("penstock", *parts)).removesuffix(".__init__")


def source_files(root: Path) -> dict[str, Path]:
    return {module_name(path, root): path for floor in FLOORS for path in sorted((root / floor).rglob("*.py"))}


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def imports_of(path: Path, modules: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and full name of every module of ours that a file imports, also behind TYPE_CHECKING."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            source = node.module or ""
            # `from package import module` imports the module, not only the package.
            nested = [f"{source}.{alias.name}" for alias in node.names]
            names = [name if name in modules else source for name in nested]
        yield from ((node.lineno, name) for name in names if name in modules)


def floor_of(module: str) -> int:
    return FLOORS.index(module.split(".")[1])


def violation(importer: str, imported: str) -> str | None:
    if importer.startswith(INTERPRETER) and not imported.startswith(INTERPRETER):
        return "the interpreter imports floor 1 only" if floor_of(imported) > 0 else None
    if imported.startswith(INTERPRETER):
        return "floor 1 imports xDSL only" if floor_of(importer) == 0 else None
    if floor_of(imported) > floor_of(importer):
        return "imports never run upward"
    return violation_within_passes(importer, imported)


def is_in(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def violation_within_passes(importer: str, imported: str) -> str | None:
    if not is_in(importer, PASSES):
        return None
    below = next((number for number, room in enumerate(BELOW) if is_in(importer, room)), len(BELOW))
    if any(is_in(imported, room) for room in BELOW[below + 1 :]):
        return f"{importer.split('.')[2]} is below {imported.split('.')[2]}"
    if (level := next((room for room in LEVELS if is_in(imported, room)), None)) is None:
        return None
    own = next((room for room in LEVELS if is_in(importer, room)), None)
    if own is None:
        return f"{importer.split('.')[2]} imports no pass"
    return None if level in (own, *ASKS.get(own, ())) else "the passes of a level import those of no other level"


def test_imports_never_run_upward(repository: Path) -> None:
    modules = source_files(repository)
    faults = [
        f"{path.relative_to(repository)}:{line}: {importer} imports {imported}: {fault}"
        for importer, path in modules.items()
        for line, imported in imports_of(path, modules)
        if (fault := violation(importer, imported)) is not None
    ]
    assert not faults, "\n".join(faults)


def test_no_two_files_import_each_other(repository: Path) -> None:
    modules = source_files(repository)
    graph = {name: sorted({imported for _, imported in imports_of(path, modules)}) for name, path in modules.items()}
    assert (cycle := find_cycle(graph)) is None, " -> ".join(cycle or [])


def test_the_scan_finds_the_imports_of_a_file(repository: Path) -> None:
    modules = source_files(repository)
    assert "penstock.tools.opt_run" in modules
    found = {name for _, name in imports_of(modules["penstock.tools.opt_run"], modules)}
    assert {"penstock.tools.errors", "penstock.runtime.pipeline"} <= found, "one at the top, one in a function"


def find_cycle(graph: dict[str, list[str]]) -> list[str] | None:
    """A path that leads back to its start, or None."""
    done: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> list[str] | None:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return None
        trail.append(name)
        for imported in graph.get(name, []):
            if (found := visit(imported)) is not None:
                return found
        trail.pop()
        done.add(name)
        return None

    for name in graph:
        if (found := visit(name)) is not None:
            return found
    return None


def test_the_checks_object_to_what_the_rule_forbids() -> None:
    assert violation("penstock.dialects.mem", "penstock.passes.loop.promote") is not None
    assert violation("penstock.passes.graph.fold_constants", INTERPRETER) is None
    assert violation("penstock.passes.graph.fold_constants", "penstock.runtime.engine") is not None
    assert violation(f"{INTERPRETER}.values", "penstock.runtime.signature") is not None
    assert violation("penstock.tools.main", "penstock.runtime.engine") is None
    for importer, imported in pairwise((*BELOW, LEVELS[1])):
        assert violation(f"{imported}.a", f"{importer}.b") is None
        assert violation(f"{importer}.a", f"{imported}.b") is not None
    assert find_cycle({"a": ["b"], "b": ["c"], "c": ["a"]}) == ["a", "b", "c", "a"]
    assert find_cycle({"a": ["b", "c"], "b": ["c"], "c": []}) is None
