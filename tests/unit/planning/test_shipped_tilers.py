# SPDX-License-Identifier: Apache-2.0
"""What the tilers other than the usual one find: SMAUG's strategies, and the best of all there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning import tile_cost
from penstock.passes.planning.pipelining import NestTime, TimedLoop, TimedStep, time_of
from penstock.passes.planning.tile_cost import Estimates, Tiles, time_of_tile
from penstock.passes.planning.tile_problem import Channel, NoTile, TileDim, TileOp, TileOperand, TileProblem, tile_sizes
from penstock.passes.planning.tilers import exhaustive as search
from penstock.passes.planning.tilers.registry import plan_tile
from penstock.passes.planning.tilers.smaug import PREFERENCE, dim_letters
from penstock.passes.planning.tiling import DoesNotFit, TilePlan, footprint

LOAD = Channel("load", "in", (16, 1), 10, 1, 1, 2)
STORE = Channel("store", "out", (16, 1), 10, 1, 1, 2)


def operand(name: str, scope: str, rows: tuple[tuple[int, ...], ...], shape: tuple[int, ...]) -> TileOperand:
    if name == "y":
        return TileOperand(name, scope, 4, rows, 16, reads=False, writes=True, bounds=shape, put=(STORE,))
    return TileOperand(name, scope, 4, rows, 16, bounds=shape, fetch=(LOAD,))


def convolution(n: int = 2, h: int = 12, w: int = 10, k: int = 16, c: int = 8, spad: int = 1 << 20) -> TileProblem:
    """A convolution of 3 x 3 in NHWC on blocks of 4 channels: n, h, w, k, then kh, kw and c are summed over."""
    unit = [tuple(int(dim == own) for dim in range(7)) for own in range(7)]
    rows = tuple(tuple(a + b for a, b in zip(unit[i], unit[j], strict=True)) for i, j in ((1, 4), (2, 5)))
    x = operand("x", "spad", (unit[0], *rows, unit[6]), (n, h + 2, w + 2, c))
    weights = operand("w", "spad", (unit[4], unit[5], unit[6], unit[3]), (3, 3, c, k))
    y = operand("y", "acc", (unit[0], unit[1], unit[2], unit[3]), (n, h, w, k))
    dims = [TileDim(extent, True, step) for extent, step in ((n, 1), (h, 1), (w, 1), (k, 4))]
    dims += [TileDim(3, False, whole=True), TileDim(3, False, whole=True), TileDim(c, False, 4)]
    blocks = ((2, 4), (3, 4), (6, 4))
    work = TileOp("unit", tuple(range(7)), (0, 1), 2, 4, 12, blocks, anchor=True)
    return TileProblem(tuple(dims), (x, weights, y), {"spad": spad, "acc": 1 << 20}, (work,))


def matmul(m: int, n: int, k: int, spad: int, acc: int) -> TileProblem:
    a = operand("a", "spad", ((1, 0, 0), (0, 0, 1)), (m, k))
    b = operand("b", "spad", ((0, 0, 1), (0, 1, 0)), (k, n))
    y = operand("y", "acc", ((1, 0, 0), (0, 1, 0)), (m, n))
    dims = (TileDim(m, True, 4), TileDim(n, True, 4), TileDim(k, False, 4))
    work = TileOp("unit", (0, 1, 2), (0, 1), 2, 4, 12, ((0, 4), (1, 4), (2, 4)), anchor=True)
    return TileProblem(dims, (a, b, y), {"spad": spad, "acc": acc}, (work,))


def elementwise(*shape: int) -> TileProblem:
    rows = tuple(tuple(int(dim == own) for dim in range(len(shape))) for own in range(len(shape)))
    x, y = operand("x", "spad", rows, shape), operand("y", "spad", rows, shape)
    work = TileOp("unit", tuple(range(len(shape))), (0,), 1)
    return TileProblem(tuple(TileDim(extent, True) for extent in shape), (x, y), {"spad": 1 << 10}, (work,))


def test_what_dims_are_to_smaug() -> None:
    assert dim_letters(convolution()) == ("N", "H", "W", "K", "", "", "C")
    assert dim_letters(matmul(8, 8, 8, 1 << 10, 1 << 10)) == ("N", "K", "C")
    assert [dim_letters(elementwise(*[4] * rank)) for rank in range(6)] == [
        (),
        ("C",),
        ("N", "C"),
        ("N", "W", "C"),
        ("N", "H", "W", "C"),
        ("N", "H", "H", "W", "C"),
    ]
    # Channels of a depthwise convolution are those of its activations.
    problem = convolution()
    x, weights, y = problem.operands
    x = replace(x, indices=(*x.indices[:3], weights.indices[3]))
    weights = replace(weights, indices=(*weights.indices[:2], weights.indices[3]))
    depthwise = replace(problem, operands=(x, weights, y), dims=problem.dims[:6])
    assert dim_letters(depthwise) == ("N", "H", "W", "C", "", "")


@pytest.mark.parametrize("strategy", ["n", "c", "h", "w", "nc", "nh", "nw", "ch", "cw", "hw", "nhw", "nch", "ncw"])
def test_a_strategy_cuts_only_the_dims_that_it_names(strategy: str) -> None:
    problem = convolution(spad=9000)
    letters = dim_letters(problem)
    plan = plan_tile(problem, f"smaug-{strategy}")
    assert plan.is_cut
    cut = {letters[dim] for dim in plan.order}
    assert cut <= {*strategy.upper(), *("K" if "n" in strategy else "")}
    assert [*plan.order] == sorted(plan.order, key=lambda dim: "NHWKC".index(letters[dim]))
    assert set(plan.depths.values()) <= {1}


def test_the_whole_kernel_is_the_first_strategy() -> None:
    assert not plan_tile(convolution(), "smaug-none").is_cut
    assert not plan_tile(convolution(), "smaug").is_cut
    with pytest.raises(DoesNotFit):
        plan_tile(convolution(spad=4096), "smaug-none")


@pytest.mark.parametrize("spad", [12_000, 6_000, 3_000, 1_248])
def test_smaug_takes_the_first_strategy_that_fits_and_its_fullest_tile(spad: int) -> None:
    problem = convolution(spad=spad)
    letters = dim_letters(problem)
    plan = plan_tile(problem, "smaug")

    def fullest(strategy: str) -> int:
        """The most bytes that a tile of a strategy takes, all tried one by one; 0 where none fits."""
        sizes = [
            [s for s in tile_sizes(dim) if letter not in ("K", "C") or s % 4 == 0]
            if letter in strategy or (letter == "K" and "N" in strategy)
            else [dim.extent]
            for dim, letter in zip(problem.dims, letters, strict=True)
        ]
        used = (footprint(problem, tile, (), {}) for tile in product(*sizes))
        return max((sum(u.values()) for u in used if all(u[s] <= problem.capacity[s] for s in u)), default=0)

    taken = next(bytes for strategy in PREFERENCE if (bytes := fullest("_" + strategy)))
    assert sum(plan.footprint.values()) == taken


def test_where_no_strategy_fits_the_last_one_says_what_it_needs() -> None:
    # A column of x of 4 channels, in windows of 3, and the weights of 4 kernels for them.
    with pytest.raises(DoesNotFit, match=f"needs {14 * 3 * 16 + 9 * 4 * 16} bytes"):
        plan_tile(convolution(spad=700), "smaug")


@examples(40)
@given(st.tuples(*[st.integers(1, 24)] * 3), st.sampled_from([256, 512, 2048]), st.data())
def test_no_nest_is_faster_than_its_bound(shape: tuple[int, int, int], spad: int, data: st.DataObject) -> None:
    depth = data.draw(st.sampled_from([None, 1]))
    problem = replace(matmul(*shape, spad, 256), depth=depth)
    tile = [data.draw(st.sampled_from(tile_sizes(dim))) for dim in problem.dims]
    order = (*data.draw(st.permutations([0, 1])), 2)
    loops = tuple(dim for dim in order if tile[dim] < shape[dim])
    depths = {scope: depth or data.draw(st.integers(1, 3)) for scope in ("spad", "acc")}
    tiles = Tiles(problem, [np.array([size]) for size in tile], np.ones(1, np.int64))
    assert Estimates(tiles, order).bound()[0] <= time_of_tile(tiles, 0, loops, depths).cycles


@pytest.mark.parametrize(
    ("shape", "spad", "acc"), [((8, 12, 9), 256, 128), ((24, 5, 16), 512, 64), ((7, 7, 7), 300, 300)]
)
def test_an_exhaustive_search_finds_what_going_through_all_does(
    shape: tuple[int, int, int], spad: int, acc: int
) -> None:
    problem = matmul(*shape, spad, acc)
    plan = plan_tile(problem, "exhaustive")
    best = 1 << 60
    for tile in product(*(tile_sizes(dim) for dim in problem.dims)):
        for outer in permutations([0, 1]):
            order = tuple(dim for dim in (*outer, 2) if tile[dim] < shape[dim])
            for counts in product(range(1, search.MAX_SLOTS + 1), repeat=2):
                each = TilePlan(problem, tile, order, dict(zip(problem.capacity, counts, strict=True)))
                if all(each.footprint[scope] <= size for scope, size in problem.capacity.items()):
                    assert each.time is not None
                    best = min(best, each.time.cycles)
    assert plan.time is not None
    assert plan.time.cycles == best


def test_an_exhaustive_search_refuses_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = matmul(64, 64, 64, 4096, 4096)
    monkeypatch.setattr(search, "MAX_TILES", 10)
    with pytest.raises(NoTile, match="combinations of sizes, and an exhaustive search stops at 10"):
        search.exhaustive(problem)
    monkeypatch.undo()
    monkeypatch.setattr(search, "MAX_TIMED", 3)
    with pytest.raises(NoTile, match="more than 3 plans might be the best"):
        search.exhaustive(problem)
    monkeypatch.undo()
    with pytest.raises(NoTile, match="nothing is known of what computes"):
        search.exhaustive(replace(problem, works=()))
    with pytest.raises(NoTile, match="120 orders of loops"):
        search.exhaustive(replace(elementwise(2, 2, 2, 2, 2), capacity={"spad": 64}))


def test_a_nest_is_timed_once_for_all_sizes_of_scopes_and_numbers_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[object] = []

    def counted(nest: Sequence[TimedStep | TimedLoop], slots: Mapping[str, int]) -> NestTime:
        timed.append(nest)
        return time_of(nest, slots)

    problem = matmul(10, 6, 14, 2048, 256)
    monkeypatch.setattr(tile_cost, "time_of", counted)
    plan = plan_tile(problem, "exhaustive")
    assert timed
    timed.clear()
    larger = replace(problem, capacity={**problem.capacity, "unused": 1})
    assert plan_tile(larger, "exhaustive").time == plan.time
    tiles = Tiles(replace(problem, depth=2), [np.array([size]) for size in plan.tile], np.ones(1, np.int64))
    assert time_of_tile(tiles, 0, plan.order, plan.depths) == plan.time
    assert not timed
