# SPDX-License-Identifier: Apache-2.0
"""
minimalloc's instances A-K, changed a little: what a planner does on its test set says little of what it does beside it.

Every change leaves a plan that fits: where the original has one, that with the same places fits the changed problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.instances.instance import Instance
from benchmarks.instances.published import published
from penstock.passes.planning.problem import Buffer, Problem

SHARE = 0.1
"""Of the buffers that a change concerns."""

Change = Callable[[list[Buffer], Random], list[Buffer]]


def shuffled(buffers: list[Buffer], random: Random) -> list[Buffer]:
    """The buffers in another order, by which ties are broken."""
    return random.sample(buffers, len(buffers))


def mirrored(buffers: list[Buffer], _: Random) -> list[Buffer]:
    """Time runs backwards."""
    end = max(buffer.upper for buffer in buffers)
    return [replace(buffer, intervals=((end - buffer.upper, end - buffer.lower),)) for buffer in buffers]


def warped(buffers: list[Buffer], random: Random) -> list[Buffer]:
    """Each moment takes another time, by which lifetimes and areas are others."""
    moments = sorted({moment for buffer in buffers for moment in (buffer.lower, buffer.upper)})
    now, moved = 0, dict[int, int]()
    for moment in moments:
        moved[moment] = now
        now += random.choice([1, 1, 2, 5, 20])
    return [replace(buffer, intervals=((moved[buffer.lower], moved[buffer.upper]),)) for buffer in buffers]


def split(buffers: list[Buffer], random: Random) -> list[Buffer]:
    """Some buffers are two, one after the other."""
    found: list[Buffer] = []
    for buffer in buffers:
        if buffer.duration < 2 or random.random() >= SHARE:
            found.append(buffer)
            continue
        middle = random.randint(buffer.lower + 1, buffer.upper - 1)
        for part, interval in enumerate([(buffer.lower, middle), (middle, buffer.upper)]):
            found.append(replace(buffer, id=f"{buffer.id}.{part}", intervals=(interval,)))
    return found


def sliced(buffers: list[Buffer], random: Random) -> list[Buffer]:
    """Some buffers are two, one above the other."""
    found: list[Buffer] = []
    for buffer in buffers:
        if buffer.size < 2048 or random.random() >= SHARE:
            found.append(buffer)
            continue
        low = random.randrange(1024, buffer.size, 1024)
        found += [replace(buffer, id=f"{buffer.id}.{part}", size=s) for part, s in enumerate([low, buffer.size - low])]
    return found


def shrunk(buffers: list[Buffer], random: Random) -> list[Buffer]:
    """Some buffers are a little smaller, by a number of bytes that nothing else is a multiple of."""
    return [
        replace(buffer, size=max(1, buffer.size - random.randint(1, 1 + buffer.size // 50)))
        if random.random() < SHARE
        else buffer
        for buffer in buffers
    ]


def thinned(buffers: list[Buffer], random: Random) -> list[Buffer]:
    """Some buffers are not there."""
    return [buffer for buffer in buffers if random.random() >= SHARE / 4]


CHANGES: tuple[Change, ...] = (shuffled, mirrored, warped, split, sliced, shrunk, thinned)


def perturbed(given: Path | None = None, quick: bool = False) -> Iterator[Instance]:
    """Each of A-K with each of the changes, drawn by their names; of `quick` ones only the first two."""
    for instance in published(given):
        for change in CHANGES[:2] if quick else CHANGES:
            name = f"{instance.name}, {change.__name__}"
            buffers = change(list(instance.problem.buffers), Random(name))
            yield Instance("perturbed", name, Problem(tuple(buffers), instance.problem.capacity))
