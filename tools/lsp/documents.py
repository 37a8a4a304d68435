# SPDX-License-Identifier: Apache-2.0
"""What a language server asks of a document, whatever its language; places are offsets into its text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from penstock.dialects.diagnostics import UserError
from penstock.lowering.text_places import Extent
from penstock.tools.errors import split_place

_WORD = re.compile(r"\w+|\S")


class Kind(Enum):
    """What a symbol of a document, or something that completes a word, is."""

    FUNCTION = "function"
    MODULE = "module"
    VARIABLE = "variable"
    TYPE = "type"
    OPERATION = "operation"
    PROPERTY = "property"
    KEYWORD = "keyword"
    CONSTANT = "constant"
    PART = "part"


@dataclass(frozen=True)
class Location:
    """A part of a document, or of another file with its text."""

    extent: Extent
    path: str = ""
    """Empty for the document itself."""
    text: str = ""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a document, and where."""

    extent: Extent
    message: str
    related: tuple[tuple[Location, str], ...] = ()
    is_warning: bool = False


@dataclass(frozen=True)
class Hover:
    """What is said of a part of a document, as Markdown."""

    extent: Extent
    text: str


@dataclass(frozen=True)
class Symbol:
    """What a document defines: its extent, and that of its name."""

    name: str
    kind: Kind
    extent: Extent
    named: Extent
    detail: str = ""
    children: tuple[Symbol, ...] = ()


@dataclass(frozen=True)
class Completion:
    """What may stand in the place of a word."""

    text: str
    kind: Kind
    detail: str = ""
    documentation: str = ""


class Document(Protocol):
    """A text that has been read and checked."""

    text: str
    problems: Sequence[Problem]

    def hover(self, position: int) -> Hover | None:
        """What there is to say of what is at a position."""
        ...

    def definitions(self, position: int) -> Sequence[Location]:
        """Where what is named at a position is defined."""
        ...

    def occurrences(self, position: int) -> Sequence[tuple[Extent, bool]]:
        """Every place that names what is named at a position, and whether it defines it."""
        ...

    def symbols(self) -> Sequence[Symbol]:
        """What the document defines, in the order of its text."""
        ...


class Lines:
    """The lines of a text, which end in `\\n`, `\\r\\n` or `\\r`: places as they are and as clients count them."""

    def __init__(self, text: str):
        self.text = text
        self._starts = [0, *(found.end() for found in re.finditer(r"\r\n|\n|\r", text))]

    def line_of(self, position: int) -> int:
        """The number of the line that a position is in, from 0."""
        return bisect_right(self._starts, position) - 1

    def start_of(self, line: int) -> int:
        """Where a line begins; the last one for one that is not there."""
        return self._starts[min(max(line, 0), len(self._starts) - 1)]

    def end_of(self, line: int) -> int:
        """Where a line ends, without what ends it."""
        end = self._starts[line + 1] if line + 1 < len(self._starts) else len(self.text)
        return self.start_of(line) + len(self.text[self.start_of(line) : end].rstrip("\r\n"))

    def offset(self, line: int, column: int) -> int:
        """The position of a line and a column, both from 1, within the text."""
        return min(self.start_of(line - 1) + max(column - 1, 0), len(self.text))

    def units(self, position: int, encoding: str) -> tuple[int, int]:
        """The line and the place in it, from 0, in the units of an encoding."""
        line = self.line_of(min(position, len(self.text)))
        return line, _units(self.text[self.start_of(line) : position], encoding)

    def position(self, line: int, units: int, encoding: str) -> int:
        """The position of a place in a line, in the units of an encoding; the end of the line for one behind it."""
        start, end = self.start_of(line), self.end_of(line)
        if line >= len(self._starts):
            return len(self.text)
        for position in range(start, end):
            if units <= 0:
                return position
            units -= _units(self.text[position], encoding)
        return end

    def head(self, extent: Extent) -> Extent:
        """The first line of a part of the text."""
        return Extent(extent.start, max(min(extent.end, self.end_of(self.line_of(extent.start))), extent.start))


def _units(text: str, encoding: str) -> int:
    match encoding:
        case "utf-8":
            return len(text.encode("utf-8", "surrogatepass"))
        case "utf-32":
            return len(text)
        case _:
            return len(text) + sum(letter > "\uffff" for letter in text)


def word_at(text: str, position: int) -> Extent:
    """The word, or the sign, that begins at a position."""
    found = _WORD.match(text, position)
    return Extent(position, min(position + 1, len(text))) if found is None else Extent(*found.span())


def word_around(text: str, position: int) -> Extent | None:
    """The word that a cursor is on, or right behind."""
    start = end = min(position, len(text))
    while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return Extent(start, end) if start < end else None


@dataclass
class Faults:
    """Faults of the user, as problems of the document of a file."""

    file: str
    """As places name it."""
    lines: Lines
    extents: Mapping[str, Extent] = field(default_factory=dict[str, Extent])
    """What stands at a place; one that is not there is that of a word."""

    def problem(self, fault: UserError, *, otherwise: Extent | None = None, is_warning: bool = False) -> Problem:
        """
        A fault at its place. One that has none in this file is at `otherwise`, or at the first line, with its place as
        a note. Notes that begin with a place of the file are at that place.
        """
        extent, notes = self.extent(fault.loc or ""), list(fault.notes)
        if extent is None:
            extent = otherwise or self.lines.head(Extent(0, len(self.lines.text)))
            notes = [*([f"at {fault.loc}"] if fault.loc and fault.loc != self.file else []), *notes]
        related: list[tuple[Location, str]] = []
        for note in list(notes):
            place, _, text = note.partition(": ")
            if text and (found := self.extent(place)) is not None:
                related.append((Location(found), text))
                notes.remove(note)
        message = "\n".join([fault.message, *(f"note: {note}" for note in notes)])
        return Problem(extent, message, tuple(related), is_warning)

    def extent(self, place: str) -> Extent | None:
        """What stands at `file:line:col`; None for a place in another file."""
        if place in self.extents:
            return self.extents[place]
        found = split_place(place)
        if found is None or found[0] != self.file:
            return None
        return word_at(self.lines.text, self.lines.offset(found[1], found[2]))
