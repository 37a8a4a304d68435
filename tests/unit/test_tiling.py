"""The choice of tiles: plain data, so small cases are checked against an exhaustive search."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from math import ceil, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.passes.planning.tiling import (
    Costs,
    Dim,
    DoesNotFit,
    Operand,
    TileProblem,
    held_bytes,
    plan_tile,
    tile_sizes,
)


def matmul(m: int, n: int, k: int, spad: int, acc: int, step: int = 1) -> TileProblem:
    return TileProblem(
        (Dim(m, True, step), Dim(n, True, step), Dim(k, False, step)),
        (
            Operand("a", "spad", 4, ((1, 0, 0), (0, 0, 1)), 16),
            Operand("b", "spad", 4, ((0, 0, 1), (0, 1, 0)), 16),
            Operand("c", "acc", 4, ((1, 0, 0), (0, 1, 0)), 16, reads=False, writes=True),
        ),
        {"spad": spad, "acc": acc},
        Costs(1 / 16, 100, 4),
    )


def test_what_fits_is_not_cut() -> None:
    plan = plan_tile(matmul(16, 16, 16, 1 << 20, 1 << 20))
    assert (plan.tile, plan.order, plan.edges) == ((16, 16, 16), (), ("whole",) * 3)
    assert plan.bytes_moved == 3 * 16 * 16 * 4


def test_every_scope_of_a_large_matmul_is_respected_and_well_used() -> None:
    plan = plan_tile(matmul(4096, 4096, 4096, 256 << 10, 64 << 10, 4))
    assert plan.footprint["spad"] <= 256 << 10
    assert (64 << 10) * 0.8 < plan.footprint["acc"] <= 64 << 10
    # The square-root bound on traffic for this accumulator: 2MNK / sqrt(S), plus the result.
    bound = 2 * 4096**3 / (16384**0.5) + 4096**2
    assert plan.bytes_moved / 4 < 1.2 * bound


def test_reductions_are_only_cut_by_divisors() -> None:
    assert tile_sizes(Dim(12, False)) == [1, 2, 3, 4, 6, 12]
    assert tile_sizes(Dim(7, False)) == [1, 7]
    assert tile_sizes(Dim(7, False, whole=True)) == [7]


def test_a_dim_of_billions_is_cut_at_once() -> None:
    # Its sizes are found from its root: to go through all numbers of pieces would take minutes.
    for parallel in (True, False):
        sizes = tile_sizes(Dim(4 * 1_000_000_007, parallel, 4))
        assert (sizes[0], sizes[-1]) == (1, 4 * 1_000_000_007)
    assert plan_tile(matmul(2**31 - 1, 8, 8, 1 << 18, 1 << 16, 4)).is_cut


@pytest.mark.parametrize("extent", [1, 2, 3, 12, 16, 49, 97, 360])
def test_sizes_from_the_root_are_those_of_every_number_of_pieces(extent: int) -> None:
    even = {ceil(extent / pieces) for pieces in range(1, extent + 1)}
    divisors = {size for size in range(1, extent + 1) if extent % size == 0}
    found = tile_sizes(Dim(extent, True))
    assert set(found) <= even | divisors
    assert len(found) == min(len(even | divisors), 14) or len(even | divisors) > 14
    reduction = tile_sizes(Dim(extent, False))
    assert set(reduction) <= divisors
    assert len(divisors) > 14 or set(reduction) == divisors


def test_a_kernel_of_scalars_is_one_tile() -> None:
    number = Operand("x", "spad", 4, (), 16)
    plan = plan_tile(TileProblem((), (number, replace(number, name="y", reads=False, writes=True)), {"spad": 64}))
    assert (plan.tile, plan.order, plan.is_cut, plan.bytes_moved) == ((), (), False, 8)
    with pytest.raises(DoesNotFit):
        plan_tile(TileProblem((), (number,), {"spad": 8}))


def test_a_reduction_that_may_read_zeros_is_cut_as_a_parallel_dim() -> None:
    assert tile_sizes(Dim(7, False, runs_past_end=True)) == tile_sizes(Dim(7, True))
    problem = matmul(8, 8, 101, 512, 1024, 4)
    dims = (*problem.dims[:2], Dim(101, False, 4, runs_past_end=True))
    cut = plan_tile(replace(problem, dims=dims))
    whole_or_one = plan_tile(problem)
    assert whole_or_one.tile[2] == 1
    assert cut.edges[2] == "zeros"
    assert cut.issues < whole_or_one.issues / 3
    assert "reads zeros" in cut.describe()


def test_parallel_sizes_are_multiples_of_the_intrinsic_or_the_whole() -> None:
    sizes = tile_sizes(Dim(130, True, 4))
    assert all(size % 4 == 0 or size in (1, 130) for size in sizes)
    assert sizes[-1] == 130


def test_too_small_a_scope_is_named_with_what_it_must_hold() -> None:
    with pytest.raises(DoesNotFit) as fault:
        plan_tile(matmul(8, 8, 8, 16, 64))
    assert (fault.value.scope, fault.value.needed, fault.value.capacity) == ("spad", 32, 16)
    assert fault.value.parts == (("a", 16), ("b", 16))


def test_given_sizes_are_taken_and_checked() -> None:
    plan = plan_tile(matmul(64, 60, 130, 1 << 20, 1 << 20), given=(16, 100, 26))
    assert (plan.tile, plan.edges) == ((16, 60, 26), ("divides", "whole", "divides"))
    assert set(plan.order) == {0, 2}
    with pytest.raises(ValueError, match="does not divide"):
        plan_tile(matmul(64, 60, 130, 1 << 20, 1 << 20), given=(16, 100, 25))
    with pytest.raises(ValueError, match="2 tile sizes for 3 dims"):
        plan_tile(matmul(64, 60, 130, 1 << 20, 1 << 20), given=(16, 100))


def test_a_halo_is_counted_once_a_tile_and_never_past_the_whole() -> None:
    image = Operand("x", "spad", 4, ((1, 1),), 16, bounds=(10,))
    assert image.part((8, 3)) == [10]
    assert held_bytes(image, (8, 3)) == 48


def brute_force(problem: TileProblem) -> float:
    """The least cost over all listed sizes and orders, computed one tile at a time."""
    best = float("inf")
    for tile in product(*(tile_sizes(dim) for dim in problem.dims)):
        held = {scope: 0 for scope in problem.capacity}
        for operand in problem.operands:
            assert operand.scope is not None
            held[operand.scope] += int(held_bytes(operand, tile))
        if any(held[scope] > size for scope, size in problem.capacity.items()):
            continue
        trips = [ceil(dim.extent / size) for dim, size in zip(problem.dims, tile, strict=True)]
        for parallel in permutations([0, 1]):
            order = [number for number in (*parallel, 2) if trips[number] > 1]
            cost = 0.0
            for operand in problem.operands:
                deepest = max((at for at, dim in enumerate(order) if operand.depends_on(dim)), default=-1)
                fetches = prod(trips[dim] for dim in order[: deepest + 1])
                size = int(prod(operand.part(tile))) * operand.element_bytes
                cost += fetches * (size * problem.costs.cycles_per_byte + problem.costs.cycles_per_transfer)
            issues = prod(t * ceil(s / d.step) for t, s, d in zip(trips, tile, problem.dims, strict=True))
            best = min(best, cost + issues * problem.costs.cycles_per_issue)
    return best


@given(st.tuples(*[st.integers(1, 24)] * 3), st.sampled_from([256, 512, 2048]), st.sampled_from([64, 256]))
def test_the_plan_costs_what_an_exhaustive_search_finds(shape: tuple[int, int, int], spad: int, acc: int) -> None:
    problem = matmul(*shape, spad, acc, 4)
    plan = plan_tile(problem)
    trips = [ceil(dim.extent / size) for dim, size in zip(problem.dims, plan.tile, strict=True)]
    transfers = 0
    for operand in problem.operands:
        deepest = max((at for at, dim in enumerate(plan.order) if operand.depends_on(dim)), default=-1)
        transfers += prod(trips[dim] for dim in plan.order[: deepest + 1])
    cost = plan.bytes_moved / 16 + transfers * 100 + plan.issues * 4
    assert cost == pytest.approx(brute_force(problem))
