# SPDX-License-Identifier: Apache-2.0
"""Tiles by three tilers, of the convolutions and depthwise convolutions of TVM's tables and of square products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.accel_programs import LAYERS, Layer, product
from benchmarks.planning_runs import geomean, text_table
from benchmarks.science.plots import Bars
from benchmarks.science.study import Found, Study
from benchmarks.science.sweeping import swept
from benchmarks.tilers import convolution

FASTEST, LARGEST, SPARING = TILERS = ("pipelined", "largest", "least-traffic")


def run(study: Study, *, long: bool) -> Found:
    """Cycles and bytes of each tiler, and how the others stand to the fastest and to the sparing."""
    found = Found()
    machines: Mapping[str, Any] = study.values["machines"]
    for machine, families in machines.items():
        if not long and machine in study.values["long"]:
            continue
        programs = {name: text for family in families for name, text in _programs(study, family, machine).items()}
        programs = {name: text for name, text in programs.items() if long or name in study.values["quick"]}
        axes = {"machines": [machine], "tiler": list(TILERS)}
        figures = swept(f"tiling-{machine}", programs, axes, ("cycles", "bytes", "compulsory", "machine_macs"))
        rows: list[tuple[object, ...]] = []
        known: dict[str, dict[str, dict[str, float]]] = {}
        for name in programs:
            runs = {tiler: run for tiler in TILERS if (run := figures.get((name, machine, tiler))) is not None}
            if len(runs) < len(TILERS) or not all(each["machine_macs"] for each in runs.values()):
                rows.append((name, *("host" if tiler not in runs else "" for tiler in TILERS), *[""] * 4))
                continue
            known[name] = runs
            cells = [f"{runs[tiler][what]:,.0f}" for what in ("cycles", "bytes") for tiler in TILERS]
            rows.append((name, *cells, f"{runs[FASTEST]['compulsory']:,.0f}"))
        head = ("", *(f"{tiler}, cycles" for tiler in TILERS), *(f"{tiler}, bytes" for tiler in TILERS), "compulsory")
        found.tables.append(text_table(f"Tiles on {machine}", head, rows))
        for what in ("cycles", "bytes"):
            ratios = [runs[LARGEST][what] / runs[SPARING][what] for runs in known.values()]
            found.figures[f"{machine}, largest, {what}"] = geomean(ratios)
        ratios = [runs[SPARING]["cycles"] / runs[FASTEST]["cycles"] for runs in known.values()]
        found.figures[f"{machine}, sparing, cycles"] = geomean(ratios)
        series = {
            tiler: [runs[tiler]["cycles"] / runs[FASTEST]["cycles"] for runs in known.values()] for tiler in TILERS[1:]
        }
        title = f"Tiles on {machine}: cycles beside those of the fastest"
        found.plots[f"tiling-{machine}"] = Bars(title, "times the cycles", list(known), series)
    return found


def _programs(study: Study, family: str, machine: str) -> dict[str, str]:
    """The programs of a family, in the types of a machine."""
    integers = machine.startswith("vta")
    match family:
        case "convolutions":
            layers = dict(LAYERS)
            if not integers:
                layers |= {name: Layer(*sizes) for name, sizes in study.values["more_convolutions"].items()}
            names = sorted(layers, key=lambda name: int(name[1:]))
            return {name: layers[name].text if integers else convolution(layers[name]) for name in names}
        case "depthwise":
            return {name: depthwise(*sizes) for name, sizes in study.values["depthwise"].items()}
        case _:
            sizes = study.values["products"]
            return {f"gemm{n}": product(n, "i8", narrowed=True) if integers else product(n, "f32") for n in sizes}


def depthwise(size: int, channels: int, stride: int) -> str:
    """A 3x3 convolution of each channel by itself, at graph level in 32-bit floats, padded by one."""
    out = (size - 1) // stride + 1
    x, w = f"tensor<1x{channels}x{size}x{size}xf32>", f"tensor<{channels}x1x3x3xf32>"
    y = f"tensor<1x{channels}x{out}x{out}xf32>"
    return f"""
func.func @main(%x: {x}, %w: {w}) -> {y} {{
  %y = graph.conv %x, %w strides [{stride}, {stride}] pads [1, 1, 1, 1] dilations [1, 1] group {channels}
      : ({x}, {w}) -> {y}
  func.return %y : {y}
}}
"""
