"""One table of a machine file: its keys, its numbers and where they come from, and the log of what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FileLineColLoc, IntAttr, StringAttr
from xdsl.ir import Attribute

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.lowering.machine_schema import Key, ValueFault, word_for
from penstock.lowering.toml_positions import Path, Position, Positions

ASSUMED = "assumed"
WHOLE_TABLE = "all"
"""The key of an `origin` for all numbers that do not name their own."""


class FaultLog:
    """The faults of one file, each at a place in it."""

    def __init__(self, file: str, positions: Positions):
        self.file = file
        self.positions = positions
        self._faults: list[tuple[Position, UserError]] = []
        self._bad: set[Path] = set()

    def at_key(self, path: Path, message: str, notes: Iterable[str | None] = ()) -> None:
        """A fault of the key at `path`, or of its absence from the table around it."""
        self._add(path, self.positions.key(path), message, notes)

    def at_value(self, path: Path, message: str, notes: Iterable[str | None] = (), *, offset: int = 0) -> None:
        """A fault of the value at `path`, `offset` columns into it."""
        line, column = self.positions.value(path)
        self._add(path, (line, column + offset), message, notes)

    def _add(self, path: Path, place: Position, message: str, notes: Iterable[str | None]) -> None:
        loc = f"{self.file}:{place[0]}:{place[1]}"
        told = [note for note in notes if note is not None]
        self._faults.append((place, UserError(message, loc=loc, notes=told)))
        self._bad.add(path)

    def has_fault_in(self, path: Path) -> bool:
        """Whether a fault was found at `path` or inside of it."""
        return any(bad[: len(path)] == path for bad in self._bad)

    def location(self, path: Path) -> FileLineColLoc:
        """The location of the table at `path`."""
        line, column = self.positions.key(path)
        return FileLineColLoc(StringAttr(self.file), IntAttr(line), IntAttr(column))

    def sorted(self) -> tuple[UserError, ...]:
        """The faults in the order of the text."""
        ordered = sorted(self._faults, key=lambda entry: entry[0])
        return tuple(fault for _, fault in ordered)


class Table:
    """
    A table of the file, which stands at `path` and is written as `title` in messages.

    Reading a number from it notes in `origin` where the number comes from.
    """

    def __init__(
        self,
        log: FaultLog,
        path: Path,
        title: str,
        content: Mapping[str, object],
        sources: Collection[str],
    ):
        self.log = log
        self.path = path
        self.title = title
        self.content = content
        self.sources = sources
        self._cover = self._read_cover(content, path)
        self._own: dict[str, Attribute] = {}

    @property
    def origin(self) -> DictionaryAttr | None:
        """Where the numbers read so far come from, as the `origin` of a part; None if nothing says so."""
        whole = {} if self._cover is None else {WHOLE_TABLE: self._cover}
        return DictionaryAttr(whole | self._own) if whole or self._own else None

    def check_keys(self, known: Sequence[str]) -> None:
        """Log every key that the schema does not have, and every one it has under another table."""
        for key in self.content:
            if key not in known:
                near = did_you_mean(key, known)
                note = near or f"the keys of {self.title} are {', '.join(known)}"
                self.log.at_key((*self.path, key), f'unknown key "{key}" in {self.title}', [note])

    def get(self, key: str) -> object | None:
        """The value of a required key, or None, logged, if it is missing."""
        if key not in self.content:
            self.log.at_key((*self.path, key), f'missing key "{key}" in {self.title}')
            return None
        return self.content[key]

    def properties(self, keys: Mapping[str, Key]) -> dict[str, Attribute]:
        """The properties that `keys` describes, with a stand-in for each that is required and has a fault."""
        found: dict[str, Attribute] = {}
        for key, spec in keys.items():
            if key not in self.content and not spec.required:
                continue
            attr = self._property(key, spec)
            if attr is not None:
                found[key] = attr
            elif spec.required:
                found[key] = StringAttr(self._stand_in_name) if key == "name" else spec.stand_in
        return found

    @property
    def _stand_in_name(self) -> str:
        return "_" + "_".join(str(step) for step in self.path)

    def _property(self, key: str, spec: Key) -> Attribute | None:
        value = self.get(key)
        if value is None:
            return None
        path = (*self.path, key)
        try:
            return spec.read(self.number((key,), value) if spec.is_number else value)
        except ValueFault as fault:
            self.log.at_value(path, f"{key} {fault}")
            return None

    def number(self, steps: tuple[str, ...], value: object) -> object:
        """
        The plain value of a number that stands `steps` below this table, its origin noted.

        Raises ValueFault for a number written as a table that has no `value`.
        """
        path = (*self.path, *steps)
        name = steps[-1]
        if not isinstance(value, dict):
            # What is no number at all is told so, and needs no source for it.
            if self._cover is None and type(value) in (int, list):
                self.log.at_key(path, f"{name} has neither a source nor assumed = true")
            return value
        entries = cast(dict[str, object], value)
        if "value" not in entries:
            raise ValueFault("must be a number, or a table with a value, but is a table without one")
        known = ("value", "source", ASSUMED, "derived")
        for key in entries:
            if key not in known:
                note = did_you_mean(key, known)
                self.log.at_key((*path, key), f'unknown key "{key}" in {name}', [note])
        cover = self._read_cover(entries, path) or self._cover
        if cover is None:
            self.log.at_key(path, f"{name} has neither a source nor assumed = true")
            return entries["value"]
        own: Attribute = cover
        if isinstance(derived := entries.get("derived", ""), str):
            own = ArrayAttr([cover, StringAttr(derived)]) if derived else cover
        else:
            self.log.at_value((*path, "derived"), f"derived must be a string, but is {word_for(derived)}")
        if own != self._cover:
            self._own[".".join(steps)] = own
        return entries["value"]

    def _read_cover(self, entries: Mapping[str, object], path: Path) -> StringAttr | None:
        """What a table says about the origin of its numbers; a fault in it is logged, and counts as said."""
        if "source" in entries and ASSUMED in entries:
            self.log.at_key((*path, ASSUMED), "either source or assumed, not both")
        if ASSUMED in entries:
            if entries[ASSUMED] is not True:
                self.log.at_value((*path, ASSUMED), "assumed can only be true")
            return StringAttr(ASSUMED)
        if "source" not in entries:
            return None
        source = entries["source"]
        if not isinstance(source, str):
            self.log.at_value((*path, "source"), f"source must be a string, but is {word_for(source)}")
            return StringAttr(ASSUMED)
        if source not in self.sources:
            near = did_you_mean(source, self.sources)
            listed = f"[sources] has {', '.join(self.sources)}" if self.sources else "there is no [sources]"
            self.log.at_value((*path, "source"), f'unknown source "{source}"', [near or listed])
        return StringAttr(source)
