"""
Where the tables, keys and values of a TOML text stand, which the standard library's reader does not say.

The text must have been read by `tomllib` before: nothing is checked again here, and a text that this scanner does
not follow to its end gives the positions found so far.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Path = tuple[str | int, ...]
"""The way to a value: keys of tables and places in arrays, as one would index the parsed document."""

Position = tuple[int, int]
"""Line and column, both counted from 1."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:\\.|[^"\\])*"|' + r"'[^']*'", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")


class _LostError(Exception):
    """The scanner does not follow the text any further."""


@dataclass
class Positions:
    """The position of each table header or key, and of each value."""

    keys: dict[Path, Position] = field(default_factory=dict[Path, Position])
    values: dict[Path, Position] = field(default_factory=dict[Path, Position])

    def key(self, path: Path) -> Position:
        """The place of the key at `path`, else of the nearest table or array around it, else the beginning."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path, (1, 1))

    def value(self, path: Path) -> Position:
        """The place of the value at `path`, else of the key."""
        return self.values.get(path) or self.key(path)


def locate(text: str) -> Positions:
    """The positions in a TOML `text`."""
    scanner = _Scanner(text)
    try:
        scanner.document()
    except _LostError:
        pass
    return scanner.found


class _Scanner:
    def __init__(self, text: str):
        self.text = text
        self.at = 0
        self.found = Positions()
        self.counts: dict[Path, int] = {}
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def document(self) -> None:
        table: Path = ()
        self._match(_BLANK)
        while self.at < len(self.text):
            if self._peek("[["):
                table = self._header("[[", "]]")
            elif self._peek("["):
                table = self._header("[", "]")
            else:
                self._pair(table)
            self._match(_BLANK)

    def _position(self, at: int) -> Position:
        low, high = 0, len(self.line_starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.line_starts[middle] <= at else (low, middle)
        return low + 1, at - self.line_starts[low] + 1

    def _peek(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def _expect(self, word: str) -> None:
        if not self._peek(word):
            raise _LostError
        self.at += len(word)

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _LostError
        self.at = match.end()
        return match.group()

    def _header(self, opening: str, closing: str) -> Path:
        start = self._position(self.at)
        self._expect(opening)
        path: Path = ()
        names = self._key()
        for place, name in enumerate(names):
            path = (*path, name)
            is_last = place == len(names) - 1
            if is_last and opening == "[[":
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
            if self._peek('"') or self._peek("'"):
                names.append(self._match(_STRING)[1:-1])
            else:
                names.append(self._match(_BARE_KEY))
            self._match(_BLANK)
            if not self._peek("."):
                return names
            self._expect(".")

    def _pair(self, table: Path) -> None:
        self._match(_BLANK)
        start = self._position(self.at)
        path = table
        for name in self._key():
            path = (*path, name)
            self.found.keys.setdefault(path, start)
        self._expect("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        self._match(_BLANK)
        self.found.values[path] = self._position(self.at)
        if self._peek("["):
            self._array(path)
        elif self._peek("{"):
            self._inline_table(path)
        elif self._peek('"') or self._peek("'"):
            self._match(_STRING)
        else:
            self._match(_SCALAR)

    def _array(self, path: Path) -> None:
        self._expect("[")
        self._match(_BLANK)
        place = 0
        while not self._peek("]"):
            self.found.keys[(*path, place)] = self._position(self.at)
            self._value((*path, place))
            place += 1
            self._match(_BLANK)
            if not self._peek("]"):
                self._expect(",")
                self._match(_BLANK)
        self._expect("]")

    def _inline_table(self, path: Path) -> None:
        self._expect("{")
        self._match(_BLANK)
        while not self._peek("}"):
            self._pair(path)
            self._match(_BLANK)
            if not self._peek("}"):
                self._expect(",")
                self._match(_BLANK)
        self._expect("}")
