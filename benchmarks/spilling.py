"""
What stays on chip between the operators of networks, and what that leaves to go off chip.

    python -m benchmarks.spilling [--networks NAME ...] [--onsram] [--planner PLANNER] [--json FILE]

First table: nine networks whose tensors are int8, elementwise operators with one operand computed with what they
rectify or normalise; whole tensors, inputs and outputs off chip, weights not counted, in four capacities. Megabytes
(10^6 bytes) over the edge of the chip by each strategy; "=" is proved optimal. Every answer has places for all that
is on chip at any step, and has been checked against the definition of the problem and its bytes counted anew. LP is
the bound of the linear relaxation. The last two columns are the greedy answer and the optimum that HiGHS and CP-SAT
found for the same problems before this existed. Seconds are CPU seconds, of a decision with packing and checks.

Second table: latency without anything kept over latency with it, in the setting of OnSRAM: 3 TFLOP/s, 2 MiB, 32 GB/s,
batch 1, 16-bit tensors, weights read once and not kept. A step takes the longer of computing and moving. What is
streamed takes a double buffer of up to 64 KiB. The figures beside are the published ones, of the nearest networks on
another model of the machine; which of them belongs to which network was inferred from a table whose text is scrambled.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.lifetimes import Lifetimes, on_chip_problem
from benchmarks.measure import Row, cpu_seconds, limited, say, table
from benchmarks.networks import network
from penstock.dialects.graph import ConvOp, FusedOp, GemmOp, MatmulOp, tensor_of
from penstock.passes.planning.on_chip.milp import Highs, LinearProgram
from penstock.passes.planning.on_chip.pinning import step_bytes, step_time, unlimited
from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem, TensorAccess
from penstock.passes.planning.on_chip.registry import Options, decide, strategy
from penstock.passes.planning.registry import DEFAULT_PLANNER

NETWORKS = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
CAPACITIES = (256, 512, 1024, 2048)
"""KiB."""
STRATEGIES = ("none", "one-step", "toplib", "greedy", "onsram-static", "onsram-eager", "sweep", "milp")
PROVING = ("sweep", "milp")

KNOWN = {
    ("bvlc_alexnet", 256): (1.62, 1.62), ("bvlc_alexnet", 512): (0.71, 0.71),
    ("densenet121", 256): (41.89, 39.77), ("densenet121", 512): (23.43, 20.75), ("densenet121", 1024): (8.38, 7.08),
    ("inception_v1", 256): (7.68, 6.84), ("inception_v1", 512): (4.55, 4.50), ("inception_v1", 1024): (1.31, 1.31),
    ("inception_v2", 256): (7.25, 6.07), ("inception_v2", 512): (3.21, 3.21),
    ("resnet50", 256): (31.46, 31.16), ("resnet50", 512): (23.43, 23.23), ("resnet50", 1024): (11.39, 11.39),
    ("resnet50", 2048): (4.97, 4.17),
    ("shufflenet", 256): (3.44, 3.01), ("shufflenet", 512): (0.85, 0.85),
    ("squeezenet", 256): (4.80, 4.80), ("squeezenet", 512): (3.28, 3.28),
    ("vgg19", 256): (31.46, 31.46), ("vgg19", 512): (29.45, 29.05), ("vgg19", 1024): (23.43, 22.63),
    ("vgg19", 2048): (17.81, 16.21),
    ("zfnet512", 256): (5.59, 5.59), ("zfnet512", 512): (4.71, 4.71), ("zfnet512", 1024): (4.71, 4.71),
    ("zfnet512", 2048): (2.43, 2.43),
}  # fmt: skip
"""Megabytes of the greedy answer and of the optimum, where more than inputs and outputs had to move."""

ONSRAM: dict[str, tuple[str, float, float] | None] = {
    "bvlc_alexnet": ("AlexNet", 1.04, 1.04),
    "vgg19": ("VGG16", 1.19, 1.03),
    "inception_v1": ("GoogLeNet", 1.94, 1.01),
    "resnet50": ("ResNet-50", 1.75, 1.33),
    "mobilenet_v1": ("MobileNetV1", 5.17, 2.84),
    "squeezenet": ("SqueezeNet", 2.84, 1.57),
    "lstm": ("PTB LSTM", 1.02, 1.01),
    "bert_layer": ("Multi-head attention", 1.06, 1.02),
    "inception_v2": None,
    "densenet121": None,
    "shufflenet": None,
    "zfnet512": None,
    "mobilenet_v2": None,
}
"""Our networks, and the nearest ones of the publication: speed-ups by a memory without end, and by one step."""
OPERATIONS = 3e12
BANDWIDTH = 32e9
ON_CHIP = 2 << 20
DOUBLE_BUFFER = 64 << 10


def graph_of(name: str, *passes: str) -> Any:
    """@main of a network at full size, after graph passes."""
    from penstock.runtime.compiler import import_program
    from penstock.runtime.pass_manager import read_pipeline, run_passes
    from penstock.runtime.signature import main_function

    program = import_program(network(name)[0], {})
    if passes:
        run_passes(program.ctx, program.module, read_pipeline(",".join(passes)))
    return main_function(program.module)


def decided(problem: OnChipProblem, name: str, planner: str) -> tuple[OnChipAllocation, float]:
    """A strategy's checked answer, and its CPU seconds."""
    strategy(name)  # what is imported once
    started = cpu_seconds()
    found = decide(problem, name, Options(planner=planner))
    return found, cpu_seconds() - started


def relaxed_bound(problem: OnChipProblem) -> int:
    """The bytes that no answer can do without, by the linear relaxation of the model."""
    model = LinearProgram.of(problem)
    model.integral = [False] * len(model.costs)
    return Highs(model).solve(None).bound


def total_time(problem: OnChipProblem, found: OnChipAllocation) -> float:
    """How long the program takes."""
    moved = step_bytes(problem, [found.spans(tensor.id) for tensor in problem.tensors])
    return sum(step_time(problem, step, count) for step, count in enumerate(moved))


def megabytes(count: float) -> str:
    """As in the table."""
    return f"{count / 1e6:.2f}"


def spilling(names: Sequence[str], planner: str) -> Iterator[Row]:
    """The first table, printed as it is made, and what is aimed at."""
    heads = ("KiB", "tensors", "LP", *STRATEGIES, "s sweep", "s milp", "greedy before", "optimum before")
    say(f"{'network':13} " + " ".join(f"{head:>13}" for head in heads))
    seconds: dict[str, list[float]] = {name: [] for name in PROVING}
    proved = dict.fromkeys(PROVING, 0)
    as_known: list[bool] = []
    for name in names:
        whole = on_chip_problem(graph_of(name), 0, Lifetimes(1, in_place=True))
        decided(replace(whole, capacity=1 << 40), "milp", planner)  # what is imported once
        for kibibytes in CAPACITIES:
            problem = replace(whole, capacity=kibibytes << 10)
            cells = [str(kibibytes), str(len(problem.tensors)), megabytes(relaxed_bound(problem))]
            optimum = 0
            for each in STRATEGIES:
                found, spent = decided(problem, each, planner)
                cells.append(megabytes(found.off_chip_bytes) + ("=" if found.is_optimal else " "))
                if each in PROVING:
                    seconds[each].append(spent)
                    proved[each] += found.is_optimal
                    optimum = found.off_chip_bytes
            cells += [f"{seconds[each][-1]:.3f}" for each in PROVING]
            if (known := KNOWN.get((name, kibibytes))) is not None:
                cells += [f"{each:.2f}" for each in known]
                as_known.append(megabytes(optimum) == f"{known[1]:.2f}")
            say(f"{name:13} " + " ".join(f"{cell:>13}" for cell in cells))
    count = len(names) * len(CAPACITIES)
    for each in PROVING:
        what = f"{each}: proved optimal and packed"
        yield Row(what, proved[each], "pairs", count, target=f"{count} of {count}", met=proved[each] == count, unit="")
        yield limited(f"{each}: slowest", max(seconds[each]), 1.0)
        yield limited(f"{each}: slowest, beyond", max(seconds[each]), 0.2)
    if as_known:
        same = sum(as_known)
        yield Row("optimum as known before", same, "pairs", len(as_known), met=same == len(as_known), unit="")


def operations(op: Any) -> float:
    """Multiplications and additions of an operator, or of a group; one for each element of what is no contraction."""
    if isinstance(op, FusedOp):
        return sum(operations(inner) for inner in op.body.block.ops if inner.results)
    result = prod(tensor_of(op.results[0]).get_shape())
    if isinstance(op, ConvOp):
        return 2.0 * result * prod(tensor_of(op.w).get_shape()[1:])
    if isinstance(op, GemmOp):
        return 2.0 * result * prod(tensor_of(op.a).get_shape()) / max(tensor_of(op.results[0]).get_shape()[0], 1)
    if isinstance(op, MatmulOp):
        return 2.0 * result * tensor_of(op.a).get_shape()[-1]
    return float(result)


def setting_of_onsram(name: str) -> OnChipProblem:
    """A network as the publication's machine would have it."""
    main = graph_of(name, "simplify", "fold-batch-norm", "fold-scale", "fold-constants", "value-dce", "graph-fuse")
    options = Lifetimes(2, weights="used")
    found = on_chip_problem(main, ON_CHIP, options, time=lambda op: operations(op) / OPERATIONS, bandwidth=BANDWIDTH)

    def staged(access: TensorAccess, size: int, is_weight: bool) -> TensorAccess:
        return replace(access, may_reside=not is_weight, staging=min(size, DOUBLE_BUFFER))

    tensors = tuple(
        replace(
            tensor,
            accesses=tuple(staged(access, tensor.size, tensor.kind.startswith("weight")) for access in tensor.accesses),
        )
        for tensor in found.tensors
    )
    return replace(found, tensors=tensors)


def onsram(planner: str) -> Iterator[Row]:
    """The second table, and the geometric means."""
    columns = ("unlimited", "one-step", "onsram-static", "onsram-eager", "milp")
    say(f"\n{'network':13} " + " ".join(f"{head:>13}" for head in (*columns, "published")))
    gains: dict[str, list[float]] = {column: [] for column in columns}
    for name, published in ONSRAM.items():
        problem = setting_of_onsram(name)
        baseline = total_time(problem, decided(problem, "none", planner)[0])
        cells: list[str] = []
        for column in columns:
            found = unlimited(problem) if column == "unlimited" else decided(problem, column, planner)[0]
            gains[column].append(baseline / total_time(problem, found))
            cells.append(f"{gains[column][-1]:.2f}")
        if published is not None:
            cells.append(f"{published[0]}: {published[1]:.2f}, one-step {published[2]:.2f}")
        say(f"{name:13} " + " ".join(f"{cell:>13}" for cell in cells))
    shared = [index for index, published in enumerate(ONSRAM.values()) if published is not None]
    known = [published for published in ONSRAM.values() if published is not None]
    means = {
        "unlimited": geometric_mean(without_end for _, without_end, _ in known),
        "one-step": geometric_mean(one_step for _, _, one_step in known),
    }
    for column in columns:
        mean = geometric_mean(gains[column][index] for index in shared)
        what = f"speed-up, {column}, geometric mean of {len(shared)}"
        theirs = means.get(column)
        yield Row(what, mean, "published" if theirs else "", theirs, unit="x")


def main() -> int:
    """Print the tables, and the rows or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", metavar="NAME", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--onsram", action="store_true", help="the second table only")
    parser.add_argument("--planner", default=DEFAULT_PLANNER, help="finds the places; %(default)s by default")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE instead of printing them")
    arguments = parser.parse_args()
    rows = [] if arguments.onsram else list(spilling(arguments.networks, arguments.planner))
    if arguments.onsram or arguments.networks == NETWORKS:
        rows += onsram(arguments.planner)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows]))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
