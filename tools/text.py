"""Text in and out of the commands: input from a file or stdin, output whole or not at all."""

from __future__ import annotations

import sys

from penstock.dialects.files import write_whole
from penstock.lowering.from_text import SourceText, decode_text, read_text

STDIN = "-"
"""The name that stands for stdin as an input, and for stdout as an output."""


def read_input(path: str) -> SourceText:
    """The text of a file, or of stdin for `-`; raises UserError if it cannot be read."""
    if path == STDIN:
        return decode_text("<stdin>", sys.stdin.buffer.read())
    return read_text(path)


def write_output(path: str | None, text: str) -> None:
    """Write to stdout, or replace the file at `path` by the whole of `text`; raises UserError if it cannot."""
    if path is None or path == STDIN:
        sys.stdout.write(text)
        return
    write_whole(path, text)
