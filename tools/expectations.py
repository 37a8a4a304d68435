# SPDX-License-Identifier: Apache-2.0
"""
`--verify-diagnostics`: the faults that a file says it has, compared with those it has.

The comments are MLIR's: `// expected-error {{part of the message}}` on the line of the fault, or with `@+1`, `@-2`,
`@below`, `@above`, `@unknown` before the braces; `expected-error-re` takes regular expressions in inner `{{...}}`.
`expected-note` works the same way; other than errors, notes need not be expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText
from penstock.tools.errors import split_place

_EXPECTED = re.compile(
    r"expected-(?P<kind>error|note)(?P<regex>-re)?\s*"
    r"(?:@(?P<where>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}\s*$"
)
_LOOKS_EXPECTED = re.compile(r"expected-(\w+)")


@dataclass(frozen=True)
class Expectation:
    """One comment: `line` is the line of the expected fault, None for a fault without a place."""

    kind: str
    line: int | None
    pattern: re.Pattern[str]
    text: str
    written_at: str

    def matches(self, kind: str, line: int | None, message: str) -> bool:
        return kind == self.kind and line == self.line and self.pattern.search(message) is not None


def read_expectations(source: SourceText) -> list[Expectation]:
    """The expectations written in a text; raises UserError for one that is not understood."""
    found: list[Expectation] = []
    for number, line in enumerate(source.text.splitlines(), start=source.first_line):
        if (comment := line.find("//")) < 0:
            continue
        looks = _LOOKS_EXPECTED.search(line, comment)
        if looks is None:
            continue
        place = f"{source.name}:{number}:{looks.start() + 1}"
        if (match := _EXPECTED.search(line, comment)) is None:
            raise UserError(
                "this expectation is not understood",
                loc=place,
                notes=["write: // expected-error @+1 {{part of the message}}"],
            )
        try:
            pattern = _pattern(match["text"], is_regex=match["regex"] is not None)
        except re.error as error:
            raise UserError(f"not a regular expression: {error}", loc=place) from None
        found.append(Expectation(match["kind"], _target(match["where"], number), pattern, match["text"], place))
    return found


def unmet(expectations: Sequence[Expectation], faults: Iterable[UserError]) -> list[UserError]:
    """What differs between the expected and the produced faults of a text, one error each; empty if nothing."""
    open_ones = list(expectations)
    complaints: list[UserError] = []
    for fault in faults:
        found = split_place(fault.loc) if fault.loc else None
        line = found[1] if found else None
        if not _take(open_ones, "error", line, fault.message):
            complaints.append(UserError(f"unexpected error: {fault.message}", loc=fault.loc))
        for note in fault.notes:
            _take(open_ones, "note", line, note)
    complaints += [
        UserError(f'expected {missed.kind} "{missed.text}" was not produced', loc=missed.written_at)
        for missed in open_ones
    ]
    return complaints


def _take(open_ones: list[Expectation], kind: str, line: int | None, message: str) -> bool:
    for expectation in open_ones:
        if expectation.matches(kind, line, message):
            open_ones.remove(expectation)
            return True
    return False


def _target(where: str | None, line: int) -> int | None:
    match where:
        case None:
            return line
        case "above":
            return line - 1
        case "below":
            return line + 1
        case "unknown":
            return None
        case _:
            return line + int(where)


def _pattern(text: str, *, is_regex: bool) -> re.Pattern[str]:
    if not is_regex:
        return re.compile(re.escape(text))
    pieces = re.split(r"\{\{(.*?)\}\}", text)
    return re.compile("".join(piece if odd % 2 else re.escape(piece) for odd, piece in enumerate(pieces)))
