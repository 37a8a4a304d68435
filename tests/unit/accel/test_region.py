# SPDX-License-Identifier: Apache-2.0
"""Regions are the bytes of the elements that they are made of, and overlap where they share one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.passes.analysis.commands.region import Region

STEPS = st.lists(st.tuples(st.integers(1, 4), st.integers(-9, 9)), max_size=3)


def elements(start: int, size: int, steps: list[tuple[int, int]]) -> set[int]:
    return {
        start + sum(index * stride for index, (_, stride) in zip(at, steps, strict=True)) + byte
        for at in product(*(range(count) for count, _ in steps))
        for byte in range(size)
    }


def bytes_of(region: Region) -> set[int]:
    return {int(start) + byte for start in region.starts for byte in range(region.length)}


@given(st.integers(1, 4), STEPS)
def test_a_region_is_the_bytes_of_its_elements(size: int, steps: list[tuple[int, int]]) -> None:
    region = Region.of("spad", 0, 100, size, steps)
    wanted = elements(100, size, steps)
    assert bytes_of(region) == wanted
    assert (region.start, region.end) == (min(wanted), max(wanted) + 1)
    assert all(count > 1 and stride > 0 for count, stride in region.dims)


@given(st.integers(1, 4), STEPS, st.integers(1, 4), STEPS, st.integers(80, 120))
def test_regions_overlap_where_they_share_a_byte(
    size: int, steps: list[tuple[int, int]], other_size: int, other_steps: list[tuple[int, int]], start: int
) -> None:
    one, two = Region.of("spad", 0, 100, size, steps), Region.of("spad", 0, start, other_size, other_steps)
    shared = bool(bytes_of(one) & bytes_of(two))
    assert one.overlaps(two) == two.overlaps(one) == shared


@pytest.mark.parametrize("dims", [((2, 5), (4, 3)), ((2, 7), (2, 5), (2, 2)), ((3, 4), (2, 2), (2, 1))], ids=str)
def test_runs_that_begin_between_others_or_where_others_do_are_in_order_and_each_is_there_once(
    dims: tuple[tuple[int, int], ...],
) -> None:
    starts = Region("spad", 0, 10, 1, dims).starts.tolist()
    assert starts == sorted(elements(10, 1, list(dims)))


def test_regions_of_different_memory_do_not_overlap() -> None:
    one = Region("dram", 1, 0, 64)
    assert one.overlaps(Region("dram", 1, 32, 64))
    assert not one.overlaps(Region("dram", 2, 32, 64))
    assert not one.overlaps(Region("spad", 1, 32, 64))


def test_windows_that_overlap_are_one_run() -> None:
    """Four windows of five bytes, three bytes apart."""
    assert Region.of("spad", 0, 0, 1, [(4, 3), (5, 1)]) == Region("spad", 0, 0, 14)
    assert Region.of("spad", 0, 0, 1, [(4, 30), (5, 10)]) == Region("spad", 0, 0, 1, ((14, 10),))
