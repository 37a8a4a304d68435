# SPDX-License-Identifier: Apache-2.0
"""Operators fused with what follows them, and an op a kernel."""

from __future__ import annotations

from benchmarks.accel import epilogue_cycles
from benchmarks.measure import say
from benchmarks.planning_runs import text_table
from benchmarks.science.compiling import whole
from benchmarks.science.plots import Bars
from benchmarks.science.study import Found, Study
from penstock.runtime.pipeline import pipeline


def run(study: Study, *, long: bool) -> Found:
    """How much faster fused convolutions and recurrent cells are, as `assign-devices` decides."""
    found = Found()
    cells: list[tuple[str, str, int, int]] = []
    for machine, channels, size, groups in study.values["convolutions"]:
        _, single, ours = epilogue_cycles(machine, channels, size, groups)
        kind = "depthwise" if groups == channels else "dense"
        cells.append((f"{kind} {channels}x{size}x{size}", machine, ours, single))
    for machine in study.values["machines"]:
        for name in study.values["cells"]:
            text = cell(name, study.values["hidden"])
            ours, single = (_cycles(text, machine, fused=fused) for fused in (True, False))
            cells.append((f"{name} cell, {study.values['hidden']} hidden", machine, ours, single))
    for what, machine, ours, single in cells:
        say(f"science: fusion: {what} on {machine}: {ours:,} and {single:,} cycles")
        found.figures[f"{what}, {machine}"] = single / ours
    head = ("operator", "machine", "fused, cycles", "an op a kernel", "ratio")
    rows = [
        (what, machine, f"{ours:,}", f"{single:,}", f"{single / ours:.2f}") for what, machine, ours, single in cells
    ]
    found.tables.append(text_table("Cycles; of cells, those of the host, too", head, rows))
    groups = [f"{what}\n{machine}" for what, machine, _, _ in cells]
    ratios = {"fused": [single / ours for _, _, ours, single in cells]}
    found.plots["fusion"] = Bars("Fused against an op a kernel", "times as fast", groups, ratios)
    return found


def cell(name: str, hidden: int) -> str:
    """One step of a recurrent layer for one sequence, at graph level: `rnn` or `lstm`, without biases."""
    width = hidden * (4 if name == "lstm" else 1)
    row, wide, w = f"tensor<1x{hidden}xf32>", f"tensor<1x{width}xf32>", f"tensor<{hidden}x{width}xf32>"
    lines = [
        f"  %xs = graph.matmul %x, %wx : ({row}, {w}) -> {wide}",
        f"  %hs = graph.matmul %h, %wh : ({row}, {w}) -> {wide}",
        f"  %s = graph.add %xs, %hs : ({wide}, {wide}) -> {wide}",
    ]
    if name == "rnn":
        return _function(row, w, row, [*lines, f"  %y = graph.tanh %s : {row}"], "%y", with_cell=False)
    for number, gate in enumerate("iofg"):
        start = number * hidden
        lines += [
            f"  %{gate}0 = graph.slice %s starts [0, {start}] sizes [1, {hidden}] steps [1, 1] : {wide} -> {row}",
            f"  %{gate} = graph.{'tanh' if gate == 'g' else 'sigmoid'} %{gate}0 : {row}",
        ]
    lines += [
        f"  %fc = graph.mul %f, %c : ({row}, {row}) -> {row}",
        f"  %ig = graph.mul %i, %g : ({row}, {row}) -> {row}",
        f"  %c1 = graph.add %fc, %ig : ({row}, {row}) -> {row}",
        f"  %t = graph.tanh %c1 : {row}",
        f"  %y = graph.mul %o, %t : ({row}, {row}) -> {row}",
    ]
    return _function(row, w, row, lines, "%y, %c1", with_cell=True)


def _function(row: str, w: str, result: str, lines: list[str], returned: str, *, with_cell: bool) -> str:
    given = f"%x: {row}, %h: {row}, %wx: {w}, %wh: {w}" + (f", %c: {row}" if with_cell else "")
    types = f"({result}, {result})" if with_cell else result
    returned_types = f"{result}, {result}" if with_cell else result
    return "\n".join(
        [f"func.func @main({given}) -> {types} {{", *lines, f"  func.return {returned} : {returned_types}", "}"]
    )


def _cycles(text: str, machine: str, *, fused: bool) -> int:
    """Of a program, the host included, one call after the other."""
    specs = list(pipeline("accel", machine))
    if not fused:
        specs[specs.index("graph-fuse")] = "graph-fuse{max-ops=1}"
    time = whole(text, machine, ",".join(specs)).time
    assert time is not None
    return time.serial
