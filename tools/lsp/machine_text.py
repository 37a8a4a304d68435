# SPDX-License-Identifier: Apache-2.0
"""A machine file in an editor: what is wrong with it, what its keys mean, and what names in it lead to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import read_machine
from penstock.lowering.machine_keys import (
    BEHAVIOUR_KEYS,
    COVERS,
    EXTENDS,
    MACHINE_KEYS,
    OPERAND_KEYS,
    PART_KINDS,
    SINGLE_KINDS,
)
from penstock.lowering.machine_names import machine_text, shipped_machines
from penstock.lowering.text_places import Extent
from penstock.lowering.toml_positions import Path as KeyPath
from penstock.lowering.toml_positions import Positions, locate
from penstock.tools.lsp.documents import Completion, Faults, Hover, Kind, Lines, Location, Problem, Symbol
from penstock.tools.markdown import code, page, reflowed, summary
from penstock.tools.op_documentation import key_meanings

_MACHINE = re.compile(r"^\[machine\]", re.MULTILINE)
_STRING = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_KEY = re.compile(r"[\w-]+|\"[^\"\n]*\"|\[+[\w.\- ]*\]*")
_HEADER = re.compile(r"\s*\[+\s*[\w-]*$")
_LINE_KEY = re.compile(r"\s*[\w-]*$")
_INLINE_KEY = re.compile(r"[{,]\s*[\w-]*$")
_NAMED_VALUE = re.compile(r"([\w-]+)\s*=\s*\[?(?:\"[^\"]*\"\s*,\s*)*\"[^\"]*$")
_NAMES = ("name", "list of names")
"""What keys hold that name parts."""
_OPERANDS = "operands"


def is_machine(text: str) -> bool:
    """Whether a text in TOML describes a machine."""
    return _MACHINE.search(text) is not None


@dataclass(frozen=True)
class _Value:
    """A string in a machine file: the way to it, and what it is."""

    path: KeyPath
    extent: Extent
    text: str


class MachineText:
    """A machine file; a text in TOML that is none has nothing wrong with it, and nothing to say."""

    def __init__(self, path: str, text: str):
        self.text = text
        self._path = path
        self._lines = Lines(text)
        self._is_machine = is_machine(text)
        self._positions = locate(text, path) if self._is_machine else Positions({})
        self._values = list(_values(self._positions, self._lines))
        self.problems: Sequence[Problem] = list(self._check()) if self._is_machine else []

    def _check(self) -> Iterator[Problem]:
        try:
            faults: Sequence[UserError] = read_machine(self._path, self.text)[1]
        except UserError as error:
            faults = [error]
        # What a base has wrong with it is said where it is named.
        base = next((each.extent for each in self._values if each.path == ("machine", EXTENDS)), None)
        found = Faults(self._path, self._lines, self._extents())
        yield from (found.problem(fault, otherwise=base) for fault in faults)

    def _extents(self) -> dict[str, Extent]:
        """What is underlined at the places of keys and strings."""
        places = {str(self._positions.key(path)): extent for path, extent in self._keys()}
        return places | {str(self._positions.value(each.path)): each.extent for each in self._values}

    def _keys(self) -> Iterator[tuple[KeyPath, Extent]]:
        for path, position in self._positions.keys.items():
            start = self._lines.offset(position.line, position.column)
            found = _KEY.match(self.text, start) if path else None
            if found is not None and (isinstance(path[-1], str) or found[0].startswith("[")):
                yield path, Extent(*found.span())

    def hover(self, position: int) -> Hover | None:
        for path, extent in self._keys():
            if extent.holds(position) and (text := key_page(path)) is not None:
                return Hover(extent, text)
        for value in self._values:
            if value.extent.holds(position):
                if value.path[-1] == "source" and (source := self._source(value.text)) is not None:
                    return Hover(value.extent, f"{code(value.text)}: {source}\n")
                if (found := self._part(value)) is not None:
                    path, location = found
                    kind = PART_KINDS[str(path[0])]
                    said = f"**{code(value.text)}**: a part `[[{path[0]}]]`" + (
                        f" of {location.path}" if location.path else ""
                    )
                    return Hover(value.extent, page([f"{said}."], [summary(kind.__doc__ or "")]))
        return None

    def _source(self, key: str) -> str | None:
        return next((each.text for each in self._values if each.path == ("sources", key)), None)

    def definitions(self, position: int) -> Sequence[Location]:
        value = next((each for each in self._values if each.extent.holds(position)), None)
        if value is None:
            return []
        if value.path == ("machine", EXTENDS):
            base = self._base(value.text)
            return [] if base is None else [Location(Extent(0, 0), *base)]
        if value.path[-1] == "source":
            return [Location(extent) for path, extent in self._keys() if path == ("sources", value.text)]
        found = self._part(value)
        return [] if found is None else [found[1]]

    def _part(self, value: _Value) -> tuple[KeyPath, Location] | None:
        """The part that a string names, here or in what the file extends."""
        if not _names_parts(value.path) and not _is_name_of_part(value.path):
            return None
        for path, text, values in self._files():
            for each in values:
                if each.text == value.text and _is_name_of_part(each.path):
                    return each.path, Location(each.extent, path, text)
        return None

    def _files(self) -> Iterator[tuple[str, str, Sequence[_Value]]]:
        """The file, and those that it extends."""
        path, text, values, seen = "", "", self._values, {self.text}
        while True:
            yield path, text, values
            name = next((each.text for each in values if each.path == ("machine", EXTENDS)), None)
            base = None if name is None else self._base(name, path or self._path)
            if base is None or base[1] in seen:
                return
            path, text = base
            seen.add(text)
            values = list(_values(locate(text, path), Lines(text)))

    def _base(self, name: str, file: str = "") -> tuple[str, str] | None:
        """The path and the text of what a file extends; None if it cannot be read."""
        try:
            is_path = name.endswith(".toml")
            found, text = machine_text(str(Path(file or self._path).parent / name) if is_path else name)
        except UserError:
            return None
        if not is_path and name in shipped_machines():
            found = str(resources.files("penstock.machines") / found)
        return str(Path(found).absolute()), text

    def occurrences(self, position: int) -> Sequence[tuple[Extent, bool]]:
        value = next((each for each in self._values if each.extent.holds(position)), None)
        if value is None or self._part(value) is None:
            return []
        return [
            (each.extent, each.path[-1] == "name")
            for each in self._values
            if each.text == value.text and self._part(each) is not None
        ]

    def symbols(self) -> Sequence[Symbol]:
        names = {each.path[:-1]: each for each in self._values if each.path[-1] == "name"}
        # The first of several tables is where their kind begins.
        by_extent = {extent: path for path, extent in self._keys() if self.text.startswith("[", extent.start)}
        tables = [(path, extent) for extent, path in sorted(by_extent.items())]
        found: list[Symbol] = []
        for number, (path, extent) in enumerate(tables):
            end = tables[number + 1][1].start if number + 1 < len(tables) else len(self.text)
            whole = Extent(extent.start, extent.start + len(self.text[extent.start : end].rstrip()))
            name = names.get(path)
            if name is not None and not (whole.start <= name.extent.start and name.extent.end <= whole.end):
                name = None  # written elsewhere, as `unit.name = "x"` is
            text = str(path[0]) if name is None else name.text
            found.append(Symbol(text, Kind.PART, whole, extent if name is None else name.extent, str(path[0])))
        return found

    def part_names(self) -> Iterator[tuple[str, str]]:
        """The names of all parts, with their kinds, those of what the file extends included."""
        for _, _, values in self._files():
            yield from ((each.text, str(each.path[0])) for each in values if _is_name_of_part(each.path))

    def sources(self) -> Iterator[tuple[str, str]]:
        """The keys of sources, with their texts."""
        yield from ((str(each.path[1]), each.text) for each in self._values if each.path[0] == "sources")


def _values(positions: Positions, lines: Lines) -> Iterator[_Value]:
    for path, position in positions.values.items():
        start = lines.offset(position.line, position.column)
        if (found := _STRING.match(lines.text, start)) is not None:
            yield _Value(path, Extent(*found.span()), found[1] or found[2] or "")
    # The elements of lists are where their keys are.
    for path, position in positions.keys.items():
        start = lines.offset(position.line, position.column)
        if path and isinstance(path[-1], int) and path not in positions.values:
            if (found := _STRING.match(lines.text, start)) is not None:
                yield _Value(path, Extent(*found.span()), found[1] or found[2] or "")


def _is_name_of_part(path: KeyPath) -> bool:
    return len(path) == 3 and path[2] == "name"


def _names_parts(path: KeyPath) -> bool:
    """Whether what a way leads to names a part."""
    keys = [each for each in path if isinstance(each, str)]
    if len(keys) == 3 and keys[1] == _OPERANDS:
        return keys[2] == "scope"
    if len(keys) != 2 or keys[0] not in PART_KINDS or keys[1] == "name":
        return False
    return keys[1] in (found := key_meanings(PART_KINDS[keys[0]])) and found[keys[1]][0].form in _NAMES


# the documentation of keys


def keys_of(path: KeyPath) -> Mapping[str, tuple[str, str]]:
    """The keys of the table at a path: what each holds, and what it means."""
    keys = [each for each in path if isinstance(each, str)]
    covers = {key: ("", meaning) for key, meaning in COVERS.items()}
    base = {EXTENDS: ("name or path", "The machine that this one is made of: its parts, changed or added to.")}
    if len(keys) == 2 and keys[1] == _OPERANDS:
        return {key: (each.form, each.meaning) for key, each in OPERAND_KEYS.items()}
    if len(keys) != 1:
        return {}
    if keys[0] == "machine":
        own = {key: (each.form, each.meaning) for key, each in MACHINE_KEYS.items()}
        return own | base | covers
    if keys[0] not in PART_KINDS:
        return {}
    kind = PART_KINDS[keys[0]]
    found = {key: (each.form, meaning) for key, (each, meaning) in key_meanings(kind).items()}
    if keys[0] == "intrinsic":
        found |= {key: ("", meaning) for key, meaning in BEHAVIOUR_KEYS.items()}
    return found | covers


def key_page(path: KeyPath) -> str | None:
    """What a key means, or what a table describes, as Markdown."""
    keys = [each for each in path if isinstance(each, str)]
    if len(keys) == 1:
        kind = PART_KINDS.get(keys[0])
        return None if kind is None else page([f"**{code(keys[0])}**"], reflowed(kind.__doc__ or ""))
    found = keys_of(tuple(keys[:-1])).get(keys[-1])
    if found is None:
        return None
    form, meaning = found
    return page([f"**{code(keys[-1])}**{': ' + form if form else ''}"], [meaning])


def complete_machine(text: str, position: int, latest: MachineText | None) -> Sequence[Completion]:
    """What may stand where a word ends: tables, keys of the table, and names of parts and of sources."""
    start = text.rfind("\n", 0, position) + 1
    line = text[start:position]
    if _HEADER.match(line):
        single = ("machine", "sources", *SINGLE_KINDS)
        docs = {kind: op.__doc__ or "" for kind, op in PART_KINDS.items()}
        return [
            Completion(kind, Kind.PART, f"[{kind}]" if kind in single else f"[[{kind}]]", docs.get(kind, ""))
            for kind in (*single[:2], *PART_KINDS)
        ]
    keys = locate(text[:start]).keys
    table = next((path for path in reversed(keys) if path), ())
    if (named := _NAMED_VALUE.search(line)) is not None:
        return list(_named(named[1], table, latest))
    inside = table[:1]
    if _INLINE_KEY.search(line) and (_OPERANDS in line or _OPERANDS in table):
        inside = (*table[:1], _OPERANDS)
    elif not _LINE_KEY.match(line):
        return []
    return [Completion(key, Kind.PROPERTY, form, meaning) for key, (form, meaning) in keys_of(inside).items()]


def _named(key: str, table: KeyPath, latest: MachineText | None) -> Iterator[Completion]:
    """What may stand in quotes behind a key."""
    if key == EXTENDS:
        yield from (Completion(name, Kind.MODULE, "a machine") for name in shipped_machines())
    elif key == "source" and latest is not None:
        yield from (Completion(name, Kind.CONSTANT, said) for name, said in latest.sources())
    elif latest is not None and (key == "scope" or _names_parts((*table[:1], key))):
        yield from (Completion(name, Kind.PART, kind) for name, kind in dict.fromkeys(latest.part_names()))
