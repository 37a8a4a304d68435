# SPDX-License-Identifier: Apache-2.0
"""
Pairs of IR in docstrings: the text under `Before:`, after the pipeline that `After (...)` names, is the text under it.

Several, ``After (`this` or `that`):``, all give that text, and several `After` may follow one `Before`.
``After (`pass` on `machine`):`` runs it with that machine in front of the module. Where `After` says ops of a schedule,
such as ``After (`schedule.split %i by 4`):``, they are applied to the one kernel. A pass that decides only where to
apply a primitive has its pair at the primitive.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.generator.source import ROOT

FOLDERS = ("passes", "lowering", "runtime")
"""Where there are docstrings with pairs."""

_BEFORE = re.compile(r"^ *Before:\s*\n\s*```mlir\n(?P<before>.*?)\n\s*```\s*\n", re.DOTALL | re.MULTILINE)
_AFTER = re.compile(
    r"\s*After \((?P<pipelines>`[^`]+`(?:\s+or\s+`[^`]+`)*)(?:\s+on `(?P<machine>[^`]+)`)?\):\s*\n"
    r"\s*```mlir\n(?P<after>.*?)\n\s*```",
    re.DOTALL,
)


@dataclass(frozen=True)
class Pair:
    """IR before and after a pipeline."""

    path: Path
    """The file."""
    line: int
    before: str
    after: str
    pipeline: str
    """A pipeline of passes, or ops of a schedule."""
    machine: str | None
    """The machine that is put in front of the module."""

    @property
    def label(self) -> str:
        """The place and the first pass."""
        return f"{self.path.relative_to(ROOT)}:{self.line} {re.split('[{ ]', self.pipeline)[0]}"

    def shows(self, name: str) -> bool:
        """Whether a pass is among those of the pipeline."""
        return name in re.split(r"[,{]", self.pipeline)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Those of a file with a `Before:`, each with its line."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if "Before:" in source else ():
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text = ast.get_docstring(node, clean=False)
        if text is not None:
            yield node.body[0].lineno, inspect.cleandoc(text)


def pairs_in(path: Path) -> Iterator[Pair]:
    """The pairs of a file."""
    for line, text in docstrings(path):
        for before in _BEFORE.finditer(text):
            at = before.end()
            while (after := _AFTER.match(text, at)) is not None:
                at, number = after.end(), line + text.count("\n", 0, before.start())
                for pipeline in re.findall("`([^`]+)`", after["pipelines"]):
                    yield Pair(path, number, before["before"], after["after"], pipeline, after["machine"])


@cache
def all_pairs() -> tuple[Pair, ...]:
    """The pairs of all our modules, in the order of their files."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return tuple(pair for path in paths for pair in pairs_in(path))
