# SPDX-License-Identifier: Apache-2.0
"""`penstock plan`: plans, tables, maps, problems of programs, and what the exit status says."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from penstock.passes.planning.map_svg import svg_map
from penstock.passes.planning.map_text import legend, text_map
from penstock.passes.planning.minimalloc_csv import load_csv, parse_csv
from penstock.passes.planning.problem import Plan, validate
from penstock.tools.planner_runs import read_bytes

if TYPE_CHECKING:
    from tests.conftest import Command

LADDER = """id,lower,upper,size
a,0,3,4
b,2,6,4
c,5,9,4
d,8,12,4
e,0,12,2
"""
"""10 bytes at most are alive, and first fit by size takes as many."""

LADDER_PLAN = """id,lower,upper,size,offset
a,0,3,4,4
b,2,6,4,0
c,5,9,4,4
d,8,12,4,0
e,0,12,2,8
"""

CYCLE = """id,lower,upper,size,gaps
a,0,5,1,1-4
b,0,2,1,
c,1,3,1,
d,2,4,1,
e,3,5,1,
"""
"""Each meets the next, two at a time; an odd cycle takes three bytes."""

BY_SIZE = ("--planner", "first-fit-by-size")

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def ladder(tmp_path: Path) -> Path:
    path = tmp_path / "ladder.csv"
    path.write_text(LADDER)
    return path


# plans


def test_the_report_tells_peak_capacity_bound_gap_planner_and_time(penstock: Command, ladder: Path) -> None:
    done = penstock("plan", ladder, "--capacity", "16", *BY_SIZE)
    assert (done.status, done.out) == (0, "")
    lines = done.err.splitlines()
    assert lines[:2] == [
        "peak: 10 of 16 bytes, 62.5% of the capacity, optimal",
        "lower bound: 10 bytes, gap 0.00%",
    ]
    assert re.fullmatch(r"planner: first-fit-by-size, seed 0, 5 steps, \d+\.\d{3} s", lines[2])


def test_a_plan_that_is_not_proved_optimal_shows_its_gap(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "cycle.csv").write_text(CYCLE)
    done = penstock("plan", "cycle.csv", *BY_SIZE)
    assert done.err.splitlines()[:2] == ["peak: 3 bytes", "lower bound: 2 bytes, gap 50.00%"]


def test_the_plan_is_written_to_a_file_or_to_stdout(penstock: Command, ladder: Path, tmp_path: Path) -> None:
    done = penstock("plan", ladder, *BY_SIZE, "-o", "-", "-q")
    assert (done.status, done.out, done.err) == (0, LADDER_PLAN, "")
    done = penstock("plan", ladder, *BY_SIZE, "-o", "out.csv")
    assert (done.out, done.err.splitlines()[-1]) == ("", "out.csv: the plan")
    assert (tmp_path / "out.csv").read_text() == LADDER_PLAN
    problem, plan = load_csv(tmp_path / "out.csv", 10)
    validate(problem, plan)


def test_the_capacity_comes_from_the_file_name_unless_it_is_given(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "ladder.20.csv").write_text(LADDER)
    assert penstock("plan", "ladder.20.csv", *BY_SIZE).err.startswith("peak: 10 of 20 bytes")
    assert penstock("plan", "ladder.20.csv", *BY_SIZE, "--capacity", "1K").err.startswith("peak: 10 of 1,024 bytes")


@pytest.mark.parametrize(
    ("word", "size"),
    [("12", 12), ("2k", 2048), ("256K", 1 << 18), ("1MiB", 1 << 20), ("1mb", 1 << 20), ("1G", 1 << 30)],
)
def test_sizes_may_have_units(word: str, size: int) -> None:
    assert read_bytes("--capacity", word) == size


def test_the_default_planner_plans_too(penstock: Command, ladder: Path) -> None:
    done = penstock("plan", ladder, "--steps", "100", "--seed", "1")
    assert done.status == 0
    assert done.err.startswith("peak: 10 bytes, optimal")


def test_fit_stops_at_the_capacity(penstock: Command, ladder: Path) -> None:
    assert penstock("plan", ladder, *BY_SIZE, "--fit", "--capacity", "12").status == 0


def test_offsets_are_kept_only_if_asked(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "given.csv").write_text("id,lower,upper,size,offset\na,0,3,4,8\nb,0,3,4,\n")
    done = penstock("plan", "given.csv", *BY_SIZE, "-o", "-")
    assert done.out == "id,lower,upper,size,offset\na,0,3,4,0\nb,0,3,4,4\n"
    assert "the column offset is not used; --fixed keeps its places" in done.err
    done = penstock("plan", "given.csv", *BY_SIZE, "--fixed", "-o", "-")
    assert done.out == "id,lower,upper,size,offset\na,0,3,4,8\nb,0,3,4,0\n"
    assert "--fixed" not in done.err


def test_banks_are_as_large_as_is_said(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "banks.csv").write_text("id,lower,upper,size,banks\na,0,3,4,1\nb,0,3,4,1\n")
    done = penstock("plan", "banks.csv", *BY_SIZE, "--bank-size", "16", "-o", "-")
    assert done.out == "id,lower,upper,size,banks,offset\na,0,3,4,1,16\nb,0,3,4,1,20\n"


def test_a_plan_can_be_verified(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(LADDER_PLAN)
    done = penstock("plan", "good.csv", "--verify")
    assert (done.status, done.out) == (0, "")
    assert done.err == "good.csv: a valid plan of 10 bytes, optimal; lower bound 10\n"
    (tmp_path / "bad.csv").write_text(
        LADDER_PLAN.replace("b,2,6,4,0", "b,2,6,4,5").replace("e,0,12,2,8", "e,0,12,2,20")
    )
    done = penstock("plan", "bad.csv", "--verify", "--capacity", "16")
    assert done.status == 1
    assert done.err.splitlines() == [
        "bad.csv: error: the plan is not valid: buffers a [4, 8) and b [5, 9) overlap while both are alive: "
        "bytes [5, 8) at times [2, 3)",
        "note: buffers b [5, 9) and c [4, 8) overlap while both are alive: bytes [5, 8) at times [5, 6)",
        "note: buffer e ends at 22 of 16 bytes",
    ]


# tables


def test_planners_are_compared_in_a_table_on_stdout(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "cycle.csv").write_text(CYCLE)
    done = penstock("plan", "cycle.csv", "--compare", "first-fit-by-size,best-fit-by-start", "--capacity", "4")
    assert done.status == 0
    head, *rows = (re.split(r"  +", line) for line in done.out.splitlines())
    assert head == ["planner", "peak", "peak / bound", "seconds", "result"]
    assert [row[:3] + row[4:] for row in rows] == [
        ["first-fit-by-size", "3", "1.500", "fits"],
        ["best-fit-by-start", "3", "1.500", "fits"],
    ]
    assert done.err == ""


def test_a_planner_that_proves_more_raises_the_bound_of_all(penstock: Command, tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    (tmp_path / "cycle.csv").write_text(CYCLE)
    done = penstock("plan", "cycle.csv", "--compare", "first-fit-by-size,cp-sat")
    assert [line.split()[-1] for line in done.out.splitlines()[1:]] == ["optimal", "optimal"]


def test_all_planners_are_compared_but_those_that_are_not_installed(
    penstock: Command, ladder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    done = penstock("plan", ladder, "--compare", "all", "--steps", "100")
    assert done.status == 0
    assert "cp-sat is left out: " in done.err
    assert "first-fit-by-size" in done.out
    assert "cp-sat" not in done.out


def test_the_best_plan_of_a_table_is_written(penstock: Command, ladder: Path, tmp_path: Path) -> None:
    assert penstock("plan", ladder, "--compare", "first-fit-by-size", "-o", "out.csv").status == 0
    assert (tmp_path / "out.csv").read_text() == LADDER_PLAN


# what does not fit


def test_what_is_proved_not_to_fit_has_status_1_and_says_who_is_alive(penstock: Command, ladder: Path) -> None:
    done = penstock("plan", ladder, *BY_SIZE, "--capacity", "9", "-o", "out.csv", "--map", "out.svg")
    assert (done.status, done.out) == (1, "")
    assert done.err.split("\n", 3)[3].splitlines() == [
        f"{ladder}: error: no plan fits a memory of 9 bytes: 10 bytes are alive at time 2",
        "note: alive at time 2:",
        "note:   a: 4 bytes, alive at [0, 3)",
        "note:   b: 4 bytes, alive at [2, 6)",
        "note:   e: 2 bytes, alive at [0, 12)",
        "note: the least capacity that would do is 10 bytes",
    ]
    assert not list(ladder.parent.glob("out.*"))


def test_what_is_proved_by_search_not_to_fit_says_so(penstock: Command, tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    (tmp_path / "cycle.csv").write_text(CYCLE)
    done = penstock("plan", "cycle.csv", "--planner", "cp-sat", "--capacity", "2")
    assert done.status == 1
    assert "no plan fits a memory of 2 bytes: the proof is a search; the most at once, 2 bytes are alive" in done.err
    assert "the least capacity that would do is 3 bytes" in done.err


def test_what_is_not_found_in_the_limits_has_status_4(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "cycle.csv").write_text(CYCLE)
    done = penstock("plan", "cycle.csv", *BY_SIZE, "--capacity", "2", "-o", "out.csv")
    assert (done.status, done.out) == (4, "")
    assert "no plan was found for a memory of 2 bytes: the best plan takes 3 bytes" in done.err
    assert "it is not proved that none fits: the lower bound is 2 bytes" in done.err
    assert not (tmp_path / "out.csv").exists()


def test_a_part_of_a_buffer_that_is_alive_is_told_as_such(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "part.csv").write_text("id,lower,upper,size,gaps\na,0,6,8,3-6@0:4\nb,3,6,8,\n")
    done = penstock("plan", "part.csv", *BY_SIZE, "--capacity", "11")
    assert done.status == 1
    assert "note:   a: 4 of 8 bytes, alive at [0, 3) and [3, 6)" in done.err


# maps


def test_the_map_is_svg_with_a_rectangle_and_a_tooltip_for_each_buffer(
    penstock: Command, ladder: Path, tmp_path: Path
) -> None:
    done = penstock("plan", ladder, *BY_SIZE, "--capacity", "12", "--map", "out.svg")
    assert done.err.splitlines()[-1] == "out.svg: the map"
    root = ElementTree.fromstring((tmp_path / "out.svg").read_text())
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles[0] == "a: 4 bytes at 4, alive at [0, 3)"
    assert len(titles) == 5
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "capacity 12" in texts
    assert "bound 10" in texts
    assert set("abcde") <= set(texts)


def test_a_map_has_a_rectangle_for_each_part_of_a_life_at_its_bytes_and_times() -> None:
    problem, plan = parse_csv("id,lower,upper,size,gaps,offset\nx,0,8,16,2-4 6-8@0:8,16\ny<&>,0,8,16,,0\n", 32)
    text = svg_map(problem, plan, 'a "title" & more')
    assert text == svg_map(problem, plan, 'a "title" & more')
    groups = list(ElementTree.fromstring(text).iter(f"{SVG}g"))
    rects = [[rect.attrib for rect in group.iter(f"{SVG}rect")] for group in groups]
    assert [len(parts) for parts in rects] == [3, 1]
    whole, _, half = ({key: float(rect[key]) for key in ("x", "y", "width", "height")} for rect in rects[0])
    assert whole["width"] == half["width"] == 240
    assert (whole["height"], half["height"]) == (240, 120)
    assert half["x"] - whole["x"] == 720
    assert half["y"] - whole["y"] == 120
    assert groups[0].attrib["fill"] != groups[1].attrib["fill"]


def test_the_map_in_letters_shows_who_has_which_bytes_when() -> None:
    problem, plan = parse_csv(LADDER_PLAN)
    assert text_map(problem, plan, 30, 5).lines() == [
        "8 |" + "eeeeeeeeeeeeeeeeeeeeeeee",
        "6 |" + "aaaaaa    cccccccc      ",
        "4 |" + "aaaaaa    cccccccc      ",
        "2 |" + "    bbbbbbbb    dddddddd",
        "0 |" + "    bbbbbbbb    dddddddd",
        "  +------------------------",
        "   0                     12",
    ]


def test_a_letter_of_a_long_time_is_who_fills_most_of_it() -> None:
    problem, plan = parse_csv("id,lower,upper,size,offset\na,0,70,4,0\nb,70,100,4,0\nc,0,100,4,4\n")
    assert text_map(problem, plan, 2, 2).lines() == ["4 |cc", "0 |ab", "  +--", "   0100"]


def test_the_legend_is_cut_where_there_are_many() -> None:
    problem, _ = parse_csv(LADDER)
    assert legend(problem, 12, 9) == ["a a  b b", "c c  d d", "e e"]
    assert legend(problem, 12, 1) == ["a a  b b", "and 3 more"]


@pytest.mark.parametrize("columns", ["24", "80"])
def test_a_terminal_shows_the_map_unless_there_is_a_file(
    penstock: Command, ladder: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    from penstock.tools import plan_command

    class Terminal:
        stderr = sys.stderr

        @staticmethod
        def isatty() -> bool:
            return True

    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = type("sys", (), {"stderr": Terminal})
    monkeypatch.setattr(plan_command, "sys", terminal)
    done = penstock("plan", ladder, *BY_SIZE)
    assert "8 |eeeeeeeeeeee" in done.err
    assert max(map(len, done.err.splitlines()[3:])) <= max(int(columns), 24)
    assert done.out == ""
    assert "|eeee" not in penstock("plan", ladder, *BY_SIZE, "-o", "out.csv").err
    assert "|eeee" not in penstock("plan", ladder, *BY_SIZE, "-q").err


def test_nothing_at_all_has_a_plan_and_maps(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("id,lower,upper,size\n")
    done = penstock("plan", "none.csv", *BY_SIZE, "--map", "out.svg")
    assert done.status == 0
    assert done.err.startswith("peak: 0 bytes, optimal")
    assert text_map(load_csv(tmp_path / "none.csv")[0], Plan(), 10, 10).lines() == ["  +", "   00"]


# problems of programs

KERNEL = """
builtin.module {
  machine.target @small frequency 100 {
    machine.scope @spad size 256 granule 16 dtypes [f32]
  }
  func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
    %a = mem.buffer at 64 : memref<16xf32, "spad">
    mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
    %b = mem.buffer : memref<16xf32, "spad">
    mem.copy %a to %b : memref<16xf32, "spad"> to memref<16xf32, "spad">
    %c = memref.alloc() : memref<16xf32>
    mem.copy %b to %c : memref<16xf32, "spad"> to memref<16xf32>
    mem.copy %c to %y : memref<16xf32> to memref<16xf32>
    func.return
  }
}
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.mlir"
    path.write_text(KERNEL)
    return path


def test_the_problems_of_a_program_are_listed(penstock: Command, kernel: Path) -> None:
    done = penstock("plan", kernel, "--compare", "first-fit-by-size,best-fit-by-start", "-q")
    assert done.status == 0
    head, *rows = (re.split(r"  +", line) for line in done.out.splitlines())
    assert head == ["function", "scope", "buffers", "capacity", "bound", "first-fit-by-size", "best-fit-by-start"]
    assert rows == [
        ["kernel", "spad", "2", "256", "128", "128", "128"],
        ["(program)", "arena", "1", "-", "64", "64", "64"],
    ]


def test_a_problem_of_a_program_is_written_as_csv_and_planned(penstock: Command, kernel: Path, tmp_path: Path) -> None:
    done = penstock("plan", kernel, "--function", "kernel", "--scope", "spad", "-o", "spad.csv")
    assert (done.status, done.out) == (0, "")
    kept = f"{kernel}: the offsets of the program are kept; --planner plans anew, --verify checks them"
    assert done.err.splitlines() == [kept, "spad.csv: 2 buffers, lower bound 128 bytes"]
    problem, plan = load_csv(tmp_path / "spad.csv")
    assert [(each.id, each.size, each.alignment) for each in problem.buffers] == [("%a", 64, 16), ("%b", 64, 16)]
    assert plan.offsets == {"%a": 64}
    said = "spad.csv: the column offset is not used; --fixed keeps its places, --verify checks them"
    assert penstock("plan", "spad.csv", *BY_SIZE).err.startswith(f"{said}\npeak: 128 bytes, optimal")


def test_all_problems_of_a_model_are_written_to_a_folder(penstock: Command, repository: Path, tmp_path: Path) -> None:
    model = repository / "examples" / "digits" / "digits.onnx"
    done = penstock("plan", model, "--machine", "gemmini-fp32", "-o", "problems", "-q")
    assert (done.status, done.out, done.err) == (0, "", "")
    names = sorted(path.name for path in (tmp_path / "problems").iterdir())
    assert "arena.csv" in names
    assert any(re.fullmatch(r"fused_\d+\.spad\.262144\.csv", name) for name in names)
    for name in names:
        problem = load_csv(tmp_path / "problems" / name)[0]
        assert problem.buffers
        assert all(buffer.offset is None for buffer in problem.buffers)


# programs that are planned


def chain(offsets: Sequence[int | None], size: int = 16) -> str:
    """A program that copies its input through buffers off chip, each at its offset if it has one."""
    type = f"memref<{size}xf32>"
    lines = [f'func.func @main(%x: {type} {{graph.name = "x"}}, %o: {type} {{graph.output = "o"}}) {{']
    before = "%x"
    for number, offset in enumerate(offsets):
        made = "memref.alloc()" if offset is None else f"mem.buffer at {offset}"
        lines.append(f"  %b{number} = {made} : {type}")
        lines.append(f"  mem.copy {before} to %b{number} : {type} to {type}")
        before = f"%b{number}"
    return "\n".join([*lines, f"  mem.copy {before} to %o : {type} to {type}", "  func.return", "}"])


@pytest.mark.parametrize("seed", range(4))
def test_the_offsets_of_a_program_are_in_its_problem_and_its_map(penstock: Command, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    places = [4 * draw.randrange(100) for _ in range(5)]
    offsets = [place if draw.random() < 0.6 + 0.4 * (seed % 2) else None for place in places]
    (tmp_path / "chain.mlir").write_text(chain(offsets))
    planned = None not in offsets
    done = penstock("plan", "chain.mlir", "-o", "chain.csv")
    assert done.status == 0, done.err
    assert ("by the program" in done.err) == planned
    problem, plan = load_csv(tmp_path / "chain.csv")
    assert plan.offsets == {
        buffer.id: offset for buffer, offset in zip(problem.buffers, offsets, strict=True) if offset is not None
    }
    is_valid = penstock("plan", "chain.csv", "--verify").status == 0
    assert (penstock("plan", "chain.mlir", "--verify").status == 0) == (planned and is_valid)
    done = penstock("plan", "chain.mlir", "--map", "chain.svg")
    fits = penstock("plan", "chain.csv", "--fixed").status == 0
    assert done.status == (0 if planned or fits else 1), done.err
    assert ("warning: the plan is not valid" in done.err) == (planned and not is_valid)
    if done.status == 0:
        drawn = (tmp_path / "chain.svg").read_text()
        assert drawn.count("<title>") == 5
        assert ("by the program" in drawn) == planned
        for offset in offsets:
            assert offset is None or f"bytes at {offset}, " in drawn


TWO = """
machine.target @small frequency 100 {
  machine.scope @spad size 1024 granule 16 dtypes [f32]
  machine.scope @acc size 1024 granule 16 dtypes [f32]
  machine.unit @mover
  machine.dma @fill unit @mover from [@dram] to [@spad, @acc] dims 2 latency 4 row_overhead 1 outstanding 2
  machine.dma @drain unit @mover from [@spad, @acc] to [@dram] dims 2 latency 4 row_overhead 1 outstanding 2
}
func.func @main(%x: memref<16xf32> {graph.name = "x"}, %y: memref<16xf32> {graph.output = "y"}) {
  %t = mem.buffer at 192 : memref<16xf32>
  func.call @first(%x, %t) : (memref<16xf32>, memref<16xf32>) -> ()
  func.call @second(%t, %y) : (memref<16xf32>, memref<16xf32>) -> ()
  func.return
}
func.func private @first(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @small} {
  %a = mem.buffer at 512 : memref<16xf32, "spad">
  %b = mem.buffer at 64 : memref<16xf32, "acc">
  %s = accel.dma %x to %a on "fill" : memref<16xf32> to memref<16xf32, "spad">
  %t = accel.dma %a to %y on "drain" after(%s) : memref<16xf32, "spad"> to memref<16xf32>
  %u = accel.dma %x to %b on "fill" : memref<16xf32> to memref<16xf32, "acc">
  accel.barrier
  func.return
}
func.func private @second(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @small} {
  %a = mem.buffer at 256 : memref<16xf32, "spad">
  %s = accel.dma %x to %a on "fill" : memref<16xf32> to memref<16xf32, "spad">
  %t = accel.dma %a to %y on "drain" after(%s) : memref<16xf32, "spad"> to memref<16xf32>
  accel.barrier
  func.return
}
"""
"""Commands of two kernels, each with buffers at offsets that no planner would choose."""


def test_the_offsets_of_commands_are_kept_by_function_and_scope(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "two.mlir").write_text(TWO)
    done = penstock("plan", "two.mlir", "-o", "plans", "--map", "maps")
    assert done.status == 0, done.err
    offsets = {path.name: load_csv(path)[1].offsets for path in sorted((tmp_path / "plans").iterdir())}
    assert offsets == {
        "arena.csv": {"%t of @main": 192},
        "first.acc.1024.csv": {"%b": 64},
        "first.spad.1024.csv": {"%a": 512},
        "second.spad.1024.csv": {"%a": 256},
    }
    drawn = (tmp_path / "maps" / "first.spad.1024.svg").read_text()
    assert "two.mlir: @first, scope &quot;spad&quot;: 576 of 1,024 bytes by the program, 448 left" in drawn
    assert "%a: 64 bytes at 512" in drawn
    assert "bound 64<" in drawn
    assert done.err.splitlines()[:2] == [
        "two.mlir: the offsets of the program are kept; --planner plans anew, --verify checks them",
        "plans/first.spad.1024.csv: 1 buffer, lower bound 64 bytes, planned in 576 by the program",
    ]


def test_a_planner_that_is_named_plans_a_program_anew(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "two.mlir").write_text(TWO)
    done = penstock(
        "plan", "two.mlir", *BY_SIZE, "--function", "first", "--scope", "spad", "-o", "a.csv", "--map", "a.svg"
    )
    assert done.status == 0, done.err
    assert load_csv(tmp_path / "a.csv")[1].offsets == {"%a": 0}
    assert "64 of 1,024 bytes by first-fit-by-size" in (tmp_path / "a.svg").read_text()
    lines = done.err.splitlines()
    assert lines[0] == "two.mlir: the offsets of the program are not used; --verify checks them"
    assert lines.count("a.csv: 1 buffer, lower bound 64 bytes, planned in 64 by first-fit-by-size") == 1
    # One search for both files.
    assert sum(line.startswith("planner: ") for line in lines) == 1


def test_the_plan_of_a_program_stands_beside_those_of_planners(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "two.mlir").write_text(TWO)
    rows = [re.split(r"  +", line) for line in penstock("plan", "two.mlir").out.splitlines()]
    assert rows == [
        ["function", "scope", "buffers", "capacity", "bound", "the program"],
        ["first", "spad", "1", "1,024", "64", "576"],
        ["first", "acc", "1", "1,024", "64", "128"],
        ["second", "spad", "1", "1,024", "64", "320"],
        ["(program)", "arena", "1", "-", "64", "256"],
    ]
    done = penstock("plan", "two.mlir", "--compare", "exact,first-fit-by-size", "--function", "first")
    rows = [re.split(r"  +", line) for line in done.out.splitlines()]
    assert rows[0][4:] == ["bound", "the program", "exact", "first-fit-by-size"]
    assert rows[1][4:] == ["64", "576", "64", "64"]


def test_the_offsets_of_a_program_are_verified(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "two.mlir").write_text(TWO)
    done = penstock("plan", "two.mlir", "--verify")
    assert (done.status, done.out) == (0, "")
    assert done.err.splitlines() == [
        'two.mlir: @first, scope "spad": a valid plan of 576 bytes; lower bound 64',
        'two.mlir: @first, scope "acc": a valid plan of 128 bytes; lower bound 64',
        'two.mlir: @second, scope "spad": a valid plan of 320 bytes; lower bound 64',
        "two.mlir: the arena: a valid plan of 256 bytes; lower bound 64",
    ]


def test_a_program_with_offsets_is_taken_as_it_is(penstock: Command, tmp_path: Path) -> None:
    """No pass of the compiler changes which buffers a program with offsets has."""
    text = KERNEL.replace("%b = mem.buffer", "%b = mem.buffer at 0").replace("memref.alloc()", "mem.buffer at 128")
    (tmp_path / "kernel.mlir").write_text(text)
    done = penstock("plan", "kernel.mlir", "-o", "plans", "-q")
    assert (done.status, done.err) == (0, "")
    assert load_csv(tmp_path / "plans" / "kernel.spad.256.csv")[1].offsets == {"%a": 64, "%b": 0}
    assert load_csv(tmp_path / "plans" / "arena.csv")[1].offsets == {"%c of @kernel": 128}


def test_what_the_compiler_places_is_no_plan_of_the_program(penstock: Command, tmp_path: Path) -> None:
    """`mem-promote` places what stays on chip between kernels, before `mem-plan` does the rest."""
    type = "tensor<32x32xf32>"
    product = f"%y = graph.matmul %x, %x : ({type}, {type}) -> {type}"
    (tmp_path / "layer.mlir").write_text(
        f"func.func @main(%x: {type}) -> {type} {{\n  {product}\n  func.return %y : {type}\n}}\n"
    )
    done = penstock("plan", "layer.mlir", "--machine", "gemmini-fp32")
    assert done.status == 0, done.err
    assert "the program" not in done.out.splitlines()[0]
    assert "offsets of the program" not in done.err
    done = penstock("plan", "layer.mlir", "--machine", "gemmini-fp32", "--scope", "spad", "--map", "spad.svg")
    assert "by the compiler" in done.err
