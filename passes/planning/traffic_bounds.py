# SPDX-License-Identifier: Apache-2.0
"""
What the off-chip traffic of a contraction is measured by: the square-root bound, and the best tiling of one level.

A contraction is plain data here. Nothing is shared with the planner of tiles, which is judged by this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, permutations, product
from math import isqrt, prod

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Counter = Callable[["OperandIndex", Sequence[int]], int]
"""A number for an index and the sizes of a tile in its dims."""


@dataclass(frozen=True)
class OperandIndex:
    """One index of an operand: `first` + the sum of coefficient x dim, of which [0, bound) exists off chip."""

    terms: tuple[tuple[int, int], ...]
    """(dim, coefficient), coefficients positive, of the dims that are longer than 1."""
    first: int = 0
    """Negative where a window begins in the padding."""
    bound: int = 1 << 62


@dataclass(frozen=True)
class ContractionOperand:
    """An input of a contraction, or its output."""

    name: str
    scope: str
    indices: tuple[OperandIndex, ...]
    held_bytes: int
    """Of an element on chip."""
    moved_bytes: int
    """Of an element off chip; 0 for the output, whose traffic no tiling changes."""
    granule: int = 1
    """Of the scope, in bytes."""
    adjoining: int = 1
    """How many of the last indices are one block without gaps, which fills whole granules."""

    @property
    def dims(self) -> frozenset[int]:
        """The dims that it depends on."""
        return frozenset(dim for index in self.indices for dim, _ in index.terms)


@dataclass(frozen=True)
class ContractionKernel:
    """Products summed over a domain, as the only thing of weight that a kernel does."""

    extents: tuple[int, ...]
    parallel: tuple[bool, ...]
    operands: tuple[ContractionOperand, ...]
    """The two inputs, then the output."""
    blocks: Mapping[int, int]
    """The extent of one application of the intrinsic, by dim: tiles are multiples of it where the dim is."""
    fixed_bytes: int
    """What else is moved once in every tiling: the output, biases, residuals."""

    @property
    def macs(self) -> int:
        return prod(self.extents)

    @property
    def compulsory(self) -> int:
        """The bytes that every schedule moves: each element of an input that is used once, and what is fixed."""
        total = self.fixed_bytes
        for operand in self.operands:
            used = prod(len(_values_inside(index, self.extents)) for index in operand.indices)
            total += used * operand.moved_bytes
        return total


# the square-root bound


@dataclass(frozen=True)
class SquareRoot:
    """Bytes that follow from the size of the memory."""

    bytes: int
    is_bound: bool
    """Whether no schedule can move fewer; otherwise an asymptotic estimate."""


def square_root(contraction: ContractionKernel, words: int, width: int) -> SquareRoot | None:
    """
    The traffic that `words` elements of memory enforce, the smallest of which has `width` bytes.

    For a matrix product 2MNK / sqrt(S) - 2S elements, below which no schedule comes (Smith, Lowery, Langou and van de
    Geijn, 2019). For a convolution about 2 MACs / sqrt(RS) + outputs, where R is how often windows share an input
    (Chen, Han, Wang, Yang and Yang, HPCA 2020), which holds asymptotically. None for what is neither.
    """
    if words < 1 or len(contraction.operands) != 3:
        return None
    users = [
        frozenset(n for n, operand in enumerate(contraction.operands) if dim in operand.dims)
        for dim in _long(contraction)
    ]
    if any(len(each) < 2 for each in users):
        return None
    batch = prod(size for dim, size in _extents(contraction) if all(dim in o.dims for o in contraction.operands))
    shared = _window_reuse(contraction)
    if shared is None:
        # 2MNK / sqrt(S), rounded down, without leaving the integers.
        whole = isqrt((2 * contraction.macs // batch) ** 2 // words)
        return SquareRoot(max(batch * (whole - 2 * words), 0) * width, True)
    outputs = prod(size for dim, size in _extents(contraction) if contraction.parallel[dim])
    share, of = shared
    return SquareRoot((isqrt((2 * contraction.macs) ** 2 * of // (share * words)) + outputs) * width, False)


def _long(contraction: ContractionKernel) -> list[int]:
    return [dim for dim, extent in enumerate(contraction.extents) if extent > 1]


def _extents(contraction: ContractionKernel) -> list[tuple[int, int]]:
    return [(dim, contraction.extents[dim]) for dim in _long(contraction)]


def _window_reuse(contraction: ContractionKernel) -> tuple[int, int] | None:
    """How many windows share an input element, as a fraction; None where every product has elements of its own."""
    found: tuple[int, int] | None = None
    for operand in contraction.operands:
        for index in operand.indices:
            terms = sorted(index.terms, key=lambda term: term[1])
            reach = 1
            for dim, coefficient in terms:
                if coefficient < reach:
                    window = prod(contraction.extents[d] for d, _ in terms if not contraction.parallel[d])
                    stride = prod(c for d, c in terms if contraction.parallel[d])
                    share, of = found or (1, 1)
                    found = share * window, of * stride
                    break
                reach += coefficient * (contraction.extents[dim] - 1)
    return found


# the best tiling


MAX_TILES = 2_000_000
"""That an exhaustive search goes through."""


@dataclass(frozen=True)
class BestTiling:
    """The tiling of one level with the least traffic."""

    bytes: int
    sizes: tuple[int, ...]
    """Of a tile, in each dim."""
    order: tuple[int, ...]
    """The dims that are cut, outermost first."""


def best_tiling(
    contraction: ContractionKernel, capacity: Mapping[str, int], *, buffers: int = 2, padding: bool = False
) -> BestTiling | None:
    """
    The tiling that moves the fewest bytes, of all whose sizes divide the extents; None if no tile fits, and for domains
    with more than `MAX_TILES` tilings.

    Each tile is held `buffers` times, and loaded again in every iteration of a loop that it depends on or that is
    outside such a loop; sums stay on chip until they are complete. With `padding`, what a window reads out of bounds
    counts, too.
    """
    sizes = [_sizes(extent, contraction.blocks.get(dim, 1)) for dim, extent in enumerate(contraction.extents)]
    if prod(map(len, sizes)) > MAX_TILES:
        return None
    fits = _fits(contraction, sizes, capacity, buffers)
    if not fits.any():
        return None
    trips = [
        _along(np.array([-(-extent // size) for size in sizes[dim]]), dim, sizes)
        for dim, extent in enumerate(contraction.extents)
    ]
    loads = [_loads(contraction, operand, sizes, padding) for operand in contraction.operands]
    best: BestTiling | None = None
    for order in _orders(contraction):
        total = np.full(fits.shape, contraction.fixed_bytes, np.int64)
        for operand, once in zip(contraction.operands, loads, strict=True):
            if operand.moved_bytes:
                total += once * operand.moved_bytes * _loads_again(order, operand, trips)
        total[~fits] = np.iinfo(np.int64).max
        where = int(np.argmin(total))
        least = int(total.flat[where])
        if best is None or least < best.bytes:
            place = np.unravel_index(where, total.shape)
            chosen = tuple(sizes[dim][int(at)] for dim, at in enumerate(place))
            best = BestTiling(least, chosen, tuple(d for d in order if chosen[d] < contraction.extents[d]))
    return best


def _sizes(extent: int, block: int) -> list[int]:
    """The divisors of an extent; only multiples of the block where the extent is one."""
    step = block if extent % block == 0 else 1
    return [size for size in range(step, extent + 1, step) if extent % size == 0]


def _along(values: Numbers, dim: int, sizes: Sequence[Sequence[int]]) -> Numbers:
    """Values for the sizes of a dim, to be broadcast over those of all dims."""
    return values.reshape([len(each) if number == dim else 1 for number, each in enumerate(sizes)])


def _fits(
    contraction: ContractionKernel, sizes: list[list[int]], capacity: Mapping[str, int], buffers: int
) -> NDArray[np.bool_]:
    used: dict[str, Numbers] = {}
    shape = tuple(map(len, sizes))
    for operand in contraction.operands:
        block, rest = np.full(1, operand.held_bytes, np.int64), np.ones(1, np.int64)
        for place, index in enumerate(operand.indices):
            held = _table(index, sizes, _held)
            if place >= len(operand.indices) - operand.adjoining:
                block = block * held
            else:
                rest = rest * held
        room = -(-block // operand.granule) * operand.granule * rest * buffers
        used[operand.scope] = used.get(operand.scope, np.zeros(1, np.int64)) + room
    fits = np.ones(shape, np.bool_)
    for scope, room in used.items():
        fits &= room <= capacity.get(scope, 0)
    return fits


def _loads(
    contraction: ContractionKernel, operand: ContractionOperand, sizes: list[list[int]], padding: bool
) -> Numbers:
    """The elements of all tiles of an operand, each loaded once."""

    def moved(index: OperandIndex, tile: Sequence[int]) -> int:
        extents = [contraction.extents[dim] for dim, _ in index.terms]
        if len(extents) == 1 and not padding:
            # Whatever the tile, each value once.
            ((_, step),) = index.terms
            inside = (at for at in range(index.first, index.first + extents[0] * step, step) if 0 <= at < index.bound)
            return sum(1 for _ in inside)
        inside = _values(index, tile)
        starts = [
            [coefficient * at for at in range(0, extent, size)]
            for (_, coefficient), extent, size in zip(index.terms, extents, tile, strict=True)
        ]
        if padding:
            return len(inside) * prod(map(len, starts))
        first = np.array([sum(each) for each in product(*starts)], np.int64) + index.first
        low, high = np.searchsorted(inside, -first), np.searchsorted(inside, index.bound - first)
        return int((high - low).sum())

    tables = (_table(index, sizes, moved) for index in operand.indices)
    return reduce(np.multiply, tables, np.ones(1, np.int64))


def _table(index: OperandIndex, sizes: list[list[int]], count: Counter) -> Numbers:
    """A number for the sizes of the dims of an index, to be broadcast over those of all dims."""
    dims = [dim for dim, _ in index.terms]
    order = sorted(range(len(dims)), key=lambda place: dims[place])
    values = np.array([count(index, tile) for tile in product(*(sizes[dim] for dim in dims))], np.int64)
    values = values.reshape([len(sizes[dim]) for dim in dims]).transpose(order)
    return values.reshape([len(each) if dim in dims else 1 for dim, each in enumerate(sizes)])


def _values(index: OperandIndex, tile: Sequence[int]) -> Numbers:
    """The different values of an index in the first tile, ascending, without `first`."""
    values = np.zeros(1, np.int64)
    for (_, coefficient), size in zip(index.terms, tile, strict=True):
        values = (values[:, None] + np.arange(size, dtype=np.int64) * coefficient).ravel()
    return np.unique(values)


def _values_inside(index: OperandIndex, extents: Sequence[int]) -> Numbers:
    """The different values that exist off chip over the whole domain, without `first`."""
    values = _values(index, [extents[dim] for dim, _ in index.terms])
    return values[(values >= -index.first) & (values < index.bound - index.first)]


def _held(index: OperandIndex, tile: Sequence[int]) -> int:
    return len(_values(index, tile))


def _orders(contraction: ContractionKernel) -> Iterator[tuple[int, ...]]:
    """Orders of the loops over tiles that differ in what is loaded again; those that sum are innermost."""

    def users(dim: int) -> tuple[bool, ...]:
        return tuple(dim in operand.dims for operand in contraction.operands)

    groups: list[list[list[int]]] = []
    for kind in (True, False):
        dims = sorted((dim for dim in _long(contraction) if contraction.parallel[dim] is kind), key=users)
        groups.append([list(group) for _, group in groupby(dims, users)])
    for outer, inner in product(permutations(groups[0]), permutations(groups[1])):
        yield tuple(dim for group in (*outer, *inner) for dim in group)


def _loads_again(order: Sequence[int], operand: ContractionOperand, trips: Sequence[Numbers]) -> Numbers:
    """How often an operand's tiles are all loaded: the iterations of loops around one that is cut and it depends on."""
    times, inside = np.ones(1, np.int64), np.zeros(1, np.bool_)
    for dim in reversed(order):
        if dim in operand.dims:
            inside = inside | (trips[dim] > 1)
        else:
            times = times * np.where(inside, trips[dim], 1)
    return times
