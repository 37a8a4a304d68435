# SPDX-License-Identifier: Apache-2.0
"""What a misuse of `penstock plan` says: one message with a place, a note that helps, a status, and no file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command, Finished

HEADER = "id,lower,upper,size"
GOOD = f"{HEADER}\na,0,3,4\nb,2,6,4\n"


def refused(finished: Finished, *parts: str, status: int = 1) -> None:
    """The command left with `status`, said all `parts` on stderr, had no traceback, and left no file."""
    assert finished.status == status, finished.err
    assert "Traceback" not in finished.err
    for part in parts:
        assert part in finished.err
    assert finished.err.count("error: ") == 1
    assert finished.out == ""
    assert not list(Path().glob("out*"))


def plan(penstock: Command, text: str, *words: str) -> Finished:
    """`penstock plan` on a problem, with all of its outputs."""
    Path("bad.csv").write_text(text)
    return penstock("plan", "bad.csv", "--planner", "first-fit-by-size", "-o", "out.csv", "--map", "out.svg", *words)


# problems


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["bad.csv: error: the file is empty", "note: its first line is a header: id,lower,upper,size"]),
        ("a,0,3,4\n", ["bad.csv:1:1: error: the header is missing\na,0,3,4\n^\nnote: the header names columns"]),
        ("id,lower,upper\na,0,3\n", ['bad.csv:1:1: error: the column "size" is missing']),
        ("id,lower,upper,sizes\n", ['bad.csv:1:16: error: no column is called "sizes"', 'did you mean "size"?']),
        (f"{HEADER}\na,0,x,4\n", ['bad.csv:2:5: error: "x" is no integer, in the column "upper"\na,0,x,4\n    ^']),
        (f"{HEADER}\na,0,3\n", ["bad.csv:2:5: error: 3 values stand under 4 columns", "id, lower, upper, size"]),
        (f"{HEADER}\na,3,3,4\n", ["bad.csv:2:5: error: buffer a is never alive: lower 3, upper 3"]),
        (f"{HEADER}\na,5,3,4\n", ["bad.csv:2:5: error: buffer a is never alive: lower 5, upper 3"]),
        (f"{HEADER}\na,0,3,0\n", ["bad.csv:2:7: error: buffer a has 0 bytes\na,0,3,0\n      ^\nnote: a size is"]),
        (f"{HEADER}\na,0,3,-4\n", ["bad.csv:2:7: error: buffer a has -4 bytes"]),
        (f"{HEADER},alignment\na,0,3,4,6\n", ["bad.csv:2:9: error: the alignment 6 of buffer a is no power of two"]),
        (f"{HEADER}\na,0,3,4\na,2,6,4\n", ['bad.csv:3:1: error: two buffers have the id "a"', "in line 2"]),
        (f"{HEADER},gaps\na,0,3,4,1..2\n", ['bad.csv:2:9: error: "1..2" is no gap', "note: a gap is 4-6"]),
        (f"{HEADER},banks\na,0,3,4,1\n", ["bad.csv:2:9: error: buffer a lies in banks", "--bank-size BYTES"]),
    ],
)
def test_a_malformed_problem_is_refused_at_its_row_and_column(penstock: Command, text: str, parts: list[str]) -> None:
    refused(plan(penstock, text), *parts)


def test_a_capacity_below_the_largest_buffer_is_refused_at_that_buffer(penstock: Command) -> None:
    refused(
        plan(penstock, GOOD, "--capacity", "3"),
        "bad.csv:2:7: error: buffer a of 4 bytes is larger than the capacity of 3",
        "note: the capacity comes from --capacity, or else from the file name",
    )


def test_fixed_places_that_overlap_are_refused_at_the_second(penstock: Command) -> None:
    refused(
        plan(penstock, f"{HEADER},offset\na,0,3,4,0\nb,2,6,4,2\n", "--fixed"),
        "bad.csv:3:9: error: buffers a [0, 4) and b [2, 6) overlap while both are alive: bytes [2, 4) at times [2, 3)",
        "note: buffer a is fixed in line 2",
    )


def test_a_file_that_is_not_there_is_named(penstock: Command) -> None:
    refused(penstock("plan", "nowhere.csv"), "nowhere.csv: error: cannot read it: No such file or directory")


def test_a_capacity_of_nothing_in_a_file_name_is_refused(penstock: Command) -> None:
    Path("some.0.csv").write_text(GOOD)
    refused(penstock("plan", "some.0.csv"), "some.0.csv: error: the capacity is 0 bytes")


def test_verifying_what_has_no_plan_is_refused(penstock: Command) -> None:
    refused(plan(penstock, GOOD, "--verify"), "bad.csv: error: there is no plan to check", "in the column offset")


# options


@pytest.mark.parametrize("word", ["0", "-1", "1.5", "many", "", "1T", "9" * 5000])
@pytest.mark.parametrize("option", ["--capacity", "--bank-size"])
def test_bytes_that_are_none_are_a_usage_fault(penstock: Command, option: str, word: str) -> None:
    refused(plan(penstock, GOOD, f"{option}={word}"), "is no positive number of bytes", f"{option} 1M", status=2)


@pytest.mark.parametrize("word", ["0", "-1", "soon", "nan", "inf"])
def test_a_time_limit_that_is_none_is_a_usage_fault(penstock: Command, word: str) -> None:
    refused(plan(penstock, GOOD, f"--time-limit={word}"), f'--time-limit "{word}" is no positive', status=2)


@pytest.mark.parametrize(("option", "word", "least"), [("--steps", "0", 1), ("--steps", "x", 1), ("--seed", "-1", 0)])
def test_counts_that_are_none_are_a_usage_fault(penstock: Command, option: str, word: str, least: int) -> None:
    refused(plan(penstock, GOOD, f"{option}={word}"), f'{option} "{word}" is no integer from {least}', status=2)


def test_fit_without_a_capacity_is_a_usage_fault(penstock: Command) -> None:
    refused(plan(penstock, GOOD, "--fit"), "--fit needs a capacity", "note: give it: --capacity BYTES", status=2)


@pytest.mark.parametrize("words", [["--planner", "first-fit-by-sise"], ["--compare", "first-fit-by-sise"]])
def test_a_misspelt_planner_is_answered_with_the_nearest(penstock: Command, words: list[str]) -> None:
    refused(
        plan(penstock, GOOD, *words),
        'error: no planner is called "first-fit-by-sise"',
        'note: did you mean "first-fit-by-size"?',
    )


def test_an_empty_list_of_planners_is_a_usage_fault(penstock: Command) -> None:
    refused(plan(penstock, GOOD, "--compare", ","), '"," names no planner', status=2)


@pytest.mark.parametrize("option", ["--machine", "--function", "--scope", "--dim"])
def test_options_of_programs_are_refused_with_a_problem(penstock: Command, option: str) -> None:
    refused(plan(penstock, GOOD, option, "x=1"), f"{option} is for a model or a file of IR", status=2)


@pytest.mark.parametrize("words", [["--capacity", "1K"], ["--fit"], ["--fixed"]])
def test_options_of_problems_are_refused_with_a_program(penstock: Command, words: list[str]) -> None:
    refused(penstock("plan", "some.mlir", *words), f"{words[0]} is for a planning problem", status=2)


def test_a_place_that_cannot_be_written_to_is_named(penstock: Command) -> None:
    Path("bad.csv").write_text(GOOD)
    finished = penstock("plan", "bad.csv", "--planner", "first-fit-by-size", "-o", "none/plan.csv")
    refused(finished, "none/plan.csv: error: cannot write the file: the folder ")


# programs

KERNEL = """
machine.target @small frequency 100 {
  machine.scope @spad size 256 granule 16 dtypes [f32]
}
func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
  %a = mem.buffer : memref<16xf32, "spad">
  mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
  %b = memref.alloc() : memref<16xf32>
  mem.copy %a to %b : memref<16xf32, "spad"> to memref<16xf32>
  mem.copy %b to %y : memref<16xf32> to memref<16xf32>
  func.return
}
"""


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--scope", "spd"], ['kernel.mlir: error: no scope "spd" has buffers to plan', 'did you mean "spad"?']),
        (["--function", "none"], ['no function "none" has buffers to plan', "note: there are kernel, (program)"]),
        (["-o", "out.csv"], ["one file is for one problem, and there are 2", "--function kernel --scope spad"]),
        (["--machine", "gemmini"], ['the module is made for the machine "small", not for "gemmini"']),
    ],
)
def test_a_problem_that_a_program_does_not_have_is_named(penstock: Command, words: list[str], parts: list[str]) -> None:
    Path("kernel.mlir").write_text(KERNEL)
    refused(penstock("plan", "kernel.mlir", *words), *parts)


def test_a_program_without_buffers_has_nothing_to_plan(penstock: Command) -> None:
    Path("empty.mlir").write_text("func.func @main() {\n  func.return\n}\n")
    finished = penstock("plan", "empty.mlir")
    assert (finished.status, finished.err) == (0, "empty.mlir: no buffers to plan\n")
    refused(penstock("plan", "empty.mlir", "-o", "out.csv"), "the program has no buffers to plan")


def test_a_program_without_offsets_has_no_plan_to_check(penstock: Command) -> None:
    Path("kernel.mlir").write_text(KERNEL)
    refused(
        penstock("plan", "kernel.mlir", "--verify"), "kernel.mlir: error: there is no plan to check", "mem.buffer at"
    )


TWO_BUFFERS = """machine.target @small frequency 100 {
  machine.scope @spad size 256 granule 16 dtypes [f32]
}
func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
  %a = mem.buffer[A] : memref<16xf32, "spad">
  mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
  %b = mem.buffer[B] : memref<16xf32, "spad">
  mem.copy %a to %b : memref<16xf32, "spad"> to memref<16xf32, "spad">
  mem.copy %b to %y : memref<16xf32, "spad"> to memref<16xf32>
  func.return
}
"""


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        ("", " at 32", ["kernel.mlir:5:3: error: the plan is not valid: %a has no offset", "note: run mem-plan"]),
        (" at 8", " at 128", ["kernel.mlir:5:3: error: ", "%a at 8 is not aligned to 16"]),
        (" at 224", " at 0", ["kernel.mlir:5:3: error: ", "%a ends at 288 of 256 bytes"]),
        (
            " at 32",
            " at 64",
            [
                'kernel.mlir:7:3: error: the plan is not valid: @kernel, scope "spad": %a [32, 96) and %b [64, ',
                '  %b = mem.buffer at 64 : memref<16xf32, "spad">\n  ^',
                "note: in these steps runs mem.copy, kernel.mlir:8:3",
            ],
        ),
        (" at 8", " at 224", ["kernel.mlir:5:3: error: ", "note: kernel.mlir:7:3: @kernel", "ends at 288 of 256"]),
    ],
)
def test_a_plan_of_a_program_that_is_none_is_told_at_the_buffer(
    penstock: Command, a: str, b: str, parts: list[str]
) -> None:
    Path("kernel.mlir").write_text(TWO_BUFFERS.replace("[A]", a).replace("[B]", b))
    refused(penstock("plan", "kernel.mlir", "--verify"), *parts)
