# SPDX-License-Identifier: Apache-2.0
"""
The tile of a contraction whose sums stay in the vector registers of a processor, and the order of the loops around it.

A block has vectors of lanes along a dim in which the result is contiguous, and rows along another, so that a vector
that the lanes load serves every row. For each step of the reduction it takes as long as its multiply-adds, its loads,
or the latency of adding to one register again. Blocks have to cover the domain: the last ones overlap those before,
which is work done twice.

The order of the loops is the one in which least is loaded from further away than the first cache: what a loop reads
again is where everything fits that was read in between. The scheme is that of Goto and van de Geijn, Anatomy of
High-Performance Matrix Multiplication, 2008.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations, product
from math import ceil, gcd, prod

LINE = 64
"""Bytes of a line of the caches."""
SHORTEST_VECTOR = 16
"""Bytes of the shortest vectors of processors, whose elements are combined one by one."""
CANDIDATES = 3
"""The blocks with the same dims as rows and lanes that are weighed with what loading takes: the best without it."""
GROWTH = (1, 2, 3, 4, 6, 8, 12, 16)
"""How many tiles of the registers, along each dim, a tile may take that is copied to the first cache."""
MAX_ROWS = 16
"""Rows that generated C unrolls: beyond, they would not be registers."""
MAX_LOOPS = 4
"""The loops whose order is searched, the largest ones; the others stay outermost."""


@dataclass(frozen=True)
class Domain:
    """An iteration domain whose operands are walked with constant strides."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    """For each operand how far, in elements, a step of each dim moves."""
    outputs: int
    """How many operands at the end are written."""
    indexed: frozenset[int] = frozenset()
    """The dims whose index the body reads: they are not merged."""
    open: frozenset[int] = frozenset()
    """The dims whose extent only a run knows, and stands here for any."""

    @property
    def inputs(self) -> int:
        return len(self.strides) - self.outputs


def is_injective(strides: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether no two points of a domain without empty dims are the same element."""
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for stride, extent in zip(strides, extents, strict=True)):
        if extent == 1:
            continue
        if stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True


def parallel_dims(domain: Domain) -> frozenset[int] | None:
    """
    The dims along which every output moves; None if two of their points are the same output, or an output does
    not move where another does, so that the order of the domain matters.
    """
    outputs = domain.strides[domain.inputs :]
    moving = [frozenset(dim for dim, stride in enumerate(strides) if stride) for strides in outputs]
    if any(dims != moving[0] for dims in moving):
        return None
    dims = sorted(moving[0])
    extents = [domain.extents[dim] for dim in dims]
    if not all(is_injective([strides[dim] for dim in dims], extents) for strides in outputs):
        return None
    return moving[0]


@dataclass(frozen=True)
class VectorUnit:
    """What a processor has for contractions of one element type."""

    registers: int
    """Vector registers."""
    lanes: int
    """Elements of a register."""
    element_bytes: int
    fmas: Fraction
    """Multiply-adds of vectors that start in a cycle."""
    loads: Fraction
    """Loads of vectors that start in a cycle."""
    latency: int
    """Cycles until the result of a multiply-add is added to again."""
    caches: tuple[int, ...]
    """Bytes, the first level first."""
    ways: int
    """Lines of the first cache that share a set: what lies a power of two apart finds room for so many."""
    misses: tuple[int, ...]
    """Cycles that a line takes beside the multiply-adds: from the second cache, from after it, and so on."""
    pair_loads: int
    """Loads that every second element of two vectors takes the time of."""
    exposed: Fraction
    """The share of the shorter of the two, multiply-adds and loads, that the longer does not hide."""
    step: Fraction
    """Cycles that the loop over the products of a sum takes for each of them."""
    tile: tuple[int, int]
    """Cycles that a tile takes beside its sums, for its loops, and for what is done to each vector after the sums."""
    row_overhead: int
    """Cycles that copying takes for each run of adjacent elements beside its loads and stores."""
    packing: Fraction
    """How many times as much as it need be is less than what packing an operand, or not packing it, takes."""

    def loads_of(self, stride: int) -> int:
        """What loading a vector takes, by the stride of its elements, 0, 1 or 2."""
        return self.pair_loads if stride == 2 else 1

    def width(self, extent: int) -> int:
        """The elements of a vector along a dim: of one that does not fill a register, the most that are a vector."""
        if extent >= self.lanes or extent * self.element_bytes < SHORTEST_VECTOR:
            return min(self.lanes, extent)
        return 1 << extent.bit_length() - 1

    def vectors_along(self, extent: int) -> int:
        """How many vectors cover a dim, of which the last one may overlap the one before; or else its elements."""
        width = self.width(extent)
        return ceil(extent / width) if width * self.element_bytes >= SHORTEST_VECTOR else extent

    def step_cycles(self, sums: int, loads: int) -> Fraction:
        """What a step takes that multiplies and adds so many vectors, and loads so many."""
        busy = sums / self.fmas, loads / self.loads
        return max(*busy, Fraction(self.latency)) + min(busy) * self.exposed + self.step

    def most_rows(self, vectors: int, spare: int = 1) -> int:
        """The rows of as many vectors whose sums the registers hold beside a vector of each step and some more."""
        return min((self.registers - vectors - spare) // vectors, MAX_ROWS)


def room_of(cache: int) -> int:
    """The bytes of a cache that a tile may count on: the rest is for what is beside it."""
    return cache * 3 // 4


def product_cycles(unit: VectorUnit, vectors: int) -> Fraction:
    """What a product of two elements is modelled to take in blocks of as many vectors of packed operands."""
    choices = range(1, unit.most_rows(vectors) + 1)
    return min(unit.step_cycles(rows * vectors, rows + vectors) / (rows * vectors * unit.lanes) for rows in choices)


@dataclass(frozen=True)
class RegisterTile:
    """Sizes of the tile in every dim, and the dims that are cut, outermost first."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    cycles: Fraction = field(default=Fraction(0), compare=False)
    """What all tiles are modelled to take, where that was weighed."""


def register_tile(domain: Domain, unit: VectorUnit, rank: int = 0) -> RegisterTile | None:
    """
    The tile of a contraction with one output that is modelled to take the least time, or the next one after `rank`
    that are modelled to take less; the last one where there are fewer.

    None where no dim can be the lanes: the output is contiguous along none of which inputs are too, or the part of an
    input that a tile's lanes read lies scattered over more than the first cache, so that it would have to be packed.
    """
    parallel = parallel_dims(domain)
    if domain.outputs != 1 or parallel is None or 0 in domain.extents:
        return None
    dims = [dim for dim in sorted(parallel) if domain.extents[dim] > 1]
    found: list[tuple[Fraction, dict[int, int]]] = []
    for lanes in [dim for dim in dims if _are_lanes(domain, dim)]:
        # Of rows that take as long, those whose results are closer together.
        near = sorted((dim for dim in dims if dim != lanes), key=lambda dim: abs(domain.strides[-1][dim]))
        for rows in [*near, None]:
            blocks = [
                (_cycles(domain, dims, chosen, lanes, rows, unit), chosen)
                for chosen in _sizes(domain, lanes, rows, unit)
                if not _is_scattered(domain, parallel, chosen, lanes, unit)
            ]
            found += sorted(blocks, key=lambda each: each[0])[:CANDIDATES]
    best: list[tuple[Fraction, RegisterTile]] = []
    for cycles, chosen in sorted(found, key=lambda each: each[0]):
        if len(best) > rank and cycles >= best[rank][0]:
            break
        sizes = tuple(chosen.get(dim, 1 if dim in parallel else extent) for dim, extent in enumerate(domain.extents))
        cut = [dim for dim in sorted(parallel) if sizes[dim] < domain.extents[dim]]
        order, loading = _order(domain, sizes, cut, unit)
        tile = RegisterTile(sizes, order, cycles + loading)
        best = sorted([*best, (tile.cycles, tile)], key=lambda each: each[0])
    tile = best[min(rank, len(best) - 1)][1] if best else None
    return None if tile is None or not tile.order else tile


@dataclass(frozen=True)
class Window:
    """What a tile reads of an operand, as a box of it."""

    indices: tuple[tuple[int, ...], ...]
    """For each dim of the operand how far a step of each dim of the domain moves along it."""
    bounds: tuple[int, ...]
    """How long the operand is in each of its dims."""

    def runs(self, sizes: Sequence[int]) -> tuple[int, int]:
        """How many runs of adjacent elements a tile reads, and how long they are."""
        extents = [
            1 + sum(step * (size - 1) for step, size in zip(steps, sizes, strict=True)) for steps in self.indices
        ]
        whole = next((n for n in range(len(extents), 0, -1) if extents[n - 1] != self.bounds[n - 1]), 1) - 1
        return prod(extents[:whole]), prod(extents[whole:])


def window_tile(domain: Domain, tile: RegisterTile, windows: Sequence[Window], unit: VectorUnit) -> RegisterTile | None:
    """
    The tile around that of the registers for which windows of some operands, of which no part serves two tiles but for
    their halos, are copied to where the first cache holds them; None if that is all of them.
    """
    best: tuple[Fraction, tuple[int, ...]] | None = None
    for sizes in product(*(_grown(tile.sizes[dim], extent) for dim, extent in enumerate(domain.extents))):
        boxes = [window.runs(sizes) for window in windows]
        if sum(rows * run for rows, run in boxes) * unit.element_bytes > room_of(unit.caches[0]):
            continue
        copying = sum(rows * (unit.row_overhead + 2 * ceil(run / unit.lanes) / unit.loads) for rows, run in boxes)
        tiles = prod(-(-extent // size) for extent, size in zip(domain.extents, sizes, strict=True))
        cycles = tiles * (copying + Fraction(prod(sizes)) / unit.lanes / unit.fmas)
        if best is None or cycles < best[0]:
            best = cycles, sizes
    if best is None or best[1] == domain.extents:
        return None
    cut = [dim for dim, extent in enumerate(domain.extents) if best[1][dim] < extent]
    return RegisterTile(best[1], tuple(sorted(cut, key=lambda dim: -domain.strides[-1][dim])))


def transposed_tile(domain: Domain, unit: VectorUnit) -> RegisterTile | None:
    """
    The tile of an op without a reduction that reads along another dim than it writes: as many lines of the caches on
    either side as find room together. None where no input is read so, or the first cache holds all of it.
    """
    parallel = parallel_dims(domain)
    written = _contiguous(domain, domain.inputs)
    if domain.outputs != 1 or parallel is None or len(parallel) < len(domain.extents) or written is None:
        return None
    if 0 in domain.extents or prod(domain.extents) * unit.element_bytes <= unit.caches[0]:
        return None
    per_line = LINE // unit.element_bytes
    for number, strides in enumerate(domain.strides[: domain.inputs]):
        read = _contiguous(domain, number)
        if read is None or read == written or abs(strides[written]) < per_line:
            continue
        lines = _lines_within(abs(strides[written]) * unit.element_bytes // LINE, unit)
        if abs(domain.strides[-1][read]) <= lines:
            # What is written from one element of a line that is read to the next touches no more lines than stay.
            continue
        rows = _lines_within(abs(domain.strides[-1][read]) * unit.element_bytes // LINE, unit)
        if unit.lanes >= per_line:
            # Squares of vectors take and make whole lines: none has to stay, however many share a set.
            own = {written: 2 * per_line, read: per_line}
            sizes = tuple(min(extent, own.get(dim, 1)) for dim, extent in enumerate(domain.extents))
        else:
            own = {written: min(2 * per_line, lines), read: min(per_line, rows)}
            # As many tiles as the largest ones would be, of one size.
            sizes = tuple(-(-extent // -(-extent // own.get(dim, 1))) for dim, extent in enumerate(domain.extents))
        cut = [dim for dim, extent in enumerate(domain.extents) if sizes[dim] < extent]
        return RegisterTile(sizes, tuple(sorted(cut, key=lambda dim: -domain.strides[-1][dim])))
    return None


def _contiguous(domain: Domain, number: int) -> int | None:
    """The dim along which the elements of an operand are adjacent."""
    dims = range(len(domain.extents))
    return next((dim for dim in dims if domain.strides[number][dim] == 1 and domain.extents[dim] > 1), None)


def _grown(size: int, extent: int) -> list[int]:
    """The size of a tile, and larger ones."""
    return [*(size * factor for factor in GROWTH if size * factor < extent), extent]


def _are_lanes(domain: Domain, dim: int) -> bool:
    """Whether vectors along a dim are stored whole, and loaded whole or as every second element of two."""
    along = [strides[dim] for strides in domain.strides]
    return along[-1] == 1 and all(stride in (0, 1, 2) for stride in along) and any(along[:-1])


def _sizes(domain: Domain, lanes: int, rows: int | None, unit: VectorUnit) -> Iterator[dict[int, int]]:
    """The blocks that the registers hold: sums, a vector of each step for every one of the lanes, and one more."""
    for vectors in range(1, unit.registers // 2):
        width = min(vectors * unit.width(domain.extents[lanes]), domain.extents[lanes])
        if width < vectors * unit.lanes and vectors > 1:
            return
        # Every second element is of two vectors.
        spare = max(1, *(strides[lanes] for strides in domain.strides))
        most = unit.most_rows(vectors, spare)
        if rows is None:
            yield {lanes: width}
            continue
        for height in range(2, min(most, domain.extents[rows]) + 1):
            yield {lanes: width, rows: height}


def _cycles(
    domain: Domain, dims: Sequence[int], sizes: Mapping[int, int], lanes: int, rows: int | None, unit: VectorUnit
) -> Fraction:
    """What all tiles are modelled to take."""
    height = 1 if rows is None else sizes[rows]
    vectors = ceil(sizes[lanes] / unit.lanes)
    sums, loads = height * vectors, 0
    for strides in domain.strides[: domain.inputs]:
        loads += (vectors * unit.loads_of(strides[lanes]) if strides[lanes] else 1) * (
            height if rows is not None and strides[rows] else 1
        )
    step, (once, each) = unit.step_cycles(sums, loads), unit.tile
    steps = prod(extent for dim, extent in enumerate(domain.extents) if dim not in dims)
    tiles = prod(ceil(domain.extents[dim] / sizes.get(dim, 1)) for dim in dims)
    return tiles * (steps * step + sums * each + once)


def _is_scattered(
    domain: Domain, parallel: frozenset[int], sizes: Mapping[int, int], lanes: int, unit: VectorUnit
) -> bool:
    """Whether what the lanes read of some input, which other tiles read again, has gaps and exceeds the first cache."""
    for strides in domain.strides[: domain.inputs]:
        if not strides[lanes]:
            continue
        repeats = prod(domain.extents[dim] for dim in parallel if not strides[dim])
        inside = [dim for dim, stride in enumerate(strides) if stride and (dim not in parallel or dim in sizes)]
        extents = [sizes.get(dim, domain.extents[dim]) for dim in inside]
        span = 1 + sum((extent - 1) * abs(strides[dim]) for dim, extent in zip(inside, extents, strict=True))
        lines = _lines([strides[dim] for dim in inside], extents, unit)
        pitch = min((abs(strides[dim]) for dim in inside if abs(strides[dim]) * unit.element_bytes >= LINE), default=0)
        if lines <= _lines_within(pitch * unit.element_bytes // LINE, unit) * unit.packing:
            continue
        if repeats > 1 and span > 2 * prod(extents) and 2 * span * unit.element_bytes > unit.caches[0]:
            return True
    return False


def _lines_within(pitch: int, unit: VectorUnit) -> int:
    """How many lines find room in the first cache that are so many lines apart."""
    sets = unit.caches[0] // LINE // unit.ways
    return sets // gcd(pitch, sets) * unit.ways if pitch else sets * unit.ways


def _order(
    domain: Domain, sizes: Sequence[int], cut: Sequence[int], unit: VectorUnit
) -> tuple[tuple[int, ...], Fraction]:
    """The order of the loops in which loading takes the least cycles, and those."""
    trips = {dim: ceil(domain.extents[dim] / sizes[dim]) for dim in cut}
    searched = sorted(cut, key=lambda dim: -trips[dim])[:MAX_LOOPS]
    outside = [dim for dim in cut if dim not in searched]
    orders = [(*outside, *order) for order in permutations([dim for dim in cut if dim in searched])]
    costs = [_loading(domain, sizes, order, trips, unit) for order in orders]
    least = min(range(len(orders)), key=lambda number: costs[number])
    return orders[least], costs[least]


def _loading(
    domain: Domain, sizes: Sequence[int], order: Sequence[int], trips: Mapping[int, int], unit: VectorUnit
) -> Fraction:
    """The cycles of loading what the loops read again from where it is found."""
    extents, total = list(sizes), Fraction(0)
    lines = [_lines(strides, extents, unit) for strides in domain.strides]
    for place, dim in reversed(list(enumerate(order))):
        level = sum(sum(lines) * LINE > room_of(size) for size in unit.caches)
        outside = prod(trips[other] for other in order[:place])
        extents[dim] = domain.extents[dim]
        together = [_lines(strides, extents, unit) for strides in domain.strides]
        again = sum(max(0, trips[dim] * one - all) for one, all in zip(lines, together, strict=True))
        total += outside * again * ((0, *unit.misses)[: level + 1])[-1]
        lines = together
    return total


def _lines(strides: Sequence[int], extents: Sequence[int], unit: VectorUnit) -> int:
    """The lines of the caches that a box of an operand lies in."""
    moving = sorted((abs(stride), extent) for stride, extent in zip(strides, extents, strict=True) if stride)
    run, rows = 1, 1
    for stride, extent in moving:
        if stride <= run:
            run += stride * (extent - 1)
        else:
            rows *= extent
    return rows * ceil(run * unit.element_bytes / LINE)
