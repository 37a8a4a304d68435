# SPDX-License-Identifier: Apache-2.0
"""
A run as a picture in SVG: time from left to right, a row for each unit and each bus.

The colour of a pixel says what the unit does there for most of the time that the pixel covers, so that a picture of
a million commands is no larger than one of a hundred. The text is the same for the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.map_svg import ticks, xml_text
from penstock.runtime.simulator.timeline import DONE, CycleWindow, Segments, Simulation

WIDTH = 960
"""Of the part that shows time, in pixels, each of which has one colour."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 110, 20, 60, 60
_ROW, _GAP = 26, 8
_LETTER = 6.2
COLOURS = {
    "busy": "#3b7dd8",
    "bus": "#e08b2d",
    "latency": "#f2c14e",
    "push": "#9b59b6",
    "queue": "#c0504d",
    "token": "#d98880",
    "barrier": "#7f8c8d",
    "done": "#f4f4f4",
}
MEANINGS = {
    "busy": "works",
    "bus": "waits for its bus",
    "latency": "latency",
    "push": "waits for room in a queue",
    "queue": "waits for a queue",
    "token": "waits for a token",
    "barrier": "waits at a barrier",
    "done": "has no command left",
}


@dataclass(frozen=True, eq=False)
class TimedCall:
    """A call of a kernel in a run."""

    begin: int
    """The cycle in which it begins."""
    kernel: str
    simulation: Simulation


def timeline_svg(units: Sequence[str], calls: Sequence[TimedCall], window: CycleWindow, title: str) -> str:
    """The picture of the cycles of a window: what the units of a machine do in calls of kernels."""
    return "\n".join(_lines(units, calls, window, title)) + "\n"


def _lines(units: Sequence[str], calls: Sequence[TimedCall], window: CycleWindow, title: str) -> Iterator[str]:
    rows = [*_rows(units, calls, window)]
    width, height = WIDTH + _LEFT + _RIGHT, _TOP + len(rows) * (_ROW + _GAP) + _BOTTOM
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="10">'
    )
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    yield f'<text x="{_LEFT}" y="18" font-size="14">{xml_text(title)}</text>'
    yield from _kernels(calls, window, height)
    shown: dict[str, None] = {}
    for number, (name, kinds, pixels) in enumerate(rows):
        top = _TOP + number * (_ROW + _GAP)
        yield f'<text x="{_LEFT - 8}" y="{top + _ROW / 2 + 3.5}" text-anchor="end">{xml_text(name)}</text>'
        yield f'<rect x="{_LEFT}" y="{top}" width="{WIDTH}" height="{_ROW}" fill="{COLOURS[DONE]}"/>'
        changes = np.flatnonzero(np.diff(pixels)) + 1
        for left, right in zip([0, *changes.tolist()], [*changes.tolist(), WIDTH], strict=True):
            kind = kinds[int(pixels[left])]
            word = kind.split(" ")[0]
            if word == DONE:
                continue
            shown[word] = None
            place = f'x="{_LEFT + left}" y="{top}" width="{right - left}" height="{_ROW}"'
            what = kind if " " in kind else MEANINGS[word]
            yield f'<rect {place} fill="{COLOURS[word]}"><title>{xml_text(f"{name}: {what}")}</title></rect>'
    yield from _axis(window, height)
    yield from _legend([kind for kind in COLOURS if kind in shown], height)
    yield "</svg>"


def _rows(
    units: Sequence[str], calls: Sequence[TimedCall], window: CycleWindow
) -> Iterator[tuple[str, tuple[str, ...], NDArray[np.int64]]]:
    """For each unit and bus its name, what it does, and for each pixel the number of what it does there mostly."""
    for unit in units:
        yield unit, *_pixels(calls, window, unit, is_bus=False)
    for bus in dict.fromkeys(bus for call in calls for bus in call.simulation.index.buses):
        yield bus, *_pixels(calls, window, bus, is_bus=True)


def _pixels(
    calls: Sequence[TimedCall], window: CycleWindow, name: str, *, is_bus: bool
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    known: dict[int, Segments] = {}
    names: dict[str, int] = {DONE: 0}
    sums = np.zeros((1, WIDTH), np.float64)
    # Where each pixel begins, in cycles, and one more.
    edges = window.first + (window.last - window.first) * np.arange(WIDTH + 1) / WIDTH
    for call in calls:
        begin, simulation = call.begin, call.simulation
        if not window.meets(begin, begin + simulation.cycles) or (is_bus and name not in simulation.index.buses):
            continue
        if id(simulation) not in known:
            known[id(simulation)] = simulation.bus_segments(name) if is_bus else simulation.unit_segments(name)
        found = known[id(simulation)]
        for number, kind in enumerate(found.names):
            row = names.setdefault(kind, len(names))
            sums = np.pad(sums, ((0, len(names) - len(sums)), (0, 0)))
            # What has been spent on it until each edge, linear in between.
            spent = np.concatenate([[0], np.cumsum(np.diff(found.edges) * (found.which == number))])
            if spent[-1]:
                sums[row] += np.diff(np.interp(edges, found.edges + begin, spent))
    return tuple(names), np.argmax(sums, axis=0)


def _kernels(calls: Sequence[TimedCall], window: CycleWindow, height: int) -> Iterator[str]:
    """Where kernels begin, with their names where there is room."""
    free = 0.0
    for call in calls:
        begin, end = call.begin, call.begin + call.simulation.cycles
        if not window.meets(begin, end):
            continue
        x = _x(window, max(begin, window.first))
        if x < free:
            continue
        name = f"@{call.kernel}"
        free = x + 2
        yield f'<path d="M{x:.2f} {_TOP - 16}V{height - _BOTTOM}" stroke="#b0b0b0"/>'
        if _x(window, min(end, window.last)) - x >= _LETTER * len(name) + 4:
            yield f'<text x="{x + 3:.2f}" y="{_TOP - 8}">{xml_text(name)}</text>'


def _x(window: CycleWindow, cycle: float) -> float:
    return _LEFT + WIDTH * (cycle - window.first) / (window.last - window.first)


def _axis(window: CycleWindow, height: int) -> Iterator[str]:
    y = height - _BOTTOM
    yield f'<path d="M{_LEFT} {y}H{_LEFT + WIDTH}" fill="none" stroke="black"/>'
    for cycle in ticks(window.first, window.last):
        yield f'<text x="{_x(window, cycle):.2f}" y="{y + 16}" text-anchor="middle">{cycle:,}</text>'
    yield f'<text x="{_LEFT + WIDTH / 2:.2f}" y="{y + 32}" text-anchor="middle" font-size="12">cycles</text>'


def _legend(kinds: list[str], height: int) -> Iterator[str]:
    x = float(_LEFT)
    for kind in kinds:
        yield f'<rect x="{x:.2f}" y="{height - 20}" width="10" height="10" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 14:.2f}" y="{height - 11}">{MEANINGS[kind]}</text>'
        x += 14 + _LETTER * len(MEANINGS[kind]) + 16
