# SPDX-License-Identifier: Apache-2.0
"""Schedules that say what cannot be done: each message is at its line, and says what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = """#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func private @product(%x: tensor<8x16xf32>, %w: tensor<16x12xf32>) -> tensor<8x12xf32> {
  %e = tensor.empty() : tensor<8x12xf32>
  %fill = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<8x12xf32>) {
  ^bb0(%o: f32):
    %zero = arith.constant 0.0 : f32
    linalg.yield %zero : f32
  } -> tensor<8x12xf32>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<8x16xf32>, tensor<16x12xf32>) outs(%fill : tensor<8x12xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %m = arith.mulf %p, %q : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<8x12xf32>
  func.return %y : tensor<8x12xf32>
}
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x12xf32>) -> tensor<8x12xf32> {
  %y = func.call @product(%x, %w) : (tensor<8x16xf32>, tensor<16x12xf32>) -> tensor<8x12xf32>
  func.return %y : tensor<8x12xf32>
}
"""

HANDLE = "!transform.any_op"
HEAD = f"""transform.named_sequence @product(%kernel: {HANDLE} {{transform.readonly}}) {{
  %all = transform.structured.match ops{{["linalg.generic"]}} in %kernel : ({HANDLE}) -> {HANDLE}
  %fill, %y = transform.split_handle %all : ({HANDLE}) -> ({HANDLE}, {HANDLE})
"""
TAIL = "  transform.yield\n}\n"
KNOB = '  %t = transform.tune.knob<"rows"> options = [4, 8] -> !transform.any_param\n'
TILE = (
    f"  %u, %l = transform.structured.tile_using_for %y tile_sizes [%t] : ({HANDLE}, !transform.any_param)"
    f" -> ({HANDLE}, {HANDLE})\n"
)


def tiled(sizes: str, loops: int, target: str = "%y") -> str:
    """`tile_using_for`, with its type."""
    results = ", ".join([HANDLE] * (loops + 1))
    line = f"  %u, %l:{loops} = transform.structured.tile_using_for {target} tile_sizes {sizes}"
    return f"{line} : ({HANDLE}) -> ({results})\n"


MISUSES = {
    "a size that does not divide": (tiled("[3]", 1), "size 3 does not divide dim 0 of 8", "2 does"),
    "a size past the dim": (tiled("[9]", 1), "size 9 is larger than dim 0 of 8", "0 leaves a dim whole"),
    "too many sizes": (tiled("[2, 2, 2, 2]", 4), "4 sizes for an op of 3 dims", ""),
    "what computes an argument": (
        f"  %v = transform.get_operand %y[0] : ({HANDLE}) -> !transform.any_value\n"
        f"  %d = transform.get_defining_op %v : (!transform.any_value) -> {HANDLE}\n",
        "operand 0 of linalg.generic is an argument: no operation computes it",
        "",
    ),
    "a result that is not there": (
        f"  %v = transform.get_result %y[1] : ({HANDLE}) -> !transform.any_value\n",
        "linalg.generic has 1 results: there is no result 1",
        "",
    ),
    "a reduction around a parallel dim": (
        "  %u:3 = schedule.tile %y sizes [4, 0, 8] interchange [2, 0, 1]\n",
        "the loop of a reduction is around that of a parallel dim",
        "reductions last: interchange [0, 1, 2]",
    ),
    "a loop that does not read it": (
        tiled("[4]", 1).replace("%y", "%fill") + "  %f = schedule.compute_at %y at %l\n",
        "the loop reads nothing of what this op computes",
        "",
    ),
    "a producer that is there already": (
        tiled("[4]", 1) + "  %f = schedule.compute_at %u at %l\n",
        "the producer is computed in this loop already",
        "",
    ),
    "no loop": (
        "  %f = schedule.compute_at %fill at %y\n",
        "the handle stands for linalg.generic, and a producer is computed in a loop",
        "",
    ),
    "inlining what is no input": (
        "  %f = schedule.inline %fill\n",
        "linalg.generic starts from what the op computes",
        "",
    ),
    "inlining a reduction": ("  %f = schedule.inline %y\n", "the op is not pointwise", ""),
    "a factor that does not divide": (
        "  %f, %p, %w = schedule.rfactor %y dim 2 factor 3\n",
        "3 does not divide dim 2 of 16",
        "[1, 2, 4, 8, 16] do",
    ),
    "more partial results than points": (
        "  %f, %p, %w = schedule.rfactor %y dim 2 factor 17 strided\n",
        "17 partial results of dim 2 of 16",
        "from 1 to 16 can be",
    ),
    "a dim that is no reduction": (
        "  %f, %p, %w = schedule.rfactor %y dim 0 factor 2\n",
        "dim 0 is no reduction",
        "[2]",
    ),
    "an op that does not read the loops": (
        tiled("[4]", 1) + "  %f = schedule.reverse_compute_at %fill at %l\n",
        "the op does not read the result of the loops around this one, once",
        "",
    ),
    "alternatives of which none is chosen": (
        '  transform.tune.alternatives<"how"> {\n    transform.yield\n  }\n',
        'no region of alternatives "how" is selected',
        "select one: --knob product.how=NUMBER",
    ),
    "an include of what is not there": (
        f"  transform.include @tail failures(propagate) (%y) : ({HANDLE}) -> ()\n",
        "there is no sequence @tail",
        "product",
    ),
    "an include of itself": (
        f"  transform.include @product failures(propagate) (%kernel) : ({HANDLE}) -> ()\n",
        "@product includes itself",
        "",
    ),
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The program, and where the schedule goes."""
    program = tmp_path / "program.mlir"
    program.write_text(PROGRAM)
    return program, tmp_path / "schedule.mlir"


def compile_with(penstock: Command, files: tuple[Path, Path], schedule: str, *knobs: str) -> tuple[int, str]:
    """The exit status of `penstock compile` with a schedule, and what it says."""
    program, path = files
    path.write_text(schedule)
    output = program.with_suffix(".out.mlir")
    chosen = [word for knob in knobs for word in ("--knob", knob)]
    found = penstock(
        "compile", program, "--machine", "gemmini-fp32", "--emit=loop", "-q", "-o", output, "--schedule", path, *chosen
    )
    return found.status, found.err


@pytest.mark.parametrize("name", MISUSES)
def test_a_schedule_that_cannot_be_applied_is_refused_at_its_line(
    name: str, penstock: Command, files: tuple[Path, Path]
) -> None:
    lines, message, note = MISUSES[name]
    status, said = compile_with(penstock, files, HEAD + lines + TAIL)
    assert status == 1
    assert said.startswith(f"{files[1]}:"), said
    assert message in said.splitlines()[0], said
    assert note in said


KNOBS = {
    "product.rows": ("no value of a knob", 2),
    "prodct.rows=4": ("there is no schedule of @prodct", 1),
    "product.row=4": ('the schedule of @product has no knob "row"', 1),
    "product.rows=5": ('knob "rows" is not to be 5', 1),
}


@pytest.mark.parametrize("knob", KNOBS)
def test_a_value_that_no_knob_has_is_refused(knob: str, penstock: Command, files: tuple[Path, Path]) -> None:
    message, wanted = KNOBS[knob]
    status, said = compile_with(penstock, files, HEAD + KNOB + TILE + TAIL, knob)
    assert status == wanted
    assert message in said


def test_a_knob_needs_a_schedule(penstock: Command, files: tuple[Path, Path]) -> None:
    found = penstock("compile", files[0], "--knob", "product.rows=4")
    assert found.status == 2
    assert "--knob is for the schedules that --schedule names" in found.err


def test_a_sequence_of_other_arguments_has_to_be_included(penstock: Command, files: tuple[Path, Path]) -> None:
    macro = f"transform.named_sequence @tail(%a: {HANDLE}, %b: {HANDLE}) {{\n{TAIL}"
    status, said = compile_with(penstock, files, macro)
    assert status == 1
    assert "@tail is no schedule of a kernel, and nothing includes it" in said
