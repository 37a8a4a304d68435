"""
What the planner of tiles knows of a kernel and its machine, and what the transfers and ops of one tile cost.

Everything is plain data. Costs are computed for many tiles at once: a tile is one array for each dim, whose elements
are its sizes. A transfer costs what the cycle semantics say: its rows are those of a descriptor that merges dims
without gaps, each takes its bytes at the rate of the bus, rounded up, and an overhead; what a descriptor has too few
dims for is more commands, each with its latency. What hangs over the edge of a tensor is not transferred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.tile_sizes import Dim

Ints = NDArray[Any]

WINDOWS = 1 << 12
"""The positions of a window along one dim that are looked at one by one; with more its mean length is its length."""


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
class Operand:
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
    """What of `bounds` before and behind each dim is not there, and is not transferred."""
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
class Work:
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

    dims: tuple[Dim, ...]
    operands: tuple[Operand, ...]
    capacity: Mapping[str, int]
    works: tuple[Work, ...] = ()


def held_bytes(operand: Operand, tile: Sequence[int | Ints]) -> int | Ints:
    """The bytes of its scope that the part of one tile takes, row pitch included."""
    part = operand.part(tile)
    if not part:
        return max(operand.element_bytes, operand.granule)
    row = -(-(prod(part[-operand.adjoining :]) * operand.element_bytes) // operand.granule) * operand.granule
    return row * prod(part[: -operand.adjoining])


@dataclass(frozen=True)
class Box:
    """What one transfer of an operand moves: means over the tiles, where windows hang over edges."""

    elements: Ints
    extents: list[Ints]
    """Inside the tensor, of each of its dims."""
    whole: list[Ints]
    """Whether a dim is taken whole, and without padding: the next one then adjoins without a gap."""


def box_of(operand: Operand, dims: Sequence[Dim], tile: Sequence[Ints], ones: Ints) -> Box:
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
    return Box(elements, extents, whole)


def _mean_length(
    row: tuple[int, ...], dims: Sequence[Dim], tile: Sequence[Ints], bound: int, low: int, high: int, ones: Ints
) -> Ints:
    """The mean number of elements along one dim of an operand that its windows have inside the tensor."""
    moving = [dim for dim, coefficient in enumerate(row) if coefficient]
    if not moving:
        return ones.astype(np.float64)
    sizes = np.stack([tile[dim] for dim in moving])
    distinct, where = np.unique(sizes, axis=1, return_inverse=True)
    lengths = [_exact_mean(row, dims, moving, [int(s) for s in column], bound, low, high) for column in distinct.T]
    return np.array(lengths)[where.reshape(-1)]


def _exact_mean(
    row: tuple[int, ...], dims: Sequence[Dim], moving: list[int], sizes: list[int], bound: int, low: int, high: int
) -> float:
    length = 1 + sum(row[dim] * (size - 1) for dim, size in zip(moving, sizes, strict=True))
    length = min(length, bound) if all(s >= dims[d].extent for d, s in zip(moving, sizes, strict=True)) else length
    if prod(-(-dims[dim].extent // size) for dim, size in zip(moving, sizes, strict=True)) > WINDOWS:
        return min(length, bound - low - high)
    starts = [_starts(dims[dim], size, row[dim]) for dim, size in zip(moving, sizes, strict=True)]
    inside = [
        max(0, min(sum(at) + length - low, bound - low - high) - max(sum(at) - low, 0)) for at in product(*starts)
    ]
    return sum(inside) / len(inside)


def _starts(dim: Dim, size: int, coefficient: int) -> list[int]:
    """Where along an operand the tiles of a dim begin; a parallel one is shifted inwards at the end."""
    starts = range(0, dim.extent, size)
    last = max(0, dim.extent - size) if dim.parallel else dim.extent
    return [coefficient * min(start, last) for start in starts]


@dataclass(frozen=True)
class Moving:
    """What one transfer costs: cycles on its bus, and the commands that it takes."""

    cycles: Ints
    commands: Ints


def moving(operand: Operand, box: Box, channel: Channel) -> Moving:
    """What it costs to move one part of an operand through an engine."""
    size, cycles = channel.rate
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
        # A row in a scope is as long as whole granules, and the next one begins behind that.
        ends_row = operand.scope is not None and number == len(box.extents) - operand.adjoining
        running = running & whole & ((run % operand.granule == 0) if ends_row else True)
    each = np.ceil(run * cycles / size) + channel.row_overhead
    return Moving(np.ceil(np.maximum(rows, 1) * each), np.ceil(np.maximum(commands, 1)))
