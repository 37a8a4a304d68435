# SPDX-License-Identifier: Apache-2.0
"""Bounds on the traffic of contractions: figures that are known, and searches that go another way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning.traffic_bounds import (
    ContractionKernel,
    ContractionOperand,
    OperandIndex,
    best_tiling,
    square_root,
)

VTA = {"inp": 32768, "wgt": 262144, "acc": 131072}

LAYERS = {
    "C2": (56, 64, 64, 3, 1),
    "C4": (56, 64, 128, 3, 2),
    "C5": (56, 64, 128, 1, 2),
    "C6": (28, 128, 128, 3, 1),
    "C7": (28, 128, 256, 3, 2),
    "C8": (28, 128, 256, 1, 2),
    "C9": (14, 256, 256, 3, 1),
    "C10": (14, 256, 512, 3, 2),
    "C11": (14, 256, 512, 1, 2),
    "C12": (7, 512, 512, 3, 1),
}
"""ResNet-18: image, channels in and out, window, stride."""


def convolution(image: int, channels: int, filters: int, window: int, stride: int) -> ContractionKernel:
    """A convolution on VTA's blocks of 16, with as much padding as keeps its size."""
    size, before = image // stride, -((window - 1) // 2)
    extents = (size, size, filters // 16, 16, window, window, channels // 16, 16)

    def index(*terms: tuple[int, int], first: int = 0, bound: int = 1 << 62) -> OperandIndex:
        return OperandIndex(tuple(term for term in terms if extents[term[0]] > 1), first, bound)

    rows, columns = (index((dim, stride), (dim + 4, 1), first=before, bound=image) for dim in (0, 1))
    return ContractionKernel(
        extents,
        (True,) * 4 + (False,) * 4,
        (
            ContractionOperand("x", "inp", (rows, columns, index((6, 1)), index((7, 1))), 1, 1, 16),
            ContractionOperand("w", "wgt", tuple(index((dim, 1)) for dim in (4, 5, 2, 6, 3, 7)), 1, 1, 256, 2),
            ContractionOperand("y", "acc", tuple(index((dim, 1)) for dim in range(4)), 4, 0, 64),
        ),
        {3: 16, 7: 16},
        size * size * filters,
    )


def product_of(m: int, n: int, k: int, *, width: int = 1, batch: int = 1) -> ContractionKernel:
    """`batch` matrix products, with a scope for each operand."""
    b, i, j, r = (OperandIndex(((dim, 1),)) for dim in range(4))
    return ContractionKernel(
        (batch, m, n, k),
        (True, True, True, False),
        (
            ContractionOperand("a", "a", (b, i, r), width, width),
            ContractionOperand("b", "b", (b, r, j), width, width),
            ContractionOperand("c", "c", (b, i, j), width, 0),
        ),
        {},
        batch * m * n * width,
    )


# compulsory bytes


@pytest.mark.parametrize(
    ("layer", "kilobytes"),
    [
        *(("C2", 428), ("C4", 366), ("C5", 155), ("C6", 340), ("C7", 435)),
        *(("C8", 106), ("C9", 674), ("C10", 1226), ("C11", 165), ("C12", 2353)),
    ],
)
def test_what_is_used_is_moved_once(layer: str, kilobytes: int) -> None:
    # Padding is not moved, and of an image what windows of 1x1 skip.
    assert round(convolution(*LAYERS[layer]).compulsory / 1024) == kilobytes


# the best tiling


@pytest.mark.parametrize(
    ("layer", "kilobytes"),
    [
        *(("C2", 488), ("C4", 395), ("C5", 155), ("C6", 566), ("C7", 757.5)),
        *(("C8", 105.5), ("C9", 881), ("C10", 1289), ("C11", 164.75), ("C12", 2409.5)),
    ],
)
def test_the_best_tilings_of_resnet_18_on_vta_are_those_of_an_earlier_search(layer: str, kilobytes: float) -> None:
    # That search counted the halo of a tile as loaded even where it is padding.
    with_padding = best_tiling(convolution(*LAYERS[layer]), VTA, padding=True)
    without = best_tiling(convolution(*LAYERS[layer]), VTA)
    assert with_padding is not None
    assert without is not None
    assert with_padding.bytes == kilobytes * 1024
    assert convolution(*LAYERS[layer]).compulsory <= without.bytes <= with_padding.bytes


def test_one_tile_that_holds_everything_moves_everything_once() -> None:
    whole = product_of(8, 8, 8)
    best = best_tiling(whole, {"a": 128, "b": 128, "c": 128})
    assert best is not None
    assert best.bytes == whole.compulsory == 192


def test_tiles_that_fit_no_scope_have_no_best() -> None:
    assert best_tiling(product_of(8, 8, 8), {"a": 1, "b": 100, "c": 100}) is None


def test_a_block_is_not_cut_where_the_extent_is_a_multiple_of_it() -> None:
    whole = product_of(32, 32, 32)
    blocked = ContractionKernel(whole.extents, whole.parallel, whole.operands, {1: 16, 2: 16, 3: 16}, whole.fixed_bytes)
    room = {"a": 2 * 16 * 16, "b": 2 * 16 * 16, "c": 2 * 16 * 32}
    best, free = best_tiling(blocked, room), best_tiling(whole, room)
    assert best is not None
    assert free is not None
    assert best.sizes == (1, 16, 16, 16)
    assert best.bytes == 2 * 32 * 32 * 2 + 32 * 32
    assert free.bytes < best.bytes


small = st.integers(1, 6)


@examples(30)
@given(small, small, small, st.integers(1, 2), st.tuples(*[st.integers(2, 80)] * 3), st.booleans())
def test_no_tiling_that_is_walked_through_loads_less(
    m: int, n: int, k: int, batch: int, room: tuple[int, int, int], padded: bool
) -> None:
    """Every tiling and every order of its loops, walked step by step with what is held at the moment."""
    whole = product_of(m, n, k, batch=batch)
    capacity = dict(zip("abc", room, strict=True))
    best = best_tiling(whole, capacity, padding=padded)
    found = [moved for moved in _walks(whole, capacity) if moved is not None]
    assert (best.bytes if best else None) == (min(found) + whole.fixed_bytes if found else None)


def test_no_walk_over_a_convolution_loads_less() -> None:
    # y[h, o] += x[2h + r - 1, i] w[r, o, i]
    whole = ContractionKernel(
        (4, 2, 3, 2),
        (True, True, False, False),
        (
            ContractionOperand("x", "a", (OperandIndex(((0, 2), (2, 1)), -1, 8), OperandIndex(((3, 1),))), 1, 1),
            ContractionOperand(
                "w", "b", (OperandIndex(((2, 1),)), OperandIndex(((1, 1),)), OperandIndex(((3, 1),))), 1, 1
            ),
            ContractionOperand("y", "c", (OperandIndex(((0, 1),)), OperandIndex(((1, 1),))), 1, 0),
        ),
        {},
        8,
    )
    assert whole.compulsory == 8 * 2 + 12 + 8
    for room in product((4, 6, 10, 20, 40), (4, 12, 24), (2, 4, 8, 16)):
        capacity = dict(zip("abc", room, strict=True))
        best = best_tiling(whole, capacity)
        found = [moved for moved in _walks(whole, capacity) if moved is not None]
        assert (best.bytes if best else None) == (min(found) + whole.fixed_bytes if found else None)


def _walks(whole: ContractionKernel, capacity: Mapping[str, int]) -> Iterator[int | None]:
    """The bytes of the inputs in every tiling and order that keeps sums on chip; None where a tile does not fit."""
    divisors = [[size for size in range(1, extent + 1) if extent % size == 0] for extent in whole.extents]
    dims = range(len(whole.extents))
    inner = [dim for dim in dims if not whole.parallel[dim]]
    orders = [
        (*outer, *last)
        for outer in permutations([dim for dim in dims if whole.parallel[dim]])
        for last in permutations(inner)
    ]
    for sizes in product(*divisors):
        tiles = [_elements(whole, operand, (0,) * len(sizes), sizes, clip=False) for operand in whole.operands]
        if any(2 * len(tile) > capacity[o.scope] for tile, o in zip(tiles, whole.operands, strict=True)):
            yield None
            continue
        for order in orders:
            yield _walk(whole, sizes, order)


def _walk(whole: ContractionKernel, sizes: tuple[int, ...], order: tuple[int, ...]) -> int:
    moved = 0
    held: dict[int, tuple[int, ...]] = {}
    starts = [range(0, whole.extents[dim], sizes[dim]) for dim in order]
    for place in product(*starts):
        at = [0] * len(sizes)
        for dim, start in zip(order, place, strict=True):
            at[dim] = start
        for number, operand in enumerate(whole.operands[:2]):
            corner = tuple(at[dim] if dim in operand.dims else 0 for dim in range(len(at)))
            if held.get(number) != corner:
                held[number] = corner
                moved += len(_elements(whole, operand, corner, sizes, clip=True))
    return moved


def _elements(
    whole: ContractionKernel,
    operand: ContractionOperand,
    corner: tuple[int, ...],
    sizes: tuple[int, ...],
    *,
    clip: bool,
) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    for point in product(*(range(start, start + size) for start, size in zip(corner, sizes, strict=True))):
        element = tuple(index.first + sum(c * point[dim] for dim, c in index.terms) for index in operand.indices)
        if not clip or all(0 <= at < index.bound for at, index in zip(element, operand.indices, strict=True)):
            found.add(element)
    return found


# the square-root bound


@pytest.mark.parametrize(
    ("words", "millions"), [(8192, 1518.5), (32768, 759), (131072, 379), (327680, 239), (1 << 20, 132)]
)
def test_the_bound_of_a_product_of_4096_is_as_published(words: int, millions: float) -> None:
    found = square_root(product_of(4096, 4096, 4096), words, 1)
    assert found is not None
    assert found.is_bound
    assert found.bytes / 1e6 == pytest.approx(millions, abs=0.6)


@pytest.mark.parametrize(("words", "kilobytes"), [(1024, 2450), (4096, 1274), (16384, 686), (65536, 392)])
def test_the_estimate_of_a_convolution_is_as_published(words: int, kilobytes: int) -> None:
    found = square_root(convolution(*LAYERS["C6"]), words, 1)
    assert found is not None
    assert not found.is_bound
    assert round(found.bytes / 1024) == kilobytes


def test_windows_that_share_nothing_are_a_product_and_have_a_bound() -> None:
    pointwise = square_root(convolution(*LAYERS["C5"]), 1024, 1)
    assert pointwise is not None
    assert pointwise.is_bound
    same = square_root(product_of(28 * 28, 128, 64), 1024, 1)
    assert pointwise == same
    # Windows of 2 that are 2 apart lie side by side.
    assert square_root(convolution(56, 64, 128, 2, 2), 1024, 1) == square_root(product_of(28 * 28, 128, 256), 1024, 1)


def test_batches_have_the_bound_of_each() -> None:
    one, four = square_root(product_of(64, 64, 64), 256, 2), square_root(product_of(64, 64, 64, batch=4), 256, 2)
    assert one is not None
    assert four is not None
    assert four.bytes == 4 * one.bytes > 0


@examples(40)
@given(st.integers(2, 12), st.integers(2, 12), st.integers(2, 12), st.integers(3, 60))
def test_no_tiling_is_below_the_bound(m: int, n: int, k: int, room: int) -> None:
    whole = product_of(m, n, k)
    best = best_tiling(whole, {"a": room, "b": room, "c": room}, buffers=1)
    bound = square_root(whole, 3 * room, 1)
    assert bound is not None
    if best is not None:
        assert best.bytes >= max(bound.bytes, whole.compulsory)


def test_what_is_no_product_of_two_operands_has_none() -> None:
    scaled = product_of(4, 4, 4)
    alone = ContractionKernel(
        (4, 4, 4, 4),
        (True, True, False, False),
        (
            ContractionOperand(
                "a", "a", (OperandIndex(((0, 1),)), OperandIndex(((2, 1),)), OperandIndex(((3, 1),))), 1, 1
            ),
            *scaled.operands[1:],
        ),
        {},
        16,
    )
    assert square_root(alone, 64, 1) is None
    assert square_root(scaled, 0, 1) is None
    assert prod(scaled.extents) == scaled.macs
