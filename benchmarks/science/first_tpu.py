# SPDX-License-Identifier: Apache-2.0
"""Fully connected networks on the first tensor processing unit, which the memory of the weights bounds."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.accel import compiled
from benchmarks.science.study import Found, Study
from penstock.lowering.from_machine_toml import load_machine


@dataclass(frozen=True)
class Perceptron:
    """A network of equal fully connected layers, as the TPU's paper describes it by its sums."""

    layers: int
    weights: int
    batch: int

    @property
    def width(self) -> int:
        return round((self.weights / self.layers) ** 0.5)

    @property
    def text(self) -> str:
        """Bytes times bytes, cut to 0..127, at graph level; the weights are arguments."""
        x, w = f"tensor<{self.batch}x{self.width}xi8>", f"tensor<{self.width}x{self.width}xi8>"
        sums = x.replace("i8", "i32")
        arguments = ", ".join(f"%w{n}: {w}" for n in range(self.layers))
        lines = [f"func.func @main(%y0: {x}, {arguments}) -> {x} {{"]
        for n in range(self.layers):
            lines += [
                f"  %s{n} = graph.matmul %y{n}, %w{n} accumulate i32 : ({x}, {w}) -> {sums}",
                f"  %c{n} = graph.clip %s{n} min 0.0 max 127.0 : {sums}",
                f"  %y{n + 1} = graph.cast %c{n} : {sums} -> {x}",
            ]
        return "\n".join([*lines, f"  func.return %y{self.layers} : {x}", "}"])


def run(study: Study, *, long: bool) -> Found:
    """Operations a second of the paper's fully connected networks."""
    machine = study.values["machine"]
    clock = load_machine(machine).frequency_mhz
    found = Found()
    for name, sizes in study.values["networks"].items():
        network = Perceptron(**sizes)
        cycles = compiled(network.text, machine).figures.cycles
        operations = 2 * network.layers * network.width**2 * network.batch
        found.figures[name] = operations * clock / cycles / 1e6
    return found
