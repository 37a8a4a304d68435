# SPDX-License-Identifier: Apache-2.0
"""
Every example of the README and of docs/ is run, in order, in a folder of its own for each page.

- A block ```` ```mlir title="x.mlir" ```` (or any language with a title) is a file. A page of docs/tutorial/ has
  those of the pages before it.
- In a ```` ```console ```` block each `$ command` is run, and what follows is its output; a line `...` stands for
  any number of lines. `penstock` and `penstock-opt` run in this process; so does `cat`.
- A picture that a command writes is the one of that name that the page shows.
- A ```` ```python ```` block is executed; a ```` ```text ```` block right behind it is what it prints.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
"""Pages made of docstrings, whose programs are executed where they stand."""
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if REFERENCE not in path.parents)]
MLIR_TOOLS = ("mlir-opt-19", "mlir-translate-19", "llc-19", "cc")
"""Commands that are not ours: those of docs/interchange.md."""

NOT_RUN = ("make ", "git clone ", "cd ", "pip install ", ". ", "python -m venv ", "python3 -m venv ", "penstock demo")
"""Commands that other tests run, or that would install something."""

_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
_FENCE = re.compile(r"^```(\w+)?(?: title=\"([^\"]+)\")?\s*$")


@dataclass
class Block:
    language: str
    title: str | None
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    inside: Block | None = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if line.startswith("```"):
                found.append(inside)
                inside = None
            else:
                inside.text += line + "\n"
        elif fence is not None:
            inside = Block(fence.group(1) or "", fence.group(2), number, "")
    assert inside is None, f"{page.name}: the block at line {inside.line if inside else 0} is not closed"
    return found


def run(command: str) -> str:
    """What a command prints, both streams in the order of a terminal."""
    words = shlex.split(command)
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        if words[0] == "cat":
            print("".join(Path(name).read_text() for name in words[1:]), end="")
        elif words[0] in MLIR_TOOLS:
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            print(done.stdout, end="")
        else:
            from penstock.tools import main, opt

            entry = {"penstock": main.run, "penstock-opt": opt.run}[words[0]]
            try:
                entry(words[1:])
            except SystemExit:
                pass
    return printed.getvalue()


def matches(expected: str, actual: str) -> bool:
    """Whether `actual` is `expected`, with a line `...` for any lines, and trailing blanks ignored."""
    lines = expected.strip("\n").splitlines()
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + "\n" for line in lines)
    tidy = "".join(line.rstrip() + "\n" for line in actual.strip("\n").splitlines())
    return re.fullmatch(pattern, tidy) is not None


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with its output."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (found[-1][0][:-1] + line.strip(), "")
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_examples_of(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "llvm.md":
        pytest.importorskip("llvmlite")
    if page.name == "pytorch.md":
        pytest.importorskip("torch")
        pytest.importorskip("onnxscript")
    if page.name == "jax.md":
        pytest.importorskip("jax")
    if page.name == "papers_experiment.md":
        pytest.importorskip("matplotlib")
    if page.name == "interchange.md" and (missing := [tool for tool in MLIR_TOOLS if shutil.which(tool) is None]):
        pytest.skip(f"{', '.join(missing)} not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    if (ROOT / "examples").exists():
        shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for earlier in PAGES[: PAGES.index(page)]:
        if earlier.parent == page.parent == ROOT / "docs" / "tutorial":
            for block in blocks(earlier):
                if block.title is not None:
                    Path(block.title).write_text(block.text)
    names: dict[str, Any] = {"__name__": "__example__"}
    printed = ""
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        if block.title is not None:
            Path(block.title).write_text(block.text)
        elif block.language == "console":
            for command, expected in commands(block.text):
                if command.startswith(NOT_RUN):
                    continue
                actual = run(command)
                assert matches(expected, actual), f"{place}: $ {command}\nprints\n{actual}"
        elif block.language == "python":
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile(block.text, place, "exec"), names)
            printed = out.getvalue()
        elif block.language == "text" and printed:
            assert matches(block.text, printed), f"{place}: the example before it prints\n{printed}"
            printed = ""
    shown = {Path(name).name: page.parent / name for name in _PICTURE.findall(page.read_text())}
    drawn = [name for name in shown if Path(name).exists()]
    assert [name for name in drawn if Path(name).read_bytes() != shown[name].read_bytes()] == []
    assert page.name != "README.md" or drawn == ["digits.svg"]


def test_an_output_that_differs_is_noticed() -> None:
    assert matches("a\n...\nb\n", "a\nx\ny\nb\n")
    assert matches("a\n...\n", "a\n")
    assert not matches("a\nb\n", "a\nc\n")
    assert not matches("a\n", "a\nb\n")
