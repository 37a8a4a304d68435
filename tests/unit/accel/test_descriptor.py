# SPDX-License-Identifier: Apache-2.0
"""Descriptors: which dims share one, how padding is spelled, and what the rows cost."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import ceil, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.machine import DmaOp
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.analysis.commands.descriptor import (
    Descriptor,
    describe,
    descriptor_dims,
    entry_elements,
    transfer_cost,
)
from penstock.passes.analysis.commands.program import View
from penstock.passes.planning.pipelining import TransferCost

VTA = load_machine("vta-pynq")
LOAD, STORE = VTA.dmas()["load_inp"], VTA.dmas()["store_out"]


def packed(shape: tuple[int, ...], element: int = 1) -> tuple[int, ...]:
    return tuple(element * prod(shape[dim + 1 :]) for dim in range(len(shape)))


def view(space: str, shape: tuple[int, ...], of: tuple[int, ...], element: int = 1) -> View:
    """Elements of that shape at the beginning of a packed array."""
    return View(space, 0, 0, shape, packed(of, element), element)


# which dims share one


def test_contiguous_neighbours_share_a_dim() -> None:
    assert descriptor_dims([4, 5, 6], [packed((4, 5, 6))] * 2) == [[2, 1, 0]]


def test_neighbours_must_be_contiguous_on_both_sides() -> None:
    assert descriptor_dims([4, 5, 6], [packed((4, 5, 6)), packed((4, 9, 6))]) == [[2, 1], [0]]
    assert descriptor_dims([4, 5, 6], [packed((4, 5, 8)), packed((4, 5, 6))]) == [[2], [1, 0]]


def test_dims_of_size_1_need_none() -> None:
    assert descriptor_dims([1, 5, 1], [(99, 1, 7)] * 2) == [[1]]
    assert descriptor_dims([1, 1], [(1, 1)] * 2) == []


def test_neighbours_share_a_dim_as_far_as_it_counts() -> None:
    strides = [packed((4, 5, 6))] * 2
    assert descriptor_dims([4, 5, 6], strides, max_counts=(9, 30)) == [[2, 1], [0]]
    assert descriptor_dims([4, 5, 6], strides, max_counts=(9, 29)) == [[2], [1], [0]]
    assert descriptor_dims([4, 5, 6], strides, max_counts=(20, 6)) == [[2], [1, 0]]


def test_rows_are_counted_in_entries() -> None:
    strides = [packed((4, 5, 16))] * 2
    assert descriptor_dims([4, 5, 16], strides, max_counts=(9, 20), entry=16) == [[2, 1, 0]]
    assert descriptor_dims([4, 5, 16], strides, max_counts=(9, 19), entry=16) == [[2, 1], [0]]


def test_a_dim_that_hangs_shares_one_with_whole_entries_inside_it_and_nothing_outside() -> None:
    strides = [packed((6, 6, 2, 16))] * 2
    assert descriptor_dims([6, 6, 2, 16], strides, out_of_bounds={0: 1, 1: 1}, entry=16) == [[3, 2, 1], [0]]
    assert descriptor_dims([6, 6, 2, 16], strides, out_of_bounds={0: 1}, entry=16) == [[3, 2, 1, 0]]
    assert descriptor_dims([6, 6, 2, 16], strides, out_of_bounds={0: 1, 1: 1}, entry=64) == [[3, 2], [1], [0]]


def test_a_dim_shares_no_more_padding_than_one_takes() -> None:
    strides = [packed((6, 6, 2, 16))] * 2
    assert descriptor_dims([6, 6, 2, 16], strides, out_of_bounds={1: 1}, entry=16, pad_max=2) == [[3, 2, 1], [0]]
    assert descriptor_dims([6, 6, 2, 16], strides, out_of_bounds={1: 1}, entry=16, pad_max=1) == [[3, 2], [1], [0]]


def test_an_element_that_has_no_neighbour_is_a_row() -> None:
    assert descriptor_dims([4, 5], [(12, 2), (5, 1)]) == [[], [1], [0]]
    assert descriptor_dims([4, 5], [(10, 2), (10, 2)]) == [[], [1, 0]]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_the_dims_of_a_descriptor_reach_the_elements_of_the_box(box: list[int], data: st.DataObject) -> None:
    """On both sides, row by row, in the order of the box."""
    sides: list[tuple[int, ...]] = []
    for _ in range(2):
        whole = tuple(size + data.draw(st.integers(0, 1)) for size in box)
        step = data.draw(st.integers(1, 2))
        sides.append(tuple(step * stride for stride in packed(whole)))
    spelled = descriptor_dims(box, sides)
    for side in sides:
        steps = [(prod(box[dim] for dim in group), side[group[0]] if group else 1) for group in reversed(spelled)]
        found = [
            sum(i * s for i, (_, s) in zip(at, steps, strict=True)) for at in product(*(range(n) for n, _ in steps))
        ]
        wanted = [sum(i * s for i, s in zip(at, side, strict=True)) for at in product(*(range(size) for size in box))]
        assert found == wanted


# descriptors


def test_a_padded_window_is_rows_with_padding_in_entries_and_in_rows() -> None:
    """A corner of 28 x 28 pixels of 2 entries, in a tile of 16 x 16: its first row and column are padding."""
    image, tile = (28, 28, 2, 16), (16, 16, 2, 16)
    moved = (15, 15, 2, 16)
    sides = [view("dram", moved, image), view("inp", moved, tile)]
    found = describe(sides, ((1, 0), (1, 0), (0, 0), (0, 0)), engine=LOAD, entry=16)
    assert found.counts == (15, 15 * 32)
    assert found.strides == ((28 * 32, 1), (16 * 32, 1))
    assert (found.entry_counts, found.entry_padding) == ((15, 30), ((1, 0), (2, 0)))
    assert (found.rows, found.row_bytes) == (15, 480)


def test_a_row_of_padding_only_around_one_row_is_spelled() -> None:
    moved = (1, 4, 16)
    sides = [view("dram", moved, (9, 4, 16)), view("inp", moved, (3, 4, 16))]
    found = describe(sides, ((1, 1), (0, 0), (0, 0)), engine=LOAD, entry=16)
    assert found.entry_counts == (4,)
    assert found.entry_padding == ((4, 4),)


def test_a_row_costs_its_bytes_off_chip_and_its_overhead() -> None:
    found = Descriptor((5, 7), ((9, 1), (9, 1)), ((0, 0), (0, 0)), 1, 4)
    assert found.cycles(TransferCost((8, 1), 1)) == 5 * (ceil(28 / 8) + 1)
    assert found.cycles(TransferCost((64, 3), 2)) == 5 * (ceil(28 * 3 / 64) + 2)
    assert found.cycles(TransferCost(row_overhead=3)) == 5 * 3


@given(
    counts=st.tuples(st.integers(0, 5), st.integers(1, 40)),
    padding=st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2),
    rate=st.tuples(st.integers(1, 64), st.integers(1, 5)),
    burst=st.tuples(st.integers(1, 64), st.integers(1, 5)),
    zeros=st.tuples(st.integers(1, 64), st.integers(1, 5)),
    overhead=st.integers(0, 3),
)
def test_rows_cost_their_bursts_and_padding_its_bytes(
    counts: tuple[int, int],
    padding: tuple[tuple[int, int], ...],
    rate: tuple[int, int],
    burst: tuple[int, int],
    zeros: tuple[int, int],
    overhead: int,
) -> None:
    found = Descriptor(counts, ((9, 1), (9, 1)), padding, 1, 2)
    cycles = padded = 0
    for row in range(-padding[0][0], counts[0] + padding[0][1]):
        is_row = 0 <= row < counts[0]
        moved = [2] * (counts[1] if is_row else 0)
        padded += 2 * (padding[1][0] + counts[1] + padding[1][1]) - sum(moved)
        sent = 0
        for size in moved:
            cycles += burst[1] * sum((sent + byte) % burst[0] == 0 for byte in range(size))
            sent += size
        cycles += is_row * (overhead + ceil(Fraction(sent * rate[1], rate[0])))
    cycles += ceil(Fraction(padded * zeros[1], zeros[0]))
    assert found.cycles(TransferCost(rate, overhead, burst, zeros)) == cycles


def test_an_engine_is_as_slow_as_the_slower_of_itself_and_its_bus() -> None:
    rtl = load_machine("vta-rtl")
    engines = rtl.dmas()
    assert transfer_cost(engines["store_out"], rtl) == TransferCost((16, 3), 0, (2048, 4))
    assert transfer_cost(engines["load_inp"], rtl) == TransferCost((8, 1), 0, (2048, 4), (16, 1))
    assert transfer_cost(LOAD, VTA) == TransferCost((8, 1), 1)


def test_bytes_are_those_off_chip_after_the_conversion() -> None:
    shape = (6, 16)
    found = describe([view("acc", shape, shape, 4), view("dram", shape, shape, 1)], engine=STORE, entry=16)
    assert (found.rows, found.row_bytes) == (1, 96)


def test_what_only_writes_on_chip_moves_no_bytes() -> None:
    found = describe([view("inp", (3, 16), (3, 32))], engine=LOAD, entry=16)
    assert (found.rows, found.row_bytes) == (3, 0)
    assert found.cycles(TransferCost((8, 1), 1)) == 3


def test_a_window_that_lies_outside_has_no_rows() -> None:
    found = describe(
        [view("dram", (0, 16), (9, 16)), view("inp", (0, 16), (2, 16))], ((2, 0), (0, 0)), engine=LOAD, entry=16
    )
    assert (found.rows, found.cycles(TransferCost((8, 1), 1))) == (0, 0)


@pytest.mark.parametrize(
    ("scopes", "sizes", "entry"),
    [(("dram", "inp"), (1, 1), 16), (("acc", "dram"), (4, 1), 16), (("dram", "wgt"), (1, 1), 256)],
)
def test_an_entry_is_a_granule_of_the_scope_on_the_chip(
    scopes: tuple[str, str], sizes: tuple[int, int], entry: int
) -> None:
    assert entry_elements(VTA, scopes, sizes) == entry


def test_every_shipped_engine_describes_a_plain_row() -> None:
    for name in ("gemmini-fp32", "rapid-core-like", "h100-sm", "snax-opengemm"):
        for engine in load_machine(name).dmas().values():
            assert isinstance(engine, DmaOp)
            row = (1, 16)
            assert describe([view("dram", row, row), view("chip", row, row)], engine=engine).counts == (16,)
