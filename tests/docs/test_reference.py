# SPDX-License-Identifier: Apache-2.0
"""docs/reference is what the code says of itself, every name of a door says something, and links lead somewhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name

import pytest
from docs.generator.api import module_section, undocumented
from docs.generator.doors import doors
from docs.generator.ir import undescribed
from docs.generator.pages import API_PAGES, FOLDER, pages
from docs.generator.passes import options
from docs.generator.source import ROOT, Module
from xdsl.irdl import IRDLOperation

from penstock.tools.markdown import page, reflowed, table
from penstock.tools.universe import DIALECTS, PASSES

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
ATTACHED = re.compile(r"^(?!(?:[-*+]|\d+[.)]) |  |$).*\n((?:[-*+]|\d+[.)]) .*)$", re.MULTILINE)
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def written() -> Mapping[str, str]:
    return pages()


def test_the_reference_is_what_the_code_says(written: Mapping[str, str]) -> None:
    folder = ROOT / FOLDER
    committed = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.md")}
    for name in sorted({*written, *committed}):
        before, after = (each.get(name, "").splitlines() for each in (committed, written))
        changes = list(islice(difflib.unified_diff(before, after, "committed", "the code", "", "", 1, ""), 40))
        message = f"{FOLDER}/{name} is out of date: run `make docs` and commit it\n" + "\n".join(changes)
        assert not changes, message


def test_every_name_of_a_door_says_what_it_is() -> None:
    silent = [place for page in API_PAGES for name in page.names() for place in undocumented(name)]
    silent += [door.path for door in doors() if not door.docstring]
    silent += [f"{name}.{each.name}" for name, place in PASSES.items() for each in options(place) if not each.docstring]
    assert silent == [], "write a docstring, or a string under the field"


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_every_operand_and_property_of_an_op_says_what_it_is(name: str) -> None:
    ops = [op for op in resolve_name(DIALECTS[name]).operations if issubclass(op, IRDLOperation)]
    silent = {op.name: found for op in ops if (found := undescribed(op))}
    # That an elementwise op works on its operands needs no words.
    assert {op: found for op, found in silent.items() if found not in (["x"], ["b"], ["a", "b"])} == {}


def anchors(path: Path) -> set[str]:
    """What a link to a heading of a page may end in, as GitHub forms it."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(BLOCK.sub("", path.read_text())):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[name] = found.get(name, 0) + 1
    # What follows a second heading of the same words differs between GitHub and the site.
    return {name for name, times in found.items() if times == 1}


def dead_links(path: Path, text: str) -> list[str]:
    """
    The links of a page that lead to no file, or to no heading of one. Those of docs/ stay in it, as it is a site.
    """
    found: list[str] = []
    for link in LINK.findall(CODE.sub("", text)):
        file, _, heading = link.partition("#")
        target = path.parent / file if file else path
        stays = DOCS not in path.parents or target.resolve().is_relative_to(DOCS)
        if "://" not in link and not (target.is_file() and stays and (not heading or heading in anchors(target))):
            found.append(link)
    return found


def test_links_lead_to_pages_and_headings() -> None:
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    assert {path.name: dead for path in paths if (dead := dead_links(path, path.read_text()))} == {}
    faulty = "[a](docs/planning.md) [b](docs/plans.md) [c](docs/planning.md#plan) `[d](e)` [f](https://example.com/g)"
    assert dead_links(ROOT / "README.md", faulty) == ["docs/plans.md", "docs/planning.md#plan"]
    assert dead_links(DOCS / "index.md", "[a](../README.md) [b](levels.md)") == ["../README.md"]


def attached_lists(text: str) -> list[str]:
    """First items of lists right below a paragraph, to which Python-Markdown adds them, and GitHub does not."""
    return [match[1] for match in ATTACHED.finditer(BLOCK.sub("", text))]


def test_lists_begin_after_an_empty_line() -> None:
    found = {path.name: each for path in DOCS.rglob("*.md") if (each := attached_lists(path.read_text()))}
    assert found == {}
    assert attached_lists("It is\n- a\n- b\n\n- c\n  d\n- e\n\nin version\n1. And") == ["- a", "1. And"]


def test_a_docstring_is_broken_anew() -> None:
    docstring = """
    One sentence of words that are
    broken, about a<b and x_y.

    - an item
      of two lines
    - another

    Before:
    ```mlir
    func.func   @f()
    ```
    As:
        code  as it is

    The end.
    """
    assert "\n".join(reflowed(docstring)) == (
        "One sentence of words that are broken, about a\\<b and x_y.\n"
        "\n"
        "- an item of two lines\n"
        "- another\n"
        "\n"
        "Before:\n"
        "```mlir\n"
        "func.func   @f()\n"
        "```\n"
        "As:\n"
        "\n"
        "    code  as it is\n"
        "\n"
        "The end."
    )


def test_a_line_does_not_become_an_item_where_it_is_broken() -> None:
    words = " ".join(["word"] * 23)
    for marker in ("- x", "# x", "12. x"):
        lines = reflowed(f"{words} 12345 {marker}")
        assert len(lines) == 2, lines
        assert "\\" in lines[1], lines


def test_columns_that_are_empty_are_left_out() -> None:
    rows = [("a", "", "x | y"), ("b", "", "")]
    assert table(("name", "default", "meaning"), rows) == [
        "| name | meaning |",
        "| --- | --- |",
        "| a | x \\| y |",
        "| b |  |",
    ]
    assert table(("name",), []) == []


def test_a_module_is_a_heading_for_each_name_with_fields_and_methods(tmp_path: Path) -> None:
    source = '''"""What it is for."""

from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
_HIDDEN = 1
LIMIT = 4
"""The most."""


@dataclass(frozen=True)
class Thing:
    """A thing."""

    size: int
    """Bytes."""
    parts: dict[str, int] = field(default_factory=dict[str, int])
    _cache: int = 0

    @property
    def half(self) -> int:
        """Half of it."""
        return self.size // 2

    def grow(self, by: int = 1, *, twice: bool = False) -> None:
        """Make it larger."""


def largest(things: list[Thing], default: Thing | None = None) -> Thing:
    """The largest: see above."""
'''
    (tmp_path / "thing.py").write_text(source)
    assert (
        page(*module_section(Module(tmp_path / "thing.py"))).split("\n", 1)[1]
        == """
What it is for.

### `LIMIT`

```py
LIMIT = 4
```

The most.

### `Thing`

*a frozen dataclass*

A thing.

| field | type | default | meaning |
| --- | --- | --- | --- |
| `size` | `int` |  | Bytes. |
| `parts` | `dict[str, int]` | `dict()` |  |

| property | type | meaning |
| --- | --- | --- |
| `half` | `int` | Half of it. |

- `grow(by: int = 1, *, twice: bool = False) -> None`: Make it larger.

### `largest`

```py
def largest(things: list[Thing], default: Thing | None = None) -> Thing
```

The largest: see above.
"""
    )
