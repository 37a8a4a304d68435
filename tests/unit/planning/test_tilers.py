# SPDX-License-Identifier: Apache-2.0
"""Tilers by name: what is checked of their plans, what they are told, and what follows from what they decide."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.tile_problem import Channel, NoTile, TileDim, TileOp, TileOperand, TileProblem
from penstock.passes.planning.tile_validation import TilePlanError, checked_plan
from penstock.passes.planning.tilers.largest import largest_within
from penstock.passes.planning.tilers.registry import DEFAULT_TILER, plan_tile, tiler, tiler_names
from penstock.passes.planning.tiling import DoesNotFit, TilePlan, equal_depths, footprint, loops_of, overflow

LOAD = Channel("load", "in", (16, 1), 10, 1, 1, 2)
STORE = Channel("store", "out", (16, 1), 10, 1, 1, 2)


def product(m: int = 64, n: int = 48, k: int = 40, spad: int = 4096, acc: int = 2048) -> TileProblem:
    """A matrix product on blocks of 4 x 4 x 4."""
    a = TileOperand("a", "spad", 4, ((1, 0, 0), (0, 0, 1)), 16, bounds=(m, k), fetch=(LOAD,))
    b = TileOperand("b", "spad", 4, ((0, 0, 1), (0, 1, 0)), 16, bounds=(k, n), fetch=(LOAD,))
    c = TileOperand("c", "acc", 4, ((1, 0, 0), (0, 1, 0)), 16, reads=False, writes=True, bounds=(m, n), put=(STORE,))
    blocks = ((0, 4), (1, 4), (2, 4))
    return TileProblem(
        (TileDim(m, True, 4), TileDim(n, True, 4), TileDim(k, False, 4)),
        (a, b, c),
        {"spad": spad, "acc": acc},
        (TileOp("unit", (0, 1, 2), (0, 1), 2, 4, 12, blocks, anchor=True),),
    )


PROBLEM = product()


def with_dim(number: int, dim: TileDim) -> TileProblem:
    return replace(PROBLEM, dims=tuple(dim if each == number else old for each, old in enumerate(PROBLEM.dims)))


def test_a_plan_of_three_answers_is_complete() -> None:
    plan = checked_plan(PROBLEM, TilePlan(PROBLEM, (16, 20, 8), (1, 0, 2), {"spad": 2}))
    assert plan.edges == ("divides", "overlap", "divides")
    assert plan.footprint == {"spad": 2 * (16 * 32 + 8 * 80), "acc": 16 * 80}
    # a is needed in all 4 x 3 x 5 iterations, and so is b; the result is stored once for each of its 4 x 3 tiles.
    assert plan.bytes_moved == 4 * (60 * 16 * 8 + 60 * 8 * 20 + 12 * 16 * 20)
    assert plan.time is not None
    assert plan.time.cycles >= plan.time.bound > 0


FAULTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = {
    "it has 2 sizes for 3 dims": ((16, 16), (), {}),
    "size 0 of d0, which has 64, is not positive": ((0, 48, 40), (0,), {}),
    "size 12 of d2, which has 40, does not divide a reduction": ((16, 16, 12), (0, 1, 2), {}),
    "size 44 of d2, which has 40, is past the end of a reduction": ((16, 16, 44), (0, 1), {}),
    "size 50 of d1, which has 48, is larger than the blocks": ((16, 50, 8), (0, 2), {}),
    "the order d2, d0, d1 has the reduction d2 outside of d0, which is parallel": ((16, 16, 8), (2, 0, 1), {}),
    "the order d0, d1 lacks d2, which is cut": ((16, 16, 8), (0, 1), {}),
    "the order d0, d1 has d1, which is not cut": ((4, 48, 40), (0, 1), {}),
    "the order d0, d0 has d0 twice": ((4, 48, 40), (0, 0), {}),
    "the order d0, d7 has d7, which is no dim": ((4, 48, 40), (0, 7), {}),
    'it has slots in "sapd", and the scopes are spad, acc': ((16, 16, 8), (0, 1, 2), {"sapd": 2}),
    'it has 0 slots in "spad"': ((16, 16, 8), (0, 1, 2), {"spad": 0}),
    r'it takes 5,120 bytes of scope "spad", which has 4,096 \(%a 2,560, %b 2,560\)': ((16, 16, 40), (0, 1), {}),
    r'it takes 5,120 bytes of scope "spad"': ((16, 16, 8), (0, 1, 2), {"spad": 5}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_plan_that_breaks_a_rule_is_refused(fault: str) -> None:
    tile, order, depths = FAULTS[fault]
    with pytest.raises(TilePlanError, match=fault):
        checked_plan(PROBLEM, TilePlan(PROBLEM, tile, order, depths))


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(TilePlanError, match="it is a tuple, not a TilePlan"):
        checked_plan(PROBLEM, (16, 16, 8))
    for size in ("16", 16.0, None):
        with pytest.raises(TilePlanError, match="are integers"):
            checked_plan(PROBLEM, TilePlan(PROBLEM, (size, 16, 8), (0, 1, 2)))  # pyright: ignore[reportArgumentType]


def test_the_rules_of_dims_are_kept() -> None:
    whole = with_dim(2, TileDim(40, False, 4, whole=True))
    with pytest.raises(TilePlanError, match="cuts a dim that stays whole"):
        checked_plan(whole, TilePlan(whole, (16, 16, 8), (0, 1, 2)))
    fixed = with_dim(0, TileDim(64, True, 16, blocks=((16, 16),)))
    with pytest.raises(TilePlanError, match="is not cut into blocks of 16"):
        checked_plan(fixed, TilePlan(fixed, (8, 16, 8), (0, 1, 2)))
    short = with_dim(0, TileDim(5, True, 16, blocks=((8, 8),)))
    assert checked_plan(short, TilePlan(short, (8, 16, 8), (1, 2))).edges[0] == "padded"
    with pytest.raises(TilePlanError, match="larger than the blocks of the machine need"):
        checked_plan(short, TilePlan(short, (16, 16, 8), (1, 2)))
    zeros = with_dim(2, TileDim(41, False, 4, runs_past_end=True))
    assert checked_plan(zeros, TilePlan(zeros, (16, 16, 12), (0, 1, 2))).edges[2] == "zeros"


def test_slots_that_a_person_gives_are_kept() -> None:
    asked = replace(PROBLEM, depth=2)
    with pytest.raises(TilePlanError, match='it has 1 slots in "spad", and 2 are asked for'):
        checked_plan(asked, TilePlan(asked, (16, 16, 8), (0, 1, 2)))
    # What is loaded once has one slot whatever is asked for.
    assert checked_plan(replace(product(8, 8, 8), depth=2), TilePlan(asked, (8, 8, 8))).footprint["spad"] == 512


def test_a_plan_for_another_problem_is_held_against_this_one() -> None:
    roomy = product(spad=1 << 20)
    with pytest.raises(TilePlanError, match='it takes 17,920 bytes of scope "spad", which has 4,096'):
        checked_plan(PROBLEM, TilePlan(roomy, (64, 48, 40)))


@pytest.mark.parametrize("name", ["largest", "pipelined"])
def test_our_tilers_give_plans_or_say_what_does_not_fit(name: str) -> None:
    plan = plan_tile(PROBLEM, name)
    assert all(plan.footprint[scope] <= size for scope, size in PROBLEM.capacity.items())
    with pytest.raises(DoesNotFit) as fault:
        plan_tile(product(spad=16), name)
    assert (fault.value.scope, fault.value.needed) == ("spad", 32)
    with pytest.raises(NoTile):
        plan_tile(with_dim(2, TileDim(40, False, 16, blocks=((16, 16),))), name)


def test_the_largest_tile_is_the_largest() -> None:
    plan = plan_tile(PROBLEM, "largest")
    best = max(
        m * n * k
        for m in range(1, 65)
        for n in range(1, 49)
        for k in (1, 2, 4, 5, 8, 10, 20, 40)
        if all(footprint(PROBLEM, (m, n, k), (), {})[scope] <= size for scope, size in PROBLEM.capacity.items())
    )
    m, n, k = plan.tile
    # Listed are sizes that cut a dim nearly evenly.
    assert 0.8 * best <= m * n * k <= best
    assert set(plan.depths.values()) == {1}
    within = largest_within(PROBLEM, (16, 7, 40))
    assert within.tile[0] <= 16
    assert within.tile[1] <= 7


def test_helpers_for_tilers() -> None:
    assert loops_of(PROBLEM, (16, 48, 8)) == (0, 2)
    assert loops_of(replace(PROBLEM, dims=PROBLEM.dims[::-1]), (8, 48, 16)) == (2, 0)
    assert equal_depths(PROBLEM, (0,)) == {"spad": 1, "acc": 1}
    assert equal_depths(replace(PROBLEM, depth=3), (2,), 2) == {"spad": 3}
    fault = overflow(PROBLEM, (64, 48, 40))
    assert (fault.scope, fault.needed, fault.parts) == ("spad", 17_920, (("a", 10_240), ("b", 7_680)))


PACKAGE = '''
from penstock.passes.planning.tiling import TilePlan, equal_depths, loops_of

calls = []

def ones(problem):
    """A tile of one element in each dim."""
    calls.append(problem)
    tile = tuple(1 for dim in problem.dims)
    return TilePlan(problem, tile, loops_of(problem, tile))

def everything(problem):
    problem.capacity.update(spad=1 << 40)
    return TilePlan(problem, tuple(dim.extent for dim in problem.dims))
'''

ENTRY_POINTS = """
[penstock.tilers]
ones = tilers_of_a_test:ones
everything = tilers_of_a_test:everything
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers two tilers."""
    about = tmp_path / "tilers_of_a_test-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tilers-of-a-test\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "tilers_of_a_test.py").write_text(PACKAGE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "tilers_of_a_test", raising=False)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("plugins")
def test_a_package_can_offer_a_tiler_and_is_asked_once_for_equal_problems() -> None:
    assert {"ones", DEFAULT_TILER} <= {*tiler_names()}
    ours = plan_tile(PROBLEM)
    plan = plan_tile(PROBLEM, "ones")
    assert (plan.tile, plan.order) == ((1, 1, 1), (0, 1, 2))
    assert plan_tile(PROBLEM) == ours != plan
    assert plan_tile(replace(PROBLEM), "ones") is plan
    module = importlib.import_module("tilers_of_a_test")
    assert len(module.calls) == 1


@pytest.mark.usefixtures("plugins")
def test_a_plan_of_a_package_that_is_not_valid_is_refused() -> None:
    with pytest.raises(
        TilePlanError, match='the tiler "everything" returned a plan that is not valid: it takes 17,920'
    ):
        plan_tile(PROBLEM, "everything")


def test_an_unknown_tiler_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match='no tiler is called "larges"') as caught:
        tiler("larges")
    assert 'did you mean "largest"?' in caught.value.notes
