# SPDX-License-Identifier: Apache-2.0
"""
A plan as a picture in SVG: time from left to right, bytes from the bottom up, a rectangle for each buffer.

The text is the same for the same problem and plan. Each buffer is named: in its rectangle, upright or turned; where
there is no room, by a number there, if that fits, and in a list below. A rectangle says all about its buffer when it is
pointed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count

from penstock.passes.planning.problem import Buffer, Plan, Problem, height, lower_bound, span_text

WIDTH, HEIGHT = 960, 480
"""Of the part that shows the memory, in pixels."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 110, 40, 50
_LETTER, _LINE = 6.2, 11
"""What a letter of a label is wide and high."""
_TURN = 137.508
"""Degrees between the hues of two buffers in a row: the golden angle, which keeps neighbours apart."""


def svg_map(
    problem: Problem,
    plan: Plan,
    title: str,
    bound: int | None = None,
    places: Mapping[str, str] | None = None,
    *,
    axis: str = "time",
) -> str:
    """
    The picture of a plan, with lines at the capacity and at the lower bound, if no better one is known; `places` says
    where buffers come from, by their ids, and `axis` what their lifetimes are counted in.
    """
    bound = lower_bound(problem) if bound is None else bound
    return "\n".join(_lines(problem, plan, title, bound, places or {}, axis)) + "\n"


def _lines(problem: Problem, plan: Plan, title: str, bound: int, places: Mapping[str, str], axis: str) -> Iterator[str]:
    scale = _Scale(problem, plan)
    listed: list[tuple[str, str]] = []
    drawn: list[str] = []
    for number, buffer in enumerate(problem.buffers):
        fill = f"hsl({number * _TURN % 360:.1f},65%,{72 + number % 3 * 5}%)"
        name = _Name(buffer.id, len(listed) + 1)
        drawn += _buffer(scale, buffer, plan.offsets[buffer.id], fill, name, places.get(buffer.id))
        if name.is_listed:
            listed.append((fill, f"{name.number}  {buffer.id}, {buffer.size:,} bytes"))
    columns = max(1, int(WIDTH / (_LETTER * max([len(text) for _, text in listed], default=0) + 30)))
    rows = -(-len(listed) // columns)
    width, depth = WIDTH + _LEFT + _RIGHT, HEIGHT + _TOP + _BOTTOM + rows * (_LINE + 3)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{depth}" viewBox="0 0 {width} {depth}" '
        'font-family="sans-serif" font-size="10">'
    )
    yield f'<rect width="{width}" height="{depth}" fill="white"/>'
    yield f'<text x="{_LEFT}" y="{_TOP - 18}" font-size="14">{xml_text(title)}</text>'
    yield f'<rect x="{_LEFT}" y="{_TOP}" width="{WIDTH}" height="{HEIGHT}" fill="#f4f4f4"/>'
    yield from drawn
    yield from _axes(scale, axis)
    # The label of the bound makes way for that of the capacity, which is above it.
    highest = 0.0
    if problem.capacity is not None:
        yield from _level(scale, problem.capacity, f"capacity {problem.capacity:,}", "#c00000", "6 3", highest)
        highest = scale.y(problem.capacity) + _LINE
    yield from _level(scale, bound, f"bound {bound:,}", "#404040", "2 3", highest)
    for place, (fill, text) in enumerate(listed):
        x, y = _LEFT + place // rows * WIDTH // columns, HEIGHT + _TOP + _BOTTOM + place % rows * (_LINE + 3)
        yield f'<rect x="{x}" y="{y - 8}" width="8" height="8" fill="{fill}" stroke="#505050" stroke-width="0.5"/>'
        yield f'<text x="{x + 13}" y="{y}">{xml_text(text)}</text>'
    yield "</svg>"


@dataclass
class _Name:
    """What a rectangle is called: its name, or a number that a list explains."""

    text: str
    number: int
    is_listed: bool = False


class _Scale:
    """From moments and bytes to pixels."""

    def __init__(self, problem: Problem, plan: Plan):
        self.first = min((buffer.lower for buffer in problem.buffers), default=0)
        self.last = max((buffer.upper for buffer in problem.buffers), default=self.first + 1)
        self.bytes = max(height(problem, plan), problem.capacity or 0, 1)

    def x(self, time: float) -> float:
        return _LEFT + WIDTH * (time - self.first) / (self.last - self.first)

    def y(self, byte: float) -> float:
        return _TOP + HEIGHT * (1 - byte / self.bytes)


def _buffer(scale: _Scale, buffer: Buffer, offset: int, fill: str, name: _Name, place: str | None) -> Iterator[str]:
    life = " and ".join(span_text(interval) for interval in buffer.intervals)
    about = f"{buffer.id}: {buffer.size:,} bytes at {offset:,}, alive at {life}"
    about += f", from {place}" if place else ""
    yield f'<g fill="{fill}" stroke="#505050" stroke-width="0.5"><title>{xml_text(about)}</title>'
    boxes: list[tuple[float, float, float, float]] = []
    for (lower, upper), (low, high) in buffer.pieces:
        left, right = scale.x(lower), scale.x(upper)
        top, bottom = scale.y(offset + high), scale.y(offset + low)
        yield f'<rect x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}" height="{bottom - top:.2f}"/>'
        boxes.append((left, top, right - left, bottom - top))
    yield from _label(boxes, name)
    yield "</g>"


def _label(boxes: Sequence[tuple[float, float, float, float]], name: _Name) -> Iterator[str]:
    """The name in the widest box that it fits into, or turned in the highest; else a number, if only in the list."""
    along, across = _LETTER * len(name.text) + 4, _LINE
    upright = [box for box in boxes if box[2] >= along and box[3] >= across]
    turned = [box for box in boxes if box[3] >= along and box[2] >= across]
    text, turn = name.text, ""
    if upright:
        left, top, wide, high = max(upright, key=lambda box: box[2])
    elif turned:
        left, top, wide, high = max(turned, key=lambda box: box[3])
        turn = f' transform="rotate(-90 {left + wide / 2:.2f} {top + high / 2:.2f})"'
    else:
        name.is_listed, text = True, str(name.number)
        room = [box for box in boxes if box[2] >= _LETTER * len(text) and box[3] >= _LINE - 2]
        if not room:
            return
        left, top, wide, high = max(room, key=lambda box: box[2])
    place = f'x="{left + wide / 2:.2f}" y="{top + high / 2 + 3.5:.2f}"'
    yield f'<text {place} fill="black" stroke="none" text-anchor="middle"{turn}>{xml_text(text)}</text>'


def _axes(scale: _Scale, axis: str) -> Iterator[str]:
    yield f'<path d="M{_LEFT} {_TOP}V{_TOP + HEIGHT}H{_LEFT + WIDTH}" fill="none" stroke="black"/>'
    for time in ticks(scale.first, scale.last):
        place = f'x="{scale.x(time):.2f}" y="{_TOP + HEIGHT + 16}"'
        yield f'<text {place} text-anchor="middle">{time}</text>'
    for byte in ticks(0, scale.bytes):
        yield f'<text x="{_LEFT - 6}" y="{scale.y(byte) + 3.5:.2f}" text-anchor="end">{byte:,}</text>'
    middle = _LEFT + WIDTH / 2
    yield f'<text x="{middle:.2f}" y="{_TOP + HEIGHT + 36}" text-anchor="middle" font-size="12">{axis}</text>'
    half = f"{_TOP + HEIGHT / 2:.2f}"
    turn = f'transform="rotate(-90 14 {half})"'
    yield f'<text x="14" y="{half}" text-anchor="middle" font-size="12" {turn}>bytes</text>'


def _level(scale: _Scale, byte: int, label: str, colour: str, dashes: str, highest: float) -> Iterator[str]:
    y = scale.y(byte)
    yield f'<path d="M{_LEFT} {y:.2f}H{_LEFT + WIDTH}" stroke="{colour}" stroke-dasharray="{dashes}"/>'
    place = f'x="{_LEFT + WIDTH + 4}" y="{max(y, highest) + 3.5:.2f}"'
    yield f'<text {place} fill="{colour}">{label}</text>'


def ticks(first: int, last: int) -> list[int]:
    """Round numbers from `first` to `last`, ten steps apart at most."""
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if (last - first) <= 10 * step)
    return list(range(-(-first // step) * step, last + 1, step))


def xml_text(text: str) -> str:
    """Text as XML may hold it, which has no form for control characters."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))
