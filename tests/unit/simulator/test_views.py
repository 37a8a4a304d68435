# SPDX-License-Identifier: Apache-2.0
"""What runs look like: tracks, pictures and figures of programs made by hand."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program
from penstock.runtime.simulator import simulate
from penstock.runtime.simulator.figures import csv_text, json_text, total_of
from penstock.runtime.simulator.perfetto import trace_text
from penstock.runtime.simulator.run import KernelRun, OffChipTraffic, ProgramRun
from penstock.runtime.simulator.timeline import CycleWindow
from penstock.runtime.simulator.timeline_svg import WIDTH
from penstock.runtime.simulator.work import MacCounts

WORK = MacCounts(256 * 20, 256 * 16, 256 * 3, 256)


def run_of(machine: str, commands: list[Command], times: int = 1) -> ProgramRun:
    target = load_machine(machine)
    simulation = simulate(Program(MachineModel.of(target), commands))
    traffic = OffChipTraffic(sum(simulation.moved.values()), None, None, False, None, None)
    return ProgramRun(target, (KernelRun("kernel", simulation, times, traffic, WORK),), (0,) * times, (("other", 2),))


def events(run: ProgramRun) -> list[dict[str, Any]]:
    return json.loads(trace_text(run, CycleWindow(0, run.cycles + 1)))["traceEvents"]


def test_transfers_that_overlap_lie_on_tracks_beside_each_other() -> None:
    load = [Command("load", Kind.TRANSFER, "mvin", "mvin", 10) for _ in range(4)]
    found = events(run_of("gemmini-fp32", load))
    names = [event["args"]["name"] for event in found if event["name"] == "thread_name"]
    assert names == ["kernels", "load", "load (2)", "load (3)", "load (4)", "sys"]
    slices = [(event["ts"], event["dur"]) for event in found if event["ph"] == "X" and event["pid"] == 2]
    assert slices == [(0, 110), (0, 120), (0, 130), (0, 140)]


def test_a_trace_tells_how_many_tokens_a_queue_holds() -> None:
    queue = ("load", "compute")
    commands = [
        Command("load", Kind.EXEC, "a", cycles=5, pushes=(queue,)),
        Command("load", Kind.EXEC, "b", cycles=5, pushes=(queue,)),
        Command("compute", Kind.EXEC, "c", cycles=20),
        Command("compute", Kind.EXEC, "d", cycles=1, pops=(queue,)),
    ]
    counters = [event for event in events(run_of("vta-pynq", commands)) if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"load to compute"}
    assert [(event["ts"], event["args"]["tokens"]) for event in counters] == [(5, 1), (10, 2), (20, 1)]


def test_a_picture_is_in_proportion() -> None:
    commands = [Command("load", Kind.EXEC, "a", cycles=100), Command("compute", Kind.EXEC, "b", cycles=300, after=(0,))]
    run = run_of("vta-pynq", commands)
    boxes: dict[str, tuple[float, float]] = {}
    for box in ElementTree.fromstring(run.svg(CycleWindow(0, 400), "two")):
        if len(box):
            boxes[box[0].text or ""] = float(box.attrib["x"]) - 110, float(box.attrib["width"])
    assert boxes == {
        "load: works": (0, WIDTH / 4),
        "compute: token load": (0, WIDTH / 4),
        "compute: works": (WIDTH / 4, WIDTH * 3 / 4),
    }


def test_a_window_of_a_picture_shows_that_part() -> None:
    commands = [Command("load", Kind.EXEC, "a", cycles=100), Command("compute", Kind.EXEC, "b", cycles=300, after=(0,))]
    text = run_of("vta-pynq", commands).svg(CycleWindow(100, 200), "part")
    assert "compute: works" in text
    assert "load: works" not in text
    assert "waits for a token" not in text


def test_figures_are_summed_over_runs() -> None:
    commands = [
        Command("load", Kind.TRANSFER, "load_inp", "load_inp", 10, moved=(("dram", "inp", 80),)),
        Command("compute", Kind.EXEC, "gemm", cycles=30, macs=256 * 20, after=(0,)),
    ]
    run = run_of("vta-pynq", commands, times=3)
    total = total_of(run)
    assert (total.cycles, total.runs, total.commands) == (3 * 48, 3, 6)
    assert total.macs == MacCounts(3 * 256 * 20, 3 * 256 * 16, 3 * 256 * 3, 3 * 256)
    assert total.units["compute"] == {"busy": 90, "token load": 54}
    assert total.units["load"] == {"busy": 30, "latency": 24, "done": 90}
    assert total.moved == {("dram", "inp"): 240}
    assert (total.traffic.bytes, total.traffic.compulsory, total.traffic.ratio) == (240, None, None)
    document = json.loads(json_text(run))
    shares = [document["total"][name] for name in ("peak_share", "redundant_share", "padded_share")]
    assert shares == pytest.approx([16 / 48, 3 / 48, 1 / 48])
    assert document["total"]["ideal_cycles"] == 90
    assert document["host"] == [{"function": "other", "runs": 2, "cycles": None}]
    (kernel, whole) = csv.DictReader(io.StringIO(csv_text(run)))
    assert (kernel["runs"], kernel["cycles"], kernel["compulsory"]) == ("3", "48", "")
    assert (whole["kernel"], whole["cycles"], whole["compute token load"]) == ("total", "144", "54")
