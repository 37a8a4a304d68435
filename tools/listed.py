# SPDX-License-Identifier: Apache-2.0
"""An entry of a list of what has a name, and lists of such entries as lines or as data."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

WIDTH = 120
"""Letters of a line at most."""
_END = re.compile(r"(?<!e\.g)(?<!i\.e)\.(?=\s|$)")
"""The end of a sentence."""


@dataclass(frozen=True)
class Listed:
    """A thing that has a name, and what it is."""

    name: str
    what: str
    """A sentence."""
    where: str = ""
    """The code, as `module:object`, or the file that it is in."""
    group: str = ""
    """The heading that those of one kind are listed under, if any."""
    is_default: bool = False
    """True for the one that is taken where none is named."""


def lines(entries: Iterable[Listed], width: int = WIDTH) -> list[str]:
    """A line for each entry, cut to a width; below headings where entries have groups."""
    groups: dict[str, list[Listed]] = {}
    for each in entries:
        groups.setdefault(each.group, []).append(each)
    found: list[str] = []
    for group, members in groups.items():
        found += [*([""] if found else []), f"{group}:"] if group else []
        indent = "  " if group else ""
        longest = max(len(each.name) for each in members)
        for each in members:
            what = f"(default) {each.what}" if each.is_default else each.what
            room = max(width - len(indent) - longest - 2, 40)
            found.append(f"{indent}{each.name:{longest}}  {textwrap.shorten(what, room, placeholder=' ...')}".rstrip())
    return found


def as_data(entries: Iterable[Listed]) -> list[dict[str, Any]]:
    """The entries for programs, each with all that is known of it, uncut."""
    return [{key: value for key, value in asdict(each).items() if value != ""} for each in entries]


def first_sentence(text: str) -> str:
    """The first sentence of a docstring in one line, or its first paragraph where that has no end."""
    first = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    found = _END.split(first, maxsplit=1)[0].rstrip(".:")
    return f"{found}." if found else ""


def failure(error: Exception) -> str:
    """Return what is said of something that cannot be loaded, in place of what it is."""
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"(cannot be loaded: {said})"
