# SPDX-License-Identifier: Apache-2.0
"""
What a tile of a kernel costs: its transfers and ops, the nest of loops that it makes, and an estimate of many at once.

Everything is plain data. Costs are computed for many tiles at once: a tile is one array for each dim, whose elements
are its sizes. A transfer costs what the cycle semantics say: its rows are those of a descriptor that merges dims
without gaps, each takes its bytes at the rate of the bus, rounded up, and an overhead; what a descriptor has too few
dims for is more commands, each with its latency. What is out of the bounds of a tensor is not transferred.

1. `Tiles`: what is true of tiles whatever the order of the loops.
2. `Estimates`: what tiles take under one order of the loops, to rank them.
3. `time_of_tile`: how long the nest of one tile takes, as `pipelining` times it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil, prod

import numpy as np

from penstock.dialects.cycles import repeats_of
from penstock.passes.planning.pipelining import NestTime, TimedLoop, TimedStep, time_of
from penstock.passes.planning.skewed_nest import Skewed, skewed
from penstock.passes.planning.tile_problem import (
    Channel,
    Ints,
    TileDim,
    TileOp,
    TileOperand,
    TileProblem,
    held_bytes,
    is_refilled,
    slots_of,
)

MAX_WINDOWS = 1 << 12
"""The positions of a window along one dim that are looked at one by one; with more its mean length is its length."""


@dataclass(frozen=True)
class TileBox:
    """What one transfer of an operand moves: means over the tiles, where windows are out of bounds."""

    elements: Ints
    """Elements inside the tensor."""
    extents: list[Ints]
    """Inside the tensor, of each of its dims."""
    whole: list[Ints]
    """Whether a dim is taken whole, and without padding: the next one then adjoins without a gap."""


def box_of(operand: TileOperand, dims: Sequence[TileDim], tile: Sequence[Ints], ones: Ints) -> TileBox:
    """The window of an operand for each tile of a grid."""
    parts = operand.part(tile)
    extents: list[Ints] = []
    whole: list[Ints] = []
    for number, part in enumerate(parts):
        if operand.bounds is None:
            extents.append(part * ones)
            whole.append(ones == 0)
            continue
        low, high = operand.padding[number] if operand.padding is not None else (0, 0)
        bound = operand.bounds[number]
        extents.append(_mean_length(operand.indices[number], dims, tile, bound, low, high, ones))
        whole.append((part * ones >= bound) & (low == 0 and high == 0))
    elements = ones.astype(np.float64)
    for extent in extents:
        elements = elements * extent
    return TileBox(elements, extents, whole)


def _mean_length(
    row: tuple[int, ...], dims: Sequence[TileDim], tile: Sequence[Ints], bound: int, low: int, high: int, ones: Ints
) -> Ints:
    """The mean number of elements along one dim of an operand that its windows have inside the tensor."""
    moving = [dim for dim, coefficient in enumerate(row) if coefficient]
    if not moving:
        return ones.astype(np.float64)
    windows = tuple((dims[dim].extent, dims[dim].parallel, row[dim]) for dim in moving)
    if len(ones) == 1:
        return np.array([_exact_mean(windows, tuple(int(tile[dim][0]) for dim in moving), bound, low, high)])
    # Of a grid each combination of sizes is looked at once: a combination is the digits of one number.
    codes, radix = tile[moving[0]], 1
    for dim in moving[1:]:
        radix = int(codes.max()) + 1
        codes = codes + radix * tile[dim]
    _, first, where = np.unique(codes, return_index=True, return_inverse=True)
    columns = zip(*(tile[dim][first].tolist() for dim in moving), strict=True)
    lengths = [_exact_mean(windows, sizes, bound, low, high) for sizes in columns]
    return np.array(lengths)[where.reshape(-1)]


@lru_cache(maxsize=1 << 16)
def _exact_mean(
    windows: tuple[tuple[int, bool, int], ...], sizes: tuple[int, ...], bound: int, low: int, high: int
) -> float:
    """The mean over the tiles: `windows` holds the extent of each dim, whether it is parallel, and its coefficient."""
    length = 1 + sum(stride * (size - 1) for (_, _, stride), size in zip(windows, sizes, strict=True))
    if all(size >= extent for (extent, _, _), size in zip(windows, sizes, strict=True)):
        length = min(length, bound)
    if prod(-(-extent // size) for (extent, _, _), size in zip(windows, sizes, strict=True)) > MAX_WINDOWS:
        return min(length, bound - low - high)
    starts = np.zeros(1, dtype=np.int64)
    for (extent, parallel, stride), size in zip(windows, sizes, strict=True):
        # A parallel dim is shifted inwards at the end.
        last = max(0, extent - size) if parallel else extent
        starts = np.add.outer(starts, stride * np.minimum(np.arange(0, extent, size), last)).reshape(-1)
    inside = np.minimum(starts + length - low, bound - low - high) - np.maximum(starts - low, 0)
    return int(np.maximum(inside, 0).sum()) / len(starts)


@dataclass(frozen=True)
class Moving:
    """What one transfer costs: cycles on its bus, and the commands that it takes."""

    cycles: Ints
    """On the bus."""
    commands: Ints
    """More than one where a descriptor has too few dims."""


def moving(operand: TileOperand, box: TileBox, channel: Channel, padded: Ints | int = 0) -> Moving:
    """What it costs to move one part of an operand through an engine, with so many bytes of padding that it writes."""
    run = np.full_like(box.elements, float(operand.element_bytes))
    rows, commands = np.ones_like(run), np.ones_like(run)
    groups = np.zeros(run.shape, np.int64)
    running = np.ones(run.shape, bool)
    adjoins = np.zeros(run.shape, bool)
    for number in reversed(range(len(box.extents))):
        extent, whole = box.extents[number], box.whole[number]
        padding = max(operand.padding[number]) if operand.padding is not None else 0
        if padding and channel.pad_max is not None:
            running = running & (run * padding <= channel.pad_max * operand.granule)
        run = np.where(running, run * extent, run)
        rows = np.where(running, rows, rows * extent)
        groups = groups + (~running & ~adjoins & (extent > 1))
        commands = np.where(~running & (groups > channel.dims - 1), commands * extent, commands)
        adjoins = ~running & whole
        # A row in a scope is as long as whole granules, and the next one begins after that.
        ends_row = operand.scope is not None and number == len(box.extents) - operand.adjoining
        running = running & whole & ((run % operand.granule == 0) if ends_row else True)
    cycles = channel.cost.cycles(np.maximum(rows, 1), run, padded)
    return Moving(np.ceil(cycles), np.ceil(np.maximum(commands, 1)))


# Many tiles


@dataclass
class Tiles:
    """Many tiles of a problem, one array for each dim, and what is true of them whatever the order of the loops."""

    problem: TileProblem
    """Of which they are tiles."""
    tile: list[Ints]
    """The size in every dim."""
    ones: Ints
    """A one for each tile."""

    @cached_property
    def times(self) -> dict[Hashable, NestTime]:
        """
        The nests of this problem that have been timed, by their tile, loops and slots. Those of a problem with scopes
        of other sizes, or with other slots asked for, are among them: it tries others, but they take as long.
        """
        return _times_of(self.problem.dims, self.problem.operands, self.problem.works)

    @cached_property
    def trips(self) -> list[Ints]:
        """How many tiles each dim is cut into."""
        return [-(-dim.extent // size) for dim, size in zip(self.problem.dims, self.tile, strict=True)]

    @cached_property
    def boxes(self) -> list[TileBox]:
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
        return [
            [moving(operand, box, channel, self._padded(operand, box, channel)) for channel in way]
            for operand, box, way in triples
        ]

    def _padded(self, operand: TileOperand, box: TileBox, channel: Channel) -> Ints | int:
        """The bytes of padding that the engine writes around a part: what the tile has, and the tensor has not."""
        if channel.padding is None or not channel.pad_max or operand.padding is None:
            return 0
        held = self.ones * operand.element_bytes
        for size in operand.part(self.tile):
            held = held * size
        return np.ceil(held - box.elements * operand.element_bytes)

    @cached_property
    def computing(self) -> list[Moving]:
        """The cycles of every op for one tile, and its commands: of an engine those of the transfer."""
        found: list[Moving] = []
        for work in self.problem.works:
            if work.channel is None:
                found.append(Moving(self.ones * work.cycles(self.tile), self.ones))
                continue
            number = moved_operand(self.problem, work)
            found.append(moving(self.problem.operands[number], self.boxes[number], work.channel))
        return found


@lru_cache(maxsize=32)
def _times_of(
    dims: tuple[TileDim, ...], operands: tuple[TileOperand, ...], works: tuple[TileOp, ...]
) -> dict[Hashable, NestTime]:
    return {}


def moved_operand(problem: TileProblem, work: TileOp) -> int:
    """The operand whose rows an engine moves that performs `work`: the one off chip, else the one that is written."""
    numbers = [*work.reads, work.writes]
    return next((number for number in numbers if problem.operands[number].scope is None), work.writes)


def level_of(operand: TileOperand, loops: Sequence[int]) -> int:
    """How many of the loops are around a fetch of the operand: up to the innermost one that it depends on."""
    dims = operand.dims
    for level in range(len(loops), 0, -1):
        if loops[level - 1] in dims:
            return level
    return 0


WAYS: tuple[Skewed, ...] = ("outer", "nested")
"""The loops that are skewed when a tile is timed."""


def time_of_tile(tiles: Tiles, index: int, loops: Sequence[int], depths: Mapping[str, int]) -> NestTime:
    """
    How long the nest of one of the tiles takes, its loops skewed or not, with so many slots in each scope for what is
    refilled.
    """
    slots: dict[str, int] = {}
    for number, operand in enumerate(tiles.problem.operands):
        if not is_refilled(operand, loops):
            continue
        slots[str(number)] = slots_of(operand, depths)
        for leaves, way in ((False, operand.fetch), (True, operand.put)):
            for hop, channel in enumerate(way[:-1]):
                slots[_between(number, hop, leaves=leaves)] = depths.get(channel.scope or "", 1)
    key = tuple(int(size[index]) for size in tiles.tile), tuple(loops), tuple(slots.items())
    if (known := tiles.times.get(key)) is not None:
        return known
    nest = tuple(_nest(tiles, index, loops))
    unskewed = time_of(nest, slots)
    found, seen = unskewed, [nest]
    for way in WAYS:
        if (other := skewed(nest, slots, way)) not in seen:
            seen.append(other)
            found = min(found, time_of(other, slots), key=lambda time: time.cycles)
    found = tiles.times[key] = replace(found, unskewed_cycles=unskewed.cycles)
    return found


def _nest(tiles: Tiles, index: int, loops: Sequence[int]) -> list[TimedStep | TimedLoop]:
    """The steps before, in and after every loop, in program order."""
    problem = tiles.problem
    inner = len(loops)
    outer = sum(problem.dims[dim].parallel for dim in loops)
    before: list[list[TimedStep | TimedLoop]] = [[] for _ in range(inner + 1)]
    after: list[list[TimedStep | TimedLoop]] = [[] for _ in range(inner + 1)]
    fetched: set[int] = set()
    opened: set[int] = set()
    anchored = not any(work.anchor for work in problem.works)
    for position, work in enumerate(problem.works):
        level = inner if work.anchor else outer
        anchored = anchored or work.anchor
        for number in (*work.reads, work.writes):
            operand = problem.operands[number]
            if operand.fetch and number not in fetched:
                fetched.add(number)
                opened.add(number)
                at = min(level, level_of(operand, loops))
                side = after if anchored and not work.anchor and at == outer < inner else before
                side[at] += _hops(tiles, index, number, leaves=False)
        step = _compute(tiles, index, position, opened)
        (before if work.anchor or not anchored or outer == inner else after)[level].append(step)
        opened.add(work.writes)
    for number, operand in enumerate(problem.operands):
        if operand.put:
            last = before if outer == inner else after
            last[min(outer, level_of(operand, loops))] += _hops(tiles, index, number, leaves=True)
    nest: list[TimedStep | TimedLoop] = [*before[inner], *after[inner]]
    for level in reversed(range(inner)):
        trips = int(tiles.trips[loops[level]][index])
        nest = [*before[level], TimedLoop(trips, tuple(nest)), *after[level]]
    return nest


def _leaves(problem: TileProblem, work: TileOp) -> bool:
    return problem.operands[work.writes].scope is None


def _transfer(
    channel: Channel,
    cost: Moving,
    index: int,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    *,
    opens: bool = True,
    leaves: bool = False,
) -> TimedStep:
    commands = int(cost.commands[index])
    cycles = ceil(float(cost.cycles[index]) / commands)
    return TimedStep(
        channel.unit,
        cycles,
        channel.bus,
        channel.latency,
        channel.outstanding,
        commands,
        reads,
        writes,
        writes if opens else (),
        leaves,
    )


def _hops(tiles: Tiles, index: int, number: int, *, leaves: bool) -> list[TimedStep]:
    """The transfers that bring a part of an operand, or take it away, one after the other."""
    operand = tiles.problem.operands[number]
    channels, costs = (operand.put, tiles.puts) if leaves else (operand.fetch, tiles.fetches)
    end = "" if leaves else str(number)
    places = [_between(number, hop, leaves=leaves) for hop in range(len(channels) - 1)]
    ends = zip([str(number) if leaves else "", *places], [*places, end], strict=True)
    steps: list[TimedStep] = []
    for (source, dest), channel, cost in zip(ends, channels, costs[number], strict=True):
        reads, writes = ((name,) if name else () for name in (source, dest))
        steps.append(_transfer(channel, cost, index, reads, writes, leaves=leaves))
    return steps


def _between(number: int, hop: int, *, leaves: bool) -> str:
    """The name of what an operand passes after a hop."""
    return f"{number}.out{hop}" if leaves else f"{number}.{hop}"


def _compute(tiles: Tiles, index: int, position: int, opened: set[int]) -> TimedStep:
    problem = tiles.problem
    work = problem.works[position]
    cost = tiles.computing[position]
    held = [number for number in work.reads if problem.operands[number].scope is not None]
    reads = tuple(str(number) for number in held)
    writes = (str(work.writes),) if problem.operands[work.writes].scope is not None else ()
    opens = work.writes not in opened
    if work.channel is not None:
        return _transfer(work.channel, cost, index, reads, writes, opens=opens, leaves=_leaves(problem, work))
    return TimedStep(work.unit, int(cost.cycles[index]), reads=reads, writes=writes, opens=writes if opens else ())


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


def bytes_moved(tiles: Tiles, counts: Sequence[Ints]) -> Ints:
    """The bytes over the edge of the chip, where each operand is needed so often."""
    moved = tiles.ones * 0.0
    for operand, box, count in zip(tiles.problem.operands, tiles.boxes, counts, strict=True):
        passes = int(operand.reads) + int(operand.writes)
        moved = moved + count * box.elements * (operand.element_bytes * passes)
    return moved


def picojoules(tiles: Tiles, loops: Sequence[int], counts: Sequence[Ints]) -> Ints:
    """
    The energy of transfers and ops, whatever the slots: all but leakage, which the time decides.

    What is counted is what `accel.dma` and `accel.exec` do (docs/energy.md), but for padding that a transfer writes.
    """
    problem, total = tiles.problem, tiles.ones * 0.0
    for operand, box, count in zip(problem.operands, tiles.boxes, counts, strict=True):
        each = sum(channel.picojoules for channel in (*operand.fetch, *operand.put))
        total = total + count * box.elements * (operand.element_bytes * each)
    for work in problem.works:
        times = tiles.ones * prod(
            (tiles.trips[dim] for dim in loops if work.anchor or problem.dims[dim].parallel), start=1.0
        )
        blocks = dict(work.blocks)
        total = total + times * prod((tiles.tile[dim] for dim in work.dims), start=work.picojoules)
        for number, each in work.touches:
            operand = problem.operands[number]
            if number == work.stationary:
                touched = prod(tiles.tile[dim] for dim in work.moving) * repeats_of(work.loops(tiles.tile))
            else:
                touched = prod(
                    tiles.tile[dim] if operand.depends_on(dim) else -(-tiles.tile[dim] // blocks.get(dim, 1))
                    for dim in work.dims
                )
            total = total + times * touched * (operand.element_bytes * each)
        if work.channel is not None:
            number = moved_operand(problem, work)
            carried = tiles.boxes[number].elements * problem.operands[number].element_bytes
            total = total + times * carried * work.channel.picojoules
    return total


@dataclass
class Estimates:
    """What all tiles of a grid are estimated to take under one order of the loops."""

    tiles: Tiles
    """The tiles."""
    loops: tuple[int, ...]
    """The dims that are cut, outermost first."""
    counts: list[Ints] = field(init=False)
    """How often each operand is fetched."""
    moved: Ints = field(init=False)
    """Bytes over the edge of the chip."""

    def __post_init__(self) -> None:
        self.counts = fetch_counts(self.tiles, self.loops)
        self.moved = bytes_moved(self.tiles, self.counts)
        self._transfers: list[tuple[int, Channel, Ints, Ints]] = []
        """The operand, the engine, how often, and how long the unit has to wait for one."""
        self._busy: dict[str, Ints] = {}
        self._occupied: dict[str, Ints] = {}
        """What units that move data cannot do without, however far transfers are in flight."""
        self._computing: dict[str, Ints] = {}
        self._ends: Ints = self.tiles.ones * 0.0
        self._add_transfers()
        self._add_works()

    def _add_transfers(self) -> None:
        operands = self.tiles.problem.operands
        for number, operand in enumerate(operands):
            ways = [*zip(operand.fetch, self.tiles.fetches[number], strict=True)]
            ways += [*zip(operand.put, self.tiles.puts[number], strict=True)]
            for channel, cost in ways:
                self._move(number, channel, cost)

    def _move(self, number: int, channel: Channel, cost: Moving) -> None:
        count, cycles = self.counts[number], cost.cycles
        once = np.maximum(cycles, (cycles + cost.commands * channel.latency) / channel.outstanding)
        self._add(f"unit {channel.unit}", count * once)
        if channel.bus is not None:
            self._add(f"bus {channel.bus}", count * cycles)
        occupied = count * (cycles + cost.commands * channel.latency) / channel.outstanding
        self._occupied[channel.unit] = self._occupied.get(channel.unit, 0) + occupied
        self._transfers.append((number, channel, count, once + (channel.latency if channel.outstanding > 1 else 0)))
        self._ends = self._ends + once

    def _add(self, resource: str, cycles: Ints) -> None:
        self._busy[resource] = self._busy.get(resource, 0) + cycles

    def _add_works(self) -> None:
        tiles, problem = self.tiles, self.tiles.problem
        parallel, every = tiles.ones, tiles.ones
        for dim in self.loops:
            every = every * tiles.trips[dim]
            if problem.dims[dim].parallel:
                parallel = parallel * tiles.trips[dim]
        for work, cost in zip(problem.works, tiles.computing, strict=True):
            times = every if work.anchor else parallel
            if work.channel is not None:
                held = [number for number in work.reads if problem.operands[number].scope is not None]
                number = work.writes if problem.operands[work.writes].scope is not None else (held or [work.writes])[0]
                self._move(number, work.channel, cost)
                continue
            self._add(f"unit {work.unit}", times * cost.cycles)
            self._computing[work.unit] = self._computing.get(work.unit, 0) + times * cost.cycles

    def fits(self, depths: Mapping[str, int]) -> Ints:
        """Which tiles fit with so many slots for what is refilled."""
        tiles, found = self.tiles, self.tiles.ones > 0
        for scope, capacity in tiles.problem.capacity.items():
            used = tiles.ones * 0
            for operand, held, count in zip(tiles.problem.operands, tiles.held, self.counts, strict=True):
                if operand.scope == scope:
                    used = used + held * np.where(count > 1, slots_of(operand, depths), 1)
            found = found & (used <= capacity)
        return found

    def cycles(self, depths: Mapping[str, int]) -> Ints:
        """What the busiest resource needs, or ops and transfers where there is one slot, and the two ends."""
        operands = self.tiles.problem.operands
        computing = self.tiles.ones * 0.0
        for cycles in self._computing.values():
            computing = np.maximum(computing, cycles)
        exposed = self.tiles.ones * 0.0
        levels = [level_of(operand, self.loops) for operand in operands]
        for number, channel, count, once in self._transfers:
            if depths.get(operands[number].scope or "", 1) < 2:
                exposed = exposed + np.where(count > 1, (count - 1) * once, 0)
                continue
            for other, beside, often, _ in self._transfers:
                # A transfer of an outer loop holds up those of the inner ones, which are only so far ahead.
                together = beside.unit == channel.unit or (channel.bus is not None and beside.bus == channel.bus)
                if together and levels[other] > levels[number]:
                    slack = depths.get(operands[other].scope or "", 1) * computing / np.maximum(often, 1)
                    exposed = exposed + np.where((count > 1) & (often > count), (count - 1) * (once - slack), 0).clip(0)
        total = computing + exposed
        for cycles in self._busy.values():
            total = np.maximum(total, cycles)
        return total + self._ends

    @cached_property
    def picojoules(self) -> Ints:
        """The energy of all but leakage."""
        return picojoules(self.tiles, self.loops, self.counts)

    def bound(self) -> Ints:
        """
        Cycles that no number of slots that may be tried goes below: what each unit and bus is asked for, and the ops
        that reduce with the fetches that the first of them needs before and the last store behind them. With one slot
        none of these ops runs while a unit fetches what it reads.
        """
        problem, least = self.tiles.problem, self.tiles.ones * 0.0
        for name, cycles in self._busy.items():
            if name.startswith("bus "):
                least = np.maximum(least, cycles)
        for cycles in (*self._occupied.values(), *self._computing.values()):
            least = np.maximum(least, cycles)
        for work, cost in zip(problem.works, self.tiles.computing, strict=True):
            if not work.anchor or work.channel is not None:
                continue
            times = prod((self.tiles.trips[dim] for dim in self.loops), start=self.tiles.ones)
            fetches = [self._once(problem.operands[n].fetch, self.tiles.fetches[n]) for n in work.reads]
            puts = [self._once(o.put, self.tiles.puts[n]) for n, o in enumerate(problem.operands)]
            ends = (np.max([*each, least * 0], axis=0) for each in (fetches, puts))
            least = np.maximum(least, sum(ends, times * cost.cycles))
            if problem.depth == 1:
                fetching: dict[str, Ints] = {}
                for n in {n for n in work.reads if problem.operands[n].fetch}:
                    unit, cycles = problem.operands[n].fetch[-1].unit, self.tiles.fetches[n][-1].cycles
                    fetching[unit] = fetching.get(unit, 0) + self.counts[n] * cycles
                for cycles in fetching.values():
                    least = np.maximum(least, cycles + times * cost.cycles)
        return least

    def _once(self, way: Sequence[Channel], costs: Sequence[Moving]) -> Ints:
        """What one transfer through all of a way takes at least."""
        return sum((c.latency + m.cycles for c, m in zip(way, costs, strict=True)), self.tiles.ones * 0.0)
