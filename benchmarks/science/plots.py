# SPDX-License-Identifier: Apache-2.0
"""Pictures of studies, as SVG drawn by matplotlib: the same bytes for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Tol's bright scheme, which the colour-blind can tell apart."""


class Plot(Protocol):
    """Something to be drawn."""

    @property
    def title(self) -> str:
        """What stands over it."""
        ...

    @property
    def size(self) -> tuple[float, float]:
        """Inches."""
        ...

    def draw(self, axes: Any) -> None:
        """Draw it."""
        ...


@dataclass(frozen=True)
class Bars:
    """Bars in groups, a colour a series; a series may be marks, such as what is published."""

    title: str
    unit: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    marks: frozenset[str] = frozenset()
    """The series that are drawn as lines across the bars."""
    log: bool = False
    size: tuple[float, float] = (8.0, 3.4)

    def draw(self, axes: Any) -> None:
        bars = [name for name in self.series if name not in self.marks]
        width = 0.8 / max(len(bars), 1)
        for number, name in enumerate(bars):
            places = [group - 0.4 + width * (number + 0.5) for group in range(len(self.groups))]
            heights = [value or 0.0 for value in self.series[name]]
            axes.bar(places, heights, width, label=name, color=_COLOURS[number % len(_COLOURS)])
        for name in sorted(self.marks):
            known = [(group, value) for group, value in enumerate(self.series[name]) if value is not None]
            axes.scatter(*zip(*known, strict=True), marker="_", s=300, color="black", label=name, zorder=3)
        axes.set_xticks(range(len(self.groups)), labels=self.groups, rotation=30, ha="right")
        axes.set_ylabel(self.unit)
        if self.log:
            axes.set_yscale("log")
        axes.legend(fontsize="small")


@dataclass(frozen=True)
class Roofline:
    """Layers by their intensity and what they reach, under the roof of a machine; a colour a series."""

    title: str
    peak: float
    """Operations a cycle."""
    rate: float
    """Bytes a cycle."""
    series: Mapping[str, Mapping[str, tuple[float, float]]]
    """For each layer operations a byte, and operations a cycle."""
    unit: str = "operations"
    size: tuple[float, float] = (6.0, 4.0)

    def draw(self, axes: Any) -> None:
        points = [point for layers in self.series.values() for point in layers.values()]
        low, high = min(x for x, _ in points) / 2, max(x for x, _ in points) * 2
        ridge = self.peak / self.rate
        axes.plot([low, ridge, max(high, ridge)], [low * self.rate, self.peak, self.peak], color="0.2")
        for number, (name, layers) in enumerate(self.series.items()):
            axes.scatter(*zip(*layers.values(), strict=True), s=18, label=name, color=_COLOURS[number], zorder=3)
        for name, (x, y) in list(self.series.values())[-1].items():
            axes.annotate(name, (x, y), fontsize="x-small", xytext=(2, 3), textcoords="offset points")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"{self.unit} a byte off chip")
        axes.set_ylabel(f"{self.unit} a cycle")
        axes.legend(fontsize="small")


@dataclass(frozen=True)
class Timeline:
    """What runs when: a track for each device, a bar for each step."""

    title: str
    steps: Sequence[tuple[str, str, float, float]]
    """The name of each, its track, when it begins, and how long it takes."""
    unit: str
    colours: Mapping[str, int] = field(default_factory=dict[str, int])
    """By the first word of a name."""
    size: tuple[float, float] = (8.0, 2.2)

    def draw(self, axes: Any) -> None:
        tracks = list(dict.fromkeys(track for _, track, _, _ in self.steps))
        labelled: set[str] = set()
        for name, track, start, length in self.steps:
            kind = name.split()[0]
            label = None if kind in labelled else kind
            labelled.add(kind)
            colour = _COLOURS[self.colours.get(kind, 0) % len(_COLOURS)]
            axes.barh(
                tracks.index(track), length, left=start, color=colour, label=label, edgecolor="white", linewidth=0.3
            )
        axes.set_yticks(range(len(tracks)), labels=tracks)
        axes.set_xlabel(self.unit)
        axes.legend(fontsize="small", ncol=4, loc="upper center", bbox_to_anchor=(0.5, -0.35))


def draw(plot: Plot, path: Path) -> None:
    """Write a picture; needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as pyplot

    with matplotlib.rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none", "font.size": 9}):  # pyright: ignore
        figure, axes = pyplot.subplots(figsize=plot.size)  # pyright: ignore
        plot.draw(axes)
        axes.set_title(plot.title, fontsize=10)  # pyright: ignore
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})  # pyright: ignore
        pyplot.close(figure)
