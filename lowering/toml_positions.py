# SPDX-License-Identifier: Apache-2.0
"""
TOML texts, and where their tables, keys and values are, which the standard library's reader does not say.

The text must have been read by `tomllib` before: nothing is checked again here, and a text that this scanner does
not follow to its end gives the positions found so far.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.dialects.diagnostics import UserError

Path = tuple[str | int, ...]
"""The way to a value: keys of tables and indices of arrays, as one would index the parsed document."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:\\.|[^"\\])*"|' + r"'[^']*'", re.DOTALL)
_FAULT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_SCALAR = re.compile(r"[^,\]}#\n]+")


class Position(NamedTuple):
    """A place in a text. Those of one machine are sorted by `order`: 0 in its file, 1 in the file it extends, ..."""

    order: int
    file: str
    line: int
    """Counted from 1, as columns are."""
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass
class Positions:
    """The position of each table header or key, and of each value; that of the empty path is the beginning."""

    keys: dict[Path, Position]
    values: dict[Path, Position] = field(default_factory=dict[Path, Position])

    def key(self, path: Path) -> Position:
        """The place of the key at `path`, else of the nearest table or array around it."""
        while path not in self.keys:
            path = path[:-1]
        return self.keys[path]

    def value(self, path: Path) -> Position:
        """The place of the value at `path`, else of the key."""
        return self.values.get(path) or self.key(path)


def locate(text: str, file: str = "", order: int = 0) -> Positions:
    """The positions in a TOML `text`."""
    scanner = _Scanner(text, Position(order, file, 1, 1))
    try:
        scanner.document()
    except _LostError:
        pass
    return scanner.found


def read_toml(file: str, text: str) -> dict[str, object]:
    """The document that a text is; raises UserError, placed in the file, for what is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _FAULT.search(message)
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
        if place is not None and place.group(1) is not None:
            line, column = int(place.group(1)), int(place.group(2))
        raise UserError(f"not TOML: {_FAULT.sub('', message)}", loc=f"{file}:{line}:{column}") from None


class _LostError(Exception):
    """The scanner does not follow the text any further."""


class _Scanner:
    def __init__(self, text: str, start: Position):
        self.text = text
        self.at = 0
        self.start = start
        self.found = Positions({(): start})
        self.counts: dict[Path, int] = {}
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def document(self) -> None:
        table: Path = ()
        self._match(_BLANK)
        while self.at < len(self.text):
            start = self._position()
            if self._accept("[["):
                table = self._header(start, "]]")
            elif self._accept("["):
                table = self._header(start, "]")
            else:
                self._pair(table)
            self._match(_BLANK)

    def _position(self) -> Position:
        line = bisect_right(self.line_starts, self.at)
        return Position(self.start.order, self.start.file, line, self.at - self.line_starts[line - 1] + 1)

    def _accept(self, word: str) -> bool:
        found = self.text.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise _LostError

    def _match(self, *patterns: re.Pattern[str]) -> str:
        """What the first of the patterns that matches here matches."""
        for pattern in patterns:
            if (match := pattern.match(self.text, self.at)) is not None:
                self.at = match.end()
                return match.group()
        raise _LostError

    def _header(self, start: Position, closing: str) -> Path:
        path: Path = ()
        names = self._key()
        for place, name in enumerate(names):
            path = (*path, name)
            if place == len(names) - 1 and closing == "]]":
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                self.found.keys.setdefault(path, start)
                path = (*path, self.counts[path])
        self._expect(closing)
        self.found.keys[path] = start
        return path

    def _key(self) -> list[str]:
        names: list[str] = []
        while True:
            self._match(_BLANK)
            name = self._match(_STRING, _BARE_KEY)
            names.append(name[1:-1] if name[0] in "\"'" else name)
            self._match(_BLANK)
            if not self._accept("."):
                return names

    def _pair(self, table: Path) -> None:
        self._match(_BLANK)
        start = self._position()
        path = table
        for name in self._key():
            path = (*path, name)
            self.found.keys.setdefault(path, start)
        self._expect("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        self._match(_BLANK)
        self.found.values[path] = self._position()
        if self._accept("["):
            self._items("]", lambda place: self._element((*path, place)))
        elif self._accept("{"):
            self._items("}", lambda _: self._pair(path))
        else:
            self._match(_STRING, _SCALAR)

    def _element(self, path: Path) -> None:
        self.found.keys[path] = self._position()
        self._value(path)

    def _items(self, closing: str, read: Callable[[int], None]) -> None:
        """The items of an array or an inline table, separated by commas."""
        self._match(_BLANK)
        place = 0
        while not self._accept(closing):
            if place:
                self._expect(",")
                self._match(_BLANK)
                if self._accept(closing):
                    return
            read(place)
            place += 1
            self._match(_BLANK)
