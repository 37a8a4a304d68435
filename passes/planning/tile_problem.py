# SPDX-License-Identifier: Apache-2.0
"""
What a tiler is asked: a domain, its operands, what computes on it, and the machine as far as that is needed.

Everything is plain data. An intrinsic cuts a dim into blocks whose extents lie in a range, or are fixed; the last
block is what is left. A tile must be cut into permitted blocks. Where the dim itself cannot be, its last tile overlaps
the one before, reads zeros after the end (a reduction), or, where the whole dim is shorter than a block, the tile is
longer than the dim.

1. `TileDim`, `tile_sizes`: the dims of the domain, and the sizes of each that are worth trying.
2. `TileProblem`: the domain, its operands and ops, and the scopes.
3. `held_bytes`, `is_refilled`, `slots_of`: what the part of an operand takes in its scope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, isqrt, lcm, log, prod
from typing import Any

from numpy.typing import NDArray

from penstock.dialects.cycles import Cycles, Loop, Timing, loops_of
from penstock.passes.planning.pipelining import TransferCost

Ints = NDArray[Any]
"""Numbers of many tiles at once: one element for each."""

COMPUTED_SLOTS = 2
"""The most slots of what is computed in a scope: one is emptied while the next fills."""
MAX_SIZES_PER_DIM = 32
"""How many tile sizes of one dim are tried: enough that the best of them is near the best of all."""


@dataclass(frozen=True)
class TileDim:
    """A dim of the domain that is tiled."""

    extent: int
    """Its size."""
    parallel: bool
    """Whether its iterations are independent; a reduction otherwise."""
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


class NoEnergy(NoTile):
    """A tiler asks for energy, and the problem says nothing of it."""


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


@dataclass(frozen=True)
class Channel:
    """An engine on the way between off chip and a scope."""

    unit: str
    """The unit whose stream its transfers are in."""
    bus: str | None = None
    """What one transfer at a time occupies; None for an engine without one."""
    rate: tuple[int, int] = (1, 1)
    """Bytes in so many cycles."""
    latency: int = 0
    """Cycles from the start of a transfer to its request for the bus."""
    row_overhead: int = 0
    """Cycles for each row of a transfer, besides its bytes."""
    outstanding: int = 1
    """Transfers that it can have in flight."""
    dims: int = 2
    """Of a descriptor, the bytes of a row being one."""
    pad_max: int | None = None
    """Entries of padding that it puts on a side of a row."""
    scope: str | None = None
    """Where it puts things; None off chip."""
    picojoules: float = 0.0
    """Of a byte that it moves; of an engine that computes on the way, without what the op touches."""
    burst: tuple[int, int] | None = None
    """The bytes of the bursts that rows are cut into, and the cycles that each takes besides them."""
    padding: tuple[int, int] | None = None
    """Bytes of padding in so many cycles; None where it takes no time."""

    @property
    def cost(self) -> TransferCost:
        """How long a transfer occupies its bus."""
        return TransferCost(self.rate, self.row_overhead, self.burst, self.padding)


@dataclass(frozen=True)
class TileOperand:
    """An operand of the nest: where its part is held, and how the dims index it."""

    name: str = field(compare=False)
    """For people: plans are the same whatever operands are called."""
    scope: str | None
    """The scope that holds the part of one tile; None if it is streamed past (a DMA that computes on the way)."""
    element_bytes: int
    """Bytes of an element."""
    indices: tuple[tuple[int, ...], ...]
    """For each of its own dims, the coefficient of each dim of the domain."""
    granule: int = 1
    """Bytes that a row in the scope is a multiple of."""
    adjoining: int = 1
    """How many of its last dims are one row, without gaps."""
    reads: bool = True
    """Whether what it holds before is read."""
    writes: bool = False
    """Whether it is written."""
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
    """The unit that computes it, or the one in whose stream the engine is."""
    dims: tuple[int, ...]
    """The dims of the domain that it iterates."""
    reads: tuple[int, ...]
    """Operands, by number."""
    writes: int
    """The operand that it writes, by number."""
    interval: int | Cycles = 1
    """Cycles from one application to the next; an expression names the dims in the order of `dims`."""
    depth: int = 0
    """Cycles that it takes beyond its applications."""
    blocks: tuple[tuple[int, int], ...] = ()
    """For a dim of the domain, the extent that one application takes of it."""
    channel: Channel | None = None
    """The engine, if one performs it; it costs what the transfer does."""
    anchor: bool = False
    """Whether it is the op that reduces: it stands inside all loops, others inside the parallel ones."""
    picojoules: float = 0.0
    """Of the operations of one point of its domain."""
    touches: tuple[tuple[int, float], ...] = ()
    """The operands that every application touches, by number, and the picojoules of a byte: read, written, or both."""
    stationary: int | None = None
    """The operand of which the unit keeps a block while it is reused, by number."""
    load: int | Cycles | None = None
    """Cycles to load a block of it."""
    moving: tuple[int, ...] = ()
    """The dims that move through it; others that move through the result are inside of all loops."""
    parallel: tuple[int, ...] = ()
    """The dims that move through the result."""

    def loops(self, tile: Sequence[int | Ints]) -> tuple[Loop, ...]:
        """The domain of one tile in blocks, as a command iterates over it."""
        blocks = dict(self.blocks)
        return loops_of(
            [tile[dim] for dim in self.dims],
            [(place, blocks[dim]) if dim in blocks else (None, 1) for place, dim in enumerate(self.dims)],
            [dim in self.moving for dim in self.dims],
            [dim in self.parallel for dim in self.dims],
        )

    def cycles(self, tile: Sequence[int | Ints]) -> int | Ints:
        """What a unit takes for one tile: what it keeps is loaded anew for each."""
        return self.depth + Timing(self.interval, self.load).cycles(self.loops(tile))


@dataclass(frozen=True)
class TileProblem:
    """A domain, its operands, the bytes of each scope, and what is computed, in program order."""

    dims: tuple[TileDim, ...]
    """The dims of the domain."""
    operands: tuple[TileOperand, ...]
    """What is read and written."""
    capacity: Mapping[str, int]
    """Bytes of each scope that tiles may take, by its name."""
    works: tuple[TileOp, ...] = ()
    """What is computed for every tile, in program order."""
    depth: int | None = None
    """The slots that each scope has for what a loop refills, where a person gave them; None: as many as pay."""
    leakage: float | None = None
    """Picojoules of every cycle; None where nothing is known of the energy that the machine takes."""


def held_bytes(operand: TileOperand, tile: Sequence[int | Ints]) -> int | Ints:
    """The bytes of its scope that the part of one tile takes, row pitch included."""
    part = operand.part(tile)
    if not part:
        return max(operand.element_bytes, operand.granule)
    row = -(-(prod(part[-operand.adjoining :]) * operand.element_bytes) // operand.granule) * operand.granule
    return row * prod(part[: -operand.adjoining])


def is_refilled(operand: TileOperand, loops: Sequence[int]) -> bool:
    """Whether a loop needs another part of the operand in every iteration."""
    return operand.scope is not None and not operand.dims.isdisjoint(loops)


def slots_of(operand: TileOperand, depths: Mapping[str, int]) -> int:
    """The slots of an operand that is refilled: what is computed has two at most, however far fetches run ahead."""
    count = depths.get(operand.scope or "", 1)
    return count if operand.fetch or (operand.reads and not operand.writes) else min(count, COMPUTED_SLOTS)
