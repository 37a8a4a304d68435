# SPDX-License-Identifier: Apache-2.0
"""
What docstrings and pages put into backquotes is there: a name in a docstring is one that the code has, and a path
`penstock.module.name` leads to something.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import onnx.defs
from xdsl.universe import Universe

REPOSITORY = Path(__file__).parent.parent.parent
FLOORS = ("dialects", "passes", "lowering", "runtime", "tools")

QUOTED = re.compile(r"(?<![`\w])`([^`\n]+)`(?!`)")
NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
TRIPLE = re.compile(r'"""(.*?)"""', re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w*")
PATH = re.compile(r"\bpenstock(?:\.[A-Za-z_]\w*)+")

PLACEHOLDERS = {
    *("ARGUMENT.AXIS", "INPUT.AXIS", "com.example.Op", "name_1", "name_2", "Nx3", "arr_0"),
    *("ui2", "ui8", "ui64", "NHWC16c", "NCHW16c", "FNUZ"),
    *("ugt", "ole", "minimum_f32", "hw_spec.h", "s_erf.c"),
}
"""What is no name of the code: examples of names and types, families of them, files and words of others."""


def sources() -> list[Path]:
    return [path for floor in FLOORS for path in sorted((REPOSITORY / floor).rglob("*.py"))]


def parts(text: str) -> tuple[str, list[tuple[int, str]]]:
    """The code of a file, and its docstrings with their lines: the strings in triple quotes that are a statement."""
    code, docs, end = "", list[tuple[int, str]](), 0
    for match in TRIPLE.finditer(text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        code += text[end : match.start()]
        if before.strip(" r"):
            code += match[1]
        else:
            docs.append((text.count("\n", 0, match.start()) + 1, match[1]))
        end = match.end()
    return code + text[end:], docs


def unknown_names(texts: dict[str, str]) -> list[str]:
    """The names in backquotes that no code has, with the places of the docstrings; `texts` are by the path."""
    split = {path: parts(text) for path, text in texts.items()}
    known = {name for code, _ in split.values() for name in WORD.findall(code)}
    known |= {name for path in texts for name in WORD.findall(path)}
    known |= {schema.name for schema in onnx.defs.get_all_schemas()}
    dialects = set(Universe.get_multiverse().all_dialects)
    return [
        f"{path}:{line}: `{quoted}`"
        for path, (_, docs) in split.items()
        for line, doc in docs
        for quoted in QUOTED.findall(doc)
        if NAME.fullmatch(quoted) and quoted not in PLACEHOLDERS and quoted.partition(".")[0] not in dialects
        if not known.issuperset(WORD.findall(quoted))
    ]


def test_names_in_docstrings_are_names_of_the_code() -> None:
    texts = {str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in sources()}
    assert unknown_names(texts) == []
    # It sees the one that is not there.
    texts["wrong.py"] = 'def right(x):\n    """Reads `x` as `right` does, and never as `wrongly_named`."""\n'
    assert unknown_names(texts) == ["wrong.py:2: `wrongly_named`"]


def paths() -> set[str]:
    texts = [*sources(), *(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
    found = {path for text in texts for path in PATH.findall(text.read_text(encoding="utf-8"))}
    # Entry point groups and files of the package look alike.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found - {*project["entry-points"]}


def leads_to_something(path: str) -> bool:
    """Whether a path ends at a module or at a name in one; nothing is imported."""
    _, *parts = path.split(".")
    folder = REPOSITORY / "src" / "penstock"
    while parts and (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    module = folder / "__init__.py"
    if parts and (folder / f"{parts[0]}.py").is_file():
        module = folder / f"{parts.pop(0)}.py"
    words = set(WORD.findall(module.read_text(encoding="utf-8"))) if module.is_file() else set[str]()
    return words.issuperset(parts)


def test_paths_lead_to_something() -> None:
    found = sorted(paths())
    assert len(found) > 100
    assert [path for path in found if not leads_to_something(path)] == []
    assert not leads_to_something("penstock.runtime.interpreter.interpretes")
    assert not leads_to_something("penstock.runtimes.interpreter")
