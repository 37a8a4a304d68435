"""
What each unit did in every cycle of a simulation, and why, where it did nothing: sums that add up to T.

A cycle belongs to the first of these that holds: an exec runs, or a transfer has its bus (`busy`); a transfer waits
for its bus (`bus`); one is between its start and its request (`latency`); a command waits for room in a queue
(`push`); the next command waits for what it waits for last (`queue`, `token`, `barrier`); there is none left
(`done`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.passes.analysis.commands.program import Kind
from penstock.runtime.simulator.command_times import CommandTimes

BUSY, BUS, LATENCY, PUSH, DONE = "busy", "bus", "latency", "push", "done"

Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class UnitUse:
    """The cycles of a unit."""

    unit: str
    commands: int
    busy: int
    stalls: tuple[tuple[str, int], ...]
    """The others by cause, in the order of the module's text; causes without cycles are left out."""


@dataclass(frozen=True)
class BusUse:
    """The cycles of a bus."""

    bus: str
    transfers: int
    busy: int


def unit_uses(times: CommandTimes) -> tuple[UnitUse, ...]:
    """What each unit did, in the order of the machine."""
    units = times.program.machine.units
    return tuple(_use(times, unit, stream) for unit, stream in zip(units, times.layout.streams, strict=True))


def bus_uses(times: CommandTimes) -> tuple[BusUse, ...]:
    """How long each bus was occupied, in the order of the machine."""
    layout = times.layout
    transfers, busy = [0] * len(layout.buses), [0] * len(layout.buses)
    for number, bus in enumerate(layout.bus_of):
        if bus >= 0:
            transfers[bus] += 1
            busy[bus] += times.finishes[number] - times.grants[number]
    return tuple(BusUse(name, transfers[bus], busy[bus]) for bus, name in enumerate(layout.buses))


def _use(times: CommandTimes, unit: str, stream: Sequence[int]) -> UnitUse:
    found = segments(times, unit)
    sums = np.bincount(found.which, np.diff(found.edges), len(found.names))
    cycles = {name: int(count) for name, count in zip(found.names, sums, strict=True) if count}
    busy = cycles.pop(BUSY, 0)
    return UnitUse(unit, len(stream), busy, tuple(cycles.items()))


@dataclass(frozen=True)
class Segments:
    """The time of a unit, or of a bus, cut where something changes."""

    edges: NDArray[np.int64]
    """From 0 to T, ascending."""
    which: NDArray[np.int64]
    """What each piece between two edges is: a number of `names`."""
    names: tuple[str, ...]


def segments(times: CommandTimes, unit: str) -> Segments:
    """What a unit does all the time, piece by piece."""
    kinds: dict[str, Spans] = {BUSY: [], BUS: [], LATENCY: [], PUSH: []}
    causes: dict[str, Spans] = {}
    before = 0
    for number in times.layout.streams[times.program.machine.units.index(unit)]:
        start, finish = times.starts[number], times.finishes[number]
        kinds[BUSY].append((times.grants[number], finish))
        if times.commands[number].kind is Kind.TRANSFER:
            kinds[BUS].append((times.requests[number], times.grants[number]))
            kinds[LATENCY].append((start, times.requests[number]))
        kinds[PUSH].append((finish, times.ends[number]))
        # As far as nothing is in flight meanwhile, it waits for what came last.
        causes.setdefault(str(times.causes[number]), []).append((before, start))
        before = start
    total = times.last
    return _cut({**kinds, **dict(sorted(causes.items())), DONE: [(0, total)]}, total)


def bus_segments(times: CommandTimes, bus: str) -> Segments:
    """When a bus is occupied."""
    number = times.layout.buses.index(bus)
    users = [command for command, each in enumerate(times.layout.bus_of) if each == number]
    spans = [(times.grants[command], times.finishes[command]) for command in users]
    return _cut({BUSY: spans, DONE: [(0, times.last)]}, times.last)


def _cut(spans: dict[str, Spans], total: int) -> Segments:
    """The time below `total` in pieces, each of which is of the first name that has a span over it."""
    pairs = [np.array(each, np.int64).reshape(-1, 2) for each in spans.values()]
    edges: NDArray[np.int64] = np.unique(np.concatenate([np.array([0, total]), *(each.ravel() for each in pairs)]))
    which = np.full(len(edges) - 1, -1, np.int64)
    for number, each in enumerate(pairs):
        open_at = np.zeros(len(edges), np.int64)
        np.add.at(open_at, np.searchsorted(edges, each[:, 0]), 1)
        np.add.at(open_at, np.searchsorted(edges, each[:, 1]), -1)
        which[(which < 0) & (np.cumsum(open_at)[:-1] > 0)] = number
    return Segments(edges, which, tuple(spans))
