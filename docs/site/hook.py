# SPDX-License-Identifier: Apache-2.0
"""What mkdocs.yml cannot say: folders as entries of the navigation, and MLIR as a language of code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pygments.lexers import LEXERS  # pyright: ignore[reportUnknownVariableType]

Entry = str | dict[str, Any]
"""A page, or a title with a page or entries."""

DOCS = Path(__file__).parents[1]

LEXERS["MlirLexer"] = ("docs.site.mlir_lexer", "MLIR", ("mlir",), ("*.mlir",), ())


def on_config(config: Any) -> None:
    """Before anything is read: the pages of the folders among the entries."""
    config["nav"] = list(with_folders(config["nav"], set(pages_of(config["nav"]))))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The title of a page is its heading, if nothing is before that: generated pages begin with a comment."""
    return re.sub(r"\A<!--.*?-->\s*", "", markdown)


def with_folders(entries: Iterable[Entry], named: set[str]) -> Iterator[Entry]:
    """The entries with each folder replaced by its pages that are not `named`; nothing for none."""
    for entry in entries:
        match entry:
            case str() if entry.endswith("/"):
                yield from pages_in(entry, named)
            case str():
                yield entry
            case _:
                for title, inside in entry.items():
                    if isinstance(inside, str) and not inside.endswith("/"):
                        yield {title: inside}
                    elif found := list(with_folders([inside] if isinstance(inside, str) else inside, named)):
                        yield {title: found}


def pages_in(folder: str, named: set[str]) -> list[str]:
    """The pages directly in a folder, its index first, else in alphabetical order."""
    found = (path.relative_to(DOCS).as_posix() for path in (DOCS / folder).glob("*.md"))
    return sorted(
        (page for page in found if page not in named), key=lambda page: (not page.endswith("/index.md"), page)
    )


def pages_of(entries: Iterable[Entry]) -> Iterator[str]:
    """The pages that are named, at any depth."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from pages_of([inside] if isinstance(inside, str) else inside)
