# SPDX-License-Identifier: Apache-2.0
"""
SMAUG: what share of a program's time computes, its tilers against each other, and a camera's image up to the class.

Networks are lists of layers in the study: `conv CHANNELS KERNEL`, `pool SIZE`, `dense UNITS`, each rectified but the
last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import say
from benchmarks.networks import new_model
from benchmarks.planning_runs import geomean, text_table
from benchmarks.science.compiling import whole
from benchmarks.science.plots import Bars, Timeline
from benchmarks.science.study import Found, Study
from benchmarks.science.sweeping import swept
from penstock.runtime.simulator.figures import total_of
from penstock.runtime.simulator.run import ProgramRun

CAMERA = Path(__file__).parent / "camera.pk"
FIRST = "smaug"
"""The tiler that takes the first strategy that fits, as SMAUG's runtime does."""


def shares(study: Study, *, long: bool) -> Found:
    """The share of the time in which the datapath computes, of networks tiled as SMAUG tiles them."""
    found, rows = Found(), list[tuple[object, ...]]()
    machine, unit = study.values["machine"], study.values["unit"]
    parts: dict[str, dict[str, float]] = {}
    for name, layers in study.values["networks"].items():
        model = network_of(name, layers, study.seed)
        for what, edits in study.values["pipelines"].items():
            run = whole(model, machine, edits)
            share = _share(run, unit)
            parts[f"{name}, {what}"] = share
            cells = [f"{share[each]:.0%}" for each in ("computing", "moving", "host")]
            rows.append((name, what, f"{share['cycles']:,.0f}", *cells))
            say(f"science: smaug: {name}, {what}: {share['computing']:.0%}")
    found.figures = {name: 100 * share["computing"] for name, share in parts.items() if name in study.rows}
    head = ("network", "", "cycles", "computing", "moving alone", "host")
    found.tables.append(text_table(f"Where the time goes on {machine}, one call after the other", head, rows))
    series = {each: [100 * share[each] for share in parts.values()] for each in ("computing", "moving", "host")}
    found.plots["smaug"] = Bars(f"Shares of the time on {machine}", "% of the cycles", list(parts), series)
    return found


def _share(run: ProgramRun, unit: str) -> dict[str, float]:
    """Of all cycles, those in which the unit computes, those of the machine in which it does not, and the host's."""
    assert run.time is not None
    cycles = run.time.serial
    computing = total_of(run).units[unit]["busy"]
    return {
        "cycles": cycles,
        "computing": computing / cycles,
        "moving": (run.cycles - computing) / cycles,
        "host": run.time.host / cycles,
    }


def tilers(study: Study, *, long: bool) -> Found:
    """Each of SMAUG's strategies on layers of its size, beside the first that fits and the planner's own tiles."""
    found, rows = Found(), list[tuple[object, ...]]()
    machine, names = study.values["machine"], study.values["tilers"]
    programs = {name: convolution(*sizes) for name, sizes in study.values["layers"].items()}
    figures = swept(
        "smaug-tilers", programs, {"machines": [machine], "tiler": names}, ("cycles", "bytes", "machine_macs")
    )
    series: dict[str, list[float | None]] = {name: [] for name in names}
    best: dict[str, float] = {}
    for name in programs:
        runs = {each: run for each in names if (run := figures.get((name, machine, each))) and run["machine_macs"]}
        best[name] = min(run["cycles"] for each, run in runs.items() if each.startswith(FIRST))
        for each in names:
            run = runs.get(each)
            series[each].append(None if run is None else run["cycles"] / best[name])
            cells = ("no plan", "") if run is None else (f"{run['cycles']:,.0f}", f"{run['bytes']:,.0f}")
            rows.append((name, each, *cells, "" if run is None else f"{run['cycles'] / best[name]:.2f}"))
    strategies = [each for each in names if each.startswith(f"{FIRST}-")]
    spread = [max(value for each in strategies if (value := series[each][n]) is not None) for n in range(len(programs))]
    found.figures["spread"] = geomean(spread)
    for each in (FIRST, "pipelined"):
        found.figures[each] = geomean(value for value in series[each] if value is not None)
    head = ("layer", "tiler", "cycles", "bytes", "over the best strategy")
    found.tables.append(text_table(f"SMAUG's strategies on {machine}", head, rows))
    title = f"Tilers on {machine}: cycles beside those of the best strategy"
    shown = {each: values for each, values in series.items() if sum(value is not None for value in values) > 1}
    found.plots["smaug-tilers"] = Bars(title, "times the cycles", list(programs), shown)
    return found


def camera(study: Study, *, long: bool) -> Found:
    """From a sensor's data to the class: the front end, the network and what follows, on one timeline."""
    values = study.values
    machine = values["machine"]
    model = pipeline_of(study)
    run = whole(model, machine, None, kernels=[CAMERA])
    time = run.time
    assert time is not None
    milliseconds = 1 / (1e3 * values["mhz"])
    kinds = _kinds([step.name for step in time.steps], values["front_end"])
    steps: list[tuple[str, str, float, float]] = []
    sums: dict[str, float] = {}
    clock = 0.0
    for step, kind in zip(time.steps, kinds, strict=True):
        length = step.cycles * milliseconds
        steps.append((f"{kind} {step.name}", "host" if step.on_host else machine, clock, length))
        sums[kind] = sums.get(kind, 0.0) + length
        clock += length
    found = Found({kind: sums.get(kind, 0.0) for kind in ("camera", "network", "after")})
    found.figures["frame"] = clock
    rows = [(name, track, f"{start:.3f}", f"{length:.3f}") for name, track, start, length in steps if length > 5e-4]
    found.tables.append(
        text_table("From the sensor to the class, one call after the other, ms", ("", "on", "from", "takes"), rows)
    )
    colours = {"camera": 0, "network": 1, "after": 2}
    title = f"A frame of {values['height']}x{values['width']} on {machine}"
    found.plots["camera"] = Timeline(title, steps, "ms", colours)
    return found


def _kinds(names: Sequence[str], front_end: Sequence[str]) -> list[str]:
    """What each step belongs to: the last of the front end ends it, and what follows the last kernel is after."""
    ends = max(number for number, name in enumerate(names) if any(name.startswith(each) for each in front_end))
    return ["camera" if number <= ends else "network" for number in range(len(names) - 1)] + ["after"]


def network_of(name: str, layers: Sequence[str], seed: int) -> Any:
    """A model with seeded weights of the layers of a study; the first says the input's shape."""
    builder = new_model(name)
    builder.rng = type(builder.rng)(type(builder.rng.bit_generator)(seed))
    shape = [int(size) for size in layers[0].split()[1:]]
    x, size = builder.input("image", [1, *shape]), list(shape)
    for number, layer in enumerate(layers[1:]):
        kind, *sizes = layer.split()
        first, *rest = map(int, sizes)
        scope = f"/{number}"
        match kind:
            case "conv":
                fan_in = size[0] * rest[0] ** 2
                w = builder.weight(f"{number}.weight", builder.he_normal((first, size[0], *rest * 2), fan_in))
                b = builder.weight(f"{number}.bias", builder.near(first, 0.0, 0.1))
                x = builder.node("Conv", [x, w, b], scope, kernel_shape=rest * 2, pads=[rest[0] // 2] * 4)
                size[0] = first
            case "pool":
                x = builder.node("MaxPool", [x], scope, kernel_shape=[first] * 2, strides=[first] * 2)
                size[1:] = [each // first for each in size[1:]]
            case _:
                if len(size) > 1:
                    x, size = builder.node("Flatten", [x], scope, axis=1), [math.prod(size)]
                w = builder.weight(f"{number}.weight", builder.he_normal((size[0], first), size[0]))
                b = builder.weight(f"{number}.bias", builder.near(first, 0.0, 0.1))
                x, size = builder.node("Gemm", [x, w, b], scope), [first]
        if kind != "pool" and number < len(layers) - 2:
            x = builder.node("Relu", [x], scope)
    builder.output(x, [1, *size])
    return builder.finish()


def convolution(size: int, channels: int, filters: int, kernel: int) -> str:
    """A padded convolution at graph level, in 32-bit floats."""
    x, y = (f"tensor<1x{count}x{size}x{size}xf32>" for count in (channels, filters))
    w, pad = f"tensor<{filters}x{channels}x{kernel}x{kernel}xf32>", ", ".join([str(kernel // 2)] * 4)
    return f"""
func.func @main(%x: {x}, %w: {w}) -> {y} {{
  %y = graph.conv %x, %w strides [1, 1] pads [{pad}] dilations [1, 1] : ({x}, {w}) -> {y}
  func.return %y : {y}
}}
"""


def pipeline_of(study: Study) -> Any:
    """A network behind the kernels of a camera, and the probabilities of its classes."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    values: Mapping[str, Any] = study.values
    model = network_of("camera", values["network"], study.seed)
    graph = model.graph
    height, width, factor = values["height"], values["width"], values["factor"]
    constants = {name: values[name] for name in ("gain", "exponent", "center", "deviation")}
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()
    )
    size = factor * int(values["network"][0].split()[2])
    crop = {"starts": [(height - size) // 4 * 2, (width - size) // 4 * 2], "axes": [0, 1]}
    crop["ends"] = [start + size for start in crop["starts"]]
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value, np.int64), name) for name, value in crop.items())
    front = [
        helper.make_node("Slice", ["raw", "starts", "ends", "axes"], ["cropped"]),
        helper.make_node("demosaic", ["cropped"], ["rgb"], "demosaic", domain="penstock"),
        helper.make_node("white_balance", ["rgb", "gain"], ["balanced"], "white_balance", domain="penstock"),
        helper.make_node("gamma", ["balanced", "exponent"], ["bright"], "gamma", domain="penstock"),
        helper.make_node("shrink", ["bright", "center", "deviation"], ["small"], "shrink", domain="penstock", F=factor),
        helper.make_node("Unsqueeze", ["small", "front"], ["image"]),
    ]
    graph.initializer.append(numpy_helper.from_array(np.asarray([0], np.int64), "front"))
    scores = graph.output[0].name
    nodes = [*front, *graph.node, helper.make_node("Softmax", [scores], ["probabilities"], "softmax", axis=1)]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info("raw", TensorProto.UINT8, [height, width]))
    classes = int(values["network"][-1].split()[1])
    graph.output.append(helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, classes]))
    model.opset_import.append(helper.make_opsetid("penstock", 1))
    return model
