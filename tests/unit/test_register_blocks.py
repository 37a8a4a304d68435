# SPDX-License-Identifier: Apache-2.0
"""Blocks of contractions that registers hold."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from xdsl.dialects.builtin import TensorType, f32

from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.analysis.work import vector_unit
from penstock.passes.planning.register_blocks import (
    Domain,
    RegisterTile,
    VectorUnit,
    Window,
    product_cycles,
    register_tile,
    transposed_tile,
    window_tile,
)


def unit_of(machine: str) -> VectorUnit:
    unit = vector_unit(load_machine(machine), TensorType(f32, [1]))
    assert unit is not None
    return unit


AVX2 = unit_of("host-avx2")


def product(rows: int, columns: int, depth: int, *, packed: int = 0) -> Domain:
    """a[m,k] * b[k,n], or with b[n/packed,k,packed] and a result of as many dims."""
    if not packed:
        return Domain((rows, columns, depth), ((depth, 0, 1), (0, 1, columns), (columns, 1, 0)), 1)
    extents = (rows, columns // packed, packed, depth)
    return Domain(extents, ((depth, 0, 0, 1), (0, depth * packed, 1, packed), (columns, packed, 1, 0)), 1)


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 14, 49, 196, 3136])
@pytest.mark.parametrize("columns", [16, 64, 1024])
def test_a_block_fits_the_registers_and_its_loops_cover_the_domain(rows: int, columns: int) -> None:
    domain = product(rows, columns, 256, packed=16)
    tile = register_tile(domain, AVX2)
    if tile is None:
        # One block is all of it: there is nothing to cut.
        assert rows * columns <= 8 * AVX2.lanes * 2
        return
    sums = prod(tile.sizes[:3]) // AVX2.lanes
    assert 1 <= sums <= AVX2.registers - 2
    assert tile.sizes[3] == 256
    assert sorted(tile.order) == [dim for dim in range(3) if tile.sizes[dim] < domain.extents[dim]]


def test_more_registers_hold_larger_blocks() -> None:
    domain = product(3136, 1024, 256, packed=32)
    wide = replace(AVX2, registers=32, lanes=16)
    narrow, large = register_tile(domain, AVX2), register_tile(domain, wide)
    assert narrow is not None
    assert large is not None
    assert prod(large.sizes[:3]) > 2 * prod(narrow.sizes[:3])


def test_panels_that_would_have_to_be_packed_are_left() -> None:
    assert register_tile(product(512, 512, 512), AVX2) is None
    assert register_tile(product(512, 16, 512), AVX2) is not None


def test_without_a_dim_for_the_lanes_there_is_no_tile() -> None:
    transposed = Domain((64, 64, 64), ((64, 0, 1), (0, 64, 1), (64, 1, 0)), 1)
    assert register_tile(transposed, AVX2) is None
    assert register_tile(replace(transposed, extents=(64, 0, 64)), AVX2) is None


def test_large_weights_are_read_once_and_small_ones_often() -> None:
    """Which operand moves in the outer loop follows from what the second cache holds."""
    large = register_tile(product(49, 2048, 512, packed=16), AVX2)
    small = register_tile(product(3136, 64, 64, packed=16), AVX2)
    assert isinstance(large, RegisterTile)
    assert isinstance(small, RegisterTile)
    assert large.order[0] == 1
    assert small.order[0] == 0


def depthwise(size: int, channels: int, stride: int) -> Domain:
    """x[h*s+kh,w*s+kw,c] * f[kh,kw,c], with x padded by one at every end; the dims are h, w, c, kh, kw."""
    pitch = ((size - 1) * stride + 3) * channels
    x = (stride * pitch, stride * channels, 1, pitch, channels)
    return Domain(
        (size, size, channels, 3, 3), (x, (0, 0, 1, 3 * channels, channels), (size * channels, channels, 1, 0, 0)), 1
    )


def window_of(size: int, channels: int, stride: int) -> Window:
    side = (size - 1) * stride + 3
    return Window(((stride, 0, 0, 1, 0), (0, stride, 0, 0, 1), (0, 0, 1, 0, 0)), (side, side, channels))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("size", "channels"), [(112, 32), (56, 128), (14, 512), (7, 1024)])
def test_windows_fit_the_first_cache_and_hold_whole_tiles(size: int, channels: int, stride: int) -> None:
    domain = depthwise(size, channels, stride)
    tile = register_tile(domain, AVX2)
    assert isinstance(tile, RegisterTile)
    window = window_tile(domain, tile, [window_of(size, channels, stride)], AVX2)
    assert isinstance(window, RegisterTile)
    h, w, c = window.sizes[:3]
    assert ((h - 1) * stride + 3) * ((w - 1) * stride + 3) * c * 4 <= AVX2.caches[0]
    for dim, (outer, inner) in enumerate(zip(window.sizes, tile.sizes, strict=True)):
        assert outer % inner == 0 or outer == domain.extents[dim]
    assert [dim for dim in range(5) if window.sizes[dim] < domain.extents[dim]] == sorted(window.order)


def test_what_fits_the_first_cache_whole_has_no_windows() -> None:
    domain = depthwise(7, 32, 1)
    tile = register_tile(domain, AVX2)
    assert isinstance(tile, RegisterTile)
    assert window_tile(domain, tile, [window_of(7, 32, 1)], AVX2) is None


def test_transposes_go_by_tiles_of_lines() -> None:
    transposed = Domain((256, 3136), ((1, 256), (3136, 1)), 1)
    tile = transposed_tile(transposed, AVX2)
    assert tile is not None
    rows, columns = tile.sizes
    assert 8 <= rows <= 16
    assert 16 <= columns <= 32
    # Rows that are a power of two apart share few sets of the cache.
    crowded = transposed_tile(Domain((1024, 196), ((1, 1024), (196, 1)), 1), AVX2)
    assert crowded is not None
    assert crowded.sizes[1] <= 8


def test_vectors_of_a_whole_line_transpose_squares_of_them_however_lines_are_crowded() -> None:
    unit = unit_of("host-avx512")
    for strides in (((1, 1024), (49, 1)), ((49, 1), (1, 1024))):
        tile = transposed_tile(Domain((1024, 49), strides, 1), unit)
        assert tile is not None
        assert set(tile.sizes) == {16, 32}


def test_what_stays_in_the_first_cache_or_is_read_as_it_is_written_is_not_tiled() -> None:
    assert transposed_tile(Domain((256, 3136), ((3136, 1), (3136, 1)), 1), AVX2) is None
    assert transposed_tile(Domain((16, 32), ((1, 16), (32, 1)), 1), AVX2) is None
    assert transposed_tile(Domain((50176, 3), ((1, 50176), (3, 1)), 1), AVX2) is None
    assert transposed_tile(Domain((256, 3136), ((1, 256), (1, 0)), 1), AVX2) is None


@pytest.mark.parametrize("machine", ["host-avx2", "host-avx512", "host-neon"])
def test_a_packed_product_is_faster_in_blocks_of_two_vectors(machine: str) -> None:
    """An element is loaded for twice as many multiply-adds, so padding to two vectors may pay where one divides."""
    unit = unit_of(machine)
    one, two = product_cycles(unit, 1), product_cycles(unit, 2)
    assert two < one
    # No more than its multiply-adds take.
    assert two * unit.lanes * unit.fmas >= 1


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("columns", "width", "vectors"), [(28, 16, 2), (16, 16, 1), (14, 8, 2), (8, 8, 1), (7, 4, 2)])
def test_rows_that_fill_no_register_go_by_the_longest_vector_that_they_fill(
    columns: int, width: int, vectors: int, stride: int
) -> None:
    """x[c,h*s+kh,w*s+kw] * f[c,kh,kw]; the dims are c, h, w, kh, kw."""
    unit = unit_of("host-avx512")
    pitch = (columns - 1) * stride + 3
    x = (pitch * pitch, stride * pitch, stride, pitch, 1)
    domain = Domain((64, columns, columns, 3, 3), (x, (9, 0, 0, 3, 1), (columns * columns, columns, 1, 0, 0)), 1)
    tile = register_tile(domain, unit)
    assert tile is not None
    assert tile.sizes[2] == width
    assert unit.vectors_along(columns) == vectors


def test_fewer_elements_than_any_vector_are_computed_one_by_one() -> None:
    unit = unit_of("host-avx512")
    assert [unit.vectors_along(extent) for extent in (1, 3, 4, 17)] == [1, 3, 1, 2]
