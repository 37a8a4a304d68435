# SPDX-License-Identifier: Apache-2.0
"""
What stays on chip between the operators of networks, and what that leaves to go off chip.

    python -m benchmarks.spilling [--networks NAME ...] [--planner PLANNER] [--json FILE]
    python -m benchmarks.spilling --compiled [NETWORK ...] [--machines NAME ...]

Nine networks whose tensors are int8, elementwise operators with one operand computed with what they
rectify or normalise; whole tensors, inputs and outputs off chip, weights not counted, in four capacities. Megabytes
(10^6 bytes) over the edge of the chip by each strategy; "=" is proved optimal. Every answer has places for all that
is on chip at any step, and has been checked against the definition of the problem and its bytes counted anew. LP is
the bound of the linear relaxation. The last two columns are the greedy answer and the optimum that HiGHS and CP-SAT
found for the same problems before this existed. Seconds are CPU seconds, of a decision with packing and checks. What
OnSRAM reports of such strategies is in benchmarks.science.

With `--compiled` networks as they are compiled for machines, in their small sizes: kilobytes (10^3 bytes) over the edge
of the chip and simulated cycles of the kernels, where nothing stays on chip, and where `mem-promote` is asked for few
bytes and for few cycles; how far those are off for which it takes the cycles of the last; CPU seconds of each choice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.lifetimes import Lifetimes, on_chip_problem
from benchmarks.measure import Row, cpu_seconds, limited, say, table
from benchmarks.networks import network
from benchmarks.planning_runs import text_table
from penstock.passes.planning.on_chip.milp import Highs, LinearProgram
from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem
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


def megabytes(count: float) -> str:
    """As in the table."""
    return f"{count / 1e6:.2f}"


def spilling(names: Sequence[str], planner: str) -> Iterator[Row]:
    """The table, printed as it is made, and what is aimed at."""
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


COMPILED = ("squeezenet", "resnet50", "mobilenet_v2", "shufflenet", "densenet121", "bert_layer")
MACHINES = ("gemmini-fp32", "rapid-core-like")
PROMOTIONS = ("{strategy=none}", "{objective=bytes}", "{objective=cycles}")


def compiled(name: str, machine: str) -> Sequence[object]:
    """A line of the table of compiled networks."""
    from penstock.passes.analysis.kernels import machine_kernels
    from penstock.passes.loop.mem_promote import MemPromotePass
    from penstock.passes.loop.on_chip.prediction import predicted_traffic
    from penstock.passes.loop.on_chip.times import kernel_time
    from penstock.runtime.compiler import import_program
    from penstock.runtime.pass_manager import read_pipeline, run_passes
    from penstock.runtime.pipeline import passes_for
    from penstock.runtime.simulator.run import run_program

    program = import_program(network(name, small=True)[0], {})
    passes = passes_for(program.module, "accel", machine)
    at = [each.name for each in passes].index(MemPromotePass.name)
    run_passes(program.ctx, program.module, passes[:at], verify_each=False)
    moved, cycles, seconds, off = list[int](), list[int](), list[float](), 0.0
    for options in PROMOTIONS:
        module = program.module.clone()
        started = cpu_seconds()
        run_passes(program.ctx, module, read_pipeline(MemPromotePass.name + options), verify_each=False)
        seconds.append(cpu_seconds() - started)
        predicted = predicted_traffic(module)
        moved.append(0 if predicted is None else predicted.total)
        target, kernels = machine_kernels(module)
        assert target is not None
        timed = {kernel.sym_name.data: kernel_time(kernel, target) for kernel in kernels}
        run_passes(program.ctx, module, passes[at + 1 :], verify_each=False)
        run = run_program(module)
        cycles.append(run.cycles)
        off = sum(each.runs * timed[each.kernel] for each in run.kernels) / run.cycles - 1
        say(f"{name} {machine} {options}: {moved[-1]:,} bytes, {cycles[-1]:,} cycles")
    less = (f"{each / cycles[0] - 1:+.2%}" for each in cycles[1:])
    sizes, spent = (f"{each / 1e3:,.0f}" for each in moved), (f"{each:.1f}" for each in seconds[1:])
    return name, machine, *sizes, *cycles, *less, f"{off:+.2%}", *spent


def main() -> int:
    """Print the tables, and the rows or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", metavar="NAME", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--planner", default=DEFAULT_PLANNER, help="finds the places; %(default)s by default")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE instead of printing them")
    parser.add_argument("--compiled", nargs="*", metavar="NETWORK", help=f"of {', '.join(COMPILED)}, or of these")
    parser.add_argument("--machines", nargs="+", metavar="NAME", default=MACHINES)
    arguments = parser.parse_args()
    if arguments.compiled is not None:
        chosen = arguments.compiled or COMPILED
        lines = [compiled(name, machine) for machine in arguments.machines for name in chosen]
        head = ("network", "machine", "kB, none", "bytes", "cycles", "cycles, none", "bytes", "cycles")
        head = (*head, "bytes", "cycles", "timed", "s, bytes", "cycles")
        print(text_table("What stays on chip in compiled networks, by what is to be few", head, lines))
        return 0
    rows = list(spilling(arguments.networks, arguments.planner))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows]))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
