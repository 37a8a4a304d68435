# SPDX-License-Identifier: Apache-2.0
"""Text in and out of the commands: input from a file or stdin, output whole or not at all, tables."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.dialects.files import follow, is_special, write_whole

if TYPE_CHECKING:
    from penstock.lowering.from_text import SourceText

STDIN = "-"
"""The name that stands for stdin as an input, and for stdout as an output."""
_REWRITTEN = (".mlir", ".csv", ".plan")
"""The suffixes of what a command both reads and writes."""


def read_input(path: str) -> SourceText:
    """The text of a file, or of stdin for `-`; raises UserError if it cannot be read."""
    from penstock.lowering.from_text import decode_text, read_text

    if path == STDIN:
        return decode_text("<stdin>", sys.stdin.buffer.read())
    return read_text(path)


def require_distinct(
    outputs: Mapping[str, str | Path | None], *inputs: str, kind: str = "model", rewrite: str | None = None
) -> None:
    """
    Raise UserError where two of the files that options name would be one, or one of them would be an input, a `kind`.

    A device or a FIFO may be named twice. What the option `rewrite` names may replace what it was read from.
    """
    seen: dict[object, str] = {follow(name): f"the {kind}" for name in inputs if name != STDIN and not is_special(name)}
    texts = {follow(name) for name in inputs if Path(name).suffix in _REWRITTEN}
    for option, name in outputs.items():
        if name is None or (str(name) != STDIN and is_special(name)):
            continue
        place = STDIN if str(name) == STDIN else follow(name)
        if place in seen and not (option == rewrite and place in texts):
            raise UserError(f"{option} and {seen[place]} would be one file: {name}", status=USAGE)
        seen[place] = option


def write_output(path: str | None, text: str) -> None:
    """Write to stdout, or replace the file at `path` by the whole of `text`; raises UserError if it cannot."""
    if path is None or path == STDIN:
        sys.stdout.write(text)
        return
    write_whole(path, text)


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] | None = None) -> list[str]:
    """The rows as lines, each column as wide as its widest cell; columns not in `left`, if given, are to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = (
            cell.ljust(width) if left is None or number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines
