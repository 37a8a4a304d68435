# SPDX-License-Identifier: Apache-2.0
"""
Bugs that the quick tests must find: one small change each of a pass, an analysis or a lowering.

mutants.txt has them: the file and the tests (below tests/), the text that is replaced, and its replacement.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` stands once in `file`; with `new` in its place, one of `tests` fails."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def changed(self, text: str) -> str:
        """The text of the file with the bug; raises ValueError if the mutant is stale."""
        if text.count(self.old) != 1:
            raise ValueError(f"stale mutant: {self.old!r} stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {self.old}"


def _read(block: str) -> Mutant:
    head, old, new = block.strip("\n").split("\n")
    file, tests = head.split(": ")
    assert old.startswith("- ")
    assert new.startswith("+ ")
    return Mutant(file, old[2:], new[2:], tuple(f"tests/{test}" for test in tests.split()))


MUTANTS = tuple(map(_read, (Path(__file__).parent / "mutants.txt").read_text(encoding="utf-8").split("\n\n")))
