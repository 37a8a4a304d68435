# SPDX-License-Identifier: Apache-2.0
"""
Code for Gemmini: what it issues, beside a library routine, and what it takes to write it.

    python -m benchmarks.device_code [--only SECTION]... [--layers C2,C6]

Sections: products (64, 256 and 1024 cubed, 8-bit integers into 32-bit sums), layers (ResNet-18's convolutions),
network (ResNet-18 in 8 bits: settings of states, the code for a 64-bit RISC-V, the CPU seconds from the accelerator
level on).

Each program is run on the functional model, whose log is executed a second time by `penstock.runtime.gemmini`; what is
counted are the instructions of that log. The routines are those of `benchmarks.gemmini_library`. Bytes are those that
instructions move between memory off chip and the two local memories.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from benchmarks.accel_programs import LAYERS, Layer, product
from benchmarks.gemmini_library import Convolution, Issued, convolution, matmul
from benchmarks.measure import ROOT, Row, cpu_seconds, say, table
from benchmarks.networks import network
from penstock.runtime.gemmini import Counts, read_log, replay

MACHINE = "gemmini"
SIDES = (64, 256, 1024)
COMMANDS, BYTES, SETTINGS = 1.05, 1.0, 0.1
"""At most so many times what the routine issues and moves; of the settings that would stand before each command."""
TEXT_KB, SECONDS = 256, 20
BARE_METAL = ROOT / "machines" / "code" / "riscv64" / "bare_metal.mk"


@dataclass(frozen=True)
class Written:
    """A folder with a program, and what was said about it."""

    folder: Path
    settings: int
    settings_one_by_one: int
    seconds: float
    """CPU, of all of the compiler."""

    def run(self) -> Counts:
        """On the model; raises RuntimeError unless it passes there, and UserError unless the log is executed alike."""
        log = self.folder / "log"
        subprocess.run(["make", "-s", "model"], cwd=self.folder, check=True)
        environment = {**os.environ, "GEMMINI_LOG": str(log)}
        said = subprocess.run(
            ["./model"], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        if said.returncode or "PASS" not in said.stdout:
            raise RuntimeError(said.stdout + said.stderr)
        return replay(read_log(log))


def write(source: Path, folder: Path, emit: str = "device-c") -> Written:
    """Compile a file for Gemmini."""
    started = cpu_seconds()
    words = [str(Path(sys.executable).with_name("penstock")), "compile", str(source), "--machine", MACHINE]
    said = subprocess.run([*words, f"--emit={emit}", "-o", str(folder)], capture_output=True, text=True, check=True)
    found = re.search(r"([\d,]+) settings of states \(before each command: ([\d,]+)\)", said.stderr + said.stdout)
    settings = [int(number.replace(",", "")) for number in found.groups()] if found else [0, 0]
    return Written(folder, settings[0], settings[1], cpu_seconds() - started)


def convolution_text(layer: Layer) -> str:
    """A layer at graph level, into 32-bit sums."""
    x = f"tensor<1x{layer.channels}x{layer.size}x{layer.size}xi8>"
    w = f"tensor<{layer.outputs}x{layer.channels}x{layer.kernel}x{layer.kernel}xi8>"
    y = f"tensor<1x{layer.outputs}x{layer.out}x{layer.out}xi32>"
    pads = ", ".join([str(layer.kernel // 2)] * 4)
    return f"""
func.func @main(%x: {x} {{graph.name = "x"}}, %w: {w} {{graph.name = "w"}}) -> ({y} {{graph.name = "y"}}) {{
  %0 = graph.conv %x, %w strides [{layer.stride}, {layer.stride}] pads [{pads}] dilations [1, 1] group 1 accumulate i32
      : ({x}, {w}) -> {y}
  func.return %0 : {y}
}}
"""


def compared(what: str, text: str, routine: Issued) -> list[Row]:
    """Instructions and bytes of a program beside those of the routine."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "program.graph.mlir")
        source.write_text(text)
        counts = write(source, Path(folder, "out")).run()
    moved = counts.bytes_in + counts.bytes_out
    return [
        _row(f"{what}: instructions", counts.total, routine.total, COMMANDS, ""),
        _row(f"{what}: bytes", moved / 1024, routine.bytes / 1024, BYTES, "KB"),
    ]


def _row(what: str, ours: float, theirs: float, at_most: float, unit: str) -> Row:
    ratio = ours / theirs
    return Row(what, ours, "routine", theirs, ratio, f"ratio <= {at_most:g}", ratio <= at_most, unit)


def products() -> list[Row]:
    """Square products."""
    return [row for side in SIDES for row in compared(f"{side} cubed", product(side, "i8"), matmul(side, side, side))]


def layers(names: Sequence[str]) -> list[Row]:
    """ResNet-18's convolutions."""
    rows: list[Row] = []
    for name in names:
        layer = LAYERS[name]
        shape = Convolution(layer.size, layer.channels, layer.outputs, layer.kernel, layer.stride)
        say(name)
        rows += compared(name, convolution_text(layer), convolution(shape, output_bytes=4))
    return rows


def whole_network() -> list[Row]:
    """ResNet-18 in 8 bits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "resnet18_int8.onnx"
        onnx.save(network("resnet18_int8")[0], source)
        to_accel = write(source, folder / "program.accel.mlir", "accel").seconds
        written = write(source, folder / "out")
        started = cpu_seconds()
        words = ["make", "-s", "-f", str(BARE_METAL), "PROGRAM=main", "SOURCES=main.c resnet18_int8.c data.S"]
        subprocess.run(words, cwd=written.folder, check=True, capture_output=True)
        built = cpu_seconds() - started
        sizes = ["riscv64-unknown-elf-size", "-A", "main.elf"]
        listed = subprocess.run(sizes, cwd=written.folder, check=True, capture_output=True, text=True).stdout
        (text,) = re.findall(r"^\.text\s+(\d+)", listed, re.MULTILINE)
        counts = written.run()
    beyond = written.seconds - to_accel + built
    kilobytes = int(text) / 1024
    share = counts.configurations / written.settings_one_by_one
    return [
        Row("ResNet-18: instructions", counts.total, unit=""),
        Row("ResNet-18: settings issued", counts.configurations, "one before each command",
            written.settings_one_by_one, share, f"ratio <= {SETTINGS:g}", share <= SETTINGS, ""),
        Row("ResNet-18: code", kilobytes, target=f"<= {TEXT_KB} KB", met=kilobytes <= TEXT_KB, unit="KB"),
        Row("ResNet-18: C and its compiler", beyond, "accelerator level", to_accel, None, f"<= {SECONDS} s",
            beyond <= SECONDS, "s"),
    ]  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=("products", "layers", "network"), default=[])
    parser.add_argument("--layers", default=",".join(LAYERS))
    given = parser.parse_args()
    sections: dict[str, Callable[[], list[Row]]] = {
        "products": products,
        "layers": lambda: layers(given.layers.split(",")),
        "network": whole_network,
    }
    rows = [row for name, section in sections.items() if not given.only or name in given.only for row in section()]
    print(table(rows))


if __name__ == "__main__":
    main()
