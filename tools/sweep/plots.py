# SPDX-License-Identifier: Apache-2.0
"""
Pictures of a sweep, as SVG or PNG: Pareto fronts and scaling curves, a panel for each input on each machine.

In a panel are the runs that compute most on the machine: others are cheaper because they leave work to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.dialects.byte_sizes import read_byte_size
from penstock.dialects.diagnostics import USAGE, UserError, nearest_or_all, pip_install
from penstock.dialects.files import whole_file
from penstock.tools.sweep.figures import ON_MACHINE
from penstock.tools.sweep.tables import Row, Table

KINDS = (".svg", ".png")
_PANEL_INCHES = 4.0, 3.2
_COLUMNS = 3
"""Panels beside each other."""


@dataclass(frozen=True)
class Picture:
    """What is drawn: two names, and the axis whose values have a colour each, if any."""

    across: str
    up: str
    series: str | None
    path: str

    @staticmethod
    def read(text: str, option: str) -> Picture:
        """The picture that `X:Y=FILE` or `X:Y:AXIS=FILE` asks for; raises UserError for what does not."""
        names, equals, path = text.partition("=")
        words = names.split(":")
        if not equals or len(words) not in (2, 3) or not all(words) or Path(path).suffix not in KINDS:
            note = f"write {option} X:Y=FILE, or X:Y:AXIS=FILE, where FILE ends in {' or '.join(KINDS)}"
            raise UserError(f'"{text}" is no picture', notes=[note], status=USAGE)
        return Picture(words[0], words[1], words[2] if len(words) == 3 else None, path)


def require_matplotlib() -> None:
    """Raise UserError without matplotlib."""
    if find_spec("matplotlib") is None:
        raise UserError("pictures need the package matplotlib", notes=[pip_install("sweep")])


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of which none is as low in both and lower in one, from left to right, each once."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def draw_pareto(table: Table, picture: Picture) -> None:
    """Draw the runs by two figures, both the lower the better, and the front of those that none is better than."""
    for metric in (picture.across, picture.up):
        _require(metric, table.known(), "figure")

    def draw(axes: Any, rows: Sequence[Row]) -> None:
        every: list[tuple[float, float]] = []
        for label, members in _series(rows, picture.series).items():
            points = [
                (float(x), float(y))
                for row in members
                if (x := row.figure(picture.across)) is not None and (y := row.figure(picture.up)) is not None
            ]
            every += points
            if points:
                axes.scatter(*zip(*points, strict=True), s=18, label=label, alpha=0.8)
        front = pareto_front(every)
        if front:
            axes.plot(*zip(*front, strict=True), drawstyle="steps-post", color="0.2", linewidth=1.5, zorder=0)
        axes.set_xlabel(picture.across)
        axes.set_ylabel(picture.up)

    _draw(table, picture, draw)


def draw_scaling(table: Table, picture: Picture) -> None:
    """Draw a figure over the values of an axis: the least over all else that is varied, but for the series."""
    _require(picture.across, table.plan.columns, "axis")
    _require(picture.up, table.known(), "figure")
    values = list(dict.fromkeys(row.labels[picture.across] for row in table.rows))
    sizes = {value: read_byte_size(value) for value in values}
    places = {
        value: float(index) if None in sizes.values() else float(size or 0)
        for index, (value, size) in enumerate(sizes.items())
    }

    def draw(axes: Any, rows: Sequence[Row]) -> None:
        for label, members in _series(rows, picture.series).items():
            least: dict[float, float] = {}
            for row in members:
                if (figure := row.figure(picture.up)) is not None:
                    x = places[row.labels[picture.across]]
                    least[x] = min(float(figure), least.get(x, float(figure)))
            axes.plot(
                *zip(*sorted(least.items()), strict=True), marker="o", markersize=4, label=label
            ) if least else None
        if None not in sizes.values() and min(places.values()) > 0:
            axes.set_xscale("log", base=2)
        axes.set_xticks(list(places.values()), labels=list(places), minor=False)
        axes.set_xlabel(picture.across)
        axes.set_ylabel(f"least {picture.up}")
        axes.set_ylim(bottom=0)

    _draw(table, picture, draw)


def _require(name: str, known: Sequence[str], kind: str) -> None:
    if name not in known:
        raise UserError(f'there is no {kind} "{name}" to draw', notes=[nearest_or_all(name, known, f"{kind}s")])


def _series(rows: Sequence[Row], axis: str | None) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault("" if axis is None else row.labels[axis], []).append(row)
    return found


def _panels(table: Table) -> Iterator[tuple[str, list[Row]]]:
    panels: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.result.is_ok:
            panels.setdefault(f"{row.labels['input']} on {row.labels['machine']}", []).append(row)
    for title, rows in panels.items():
        most = max(row.figure(ON_MACHINE) or 0 for row in rows)
        kept = [row for row in rows if (row.figure(ON_MACHINE) or 0) == most]
        yield title + (f"\n({len(rows) - len(kept)} leave more to the host)" if len(kept) < len(rows) else ""), kept


def _draw(table: Table, picture: Picture, draw: Any) -> None:
    if picture.series is not None:
        _require(picture.series, table.plan.columns, "axis")
    require_matplotlib()
    import matplotlib  # pyright: ignore
    from matplotlib.figure import Figure  # pyright: ignore

    plots: Any = matplotlib
    panels = list(_panels(table))
    if not panels:
        raise UserError("there is nothing to draw: no run has figures")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width, height = _PANEL_INCHES
    # The same picture is the same file, byte for byte.
    with plots.rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none"}):
        figure: Any = Figure(figsize=(width * columns, height * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number >= len(panels):
                axes.set_axis_off()
                continue
            title, members = panels[number]
            draw(axes, members)
            axes.set_title(title, fontsize=9)
            axes.grid(alpha=0.3)
            if picture.series is not None:
                axes.legend(title=picture.series, fontsize=7, title_fontsize=7)
        kind = Path(picture.path).suffix[1:]
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with whole_file(picture.path) as file:
            figure.savefig(file, format=kind, dpi=150, metadata=metadata)
