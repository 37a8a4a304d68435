# SPDX-License-Identifier: Apache-2.0
"""
Perfect packings: a rectangle of time and bytes that is cut into buffers, so that the optimum is its height.

They are as hard as packing gets, since nothing may be wasted, and nothing in them comes from a program. Guillotine
cuts go through from edge to edge; a pinwheel, five rectangles around each other, cannot be made so, and what finds
the first kind by levels or shelves does not find the second. Variants: some buffers left out (slack), some fixed at
their places, some alive with gaps, some alive in part (windows).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

from benchmarks.instances.instance import Instance
from penstock.passes.planning.problem import Buffer, Plan, Problem

UNIT = 1024
"""Bytes of which all sizes are multiples, as they are where a scratchpad has granules."""


@dataclass(frozen=True)
class Box:
    """Time [left, right), and UNITs [low, high)."""

    left: int
    right: int
    low: int
    high: int

    @property
    def duration(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.high - self.low

    @property
    def area(self) -> int:
        return self.duration * self.height


def _guillotine(box: Box, random: Random) -> list[Box]:
    """The box in two; itself if it is too small."""
    across_time = random.random() < 0.5
    if box.duration < 2:
        across_time = False
    elif box.height < 2:
        across_time = True
    if across_time and box.duration >= 2:
        at = box.left + _part(box.duration, random)
        return [Box(box.left, at, box.low, box.high), Box(at, box.right, box.low, box.high)]
    if box.height >= 2:
        at = box.low + _part(box.height, random)
        return [Box(box.left, box.right, box.low, at), Box(box.left, box.right, at, box.high)]
    return [box]


def _part(whole: int, random: Random) -> int:
    """Where to cut: anywhere but at the ends, the middle more often."""
    return min(max(1, round(whole * (random.random() + random.random()) / 2)), whole - 1)


def _pinwheel(box: Box, random: Random) -> list[Box]:
    """The box in five around each other, either way round; in two if it is too small."""
    if box.duration < 3 or box.height < 3:
        return _guillotine(box, random)
    x1, x2 = sorted(random.sample(range(box.left + 1, box.right), 2))
    y1, y2 = sorted(random.sample(range(box.low + 1, box.high), 2))
    middle = Box(x1, x2, y1, y2)
    if random.random() < 0.5:
        return [
            Box(box.left, x2, box.low, y1),
            Box(x2, box.right, box.low, y2),
            Box(x1, box.right, y2, box.high),
            Box(box.left, x1, y1, box.high),
            middle,
        ]
    return [
        Box(x1, box.right, box.low, y1),
        Box(box.left, x1, box.low, y2),
        Box(box.left, x2, y2, box.high),
        Box(x2, box.right, y1, box.high),
        middle,
    ]


def cut(count: int, length: int, height: int, random: Random, *, pinwheels: float = 0.0) -> list[Box]:
    """
    A rectangle of `length` by `height` as about `count` boxes; `pinwheels` is how many of the cuts are such.

    The largest of a few boxes drawn at random is cut next, which leaves sizes of every order.
    """
    boxes = [Box(0, length, 0, height)]
    for _ in range(20 * count):
        if len(boxes) >= count:
            break
        chosen = max(random.sample(range(len(boxes)), min(3, len(boxes))), key=lambda at: boxes[at].area)
        way = _pinwheel if random.random() < pinwheels else _guillotine
        boxes[chosen : chosen + 1] = way(boxes[chosen], random)
    return boxes


def _shuffled(
    placed: list[tuple[Buffer, int]], height: int, random: Random, fixed: float = 0.0
) -> tuple[Problem, Plan]:
    """The buffers in an order, and under names, that say nothing of where they lie; some at their places for good."""
    random.shuffle(placed)
    named = [
        (replace(buffer, id=str(number), offset=place if random.random() < fixed else None), place)
        for number, (buffer, place) in enumerate(placed)
    ]
    problem = Problem(tuple(buffer for buffer, _ in named), height * UNIT)
    return problem, Plan({buffer.id: place for buffer, place in named})


def _whole(boxes: Iterable[Box]) -> list[tuple[Buffer, int]]:
    """Each box as a buffer, with its place."""
    return [(Buffer("", ((box.left, box.right),), box.height * UNIT), box.low * UNIT) for box in boxes]


def _with_gaps(boxes: Iterable[Box], random: Random) -> list[tuple[Buffer, int]]:
    """Boxes of which some live twice: what was their middle belongs to others."""
    placed: list[tuple[Buffer, int]] = []
    for box in boxes:
        if box.duration < 3 or random.random() < 0.6:
            placed += _whole([box])
            continue
        x1, x2 = sorted(random.sample(range(box.left + 1, box.right), 2))
        placed.append((Buffer("", ((box.left, x1), (x2, box.right)), box.height * UNIT), box.low * UNIT))
        placed += _whole(_guillotine(Box(x1, x2, box.low, box.high), random))
    return placed


def _with_windows(boxes: Iterable[Box], random: Random) -> list[tuple[Buffer, int]]:
    """Boxes of which some live on in part: from some moment the rest of their bytes belongs to another."""
    placed: list[tuple[Buffer, int]] = []
    for box in boxes:
        if box.duration < 2 or box.height < 2 or random.random() < 0.6:
            placed += _whole([box])
            continue
        when, at = box.left + _part(box.duration, random), box.low + _part(box.height, random)
        below, above = Box(when, box.right, box.low, at), Box(when, box.right, at, box.high)
        kept, freed = (below, above) if random.random() < 0.5 else (above, below)
        window = ((kept.low - box.low) * UNIT, (kept.high - box.low) * UNIT)
        size = box.height * UNIT
        spans = ((box.left, when), (when, box.right))
        placed.append((Buffer("", spans, size, windows=((0, size), window)), box.low * UNIT))
        placed += _whole([freed])
    return placed


def perfect(name: str, count: int, length: int, height: int, pinwheels: float) -> Problem:
    """A perfect packing, drawn by its name."""
    random = Random(name)
    return _shuffled(_whole(cut(count, length, height, random, pinwheels=pinwheels)), height, random)[0]


SIZES = ((60, 30, 64), (120, 60, 256), (200, 100, 1024), (300, 300, 1024), (450, 240, 4096))
"""Buffers, moments and height in UNITs."""


def _sizes(quick: bool) -> tuple[tuple[int, int, int], ...]:
    return SIZES[:2] if quick else SIZES


def _drawn(family: str, seeds: int, quick: bool) -> Iterator[tuple[str, int, int, int, Random]]:
    for count, length, height in _sizes(quick):
        for seed in range(1 if quick else seeds):
            name = f"{family}-{count}-{seed}"
            yield name, count, length, height, Random(name)


def guillotine(quick: bool) -> Iterator[Instance]:
    """Cuts from edge to edge alone."""
    for name, count, length, height, random in _drawn("guillotine", 3, quick):
        yield Instance("guillotine", name, *_shuffled(_whole(cut(count, length, height, random)), height, random))


def pinwheel(quick: bool) -> Iterator[Instance]:
    """Mostly pinwheels within pinwheels."""
    for name, count, length, height, random in _drawn("pinwheel", 3, quick):
        boxes = cut(count, length, height, random, pinwheels=0.7)
        yield Instance("pinwheel", name, *_shuffled(_whole(boxes), height, random))


def slack(quick: bool) -> Iterator[Instance]:
    """Perfect packings with one buffer in fifty or in ten left out, and an optimum of at most their height."""
    for name, count, length, height, random in _drawn("slack", 2, quick):
        for left_out in (0.02, 0.1):
            boxes = [box for box in cut(count, length, height, random, pinwheels=0.3) if random.random() >= left_out]
            # The packing without them still has its height, but is perhaps not the least.
            problem, _ = _shuffled(_whole(boxes), height, random)
            yield Instance("slack", f"{name}-{left_out:g}", problem)


def fixed(quick: bool) -> Iterator[Instance]:
    """Perfect packings with one buffer in twenty held at its place."""
    for name, count, length, height, random in _drawn("fixed", 2, quick):
        boxes = cut(count, length, height, random, pinwheels=0.3)
        yield Instance("fixed", name, *_shuffled(_whole(boxes), height, random, fixed=0.05))


def gaps(quick: bool) -> Iterator[Instance]:
    """Perfect packings with buffers that live twice at one place."""
    for name, count, length, height, random in _drawn("gaps", 2, quick):
        boxes = cut(count * 2 // 3, length, height, random, pinwheels=0.3)
        yield Instance("gaps", name, *_shuffled(_with_gaps(boxes, random), height, random))


def windows(quick: bool) -> Iterator[Instance]:
    """Perfect packings with buffers of which a part lives on."""
    for name, count, length, height, random in _drawn("windows", 2, quick):
        boxes = cut(count * 3 // 4, length, height, random, pinwheels=0.3)
        yield Instance("windows", name, *_shuffled(_with_windows(boxes, random), height, random))
