# SPDX-License-Identifier: Apache-2.0
"""The choice of tiles: plain data, so small cases are checked against an exhaustive search."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning.pipelining import TimedLoop, TimedStep, time_of
from penstock.passes.planning.tile_cost import box_of, moving
from penstock.passes.planning.tile_problem import (
    Channel,
    TileDim,
    TileOp,
    TileOperand,
    TileProblem,
    held_bytes,
    thinned,
    tile_sizes,
)
from penstock.passes.planning.tilers.pipelined import with_sizes
from penstock.passes.planning.tilers.registry import plan_tile
from penstock.passes.planning.tiling import TIE, DoesNotFit

LOAD = Channel("load", "in", (16, 1), 10, 1, 1, 2)
STORE = Channel("store", "out", (16, 1), 10, 1, 1, 2)


def matmul(m: int, n: int, k: int, spad: int, acc: int, step: int = 1) -> TileProblem:
    return TileProblem(
        (TileDim(m, True, step), TileDim(n, True, step), TileDim(k, False, step)),
        (
            TileOperand("a", "spad", 4, ((1, 0, 0), (0, 0, 1)), 16, bounds=(m, k), fetch=(LOAD,)),
            TileOperand("b", "spad", 4, ((0, 0, 1), (0, 1, 0)), 16, bounds=(k, n), fetch=(LOAD,)),
            TileOperand(
                "c", "acc", 4, ((1, 0, 0), (0, 1, 0)), 16, reads=False, writes=True, bounds=(m, n), put=(STORE,)
            ),
        ),
        {"spad": spad, "acc": acc},
        (
            TileOp("unit", (0, 1), (), 2, 1, 4, ((0, step), (1, step))),
            TileOp("unit", (0, 1, 2), (0, 1), 2, step, 12, ((0, step), (1, step), (2, step)), anchor=True),
        ),
    )


def test_what_takes_no_time_is_not_cut() -> None:
    plan = plan_tile(replace(matmul(16, 16, 16, 1 << 20, 1 << 20), works=()))
    assert (plan.tile, plan.order, plan.edges) == ((16, 16, 16), (), ("whole",) * 3)
    assert plan.bytes_moved == 3 * 16 * 16 * 4
    assert plan.describe() == ""


def test_every_scope_of_a_large_matmul_is_respected_and_well_used() -> None:
    plan = plan_tile(matmul(4096, 4096, 4096, 256 << 10, 64 << 10, 4))
    assert plan.footprint["spad"] <= 256 << 10
    assert (64 << 10) * 0.7 < plan.footprint["acc"] <= 64 << 10
    # The square-root bound on traffic for the slots of this accumulator: 2MNK / sqrt(S), plus the result.
    bound = 2 * 4096**3 / ((16384 / plan.depths["acc"]) ** 0.5) + 4096**2
    assert plan.bytes_moved / 4 < 1.3 * bound
    assert plan.time is not None
    assert plan.time.cycles < 1.02 * plan.time.bound


def test_reductions_are_only_cut_by_divisors() -> None:
    assert tile_sizes(TileDim(12, False)) == [1, 2, 3, 4, 6, 12]
    assert tile_sizes(TileDim(7, False)) == [1, 7]
    assert tile_sizes(TileDim(7, False, whole=True)) == [7]


def test_a_dim_of_billions_is_cut_at_once() -> None:
    # Its sizes are found from its root: to go through all numbers of pieces would take minutes.
    for parallel in (True, False):
        sizes = tile_sizes(TileDim(4 * 1_000_000_007, parallel, 4))
        assert (sizes[0], sizes[-1]) == (1, 4 * 1_000_000_007)
    assert plan_tile(matmul(2**31 - 1, 8, 8, 1 << 18, 1 << 16, 4)).is_cut


@pytest.mark.parametrize("extent", [1, 2, 3, 12, 16, 49, 97, 360])
def test_sizes_from_the_root_are_those_of_every_number_of_pieces(extent: int) -> None:
    even = {ceil(extent / pieces) for pieces in range(1, extent + 1)}
    divisors = {size for size in range(1, extent + 1) if extent % size == 0}
    found = tile_sizes(TileDim(extent, True))
    assert set(found) <= even | divisors
    assert len(found) == min(len(even | divisors), 32) or len(even | divisors) > 32
    reduction = tile_sizes(TileDim(extent, False))
    assert set(reduction) <= divisors
    assert len(divisors) > 32 or set(reduction) == divisors


def test_a_kernel_of_scalars_is_one_tile() -> None:
    number = TileOperand("x", "spad", 4, (), 16)
    plan = plan_tile(TileProblem((), (number, replace(number, name="y", reads=False, writes=True)), {"spad": 64}))
    assert (plan.tile, plan.order, plan.is_cut, plan.bytes_moved) == ((), (), False, 8)
    with pytest.raises(DoesNotFit):
        plan_tile(TileProblem((), (number,), {"spad": 8}))


def test_a_reduction_that_may_read_zeros_is_cut_as_a_parallel_dim() -> None:
    assert tile_sizes(TileDim(7, False, runs_past_end=True)) == tile_sizes(TileDim(7, True))
    problem = matmul(8, 8, 101, 1024, 1024, 4)
    dims = (*problem.dims[:2], TileDim(101, False, 4, runs_past_end=True))
    cut = plan_tile(replace(problem, dims=dims))
    whole_or_one = plan_tile(problem)
    assert whole_or_one.tile[2] == 1
    assert cut.edges[2] == "zeros"
    assert cut.time is not None
    assert whole_or_one.time is not None
    assert cut.time.cycles < whole_or_one.time.cycles
    assert "reads zeros" in cut.describe()


def test_parallel_sizes_are_multiples_of_the_intrinsic_or_the_whole() -> None:
    sizes = tile_sizes(TileDim(130, True, 4))
    assert all(size % 4 == 0 or size in (1, 130) for size in sizes)
    assert sizes[-1] == 130


def test_too_small_a_scope_is_named_with_what_it_must_hold() -> None:
    with pytest.raises(DoesNotFit) as fault:
        plan_tile(matmul(8, 8, 8, 16, 64))
    assert (fault.value.scope, fault.value.needed, fault.value.capacity) == ("spad", 32, 16)
    assert fault.value.parts == (("a", 16), ("b", 16))


def test_given_sizes_are_taken_and_checked() -> None:
    plan = with_sizes(matmul(64, 60, 130, 1 << 20, 1 << 20), (16, 100, 26))
    assert (plan.tile, plan.edges) == ((16, 60, 26), ("divides", "whole", "divides"))
    assert set(plan.order) == {0, 2}
    with pytest.raises(ValueError, match="does not divide"):
        with_sizes(matmul(64, 60, 130, 1 << 20, 1 << 20), (16, 100, 25))
    with pytest.raises(ValueError, match="2 tile sizes for 3 dims"):
        with_sizes(matmul(64, 60, 130, 1 << 20, 1 << 20), (16, 100))


def test_a_halo_is_counted_once_a_tile_and_never_past_the_whole() -> None:
    image = TileOperand("x", "spad", 4, ((1, 1),), 16, bounds=(10,))
    assert image.part((8, 3)) == [10]
    assert held_bytes(image, (8, 3)) == 48


def test_what_hangs_over_the_edge_is_not_moved() -> None:
    # Rows of 10 in windows of 3, one of padding on either side: windows of 4 outputs read 5, 6 and 4 elements.
    dims = (TileDim(10, True), TileDim(3, False, whole=True))
    image = TileOperand("x", "spad", 4, ((1, 1),), 16, bounds=(12,), padding=((1, 1),), fetch=(LOAD,))
    ones = np.ones(2, np.int64)
    box = box_of(image, dims, [np.array([4, 10]), np.array([3, 3])], ones)
    assert box.elements.tolist() == [(5 + 6 + 5) / 3, 10]
    cost = moving(image, box, LOAD)
    assert cost.cycles.tolist() == [ceil(16 / 3 * 4 / 16) + 1, ceil(40 / 16) + 1]


@pytest.mark.parametrize(
    ("shape", "tile", "rows", "commands"),
    [
        ((8, 6, 16), (8, 6, 16), 1, 1),  # all of it is one row
        ((8, 6, 16), (8, 3, 16), 8, 1),  # rows of the last two dims
        ((8, 6, 16), (8, 6, 4), 48, 1),  # the first two dims follow each other without a gap
        ((8, 6, 16), (4, 3, 4), 12, 4),  # a descriptor of two dims steps once
        ((8, 6, 16), (1, 3, 4), 3, 1),
        ((8, 6, 5), (8, 6, 5), 48, 1),  # in a scope a row of 20 bytes ends with the granule of 16 that it begins
        ((1, 1, 6), (1, 1, 6), 1, 1),
    ],
)
def test_a_transfer_has_the_rows_and_commands_of_its_descriptor(
    shape: tuple[int, ...], tile: tuple[int, ...], rows: int, commands: int
) -> None:
    dims = tuple(TileDim(extent, True) for extent in shape)
    operand = TileOperand("x", "spad", 4, ((1, 0, 0), (0, 1, 0), (0, 0, 1)), 16, bounds=shape, fetch=(LOAD,))
    sizes = [np.array([size]) for size in tile]
    cost = moving(operand, box_of(operand, dims, sizes, np.ones(1, np.int64)), LOAD)
    each = ceil(prod(tile) // rows * 4 / 16) + 1
    assert (cost.cycles.tolist(), cost.commands.tolist()) == ([rows * each], [commands])


def timed(problem: TileProblem, tile: tuple[int, ...], order: tuple[int, ...], slots: dict[str, int]) -> int:
    """The time of a tile of `matmul`, its nest written down by hand."""
    m, n, k = (min(size, dim.extent) for size, dim in zip(tile, problem.dims, strict=True))
    trips = [ceil(dim.extent / size) for dim, size in zip(problem.dims, tile, strict=True)]
    step = problem.dims[0].step
    blocks = ceil(m / step) * ceil(n / step)

    def load(rows: int, row: int, bound: int, name: str) -> TimedStep:
        rows, row = (1, rows * row) if row == bound and row % 4 == 0 else (rows, row)
        return TimedStep("load", rows * (ceil(row * 4 / 16) + 1), "in", 10, writes=(name,), opens=(name,))

    steps: list[tuple[int, TimedStep]] = []
    loops = [dim for dim in order if trips[dim] > 1]
    inner, outer = len(loops), sum(dim != 2 for dim in loops)

    def level(*dims: int) -> int:
        return max((at + 1 for at, dim in enumerate(loops) if dim in dims), default=0)

    steps.append((outer, TimedStep("unit", 4 + blocks, writes=("c",), opens=("c",))))
    steps.append((level(0, 2), load(m, k, problem.dims[2].extent, "a")))
    steps.append((level(1, 2), load(k, n, problem.dims[1].extent, "b")))
    steps.append((inner, TimedStep("unit", 12 + step * blocks * ceil(k / step), reads=("a", "b"), writes=("c",))))
    rows, row = (1, m * n) if n == problem.dims[1].extent and n % 4 == 0 else (m, n)
    store = TimedStep("store", rows * (ceil(row * 4 / 16) + 1), "out", 10, reads=("c",), leaves=True)
    nest: list[TimedStep | TimedLoop] = []
    for at in reversed(range(inner + 1)):
        nest = [*(step for where, step in steps if where == at), *nest, *([store] if at == outer else [])]
        if at:
            nest = [TimedLoop(trips[loops[at - 1]], tuple(nest))]
    refilled = {"a": level(0, 2), "b": level(1, 2), "c": level(0, 1)}
    scopes = {"a": "spad", "b": "spad", "c": "acc"}
    held = {name: slots[scopes[name]] if refilled[name] else 1 for name in scopes}
    held["c"] = min(held["c"], 2)
    return time_of(nest, held).cycles


def brute_force(problem: TileProblem) -> int:
    """The least time over all listed sizes, orders and slots, one nest at a time."""
    best = 1 << 60
    for tile in product(*(tile_sizes(dim) for dim in problem.dims)):
        trips = [ceil(dim.extent / size) for dim, size in zip(problem.dims, tile, strict=True)]
        for parallel, spad, acc in product(permutations([0, 1]), (1, 2, 4), (1, 2)):
            order = (*parallel, 2)
            loops = [dim for dim in order if trips[dim] > 1]
            held = {"spad": 0, "acc": 0}
            for operand, count in zip(problem.operands, (spad, spad, acc), strict=True):
                assert operand.scope is not None
                refilled = any(operand.depends_on(dim) for dim in loops)
                held[operand.scope] += int(held_bytes(operand, tile)) * (count if refilled else 1)
            if any(held[scope] > size for scope, size in problem.capacity.items()):
                continue
            best = min(best, timed(problem, tile, order, {"spad": spad, "acc": acc}))
    return best


@examples(30)
@given(st.tuples(*[st.integers(1, 24)] * 3), st.sampled_from([256, 512, 2048]), st.sampled_from([64, 256]))
def test_the_plan_takes_what_an_exhaustive_search_finds(shape: tuple[int, int, int], spad: int, acc: int) -> None:
    problem = matmul(*shape, spad, acc, 4)
    plan = plan_tile(problem)
    assert plan.time is not None
    best = brute_force(problem)
    # Times this close are the same to the planner, which then counts bytes; and estimates choose what is timed.
    assert plan.time.cycles <= best * (1 + TIE) * 1.1


def test_slots_and_sizes_are_chosen_together() -> None:
    problem = matmul(512, 512, 512, 16 << 10, 8 << 10, 16)
    free, single = plan_tile(problem), plan_tile(replace(problem, depth=1))
    assert free.time is not None
    assert single.time is not None
    assert max(free.depths.values()) > 1
    assert set(single.depths.values()) == {1}
    assert free.time.cycles < 0.9 * single.time.cycles
    assert all(free.footprint[scope] <= size for scope, size in problem.capacity.items())
    # Twice the slots leave half the room.
    tile, alone = free.tile, single.tile
    assert prod(tile) < prod(alone)


def test_the_remark_says_what_limits_the_choice_and_what_came_second() -> None:
    plan = plan_tile(matmul(512, 512, 512, 16 << 10, 8 << 10, 16))
    assert plan.time is not None
    assert plan.runner_up is not None
    text = plan.describe()
    assert f"modelled {plan.time.cycles:,} cycles and {plan.bytes_moved:,} bytes, limit {plan.time.limit}" in text
    assert "2 slots in" in text
    assert "next best" in text


def test_sizes_are_thinned_out_evenly_where_they_are_too_many() -> None:
    choices = [list(range(1, 31)), [1, 2], list(range(1, 21))]
    thin = thinned(choices, 200)
    assert prod(map(len, thin)) <= 200
    assert [sizes[0] for sizes in thin] == [1, 1, 1]
    assert [sizes[-1] for sizes in thin] == [30, 2, 20]
    assert thinned(choices, 10_000) == choices
