# SPDX-License-Identifier: Apache-2.0
"""Docstrings and tables as Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

WIDTH = 120
"""Letters of a line at most, where a line can be broken."""

_FENCE = re.compile(r"\s*```")
_ITEM = re.compile(r"(?:[-*+]|\d+[.)]) ")
_CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)")
"""What stands in backquotes."""
_MARKUP = re.compile(r"([<*](?=\w)|(?<!\w)_(?=\w)|(?<=[\w\]])\*)")
"""Letters that Markdown would take for the begin or the end of something."""
_BEGINNING = re.compile(r"\s*(?:(?=[-*+#>] )|\d+(?=[.)] ))")
"""What makes a line the first of an item, a heading or a quotation, up to where a backslash undoes it."""


def reflowed(docstring: str) -> list[str]:
    """
    A docstring as lines of Markdown: its paragraphs and items broken anew, its code as it is.

    Blocks that are indented by four letters or fenced are code.
    """
    lines = inspect.cleandoc(docstring).splitlines()
    found: list[str] = []
    number = 0
    while number < len(lines):
        start, number = number, number + 1
        if _FENCE.match(lines[start]):
            while number < len(lines) and not _FENCE.match(lines[number]):
                number += 1
            number += 1
            found += lines[start:number]
        elif lines[start].startswith("    "):
            while number < len(lines) and (not lines[number] or lines[number].startswith("    ")):
                number += 1
            blanks = number - start - len("\n".join(lines[start:number]).rstrip("\n").splitlines())
            code = lines[start : number - blanks]
            found += [*([""] if found and found[-1] else []), *code, *([""] if number < len(lines) else [])]
        elif lines[start]:
            while number < len(lines) and _continues(lines[number]):
                number += 1
            found += _paragraph(lines[start:number])
        else:
            found.append("")
    return found


def _continues(line: str) -> bool:
    """Whether a line behind one of a paragraph belongs to it."""
    is_code = line.startswith("    ") or _FENCE.match(line) is not None
    return bool(line) and not is_code and _ITEM.match(line) is None


def _paragraph(lines: Sequence[str]) -> Iterator[str]:
    text = escaped(" ".join(line.strip() for line in lines))
    item = _ITEM.match(text)
    indent = "" if item is None else " " * item.end()
    for number, line in enumerate(_broken(text, WIDTH, indent)):
        begin = _BEGINNING.match(line) if number else None
        yield line if begin is None else f"{line[: begin.end()]}\\{line[begin.end() :]}"


def _broken(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def escaped(text: str) -> str:
    """Text in which Markdown finds no markup outside of backquotes."""
    found, end = "", 0
    for code in _CODE.finditer(text):
        found += _MARKUP.sub(r"\\\1", text[end : code.start()]) + code[0]
        end = code.end()
    return found + _MARKUP.sub(r"\\\1", text[end:])


def in_one_line(docstring: str) -> str:
    """A docstring in one line, as a cell of a table has it."""
    return escaped(" ".join(docstring.split()))


def summary(docstring: str) -> str:
    """The first paragraph of a docstring, in one line."""
    return in_one_line(inspect.cleandoc(docstring).split("\n\n")[0])


def code(text: str) -> str:
    """Text as code within a line; nothing for none."""
    return "" if not text else f"`` {text} ``" if "`" in text else f"`{text}`"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, without the columns that are empty in all rows; nothing without rows."""
    found = list(rows)
    columns = [number for number in range(len(header)) if any(row[number] for row in found)]
    if not columns:
        return []
    lines = [[header[number] for number in columns], ["---"] * len(columns)]
    lines += [[row[number].replace("|", "\\|") for number in columns] for row in found]
    return ["| " + " | ".join(line) + " |" for line in lines]


def block(text: str, language: str) -> list[str]:
    """Text as a block of code."""
    return [f"```{language}", *text.splitlines(), "```"]


def page(*parts: Iterable[str]) -> str:
    """The text of parts, with an empty line between two of them and no more than one anywhere."""
    lines: list[str] = []
    for part in parts:
        inside = False
        for line in (*part, ""):
            line = line.rstrip()
            inside ^= _FENCE.match(line) is not None
            if line or inside or (lines and lines[-1]):
                lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


def anchor(heading: str) -> str:
    """What a link to a heading ends in."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
