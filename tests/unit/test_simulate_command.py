# SPDX-License-Identifier: Apache-2.0
"""`penstock simulate`: reports, files, and what it refuses to count."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from penstock.lowering.to_text import module_text
from penstock.passes.analysis.commands.program import Kind
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.simulator.run import ProgramRun, calls, run_program
from penstock.runtime.simulator.timeline import CycleWindow
from penstock.runtime.simulator.timeline_svg import WIDTH
from penstock.runtime.simulator.workloads import Workloads

if TYPE_CHECKING:
    from tests.conftest import Command

MATRICES = """
func.func @main(%x: tensor<48x48xf32> {graph.name = "x"}, %w: tensor<48x48xf32> {graph.name = "w"})
    -> (tensor<48x48xf32> {graph.name = "y"}) {
  %0 = graph.matmul %x, %w : (tensor<48x48xf32>, tensor<48x48xf32>) -> tensor<48x48xf32>
  %1 = graph.relu %0 : tensor<48x48xf32>
  %2 = graph.matmul %1, %w : (tensor<48x48xf32>, tensor<48x48xf32>) -> tensor<48x48xf32>
  %y = graph.softmax %2 axis 1 : tensor<48x48xf32> -> tensor<48x48xf32>
  func.return %y : tensor<48x48xf32>
}
"""
"""Two products for the machine, and a softmax that Gemmini leaves to the host."""

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ProgramRun]:
    """The program at the accelerator level as text, and its run."""
    path = tmp_path_factory.mktemp("simulate") / "matrices.mlir"
    path.write_text(MATRICES)
    program = load_input(path)
    workloads = Workloads()
    compile_module(program.module, program.ctx, "gemmini-fp32", observers=[workloads])
    return module_text(program.ctx, program.module), run_program(program.module, workloads)


@pytest.fixture
def accel(lowered: tuple[str, ProgramRun], tmp_path: Path) -> Path:
    path = tmp_path / "matrices.accel.mlir"
    path.write_text(lowered[0])
    return path


# reports


def test_a_report_has_cycles_units_and_bytes(
    penstock: Command, tmp_path: Path, lowered: tuple[str, ProgramRun]
) -> None:
    path = tmp_path / "matrices.mlir"
    path.write_text(MATRICES)
    done = penstock("simulate", path, "--machine", "gemmini-fp32", "-q")
    assert (done.status, done.err) == (0, "")
    run = lowered[1]
    assert done.out.startswith(f"gemmini-fp32: {run.cycles:,} cycles, ")
    assert run.time is not None
    assert f"with rocket, the host: {run.time.serial:,} cycles" in done.out
    for kernel in run.kernels:
        assert re.search(
            rf"^{kernel.kernel} +{kernel.runs} +\d+ +{kernel.simulation.cycles:,} ", done.out, re.MULTILINE
        )
    for head in ("kernel .* T / T\\*", "kernel +unit +busy", "kernel +from and to +bytes +compulsory"):
        assert re.search(f"^{head}", done.out, re.MULTILINE)
    assert "dram to spad" in done.out


def test_ir_at_the_accelerator_level_has_the_cycles_of_the_model(
    penstock: Command, accel: Path, lowered: tuple[str, ProgramRun]
) -> None:
    done = penstock("simulate", accel)
    assert done.status == 0
    assert done.out.startswith(f"gemmini-fp32: {lowered[1].cycles:,} cycles, ")


def test_the_kernels_run_one_after_the_other(lowered: tuple[str, ProgramRun]) -> None:
    run = lowered[1]
    begins = [begin for begin, _ in calls(run)]
    lengths = [kernel.simulation.cycles for _, kernel in calls(run)]
    assert begins == [sum(lengths[:number]) for number in range(len(lengths))]
    assert sum(lengths) == run.cycles


def test_one_kernel_can_be_simulated_alone(penstock: Command, accel: Path, lowered: tuple[str, ProgramRun]) -> None:
    name = lowered[1].kernels[-1].kernel
    done = penstock("simulate", accel, "--kernel", name)
    assert done.status == 0
    assert f"{lowered[1].kernels[-1].simulation.cycles:,} cycles" in done.out.splitlines()[0]
    assert "host" not in done.out


def test_other_passes_can_lower_the_program(penstock: Command, accel: Path) -> None:
    usual, other = penstock("simulate", accel), penstock("simulate", accel, "-p", "cse")
    assert (other.status, other.out) == (0, usual.out)


# files


def test_the_json_has_all_figures(penstock: Command, accel: Path, lowered: tuple[str, ProgramRun]) -> None:
    done = penstock("simulate", accel, "--json", "out.json")
    assert "out.json: the figures as JSON" in done.err
    found: dict[str, Any] = json.loads(Path("out.json").read_text())
    run = lowered[1]
    assert (found["schema"], found["version"], found["machine"]) == ("penstock-simulation", 4, "gemmini-fp32")
    assert found["total"]["cycles"] == run.cycles == sum(each["cycles"] * each["runs"] for each in found["kernels"])
    assert [found["kernels"][number]["kernel"] for number in found["order"]] == [k.kernel for _, k in calls(run)]
    assert sum(each["cycles"] for each in found["host"]) == found["program"]["host_cycles"] > 0
    assert found["program"]["side_by_side"] <= found["program"]["cycles"]
    for each in found["kernels"]:
        for unit in each["units"].values():
            assert sum(unit.values()) == each["cycles"]
        assert each["traffic"]["bytes"] == each["bytes_in"] + each["bytes_out"]
        assert each["cycles"] >= each["ideal_cycles"]
    assert set(found["total"]) <= set(found["kernels"][0])


def test_the_csv_has_a_row_for_each_kernel_and_the_total(penstock: Command, accel: Path) -> None:
    done = penstock("simulate", accel, "--csv", "-", "-q")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    *kernels, total = rows
    assert total["kernel"] == "total"
    for column in (
        "commands",
        "cycles",
        "useful_macs",
        "padded_macs",
        "bytes",
        "load busy",
        "execute done",
        "dram to spad",
    ):
        assert int(total[column]) == sum(int(row[column]) * int(row["runs"]) for row in kernels)


def test_slices_of_a_track_of_the_trace_do_not_overlap(
    penstock: Command, accel: Path, lowered: tuple[str, ProgramRun]
) -> None:
    assert penstock("simulate", accel, "--trace", "out.json").status == 0
    trace: dict[str, Any] = json.loads(Path("out.json").read_text())
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        slices.sort()
        assert all(first[1] <= second[0] for first, second in pairwise(slices))
    assert max(end for slices in tracks.values() for _, end in slices) == lowered[1].cycles
    assert {"load", "execute", "store", "sys", "kernels"} <= set(names.values())
    # A slice a command, one more for each transfer, and one for each call.
    simulations = [kernel.simulation for _, kernel in calls(lowered[1])]
    expected = sum(1 + (command.kind is Kind.TRANSFER) for each in simulations for command in each.commands) + len(
        simulations
    )
    assert sum(map(len, tracks.values())) == expected


def test_a_window_of_the_trace_leaves_the_rest_out(penstock: Command, accel: Path) -> None:
    assert penstock("simulate", accel, "--trace", "out.json", "--window", "1000:1200").status == 0
    trace: dict[str, Any] = json.loads(Path("out.json").read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert slices
    assert all(event["ts"] < 1200 and event["ts"] + event["dur"] > 1000 for event in slices)


def test_the_picture_has_a_row_for_each_unit_and_bus(penstock: Command, accel: Path) -> None:
    assert penstock("simulate", accel, "--svg", "out.svg", "--window", ":2000").status == 0
    root = ElementTree.parse("out.svg").getroot()
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"load", "execute", "store", "sys", "cycles", "works"} <= set(words)


def test_the_colours_of_a_row_are_what_its_unit_does(lowered: tuple[str, ProgramRun]) -> None:
    run = lowered[1]
    root = ElementTree.fromstring(run.svg(CycleWindow(0, run.cycles), "all"))
    busy = sum(use.busy for kernel in run.kernels for use in kernel.simulation.units if use.unit == "execute")
    drawn = 0.0
    for box in root.iter(f"{SVG}rect"):
        title = box.find(f"{SVG}title")
        if title is not None and title.text == "execute: works":
            drawn += float(box.attrib["width"])
    # A pixel has the colour of what takes most of it.
    assert drawn / WIDTH == pytest.approx(busy / run.cycles, abs=0.1)


def test_the_picture_of_a_long_run_is_not_larger(lowered: tuple[str, ProgramRun]) -> None:
    run = lowered[1]
    long = ProgramRun(run.target, run.kernels, run.order * 40, ())
    cycles = 40 * run.cycles
    text = long.svg(CycleWindow(0, cycles), "long")
    rows = len(run.target.units()) + len(run.target.buses())
    assert len(ElementTree.fromstring(text)) < rows * (WIDTH + 2) + WIDTH + 50


def test_the_same_run_gives_the_same_files(penstock: Command, accel: Path) -> None:
    files = [("--csv", "csv"), ("--json", "json"), ("--trace", "trace"), ("--svg", "svg")]
    texts: list[list[str]] = []
    for number in range(2):
        names = [(option, f"{kind}{number}") for option, kind in files]
        assert penstock("simulate", accel, *(word for pair in names for word in pair)).status == 0
        texts.append([Path(name).read_text() for _, name in names])
    assert texts[0] == texts[1]


# what is refused


def test_no_cycles_are_told_of_a_program_with_a_hazard(penstock: Command, accel: Path) -> None:
    text = accel.read_text()
    accel.write_text(re.sub(r" after\([^)]*\)", "", text))
    done = penstock("simulate", accel, "--csv", "out.csv", "--svg", "out.svg")
    assert (done.status, done.out) == (1, "")
    assert re.match(r"\S*matrices\.accel\.mlir:\d+:\d+: error: data race: accel\.", done.err)
    assert "no happens-before between the two" in done.err
    assert "is not simulated: the cycles of a faulty program mean nothing" in done.err
    assert not Path("out.csv").exists()
    assert not Path("out.svg").exists()


def test_no_cycles_are_told_of_a_program_that_waits_for_ever(penstock: Command, accel: Path) -> None:
    text = accel.read_text()
    accel.write_text(text.replace("    accel.barrier\n", '    accel.pop "execute" from "load"\n    accel.barrier\n', 1))
    done = penstock("simulate", accel)
    assert (done.status, done.out) == (1, "")
    assert re.match(r"\S*matrices\.accel\.mlir:\d+:\d+: error: ", done.err)
    assert 'the queue from "load" to "execute"' in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--window", "5:10"], "--window is for --trace and --svg"),
        (["--svg", "a", "--window", "5"], '"5" is no window'),
        (["--svg", "a", "--window", "x:5"], '"x:5" is no window'),
        (["--svg", "a", "--window", "9:9"], "the window 9:9 is empty"),
        (["--svg", "a", "--window", "1000000000:"], "--window begins at cycle 1,000,000,000, and the run has"),
        (["--svg", "a", "--csv", "a"], "--svg and --csv would be one file: a"),
        (["--kernel", "fused"], 'no kernel "fused" runs on the machine'),
        (["--machine", "gemini"], 'unknown machine "gemini"'),
    ],
)
def test_bad_usage_is_refused(penstock: Command, accel: Path, words: list[str], message: str) -> None:
    done = penstock("simulate", accel, *words)
    assert done.status in ((2,) if "machine" not in words[0] else (1, 2))
    assert done.out == ""
    assert message in done.err
    assert not Path("a").exists()


def test_a_program_needs_a_machine(penstock: Command, tmp_path: Path) -> None:
    path = tmp_path / "matrices.mlir"
    path.write_text(MATRICES)
    done = penstock("simulate", path)
    assert (done.status, done.out) == (2, "")
    assert "there is no machine to simulate\nnote: say which: --machine NAME" in done.err
    done = penstock("simulate", path, "--machine", "host")
    assert (done.status, done.out) == (2, "")
    assert "the program is for the host" in done.err


def test_a_program_of_which_nothing_runs_on_the_machine_has_no_cycles(penstock: Command, tmp_path: Path) -> None:
    path = tmp_path / "matrices.mlir"
    path.write_text(MATRICES)
    done = penstock("simulate", path, "--machine", "vta-pynq", "-q")
    assert (done.status, done.out) == (1, "")
    assert 'nothing runs on the machine "vta-pynq"' in done.err
    assert "\nnote: the host runs " in done.err
    assert "\nnote: because " in done.err


def test_passes_that_stop_above_the_commands_are_refused(penstock: Command, tmp_path: Path) -> None:
    path = tmp_path / "matrices.mlir"
    path.write_text(MATRICES)
    done = penstock("simulate", path, "--machine", "gemmini-fp32", "-p", "graph-fuse")
    assert (done.status, done.out) == (2, "")
    assert "these passes leave the program at the graph level" in done.err


def test_a_file_that_cannot_be_written_is_an_error(penstock: Command, accel: Path) -> None:
    done = penstock("simulate", accel, "--svg", "missing/out.svg")
    assert done.status == 1
    assert "missing/out.svg: error: cannot write the file" in done.err
