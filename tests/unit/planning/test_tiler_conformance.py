# SPDX-License-Identifier: Apache-2.0
"""The conformance suite for tilers: it passes ours, and each kind of broken one is told its rule and where."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.passes.planning.conformance.tile_problems import (
    KERNELS,
    MACHINES,
    convolution,
    least_bytes,
    least_cycles,
    matmul,
    problem_of,
    random_problems,
    smaller_problems,
)
from penstock.passes.planning.conformance.tilers import RULES, check_tiler, figures_table
from penstock.passes.planning.tile_problem import NoTile, TileProblem
from penstock.passes.planning.tilers.largest import largest
from penstock.passes.planning.tilers.registry import plan_tile, tiler, tiler_names
from penstock.passes.planning.tiling import DoesNotFit, TilePlan, loops_of, overflow

if TYPE_CHECKING:
    from tests.conftest import Command

NAMES = ("lenet conv2", "mobilenet add", "classifier")
REAL = [
    (f"{kernel} on {name}", problem_of(KERNELS[kernel], machine))
    for kernel in NAMES
    for name, machine in MACHINES.items()
]


@pytest.mark.parametrize("name", ["largest", "pipelined", "smaug", "smaug-nhw"])
def test_ours_conform(name: str) -> None:
    report = check_tiler(tiler(name), problems=REAL, random=25)
    assert report.fault is None
    assert report.posed == len(REAL) + 25
    assert report.planned >= (20 if name != "smaug-nhw" else 10)
    rows = figures_table(report)
    assert [row[0] for row in rows[1:]] == [name for name, _ in REAL]
    assert all(len(row) == len(rows[0]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", tiler_names())
def test_every_one_of_ours_conforms_on_kernels_of_networks(name: str) -> None:
    assert check_tiler(tiler(name)).fault is None


def test_nothing_goes_below_what_no_tile_goes_below() -> None:
    for name, problem in [*REAL, *random_problems(60, 1)]:
        try:
            plan = plan_tile(problem)
        except (DoesNotFit, NoTile):
            continue
        assert plan.time is not None
        assert least_cycles(problem) <= plan.time.cycles, name
        assert least_bytes(problem) <= plan.bytes_moved + 1, name


def test_the_least_of_a_product_is_its_blocks_and_its_operands() -> None:
    problem = problem_of(matmul(40, 33, 17), MACHINES["shared"])
    assert least_bytes(problem) == 40 * 17 + 17 * 33 + 4 * 40 * 33
    assert least_cycles(problem) == 40 * 17 // 16 + 17 * 33 // 16 + 4 * 40 * 33 // 16
    assert least_cycles(problem_of(matmul(128, 128, 512), MACHINES["shared"])) == 16 * 8 * 8 * 32
    # Of 14 x 14 pixels a stride of two with a window of one reads a quarter.
    strided = problem_of(convolution(1, 14, 64, 32, 1, 2), MACHINES["small"])
    assert least_bytes(strided) == 2 * (7 * 7 * 64 + 64 * 32 + 7 * 7 * 32)


def test_random_problems_are_the_same_for_the_same_seed_and_shrink() -> None:
    assert [*random_problems(20, 3)] == [*random_problems(20, 3)] != [*random_problems(20, 4)]
    for _, problem in random_problems(20):
        for smaller in smaller_problems(problem):
            assert smaller != problem


def everything(problem: TileProblem) -> TilePlan:
    return TilePlan(problem, tuple(dim.next_size(dim.extent) for dim in problem.dims))


def halves(problem: TileProblem) -> TilePlan:
    """Takes no notice of windows, of sums, or of blocks."""
    tile = tuple(max(dim.extent // 2, 1) for dim in problem.dims)
    return TilePlan(problem, tile, loops_of(problem, tile))


def numbers_from(problem: TileProblem) -> TilePlan:
    plan = largest(problem)
    return replace(plan, order=plan.order[::-1])


calls: list[TileProblem] = []


def wanders(problem: TileProblem) -> TilePlan:
    calls.append(problem)
    if len(calls) % 2:
        return largest(problem)
    tile = tuple(dim.next_size(1) if dim.parallel and not dim.whole else dim.extent for dim in problem.dims)
    return TilePlan(problem, tile, loops_of(problem, tile))


def goes_by_names(problem: TileProblem) -> TilePlan:
    if problem.operands[0].name == "x":
        raise NoTile("x is not tiled here")
    return largest(problem)


def takes_more(problem: TileProblem) -> TilePlan:
    for scope in problem.capacity:
        problem.capacity[scope] = 1 << 40  # pyright: ignore[reportIndexIssue]
    return largest(problem)


def has_none(problem: TileProblem) -> TilePlan:
    raise overflow(replace(problem, capacity=dict.fromkeys(problem.capacity, -1)), [1] * len(problem.dims))


def crashes(problem: TileProblem) -> TilePlan:
    return TilePlan(problem, (problem.dims[9].extent,) * len(problem.dims))


def answers_with_sizes(problem: TileProblem) -> object:
    return tuple(dim.extent for dim in problem.dims)


BROKEN: list[tuple[Callable[[TileProblem], object], str, str]] = [
    (everything, "valid", 'bytes of scope "'),
    (halves, "valid", "size "),
    (numbers_from, "valid", "outside of"),
    (wanders, "deterministic", "asked twice it gave two answers"),
    (goes_by_names, "deterministic", "NoTile: x is not tiled here"),
    (takes_more, "pure", "it changes the bytes of the scopes"),
    (has_none, "refusal", "problems it has a plan for none"),
    (crashes, "result", "it raised IndexError"),
    (answers_with_sizes, "valid", "it is a tuple, not a TilePlan"),
]


@pytest.mark.parametrize(("broken", "rule", "message"), BROKEN, ids=[each[0].__name__ for each in BROKEN])
def test_a_broken_tiler_is_told_the_rule_and_the_smallest_problem(
    broken: Callable[[TileProblem], TilePlan], rule: str, message: str
) -> None:
    fault = check_tiler(broken, problems=REAL, random=20).fault
    assert fault is not None
    assert (fault.rule, message in fault.message) == (rule, True), fault
    assert rule in RULES
    assert rule == "refusal" or "operand 0: name=" in fault.problem


def test_a_fault_is_shown_on_a_problem_of_few_elements() -> None:
    fault = check_tiler(halves, problems=REAL).fault
    assert fault is not None
    # The window of 5 is cut.
    assert "size 1 of d5, which has 2, cuts a dim that stays whole" in fault.message
    extents = [line for line in fault.problem.splitlines() if line.startswith("dim ")]
    assert sum("extent=1," in line for line in extents) == 6


@pytest.fixture
def plugins(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("plugins")
    about = folder / "tilers_to_test-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tilers-to-test\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[penstock.tilers]\neverything = tilers_to_test:tile\n")
    (folder / "tilers_to_test.py").write_text(
        "from penstock.passes.planning.tiling import TilePlan\n\n"
        "def tile(problem):\n    return TilePlan(problem, tuple(dim.extent for dim in problem.dims))\n"
    )
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    importlib.invalidate_caches()


PRODUCT = """
func.func @main(%x: tensor<128x96xf32>, %w: tensor<96x64xf32>) -> tensor<128x64xf32> {
  %y = graph.matmul %x, %w : (tensor<128x96xf32>, tensor<96x64xf32>) -> tensor<128x64xf32>
  func.return %y : tensor<128x64xf32>
}
"""


@pytest.mark.usefixtures("plugins")
def test_the_command_prints_a_table_or_the_fault(penstock: Command) -> None:
    Path("product.mlir").write_text(PRODUCT)
    done = penstock("test-tiler", "largest", "product.mlir", "--machine", "gemmini-fp32", "--random", "5")
    assert (done.status, done.err) == (0, "")
    head, kernel, count, verdict = done.out.splitlines()
    assert head.split()[:3] == ["kernel", "tile", "cycles"]
    assert kernel.split()[:2] == ["fused_0", "128x64x96"]
    assert count.endswith("plans for 6 problems, 5 of them random")
    assert verdict == '"largest" keeps every rule: result, valid, refusal, deterministic, pure'
    done = penstock("test-tiler", "everything")
    assert (done.status, done.out) == (1, "")
    assert 'error: the tiler "everything" breaks the rule "valid": it takes ' in done.err
    assert "note: the smallest problem found that shows it, with seed 0:\ndim d0: extent=" in done.err


def test_the_command_refuses_what_makes_no_sense(penstock: Command) -> None:
    Path("product.mlir").write_text(PRODUCT)
    done = penstock("test-tiler", "largest", "--machine", "gemmini-fp32")
    assert (done.status, "--machine, --set and --dim are for a MODEL" in done.err) == (2, True)
    done = penstock("test-tiler", "larges")
    assert (done.status, 'no tiler is called "larges"' in done.err) == (1, True)
    done = penstock("test-tiler", "largest", "product.mlir")
    assert (done.status, "product.mlir: error: no kernel of it runs on a machine" in done.err) == (1, True)
