# SPDX-License-Identifier: Apache-2.0
"""
A study: figures of a paper, and ours beside them.

What is published, and what is asked for, is a file of TOML in `studies/`, one a study; what computes ours is a function
from it to `Found`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.planning_runs import text_table
from benchmarks.science.plots import Plot

FOLDER = Path(__file__).parent / "studies"
NEAR = 0.1
"""How far ours may be from a published figure to be called near."""


@dataclass(frozen=True)
class Row:
    """A figure, and what is published of it."""

    what: str
    unit: str
    published: tuple[float, float] | None
    """From the least to the most; None where nothing is."""
    why: str
    """Where the difference comes from."""
    digits: int = 1

    def verdict(self, ours: float) -> str:
        """Whether ours is near what is published."""
        if self.published is None:
            return ""
        low, high = self.published
        if low * (1 - NEAR) <= ours <= high * (1 + NEAR):
            return "near"
        return "less" if ours < low else "more"

    def cells(self, ours: float) -> tuple[str, ...]:
        """As in the table."""
        return self.what, self._number(ours, self.unit), self._span(), self.verdict(ours)

    def _number(self, value: float, unit: str = "") -> str:
        return f"{value:,.{self.digits}f} {unit}".strip()

    def _span(self) -> str:
        if self.published is None:
            return "-"
        low, high = self.published
        if math.isinf(high):
            return f"over {self._number(low)}"
        return self._number(low) if low == high else f"{self._number(low)} to {self._number(high)}"


@dataclass(frozen=True)
class Study:
    """What a file says."""

    name: str
    title: str
    source: str
    checked: str
    """Which of the figures were found in a copy of the source, and which were not checked."""
    seed: int
    values: Mapping[str, Any]
    """What is asked for: machines, networks, sizes."""
    rows: Mapping[str, Row]

    @staticmethod
    def read(name: str) -> Study:
        """The study of that name; raises KeyError for a file that lacks something, or has what no study has."""
        text = (FOLDER / f"{name}.toml").read_text()
        found = tomllib.loads(text)
        rows = {key: _row(key, each) for key, each in found.pop("row", {}).items()}
        title, source, checked = (str(found.pop(key)) for key in ("title", "source", "checked"))
        study = Study(name, title, source, checked, int(found.pop("seed")), found.pop("set"), rows)
        if found:
            raise KeyError(f"{name}.toml: {next(iter(found))}")
        return study


def _row(key: str, found: dict[str, Any]) -> Row:
    published: Any = found.get("published")
    low, high = (published[0], published[-1]) if isinstance(published, list) else (published, published)  # pyright: ignore
    span = None if published is None else (float(low), float(high))  # pyright: ignore
    return Row(found.get("what", key), found.get("unit", ""), span, found["why"], found.get("digits", 1))


@dataclass
class Found:
    """What came of a study."""

    figures: dict[str, float] = field(default_factory=dict[str, float])
    """By the key of a row; each row of the study has one unless what it takes was not asked for."""
    tables: list[str] = field(default_factory=list[str])
    """Beneath the rows: what they are made of."""
    plots: dict[str, Plot] = field(default_factory=dict[str, Plot])
    """By the name of the file."""


HEAD = ("", "ours", "published", "verdict")


def report(study: Study, found: Found) -> str:
    """The rows of a study as text, where the differences come from, and the tables beneath."""
    rows: Sequence[Sequence[object]] = [study.rows[key].cells(ours) for key, ours in found.figures.items()]
    reasons: dict[str, list[str]] = {}
    for key in found.figures:
        reasons.setdefault(study.rows[key].why, []).append(study.rows[key].what)
    parts = [text_table(study.title, HEAD, rows), *(f"- {'; '.join(names)}: {why}" for why, names in reasons.items())]
    return "\n".join([*parts, *found.tables, "", f"source: {study.source}", f"checked: {study.checked}"])
