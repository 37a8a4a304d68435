# SPDX-License-Identifier: Apache-2.0
"""TVM's accelerator: latency hiding under the roof of the machine, and what offloading convolutions to it gains."""

from __future__ import annotations

from benchmarks.accel import Compiled, compiled
from benchmarks.accel_programs import LAYERS
from benchmarks.measure import say
from benchmarks.networks import network
from benchmarks.planning_runs import geomean, text_table
from benchmarks.science.compiling import whole
from benchmarks.science.plots import Bars, Roofline
from benchmarks.science.study import Found, Study

HOST_ONLY = "default, -assign-devices"
"""The compiler's passes, without the one that puts kernels on the machine."""


def hiding(study: Study, *, long: bool) -> Found:
    """The share of the peak, by multiplicity, over ResNet-18's convolutions, and each under the roof."""
    machine, macs, rate = (study.values[key] for key in ("machine", "macs_per_cycle", "bytes_per_cycle"))
    sums = {"limit": 0.0, "without": 0.0, "with": 0.0}
    points: dict[str, dict[str, tuple[float, float]]] = {"without": {}, "with": {}}
    rows: list[tuple[object, ...]] = []
    for name, layer in LAYERS.items():
        sums["limit"] += layer.times * layer.macs / macs
        cells: list[object] = [name, f"{layer.macs // macs:,}"]
        for what, depth in (("without", 1), ("with", None)):
            figures = compiled(layer.text, machine, depth=depth).figures
            sums[what] += layer.times * figures.cycles
            points[what][name] = (layer.macs / figures.traffic.bytes, layer.macs / figures.cycles)
            cells += [f"{figures.cycles:,}", f"{layer.macs / macs / figures.cycles:.1%}"]
        say(f"science: hiding: {name}")
        rows.append(tuple(cells))
    found = Found({what: 100 * sums["limit"] / sums[what] for what in ("without", "with")})
    head = ("layer", "limit, cycles", "without", "of peak", "with", "of peak")
    found.tables.append(text_table(f"ResNet-18's convolutions on {machine}", head, rows))
    title = f"ResNet-18's convolutions on {machine}, with and without latency hiding"
    found.plots["hiding"] = Roofline(title, macs, rate, points, "multiply-accumulates")
    return found


def offload(study: Study, *, long: bool) -> Found:
    """Convolutions on the machine and on its host, as the machine file models that, and the network as a whole."""
    machine = study.values["machine"]
    ratios: dict[str, float] = {}
    sums = [0, 0]
    rows: list[tuple[object, ...]] = []
    for name, layer in LAYERS.items():
        ours: Compiled = compiled(layer.text, machine)
        host = whole(layer.text, machine, HOST_ONLY).time
        assert host is not None
        ratios[name] = host.host / ours.figures.cycles
        sums[0] += layer.times * host.host
        sums[1] += layer.times * ours.figures.cycles
        per_mac = host.host * study.values["host_clock_ratio"] / layer.macs
        rows.append((name, f"{host.host:,}", f"{per_mac:.1f}", f"{ours.figures.cycles:,}", f"{ratios[name]:.0f}"))
    found = Found({"convolutions": sums[0] / sums[1], "lanes": sums[0] / sums[1] / study.values["host_lanes"]})
    head = ("layer", "host, cycles of the machine", "of its own a MAC", "machine, cycles", "ratio")
    found.tables.append(text_table(f"Convolutions of ResNet-18 on {machine} and on its host", head, rows))
    title = f"Convolutions of ResNet-18: {machine} against its host, geometric mean {geomean(ratios.values()):.0f}"
    found.plots["offload"] = Bars(title, "times as fast", list(ratios), {"scalar host": list(ratios.values())})
    _end_to_end(study, found)
    return found


def _end_to_end(study: Study, found: Found) -> None:
    """The whole network, first all of it on the host."""
    machine, name = study.values["machine"], study.values["network"]
    model = network(name)[0]
    # As the model is: what is done to it for the machine costs the host more.
    alone = whole(model, machine, f"{HOST_ONLY}, -layout, -space-to-depth").time
    both = whole(model, machine).time
    assert alone is not None
    assert both is not None
    found.figures["end to end"] = alone.serial / both.serial
    found.figures["amdahl"] = alone.serial / both.host
    host: dict[str, int] = {}
    for step in both.steps:
        if step.on_host:
            host[step.name] = host.get(step.name, 0) + step.cycles
    rows: list[tuple[object, ...]] = [
        ("all on the host", f"{alone.serial:,}", ""),
        ("host and machine, in turns", f"{both.serial:,}", f"{alone.serial / both.serial:.1f}x"),
        ("host and machine, side by side", f"{both.side_by_side:,}", f"{alone.serial / both.side_by_side:.1f}x"),
        ("  on the machine", f"{both.serial - both.host:,}", f"{1 - both.host / both.serial:.1%}"),
        ("  on the host", f"{both.host:,}", f"{both.host / both.serial:.1%}"),
    ]
    most = sorted(host.items(), key=lambda each: -each[1])[:3]
    rows += [(f"    @{function}", f"{cycles:,}", f"{cycles / both.serial:.1%}") for function, cycles in most]
    found.tables.append(text_table(f"{name} whole on {machine}, cycles", ("", "cycles", ""), rows))
