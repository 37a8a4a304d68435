# SPDX-License-Identifier: Apache-2.0
"""The table of docs/language.md: every text of it is lowered, and has the operations that are named beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_text import SourceText

DOCUMENT = Path(__file__).parents[2] / "docs/language.md"
HEAD = "kernel f(f32 x[N, N], f16 h[N, N], i32 n[N, N], f32 z[N]) -> (f32 y[N, N]) {"
DIALECTS = ("arith", "func", "linalg", "math", "scf", "tensor")


def rows() -> list[tuple[str, str]]:
    """The texts of the table, and what they become."""
    section = DOCUMENT.read_text().split("## Semantics\n")[1].split("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(text, becomes) for text, _, becomes in cells]


def test_the_table_is_found() -> None:
    assert len(rows()) > 20


@pytest.mark.parametrize(("text", "becomes"), rows())
def test_a_construct_becomes_what_the_table_says(text: str, becomes: str) -> None:
    lines = re.findall("`(.*?)`", text)
    statements = "\n".join(lines if any(line.startswith(("y", "grid", "for")) for line in lines) else [*lines, "y = x"])
    file = KernelFile(SourceText("table.pk", f"{HEAD}\n{statements}\n}}"))
    function = file.function(file.kernel(), {"N": 6})
    found = {op.name for op in function.walk()}
    named = [name for name in re.findall("`(.*?)`", becomes) if name.split(".")[0] in DIALECTS]
    assert named
    assert [name for name in named if name not in found] == []
