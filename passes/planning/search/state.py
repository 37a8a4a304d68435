"""What a search starts from, and the switches of its rules; both kernels begin with the same arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.instance import Numbers, Part

Hashes = NDArray[np.uint64]

FAR = (1 << 63) - 1
"""No place at all."""


class Verdict(IntEnum):
    """How a search stands."""

    FOUND = 0
    IMPOSSIBLE = 1
    """Proved."""
    OPEN = 2


class Rule(IntEnum):
    """Which section to fill next, of those with the lowest floor; among equals the earliest."""

    LEAST_SLACK = 0
    WEIGHTED_SLACK = 1
    """The least slack over the number of times that it overflowed in this run, as in weighted-degree heuristics."""
    EARLIEST = 2
    LATEST = 3


class Fit(IntEnum):
    """What goes before the rank where several pieces may start at a floor; a piece next to a higher one has a wall."""

    NONE = 0
    SIDES = 1
    """How many of its two sides stand at a wall: what stands at none leaves pits that little fits in."""
    TOPS = 2
    """Both, that and at how many of its sides its top is flush with the floor beside it."""


@dataclass(frozen=True)
class Switches:
    """
    The rules that make the search fast, each of which may be turned off: no answer changes, only the time it takes.

    The first five are rules of minimalloc, in the form that they take where one section is filled at a time.
    """

    inference: bool = True
    """Section inference: what is left of a section fits above its floor."""
    floors: bool = True
    """The floor of a section is at least the lowest place of any piece left of it."""
    holes: bool = True
    """Dominance: no hole is left in which a piece that is placed later would fit."""
    hatless: bool = True
    """Of a piece that nothing left ever meets, only the lowest place is tried."""
    parts: bool = True
    """Parts of the time axis that nothing left crosses are solved on their own."""
    lifts: bool = True
    """Ours: where nothing starts at a floor, it rises to the next place where something may rest."""
    twins: bool = True
    """Ours: pieces that are alike are placed in one order."""
    memory: bool = True
    """Ours: what was found to fail is not tried again, by whatever way it is reached, in any restart."""
    weights: bool = True
    """Ours: sections that often overflow are filled earlier. Without, slack alone counts where they would be."""
    fits: bool = True
    """Ours: in two runs of three, what fits best between its neighbours goes before what the order says."""
    orders: bool = True
    """The fixed orders come first; without, all are drawn at random."""
    restarts: bool = True
    """Luby's restarts under other orders; without, the first order is followed to its end."""

    @property
    def bits(self) -> int:
        """Those that the kernels know, as flags in the order above."""
        return sum(1 << bit for bit, field in enumerate(fields(self)[:8]) if getattr(self, field.name))


@dataclass
class Start:
    """The state before anything is placed, and all that stays as it is while one height is tried."""

    part: Part
    bits: int
    ranges: list[list[tuple[int, int]]]
    ceiling: Numbers
    """[sections] The units below which everything of a section ends."""
    hull_end: Numbers
    """[pieces] Behind the last section that the piece, or one that it is tied to, is alive in."""
    low: Numbers
    floor: Numbers
    total: Numbers
    left: Numbers
    keys: Hashes
    """[4, pieces, 2] Random factors of a piece's lowest place, its support, itself and its being pinned."""
    sums: Hashes
    """[sections, 2] What the pieces that begin in a section add to the key of a state."""

    @property
    def hopeless(self) -> bool:
        """Whether some piece has no place, or some section more bytes than room."""
        return any(not spans for spans in self.ranges) or bool(np.any(self.floor + self.total > self.ceiling))


def start(part: Part, height: int, switches: Switches) -> Start:
    """The state of a part of a problem before anything is placed, for plans of no more than `height` bytes."""
    ranges = part.ranges(height)
    count = len(part.size)
    low = np.array(
        [
            snap(spans, align, shift, 0)
            for spans, align, shift in zip(ranges, part.align.tolist(), part.shift.tolist(), strict=True)
        ],
        np.int64,
    )
    for index, spans in enumerate(ranges):
        if low[index] == FAR:
            spans.clear()
    top = np.array([spans[-1][1] if spans else 0 for spans in ranges], np.int64) + part.size
    members = part.members
    keys = random_words(4 * 2 * count).reshape(4, count, 2)
    hull_end = np.array([part.sections[index][-1] + 1 for index in range(count)], np.int64)
    for index in range(count):
        other = int(part.tie[index])
        while other != index:
            hull_end[index] = max(hull_end[index], part.sections[other][-1] + 1)
            other = int(part.tie[other])
    sums = np.zeros((len(members), 2), np.uint64)
    first = part.sections.values[part.sections.starts[:-1]]
    places = low.astype(np.uint64)[:, None]
    support = (keys[1] * places) if switches.holes else np.zeros_like(keys[1])
    np.add.at(sums, first, keys[0] * places + support + keys[2])
    return Start(
        part,
        switches.bits,
        ranges,
        np.maximum.reduceat(top[members.values], members.starts[:-1]),
        hull_end,
        low,
        np.minimum.reduceat(low[members.values], members.starts[:-1]),
        part.total.copy(),
        np.diff(members.starts),
        keys,
        sums,
    )


def snap(spans: list[tuple[int, int]], align: int, shift: int, value: int) -> int:
    """The lowest place in `spans`, at or above `value`, that is `shift` above a multiple of `align`; FAR if none."""
    for low, high in spans:
        place = max(value, low)
        if align != 1:
            place = -(-(place - shift) // align) * align + shift
        if place <= high:
            return place
    return FAR


def random_words(count: int) -> Hashes:
    """Words that look random, always the same: SplitMix64."""
    with np.errstate(over="ignore"):
        words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
