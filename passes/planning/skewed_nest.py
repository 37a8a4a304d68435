# SPDX-License-Identifier: Apache-2.0
"""
Nests whose loops are skewed, as `schedule.skew` rewrites the loops of a kernel: where a unit loads for an iteration and
works on its results, its commands for the next iteration go before the last part of this one.

A loop becomes the first part of its first iteration, a steady loop, and the last part of its last iteration. What that
costs where there are few iterations is in the nest: `time_of` needs to know nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from penstock.passes.planning.pipelining import TimedLoop, TimedStep, steps_of

Part = TimedStep | TimedLoop
Skewed = Literal["none", "outer", "inner", "nested"]
"""Which loops of a nest are skewed."""


def skewed(nest: Sequence[Part], slots: Mapping[str, int], way: Skewed = "outer") -> tuple[Part, ...]:
    """
    The nest with all loops skewed that can be, where buffers have so many slots: the outermost first, only those
    without loops in them, or these first and then what is around them.
    """
    found: list[Part] = []
    for part in nest:
        if isinstance(part, TimedStep) or way == "none":
            found.append(part)
            continue
        is_inner = not any(isinstance(each, TimedLoop) and not _is_one_step(each) for each in part.body)
        split = _split_of(part, slots) if way == "outer" or is_inner else None
        within = part
        if split is None and (way == "outer" or not is_inner):
            within = replace(part, body=skewed(part.body, slots, way))
            if way != "inner" and within != part:
                split = _split_of(within, slots, nested=True)
        found += [within] if split is None else split.parts()
    return tuple(found)


def _is_one_step(loop: TimedLoop) -> bool:
    return len(loop.body) == 1 and isinstance(loop.body[0], TimedStep)


@dataclass(frozen=True)
class _LoopSplit:
    """How the parts of an iteration are divided; see `schedule.skew.Skew`."""

    loop: TimedLoop
    first: tuple[Part, ...]
    head: tuple[Part, ...]
    tail: tuple[Part, ...]
    late: tuple[Part, ...]

    def parts(self) -> Iterator[Part]:
        """What the loop becomes."""
        opened = _opened(self.head)
        late = tuple(_aged(part, opened) for part in self.late)
        yield from self.first if not self.loop.opens else [replace(self.loop, trips=1, body=self.first)]
        yield TimedLoop(self.loop.trips - 1, (*self.head, *late, *self.tail))
        yield from self.late


def _split_of(loop: TimedLoop, slots: Mapping[str, int], *, nested: bool = False) -> _LoopSplit | None:
    """How a loop is divided; if it is `nested`, the loops in it are skewed, and what they begin with goes early."""
    for position in _late(loop.body) if loop.trips > 1 else ():
        needed = _needed(loop.body[:position], loop.body[position])
        for early in dict.fromkeys((tuple(range(position)), needed)):
            first = tuple(loop.body[number] for number in early)
            late = tuple(part for number, part in enumerate(loop.body) if number not in early)
            before = len(list(takewhile(lambda part: isinstance(part, TimedStep) or _is_one_step(part), first)))
            head, tail = (first[:before], first[before:]) if nested else _head(first, late, slots)
            if head and _is_possible(loop, head, tail, late, slots):
                return _LoopSplit(loop, first, head, tail, late)
    return None


def _is_possible(
    loop: TimedLoop, head: Sequence[Part], tail: Sequence[Part], late: Sequence[Part], slots: Mapping[str, int]
) -> bool:
    """Whether what the parts share has slots enough."""
    opened, own, used = _opened(head), _opened(loop.body), _ways(head)
    shared = {name for name, ways in _ways(late).items() if name in used and True in ways | used[name]}
    single = {name for name in own if slots.get(name, 1) == 1}
    oldest = Counter[str]()
    for step in steps_of(late):
        oldest |= Counter(step.ages)
    return (
        all(own[name] and 0 < opened[name] < slots.get(name, 1) - oldest[name] for name in shared)
        and not single & used.keys() & _ways(tail).keys()
        and not shared & _opened(late).keys()
    )


def _needed(first: Sequence[Part], late: Part) -> tuple[int, ...]:
    """The parts that come before others of them: without what the late stream does for the last part alone."""
    streams, needed = {step.stream or step.unit for step in steps_of([late])}, list[int]()
    for number, part in reversed(list(enumerate(first))):
        others = list(steps_of([first[each] for each in needed]))
        is_loose = isinstance(part, TimedStep) and (part.stream or part.unit) in streams
        if not is_loose or any(_meet(step, other) for step in steps_of([part]) for other in others):
            needed.insert(0, number)
    return tuple(needed)


def _late(body: Sequence[Part]) -> Iterator[int]:
    """The parts with a step whose stream waits for another unit, which has waited for that stream before."""
    behind: list[tuple[TimedStep, set[str]]] = []
    seen: set[str] = set()
    for position, part in enumerate(body):
        is_late = False
        for step in steps_of([part]):
            units: set[str] = set()
            for earlier, known in behind:
                if earlier.unit != step.unit and earlier.runs_on and _meet(earlier, step):
                    units |= {earlier.unit, earlier.stream or earlier.unit, *known}
            is_late |= (step.stream or step.unit) in units and (step.stream or step.unit) in seen
            behind.append((step, units))
        seen |= {step.stream or step.unit for step in steps_of([part])}
        if is_late and position:
            yield position


def _meet(one: TimedStep, other: TimedStep) -> bool:
    return not (set(one.writes).isdisjoint((*other.reads, *other.writes)) and set(other.writes).isdisjoint(one.reads))


def _head(
    first: Sequence[Part], last: Sequence[Part], slots: Mapping[str, int]
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """What of the first part of an iteration goes before the last part of the one before, and what after it."""
    units = {step.unit for step in steps_of(last)}
    for position, part in enumerate(first):
        if isinstance(part, TimedLoop) and any(step.unit in units for step in steps_of([part])):
            iterations = max((slots.get(name, 1) for name in _opened(part.body)), default=part.trips)
            if iterations < part.trips:
                head, tail = replace(part, trips=iterations), replace(part, trips=part.trips - iterations, opens=())
                return (*first[:position], head), (tail, *first[position + 1 :])
    return tuple(first), ()


def _ways(parts: Sequence[Part]) -> dict[str, set[bool]]:
    """Whether each buffer is read (False), written (True) or both."""
    found: dict[str, set[bool]] = {}
    for step in steps_of(parts):
        for names, way in ((step.reads, False), (step.writes, True)):
            for name in names:
                found.setdefault(name, set()).add(way)
    return found


def _opened(parts: Sequence[Part]) -> Counter[str]:
    """How many slots of each buffer are taken."""
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part.opens)
        if isinstance(part, TimedLoop):
            for name, count in _opened(part.body).items():
                found[name] += part.trips * count
    return found


def _aged(part: Part, opened: Mapping[str, int]) -> Part:
    """A part that comes after others have taken so many slots."""
    if isinstance(part, TimedLoop):
        return replace(part, body=tuple(_aged(each, opened) for each in part.body))
    ages = {name: part.ages.get(name, 0) + opened.get(name, 0) for name in (*part.reads, *part.writes)}
    return replace(part, ages={name: age for name, age in ages.items() if age})
