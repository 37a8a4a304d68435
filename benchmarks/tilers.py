# SPDX-License-Identifier: Apache-2.0
"""
Tilers beside each other: simulated cycles, and bytes off chip, of ResNet-18's convolutions and a matrix product.

    python -m benchmarks.tilers [--machines vta-pynq,gemmini-fp32] [--layers C2,C6,gemm] [--tilers pipelined,smaug]

Each tiler is asked by assign-devices and tile alike; all else is the compiler's own. A tiler that has no plan for a
kernel leaves it to the host, and its cell says so. Every figure is of commands that are proved free of hazards.
Layers are convolutions of 8-bit integers in NCHW16c with an epilogue on vta-pynq, and in 32 bits in NHWC elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.accel_programs import LAYERS, Layer, product
from benchmarks.measure import say
from benchmarks.planning_runs import text_table
from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import machine_kernels
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.simulator.figures import total_of
from penstock.runtime.simulator.run import run_program
from penstock.runtime.simulator.workloads import Workloads

MACHINES = ("vta-pynq", "gemmini-fp32")
TILERS = ("pipelined", "largest", "smaug", "exhaustive")
GEMM = "gemm"
SIDE = 1024


@dataclass(frozen=True)
class Tiled:
    """A program on a machine, tiled by some tiler."""

    cycles: int
    bytes: int
    seconds: float
    """To compile it."""


def convolution(layer: Layer) -> str:
    """A layer at graph level in 32-bit floats, without its epilogue."""
    x = f"tensor<1x{layer.size}x{layer.size}x{layer.channels}xf32>"
    w = f"tensor<{layer.kernel}x{layer.kernel}x{layer.channels}x{layer.outputs}xf32>"
    y = f"tensor<1x{layer.out}x{layer.out}x{layer.outputs}xf32>"
    pads = ", ".join([str(layer.pad)] * 4)
    return f"""
func.func @main(%x: {x}, %w: {w}) -> {y} {{
  %y = graph.conv %x, %w strides [{layer.stride}, {layer.stride}] pads [{pads}] dilations [1, 1] layout "NHWC"
      : ({x}, {w}) -> {y}
  func.return %y : {y}
}}
"""


def program(name: str, machine: str) -> str:
    """The text of a layer, or of the product, in the types of a machine."""
    integers = machine == "vta-pynq"
    if name == GEMM:
        return product(SIDE, "i8", narrowed=True) if integers else product(SIDE, "f32")
    return LAYERS[name].text if integers else convolution(LAYERS[name])


def tiled(text: str, machine: str, tiler: str) -> Tiled | None:
    """A program compiled and simulated; None where the tiler leaves it to the host."""
    started = time.process_time()
    ctx = make_context()
    module = parse_text(ctx, SourceText("program.mlir", text)).module
    passes = passes_for(module, "accel", machine, f'default, assign-devices{{tiler="{tiler}"}}')
    workloads = Workloads()
    run_passes(ctx, module, passes, observers=[workloads])
    seconds = time.process_time() - started
    if not machine_kernels(module)[1]:
        return None
    figures = total_of(run_program(module, workloads))
    return Tiled(figures.cycles, figures.traffic.bytes, seconds)


def compare(machine: str, names: Sequence[str], tilers: Sequence[str]) -> None:
    """A row a layer: cycles of each tiler, then bytes."""
    rows: list[Sequence[object]] = []
    sums: dict[str, list[Tiled | None]] = {tiler: [] for tiler in tilers}
    for name in names:
        text = program(name, machine)
        found = {tiler: tiled(text, machine, tiler) for tiler in tilers}
        for tiler, each in found.items():
            sums[tiler].append(each)
        say(f"tilers: {machine}: {name}: {sum(each.seconds for each in found.values() if each):.1f} s to compile")
        rows.append(_cells(name, [*found.values()]))
    totals = [
        Tiled(*(sum(part) for part in zip(*((e.cycles, e.bytes, e.seconds) for e in each if e), strict=True)))
        if all(each)
        else None
        for each in sums.values()
    ]
    rows.append(_cells("all", totals))
    rows.append(["CPU seconds", *(f"{t.seconds:.1f}" if t else None for t in totals), *[None] * len(tilers)])
    head = ("layer", *tilers, *(f"{tiler}, bytes" for tiler in tilers))
    print(text_table(f"Simulated cycles on {machine}, and bytes off chip", head, rows))


def _cells(name: str, found: Sequence[Tiled | None]) -> Sequence[object]:
    """The cycles of all, then the bytes, those after the first with their ratio to it."""
    first, *others = found

    def beside(taken: int, of: int | None) -> str:
        return f"{taken:,}" if of is None else f"{taken:,} {taken / of:.2f}x"

    cells: list[object] = [name]
    for part in ("cycles", "bytes"):
        whole = getattr(first, part) if first else None
        cells.append("host" if whole is None else f"{whole:,}")
        cells += ["host" if each is None else beside(getattr(each, part), whole) for each in others]
    return cells


def main() -> None:
    """Compare what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--layers", default=",".join([*LAYERS, GEMM]))
    parser.add_argument("--tilers", default=",".join(TILERS))
    args = parser.parse_args()
    for machine in args.machines.split(","):
        compare(machine, args.layers.split(","), args.tilers.split(","))


if __name__ == "__main__":
    main()
