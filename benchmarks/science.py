"""
Headline figures of papers, derived again by compiling and simulating, beside the published ones.

    python -m benchmarks.science [--only STUDY]...

Studies: tpu (fully connected networks on the first tensor processing unit, which the memory of the weights bounds),
hiding (latency hiding on ResNet-18's convolutions), fusion (convolutions with a scale, an offset and a rectifier:
fused, and an op a kernel). Every figure is of commands that are proved free of hazards.

Sources. TPU: Jouppi et al., In-Datacenter Performance Analysis of a Tensor Processing Unit, ISCA 2017, Tables 1 and 3:
teraoperations a second as measured. TVM: Chen et al., TVM: An Automated End-to-End Optimizing Compiler for Deep
Learning, OSDI 2018: peak utilisation on VDLA without and with latency hiding (Fig. 10), and the speed-up of fused
operators, on a GPU (Fig. 4).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.accel import MACHINE, compiled, epilogue_cycles
from benchmarks.accel_programs import FUSED, LAYERS
from benchmarks.measure import say
from benchmarks.planning_runs import text_table
from penstock.lowering.from_machine_toml import load_machine

NEAR = 0.1
"""How far ours may be from a published figure to be called near."""
TPU = "tpu-v1-like"


@dataclass(frozen=True)
class Row:
    """A figure and what is published, from the least to the most."""

    what: str
    ours: float
    published: tuple[float, float]
    unit: str
    why: str
    """Where the difference comes from."""

    @property
    def verdict(self) -> str:
        low, high = self.published
        if low * (1 - NEAR) <= self.ours <= high * (1 + NEAR):
            return "near"
        return "less" if self.ours < low else "more"

    @property
    def cells(self) -> tuple[str, ...]:
        low, high = (f"{each:.1f}" for each in self.published)
        span = low if low == high else f"{low} to {high}"
        return self.what, f"{self.ours:.1f} {self.unit}", span, self.verdict, self.why


@dataclass(frozen=True)
class Perceptron:
    """A network of equal fully connected layers, as the TPU's paper describes it by its sums."""

    layers: int
    weights: int
    batch: int
    published: float
    """Teraoperations a second."""

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


PERCEPTRONS = {"MLP0": Perceptron(5, 20_000_000, 200, 12.3), "MLP1": Perceptron(4, 5_000_000, 168, 9.7)}


def tpu() -> Iterator[Row]:
    """Operations a second of the paper's fully connected networks."""
    clock = load_machine(TPU).frequency_mhz
    for name, network in PERCEPTRONS.items():
        cycles = compiled(network.text, TPU).figures.cycles
        operations = 2 * network.layers * network.width**2 * network.batch
        teras = operations * clock / cycles / 1e6
        why = "activations go off chip between layers, with no load of the next layer's weights meanwhile"
        yield Row(f"{name}, batch {network.batch}", teras, (network.published, network.published), "Tops/s", why)


def hiding() -> Iterator[Row]:
    """The share of the peak, by multiplicity, over ResNet-18's convolutions on VTA."""
    limit = single = hidden = 0.0
    for name, layer in LAYERS.items():
        one, best = (compiled(layer.text, MACHINE, depth=depth).figures.cycles for depth in (1, None))
        say(f"science: {name}: {one:,} and {best:,} cycles")
        limit += layer.times * layer.macs / 256
        single += layer.times * one
        hidden += layer.times * best
    why = "the paper says the peak of its layers, this is their mean; "
    yield Row("without", 100 * limit / single, (70, 70), "% of peak", why + "tiles for one slot are chosen for it")
    yield Row("with", 100 * limit / hidden, (88, 88), "% of peak", why + "tiles and slots are chosen together")


def fusion() -> Iterator[Row]:
    """How much faster fused convolutions are."""
    for machine, channels, size, groups in FUSED:
        _, single, ours = epilogue_cycles(machine, channels, size, groups)
        kind = "depthwise" if groups == channels else "dense"
        why = "the convolution bounds both; the paper's are of a GPU"
        yield Row(f"{kind} {channels}x{size}x{size}, {machine}", single / ours, (1.2, 2.0), "x", why)


STUDIES: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
    "tpu": ("Fully connected networks on the first TPU", tpu),
    "hiding": ("Latency hiding on VTA, ResNet-18's convolutions", hiding),
    "fusion": ("Fused against an op a kernel", fusion),
}


def main() -> int:
    """Run the studies that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="STUDY", choices=list(STUDIES), help="one of several")
    args = parser.parse_args()
    head = ("", "ours", "published", "verdict", "why")
    for name, (title, study) in STUDIES.items():
        if not args.only or name in args.only:
            print(text_table(title, head, [row.cells for row in study()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
