# SPDX-License-Identifier: Apache-2.0
"""
Examples of ops as text: the blocks of MLIR in the docstring of an op, or, where the dialect is a folder with a file
`examples.mlir`, what that has of the op.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docs.generator.source import ROOT, module_called
from xdsl.ir import Attribute, Operation

_BLOCK = re.compile(r"^ *```mlir\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_FILE = "examples.mlir"


def example_file(of: type) -> Path | None:
    """The file beside the definition of an op that has its examples; None for one whose docstring has them."""
    module = module_called(of.__module__)
    path = None if module is None else ROOT / module.path.parent / _FILE
    return path if path is not None and path.is_file() else None


def examples(op: type[Operation]) -> list[str]:
    """The examples of an op, in the one place that it has for them."""
    return file_examples(op) if example_file(op) is not None else docstring_examples(op)


def docstring_examples(of: type[Operation | Attribute]) -> list[str]:
    """The blocks of MLIR in the docstring of an op, a type or an attribute."""
    return _BLOCK.findall(inspect.cleandoc(vars(of).get("__doc__") or "") + "\n")


def file_examples(op: type[Operation]) -> list[str]:
    """What the file of examples has of an op, in its order: each statement with its regions."""
    path = example_file(op)
    return [] if path is None else list(_statements(op.name, _text(path)))


def _statements(name: str, text: str) -> Iterator[str]:
    lines = [*text.splitlines(), ""]
    start = re.compile(rf"( *)(?:%[^=]* = )?\"?{re.escape(name)}(?![\w.])")
    found = [(number, len(match[1])) for number, line in enumerate(lines) if (match := start.match(line))]
    least = min((indent for _, indent in found), default=0)
    # What is deeper than others is part of the example of another op.
    for number in (number for number, indent in found if indent == least):
        margin, end = " " * least, number + 1
        # The region of a reduction begins in a line of its own, with its arguments.
        end += lines[end].startswith(margin + "(")
        is_open = lines[end - 1].endswith("{")
        # Labels of blocks are where the statement begins, and so is the brace that closes a region; another may follow.
        while is_open:
            is_open = not lines[end].startswith(margin + "}") or lines[end].endswith("{")
            end += 1
        yield "\n".join(line[least:] for line in lines[number:end])


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
