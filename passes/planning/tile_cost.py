"""
What a tile of a kernel costs: its transfers and ops, the nest of loops that it makes, and an estimate of many at once.

Everything is plain data. Costs are computed for many tiles at once: a tile is one array for each dim, whose elements
are its sizes. A transfer costs what the cycle semantics say: its rows are those of a descriptor that merges dims
without gaps, each takes its bytes at the rate of the bus, rounded up, and an overhead; what a descriptor has too few
dims for is more commands, each with its latency. What is out of the bounds of a tensor is not transferred.

An intrinsic cuts a dim into blocks whose extents lie in a range, or are fixed; the last block is what is left. A tile
must be cut into permitted blocks. Where the dim itself cannot be, its last tile overlaps the one before, reads zeros
after the end (a reduction), or, where the whole dim is shorter than a block, the tile is longer than the dim.

1. `TileDim`, `tile_sizes`: the dims of the domain, and the sizes of each that are worth trying.
2. `TileProblem`: the domain, its operands and ops, and the machine as far as they need it.
3. `Tiles`: what is true of tiles whatever the order of the loops.
4. `Estimates`: what tiles take under one order of the loops, to rank them.
5. `time_of_tile`: how long the nest of one tile takes, as `pipelining` times it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, isqrt, lcm, log, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.pipelining import NestTime, TimedLoop, TimedStep, time_of, transfer_cycles

MAX_SIZES_PER_DIM = 32
"""How many tile sizes of one dim are tried: enough that the best of them is near the best of all."""


@dataclass(frozen=True)
class TileDim:
    """A dim of the domain that is tiled."""

    extent: int
    parallel: bool
    step: int = 1
    """The intrinsic's own extent in this dim: sizes that are multiples of it waste nothing."""
    runs_past_end: bool = False
    """A reduction whose last tile may read zeros after its end."""
    whole: bool = False
    """Never cut: the window of a convolution, or a dim that a user wants whole."""
    blocks: tuple[tuple[int, int], ...] = ()
    """The least and the largest extent of a block, for every intrinsic that cuts this dim."""

    def takes(self, size: int) -> bool:
        """Whether a tile of that size is cut into permitted blocks."""
        return all((size - 1) % most + 1 >= least for least, most in self.blocks)

    def next_size(self, size: int) -> int:
        """The least size from `size` on that is cut into permitted blocks."""
        # Whole blocks of the largest extent are always permitted.
        period = lcm(*(most for _, most in self.blocks))
        return next(each for each in range(size, size + period) if self.takes(each))


class NoTile(Exception):
    """No tile of a kernel is cut into the blocks of the machine."""


def tile_sizes(dim: TileDim, number: int = 0) -> list[int]:
    """
    The sizes worth trying, ascending. A dim is cut where the tiles come out nearly equal, since the last one may
    overlap, or read zeros; a reduction that may not run past its end only where the tile divides it.

    Raises NoTile for dim `number` where no size will do.
    """
    extent = dim.extent
    filled = dim.next_size(extent)
    if dim.whole or extent == 1:
        sizes = [filled]
    elif not dim.parallel and not dim.runs_past_end:
        sizes = _thin([size for size in _divisors(extent) if dim.takes(size)])
    else:
        even = {*_even_sizes(extent), *_divisors(extent)}
        stepped = {min(extent, ceil(size / dim.step) * dim.step) for size in even} | {1, extent}
        rounded = {dim.next_size(size) for size in stepped}
        last = extent if dim.parallel else filled
        sizes = _thin(sorted(size for size in rounded if size <= last)) or [filled]
    if not dim.parallel and not dim.runs_past_end and (not sizes or sizes[-1] > extent):
        raise NoTile(
            f"the reduction d{number} of {extent} is not cut into blocks of {_names(dim.blocks)}, and elements "
            "after its end would count"
        )
    return sizes


def given_size(dim: TileDim, size: int, number: int) -> int:
    """
    The size of a tile that a person gives: the whole of a dim, filled up to whole blocks, if it is larger.

    Raises ValueError for what is no tile.
    """
    if size < 1:
        raise ValueError(f"tile size {size} of dim {number} is not positive")
    if size >= dim.extent:
        filled = dim.next_size(dim.extent)
        if filled > dim.extent and not dim.parallel and not dim.runs_past_end:
            raise ValueError(f"dim {number} of {dim.extent} is not cut into blocks of {_names(dim.blocks)}")
        return filled
    if not dim.parallel and not dim.runs_past_end and dim.extent % size:
        raise ValueError(f"tile size {size} does not divide the reduction dim {number} of {dim.extent}")
    if not dim.takes(size):
        raise ValueError(f"tile size {size} of dim {number} is not cut into blocks of {_names(dim.blocks)}")
    return size


def _names(blocks: Sequence[tuple[int, int]]) -> str:
    return " and ".join(str(least) if least == most else f"{least} to {most}" for least, most in blocks)


def _divisors(extent: int) -> list[int]:
    """Ascending."""
    low = [size for size in range(1, isqrt(extent) + 1) if extent % size == 0]
    return low + [extent // size for size in reversed(low) if size * size != extent]


def _even_sizes(extent: int) -> set[int]:
    """`ceil(extent / pieces)` for every number of pieces: there are about twice the root of the extent."""
    # That is `(extent - 1) // pieces + 1`, and a quotient or its divisor is at most the root.
    low = range(1, isqrt(extent - 1) + 1)
    return {1, extent} | {size + 1 for size in low} | {(extent - 1) // pieces + 1 for pieces in low}


def thinned(choices: Sequence[list[int]], most: int) -> list[list[int]]:
    """The sizes of all dims, those of the dims with the most thinned out until at most `most` tiles can be made."""
    found = list(choices)
    while prod(map(len, found)) > most and max(map(len, found)) > 2:
        longest = max(range(len(found)), key=lambda dim: len(found[dim]))
        found[longest] = _thin(found[longest], len(found[longest]) - 1)
    return found


def _thin(sizes: list[int], most: int = MAX_SIZES_PER_DIM) -> list[int]:
    """At most so many of the sizes, spread evenly over their logarithms, both ends kept."""
    if len(sizes) <= most:
        return sizes
    ratio = (sizes[-1] / sizes[0]) ** (1 / (most - 1))
    wanted = [sizes[0] * ratio**step for step in range(most)]
    return sorted({min(sizes, key=lambda size, w=w: abs(log(size / w))) for w in wanted})


Ints = NDArray[Any]

MAX_WINDOWS = 1 << 12
"""The positions of a window along one dim that are looked at one by one; with more its mean length is its length."""
COMPUTED_SLOTS = 2
"""The most slots of what is computed in a scope: one is emptied while the next fills."""


@dataclass(frozen=True)
class Channel:
    """An engine on the way between off chip and a scope."""

    unit: str
    bus: str | None = None
    rate: tuple[int, int] = (1, 1)
    """Bytes in so many cycles."""
    latency: int = 0
    row_overhead: int = 0
    outstanding: int = 1
    dims: int = 2
    """Of a descriptor, the bytes of a row being one."""
    pad_max: int | None = None
    """Entries of padding that it puts on a side of a row."""
    scope: str | None = None
    """Where it puts things; None off chip."""


@dataclass(frozen=True)
class TileOperand:
    """An operand of the nest: where its part is held, and how the dims index it."""

    name: str = field(compare=False)
    """For people: plans are the same whatever operands are called."""
    scope: str | None
    """The scope that holds the part of one tile; None if it is streamed past (a DMA that computes on the way)."""
    element_bytes: int
    indices: tuple[tuple[int, ...], ...]
    """For each of its own dims, the coefficient of each dim of the domain."""
    granule: int = 1
    """Bytes that a row in the scope is a multiple of."""
    adjoining: int = 1
    """How many of its last dims are one row, without gaps."""
    reads: bool = True
    writes: bool = False
    bounds: tuple[int, ...] | None = None
    """Its shape, padding included, where a part cannot be larger than the whole."""
    padding: tuple[tuple[int, int], ...] | None = None
    """What of `bounds` before and after each dim is not there, and is not transferred."""
    fetch: tuple[Channel, ...] = ()
    """The engines that bring a part, one after the other; none where an op does, or nothing."""
    put: tuple[Channel, ...] = ()
    """The engines that take it away."""

    def part(self, tile: Sequence[int | Ints]) -> list[int | Ints]:
        """The extent of each of its dims that one tile touches."""
        return [1 + sum(c * (t - 1) for c, t in zip(row, tile, strict=True) if c) for row in self.indices]

    @cached_property
    def dims(self) -> frozenset[int]:
        """The dims of the domain that it moves through."""
        return frozenset(dim for row in self.indices for dim, coefficient in enumerate(row) if coefficient)

    def depends_on(self, dim: int) -> bool:
        return dim in self.dims


@dataclass(frozen=True)
class TileOp:
    """An op that is computed for every tile: by a unit, or by an engine on the way."""

    unit: str
    dims: tuple[int, ...]
    """The dims of the domain that it iterates."""
    reads: tuple[int, ...]
    """Operands, by number."""
    writes: int
    interval: int = 1
    depth: int = 0
    blocks: tuple[tuple[int, int], ...] = ()
    """For a dim of the domain, the extent that one application takes of it."""
    channel: Channel | None = None
    """The engine, if one performs it; it costs what the transfer does."""
    anchor: bool = False
    """Whether it is the op that reduces: it stands inside all loops, others inside the parallel ones."""

    def iterations(self, tile: Sequence[int | Ints]) -> int | Ints:
        """The applications that one tile takes."""
        blocks = dict(self.blocks)
        return prod(-(-tile[dim] // blocks.get(dim, 1)) for dim in self.dims)


@dataclass(frozen=True)
class TileProblem:
    """A domain, its operands, the bytes of each scope, and what is computed, in program order."""

    dims: tuple[TileDim, ...]
    operands: tuple[TileOperand, ...]
    capacity: Mapping[str, int]
    works: tuple[TileOp, ...] = ()


def held_bytes(operand: TileOperand, tile: Sequence[int | Ints]) -> int | Ints:
    """The bytes of its scope that the part of one tile takes, row pitch included."""
    part = operand.part(tile)
    if not part:
        return max(operand.element_bytes, operand.granule)
    row = -(-(prod(part[-operand.adjoining :]) * operand.element_bytes) // operand.granule) * operand.granule
    return row * prod(part[: -operand.adjoining])


@dataclass(frozen=True)
class TileBox:
    """What one transfer of an operand moves: means over the tiles, where windows are out of bounds."""

    elements: Ints
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
    commands: Ints


def moving(operand: TileOperand, box: TileBox, channel: Channel) -> Moving:
    """What it costs to move one part of an operand through an engine."""
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
    cycles = transfer_cycles(np.maximum(rows, 1), run, channel.rate, channel.row_overhead)
    return Moving(np.ceil(cycles), np.ceil(np.maximum(commands, 1)))


# Many tiles


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
        return [[moving(operand, box, channel) for channel in way] for operand, box, way in triples]

    @cached_property
    def computing(self) -> list[Moving]:
        """The cycles of every op for one tile, and its commands: of an engine those of the transfer."""
        found: list[Moving] = []
        for work in self.problem.works:
            if work.channel is None:
                found.append(Moving(self.ones * (work.depth + work.interval * work.iterations(self.tile)), self.ones))
                continue
            number = moved_operand(self.problem, work)
            found.append(moving(self.problem.operands[number], self.boxes[number], work.channel))
        return found


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


def is_refilled(operand: TileOperand, loops: Sequence[int]) -> bool:
    """Whether a loop needs another part of the operand in every iteration."""
    return operand.scope is not None and not operand.dims.isdisjoint(loops)


def slots_of(operand: TileOperand, depths: Mapping[str, int]) -> int:
    """The slots of an operand that is refilled: what is computed has two at most, however far fetches run ahead."""
    count = depths.get(operand.scope or "", 1)
    return count if operand.fetch or (operand.reads and not operand.writes) else min(count, COMPUTED_SLOTS)


def time_of_tile(tiles: Tiles, index: int, loops: Sequence[int], depths: Mapping[str, int]) -> NestTime:
    """How long the nest of one of the tiles takes, with so many slots in each scope for what is refilled."""
    slots: dict[str, int] = {}
    for number, operand in enumerate(tiles.problem.operands):
        if not is_refilled(operand, loops):
            continue
        slots[str(number)] = slots_of(operand, depths)
        for leaves, way in ((False, operand.fetch), (True, operand.put)):
            for hop, channel in enumerate(way[:-1]):
                slots[_between(number, hop, leaves=leaves)] = depths.get(channel.scope or "", 1)
    return time_of(_nest(tiles, index, loops), slots)


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
                side = after if anchored and not work.anchor and at == outer < inner else before
                side[at] += _hops(tiles, index, number, shared, leaves=False)
        step = _compute(tiles, index, position, opened, shared)
        (before if work.anchor or not anchored or outer == inner else after)[level].append(step)
        opened.add(work.writes)
    for number, operand in enumerate(problem.operands):
        if operand.put:
            last = before if outer == inner else after
            last[min(outer, level_of(operand, loops))] += _hops(tiles, index, number, shared, leaves=True)
    nest: list[TimedStep | TimedLoop] = [*before[inner], *after[inner]]
    for level in reversed(range(inner)):
        trips = int(tiles.trips[loops[level]][index])
        if len(nest) == 1 and isinstance(nest[0], TimedLoop):
            trips, nest = trips * nest[0].trips, list(nest[0].body)
        nest = [*before[level], TimedLoop(trips, tuple(nest)), *after[level]]
    return nest


def _shared_units(problem: TileProblem) -> frozenset[str]:
    """The units that only move data, in both directions: their loops are skewed, so that stores hold up no loads."""
    into = {channel.unit for operand in problem.operands for channel in operand.fetch}
    out = {channel.unit for operand in problem.operands for channel in operand.put}
    out |= {work.channel.unit for work in problem.works if work.channel is not None and _leaves(problem, work)}
    return frozenset((into & out) - {work.unit for work in problem.works if work.channel is None})


def _leaves(problem: TileProblem, work: TileOp) -> bool:
    return problem.operands[work.writes].scope is None


def _transfer(
    channel: Channel,
    cost: Moving,
    index: int,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    stream: str | None,
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
        stream,
        leaves,
    )


def _hops(tiles: Tiles, index: int, number: int, shared: frozenset[str], *, leaves: bool) -> list[TimedStep]:
    """The transfers that bring a part of an operand, or take it away, one after the other."""
    operand = tiles.problem.operands[number]
    channels, costs = (operand.put, tiles.puts) if leaves else (operand.fetch, tiles.fetches)
    way, end = ("out", "") if leaves else ("in", str(number))
    places = [_between(number, hop, leaves=leaves) for hop in range(len(channels) - 1)]
    ends = zip([str(number) if leaves else "", *places], [*places, end], strict=True)
    steps: list[TimedStep] = []
    for (source, dest), channel, cost in zip(ends, channels, costs[number], strict=True):
        stream = f"{channel.unit} {way}" if channel.unit in shared else None
        reads, writes = ((name,) if name else () for name in (source, dest))
        steps.append(_transfer(channel, cost, index, reads, writes, stream, leaves=leaves))
    return steps


def _between(number: int, hop: int, *, leaves: bool) -> str:
    """The name of what an operand passes after a hop."""
    return f"{number}.out{hop}" if leaves else f"{number}.{hop}"


def _compute(tiles: Tiles, index: int, position: int, opened: set[int], shared: frozenset[str]) -> TimedStep:
    problem = tiles.problem
    work = problem.works[position]
    cost = tiles.computing[position]
    held = [number for number in work.reads if problem.operands[number].scope is not None]
    reads = tuple(str(number) for number in held)
    writes = (str(work.writes),) if problem.operands[work.writes].scope is not None else ()
    opens = work.writes not in opened
    if work.channel is not None:
        leaves = _leaves(problem, work)
        stream = f"{work.channel.unit} {'out' if leaves else 'in'}" if work.channel.unit in shared else None
        return _transfer(work.channel, cost, index, reads, writes, stream, opens=opens, leaves=leaves)
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


@dataclass
class Estimates:
    """What all tiles of a grid are estimated to take under one order of the loops."""

    tiles: Tiles
    loops: tuple[int, ...]
    counts: list[Ints] = field(init=False)
    moved: Ints = field(init=False)
    """Bytes over the edge of the chip."""

    def __post_init__(self) -> None:
        problem = self.tiles.problem
        self.counts = fetch_counts(self.tiles, self.loops)
        self.moved = self.tiles.ones * 0.0
        for operand, box, count in zip(problem.operands, self.tiles.boxes, self.counts, strict=True):
            passes = int(operand.reads) + int(operand.writes)
            self.moved = self.moved + count * box.elements * (operand.element_bytes * passes)
        self._transfers: list[tuple[int, Channel, Ints, Ints]] = []
        """The operand, the engine, how often, and how long the unit has to wait for one."""
        self._busy: dict[str, Ints] = {}
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
