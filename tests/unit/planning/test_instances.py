# SPDX-License-Identifier: Apache-2.0
"""The families of problems that planners are judged by: they are what they say, and the same every time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.passes.planning.minimalloc_csv import parse_csv, write_csv
from penstock.passes.planning.problem import Problem, lower_bound, validate
from penstock.runtime.machines import attach_machine

FAMILIES = (
    "guillotine", "pinwheel", "slack", "fixed", "gaps", "windows", "rectangles", "alignments", "banks", "chains",
    "training", "pipelines",
)  # fmt: skip
PERFECT = FAMILIES[:2] + FAMILIES[3:6]


@pytest.fixture(scope="module")
def module() -> Iterator[Callable[[str], Any]]:
    """What imports the modules of the benchmarks, which are no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).parents[3]), *sys.path])
        yield lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture(scope="module")
def drawn(module: Callable[[str], Any]) -> Any:
    """The drawn families by name."""
    return module("instances").DRAWN


def test_these_are_all(drawn: Any) -> None:
    assert tuple(drawn) == FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_the_same_every_time_and_large_when_asked(drawn: Any, family: str) -> None:
    few, again, many = ([*drawn[family](quick)] for quick in (True, True, False))
    assert few == again
    assert len({each.name for each in many}) == len(many) > len(few)
    assert max(len(each.problem.buffers) for each in many) > 100


@pytest.mark.parametrize("family", PERFECT)
def test_perfect_packings_come_with_a_plan_as_high_as_the_bound(drawn: Any, family: str) -> None:
    for instance in drawn[family](False):
        if len(instance.problem.buffers) > 150:
            continue  # the check is quadratic
        validate(instance.problem, instance.perfect)
        assert instance.optimum == lower_bound(instance.problem) == instance.problem.capacity, instance.name


def _features(problem: Problem) -> set[str]:
    found = {"gaps" for buffer in problem.buffers if len(buffer.intervals) > 1 and not buffer.windows}
    found |= {"windows" for buffer in problem.buffers if buffer.windows}
    found |= {"fixed" for buffer in problem.buffers if buffer.offset is not None}
    found |= {"banks" for buffer in problem.buffers if buffer.banks is not None}
    return found | {"alignments" for buffer in problem.buffers if buffer.alignment > 64}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_feature_that_it_is_called_after_and_no_other(drawn: Any, family: str) -> None:
    expected = {family} & {"gaps", "windows", "fixed", "banks", "alignments"}
    assert all(_features(each.problem) == expected for each in drawn[family](False))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_problem_comes_back_from_its_csv(drawn: Any, family: str) -> None:
    for instance in drawn[family](True):
        problem = instance.problem
        text = write_csv(problem)
        assert parse_csv(text, problem.capacity, bank_size=problem.bank_size, fixed=True)[0] == problem


PROGRAM = """
func.func @main(%x: memref<64xf32>, %y: memref<64xf32>) {
  %t = memref.alloc() : memref<64xf32>
  func.call @k(%x, %t) : (memref<64xf32>, memref<64xf32>) -> ()
  func.call @k(%t, %y) : (memref<64xf32>, memref<64xf32>) -> ()
  func.return
}
func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {device = @gemmini_fp32} {
  %zero = arith.constant 0 : index
  %end = arith.constant 64 : index
  %tile = arith.constant 32 : index
  scf.for %i = %zero to %end step %tile {
    %a = mem.buffer : memref<32xf32, "spad">
    mem.copy %x[%i] to %a : memref<64xf32> to memref<32xf32, "spad">
    %b = mem.buffer : memref<32xf32, "spad">
    mem.copy %a to %b : memref<32xf32, "spad"> to memref<32xf32, "spad">
    mem.copy %b to %y[%i] : memref<32xf32, "spad"> to memref<64xf32>
  }
  func.return
}
"""


def test_a_trace_has_a_buffer_for_every_round_and_result(module: Callable[[str], Any]) -> None:
    program = Parser(make_context(), PROGRAM).parse_module()
    attach_machine(program, "gemmini-fp32")
    trace = module("instances.trace").trace
    lives = [[(b.lower, b.upper, b.size) for b in trace(program, "spad", ahead).buffers] for ahead in (0, 1)]
    # two calls of two rounds of three transfers
    assert lives[0] == [(3 * n + k, 3 * n + k + 2, 128) for n in range(4) for k in range(2)]
    # loaded a round earlier, but not before their loop; stored a round longer, the last of a loop until its kernel ends
    loaded = [(0, 2, 128), (0, 5, 128), (6, 8, 128), (6, 11, 128)]
    stored = [(1, 6, 128), (4, 6, 128), (7, 12, 128), (10, 12, 128)]
    # what the first kernel leaves to the second stays
    assert sorted(lives[1]) == sorted([*loaded, *stored, (0, 12, 256)])


def test_published_instances_that_are_not_there_are_skipped_with_a_line(
    module: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = module("instances.published").published
    assert list(published(tmp_path)) == []
    assert "skipped" in capsys.readouterr().err
    (tmp_path / "Z.4096.csv").write_text("id,lower,upper,size\n0,0,2,1024\n")
    (instance,) = published(tmp_path)
    assert (instance.name, instance.problem.capacity, instance.bound) == ("Z", 4096, 1024)


def test_a_changed_instance_needs_no_more_bytes_and_is_the_same_every_time(module: Callable[[str], Any]) -> None:
    (problem, *_) = (each.problem for each in module("instances").DRAWN["guillotine"](True))
    for change in module("instances.perturbed").CHANGES:
        first, again = (change(list(problem.buffers), Random(3)) for _ in range(2))
        assert first == again != list(problem.buffers), change.__name__
        assert lower_bound(Problem(tuple(first))) <= lower_bound(problem)
