"""The nest that a tile makes: loops around fetches, ops and stores, as `pipelining` times it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from penstock.passes.planning.pipelining import Loop, NestTime, Step, time_of
from penstock.passes.planning.tile_model import (
    Box,
    Channel,
    Ints,
    Moving,
    Operand,
    TileProblem,
    Work,
    box_of,
    held_bytes,
    moving,
)

COMPUTED_SLOTS = 2
"""The most slots of what is computed in a scope: one is emptied while the next fills."""


@dataclass
class Tiles:
    """Many tiles of a problem, one array for each dim, and what is true of them whatever the order of the loops."""

    problem: TileProblem
    tile: list[Ints]
    ones: Ints

    @cached_property
    def trips(self) -> list[Ints]:
        """How many tiles each dim is cut into."""
        return [-(-dim.extent // size) for dim, size in zip(self.problem.dims, self.tile, strict=True)]

    @cached_property
    def boxes(self) -> list[Box]:
        """What a transfer of each operand moves."""
        return [box_of(operand, self.problem.dims, self.tile, self.ones) for operand in self.problem.operands]

    @cached_property
    def held(self) -> list[Ints]:
        """The bytes that a part of each operand takes in its scope."""
        return [self.ones * held_bytes(operand, self.tile) for operand in self.problem.operands]

    @cached_property
    def fetches(self) -> list[list[Moving]]:
        """What it costs to bring a part of each operand, by the engines on its way."""
        return self._moves([operand.fetch for operand in self.problem.operands])

    @cached_property
    def puts(self) -> list[list[Moving]]:
        """What it costs to take a part of each operand away."""
        return self._moves([operand.put for operand in self.problem.operands])

    def _moves(self, ways: Sequence[tuple[Channel, ...]]) -> list[list[Moving]]:
        triples = zip(self.problem.operands, self.boxes, ways, strict=True)
        return [[moving(operand, box, channel) for channel in way] for operand, box, way in triples]

    @cached_property
    def work_cycles(self) -> list[tuple[Ints, Ints]]:
        """The cycles of every op for one tile, and its commands: of an engine those of the transfer."""
        found: list[tuple[Ints, Ints]] = []
        for work in self.problem.works:
            if work.channel is None:
                found.append((self.ones * (work.depth + work.interval * work.iterations(self.tile)), self.ones))
                continue
            number = moved_operand(self.problem, work)
            cost = moving(self.problem.operands[number], self.boxes[number], work.channel)
            found.append((cost.cycles, cost.commands))
        return found

    def at(self, index: int) -> Tiles:
        """One of the tiles."""
        return Tiles(self.problem, [size[index : index + 1] for size in self.tile], self.ones[:1])


def moved_operand(problem: TileProblem, work: Work) -> int:
    """The operand whose rows an engine moves that performs `work`: the one off chip, else the one that is written."""
    numbers = [*work.reads, work.writes]
    return next((number for number in numbers if problem.operands[number].scope is None), work.writes)


def level_of(operand: Operand, loops: Sequence[int]) -> int:
    """How many of the loops are around a fetch of the operand: up to the innermost one that it depends on."""
    return max((at + 1 for at, dim in enumerate(loops) if operand.depends_on(dim)), default=0)


def is_refilled(operand: Operand, loops: Sequence[int]) -> bool:
    """Whether a loop needs another part of the operand in every round."""
    return operand.scope is not None and level_of(operand, loops) > 0


def slots_of(operand: Operand, depths: Mapping[str, int]) -> int:
    """The slots of an operand that is refilled: what is computed has two at most, however far fetches run ahead."""
    count = depths.get(operand.scope or "", 1)
    return count if operand.fetch or (operand.reads and not operand.writes) else min(count, COMPUTED_SLOTS)


def time_of_tile(tiles: Tiles, loops: Sequence[int], depths: Mapping[str, int]) -> NestTime:
    """How long the nest of a single tile takes, with so many slots in each scope for what is refilled."""
    slots: dict[str, int] = {}
    for number, operand in enumerate(tiles.problem.operands):
        if not is_refilled(operand, loops):
            continue
        slots[str(number)] = slots_of(operand, depths)
        for hop, channel in enumerate(operand.fetch[:-1]):
            slots[f"{number}.{hop}"] = depths.get(channel.scope or "", 1)
        for hop, channel in enumerate(operand.put[:-1]):
            slots[f"{number}.out{hop}"] = depths.get(channel.scope or "", 1)
    return time_of(_nest(tiles, loops), slots)


def _nest(tiles: Tiles, loops: Sequence[int]) -> list[Step | Loop]:
    """The steps before, in and behind every loop, in program order."""
    problem = tiles.problem
    inner = len(loops)
    outer = sum(problem.dims[dim].parallel for dim in loops)
    before: list[list[Step | Loop]] = [[] for _ in range(inner + 1)]
    behind: list[list[Step | Loop]] = [[] for _ in range(inner + 1)]
    fetched: set[int] = set()
    opened: set[int] = set()
    anchored = not any(work.anchor for work in problem.works)
    shared = _shared_units(problem)
    for position, work in enumerate(problem.works):
        level = inner if work.anchor else outer
        anchored = anchored or work.anchor
        for number in (*work.reads, work.writes):
            operand = problem.operands[number]
            if operand.fetch and number not in fetched:
                fetched.add(number)
                opened.add(number)
                at = min(level, level_of(operand, loops))
                side = behind if anchored and not work.anchor and at == outer < inner else before
                side[at] += _fetch(tiles, number, shared)
        step = _compute(tiles, position, opened, shared)
        (before if work.anchor or not anchored or outer == inner else behind)[level].append(step)
        opened.add(work.writes)
    for number, operand in enumerate(problem.operands):
        if operand.put:
            last = before if outer == inner else behind
            last[min(outer, level_of(operand, loops))] += _put(tiles, number, shared)
    nest: list[Step | Loop] = [*before[inner], *behind[inner]]
    for level in reversed(range(inner)):
        trips = int(tiles.trips[loops[level]][0])
        if len(nest) == 1 and isinstance(nest[0], Loop):
            trips, nest = trips * nest[0].trips, list(nest[0].body)
        nest = [*before[level], Loop(trips, tuple(nest)), *behind[level]]
    return nest


def _shared_units(problem: TileProblem) -> frozenset[str]:
    """The units that only move data, in both directions: their loops are skewed, so that stores hold up no loads."""
    into = {channel.unit for operand in problem.operands for channel in operand.fetch}
    out = {channel.unit for operand in problem.operands for channel in operand.put}
    out |= {work.channel.unit for work in problem.works if work.channel is not None and _leaves(problem, work)}
    return frozenset((into & out) - {work.unit for work in problem.works if work.channel is None})


def _leaves(problem: TileProblem, work: Work) -> bool:
    return problem.operands[work.writes].scope is None


def _transfer(
    channel: Channel,
    cost: Moving,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    stream: str | None,
    *,
    opens: bool = True,
    leaves: bool = False,
) -> Step:
    commands = int(cost.commands[0])
    cycles = ceil(float(cost.cycles[0]) / commands)
    return Step(
        channel.unit,
        cycles,
        channel.bus,
        channel.latency,
        channel.outstanding,
        commands,
        reads,
        writes,
        writes if opens else (),
        stream,
        leaves,
    )


def _fetch(tiles: Tiles, number: int, shared: frozenset[str]) -> list[Step]:
    channels, costs = tiles.problem.operands[number].fetch, tiles.fetches[number]
    steps: list[Step] = []
    for hop, (channel, cost) in enumerate(zip(channels, costs, strict=True)):
        last = hop + 1 == len(channels)
        reads = (f"{number}.{hop - 1}",) if hop else ()
        stream = f"{channel.unit} in" if channel.unit in shared else None
        steps.append(_transfer(channel, cost, reads, (str(number) if last else f"{number}.{hop}",), stream))
    return steps


def _put(tiles: Tiles, number: int, shared: frozenset[str]) -> list[Step]:
    channels, costs = tiles.problem.operands[number].put, tiles.puts[number]
    steps: list[Step] = []
    for hop, (channel, cost) in enumerate(zip(channels, costs, strict=True)):
        last = hop + 1 == len(channels)
        reads = (str(number) if hop == 0 else f"{number}.out{hop - 1}",)
        stream = f"{channel.unit} out" if channel.unit in shared else None
        writes = () if last else (f"{number}.out{hop}",)
        steps.append(_transfer(channel, cost, reads, writes, stream, leaves=True))
    return steps


def _compute(tiles: Tiles, position: int, opened: set[int], shared: frozenset[str]) -> Step:
    problem = tiles.problem
    work = problem.works[position]
    cycles, commands = tiles.work_cycles[position]
    held = [number for number in work.reads if problem.operands[number].scope is not None]
    reads = tuple(str(number) for number in held)
    writes = (str(work.writes),) if problem.operands[work.writes].scope is not None else ()
    opens = work.writes not in opened
    if work.channel is not None:
        leaves = _leaves(problem, work)
        stream = f"{work.channel.unit} {'out' if leaves else 'in'}" if work.channel.unit in shared else None
        return _transfer(work.channel, Moving(cycles, commands), reads, writes, stream, opens=opens, leaves=leaves)
    return Step(work.unit, int(cycles[0]), reads=reads, writes=writes, opens=writes if opens else ())


def fetch_counts(tiles: Tiles, loops: Sequence[int]) -> list[Ints]:
    """How often a part of each operand is needed: loops that it does not depend on, inside, do not count."""
    counts: list[Ints] = []
    for operand in tiles.problem.operands:
        count, running = tiles.ones, tiles.ones
        for dim in loops:
            running = running * tiles.trips[dim]
            if operand.depends_on(dim):
                count = np.where(tiles.trips[dim] > 1, running, count)
        counts.append(count)
    return counts
