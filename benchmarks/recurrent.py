# SPDX-License-Identifier: Apache-2.0
"""
Recurrent layers by their number of steps: what they take to compile, their code, and their time.

    python -m benchmarks.recurrent [--steps N...] [--machine NAME] [--repetitions N]

A row is the network of two LSTMs of examples/networks for sequences of so many steps: CPU seconds of compiling, to the
plan, without the C compiler; lines of C; CPU microseconds of a run in generated C, the median of so many repetitions
that take turns with onnxruntime's on one thread; and the ratio of the two, below 1 where ours is faster. Outputs are
compared first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import ROOT, say
from benchmarks.native import in_turns, ours
from benchmarks.networks import check_agreement
from benchmarks.peers import onnxruntime
from benchmarks.planning_runs import text_table
from penstock.lowering.to_c.module import emit_c
from penstock.runtime.compiler import compile_module, import_program

sys.path.append(str(ROOT / "examples/networks"))

from lstm import lstm

STEPS = (1, 8, 32, 128, 512)
REPETITIONS = 15


def row(steps: int, machine: str, repetitions: int) -> list[str]:
    """The cells of a number of steps."""
    say(f"recurrent: {steps} steps")
    model = lstm(sequence=steps)
    started = time.process_time()
    program = import_program(model, {})
    compile_module(program.module, program.ctx, None if machine == "host" else machine, "loop")
    compiled = time.process_time() - started
    lines = emit_c(program.module).source.count("\n")
    feeds: dict[str, Any] = {"input": np.random.default_rng(0).normal(size=(steps, 1, 64)).astype(np.float32)}
    runs = {"ours": ours(model, feeds, machine), "onnxruntime": onnxruntime(model, feeds, threads=1)}
    expected = [array.copy() for array in runs["onnxruntime"]()]
    check_agreement(runs["ours"](), expected, f"{steps} steps")
    times = {name: statistics.median(each) for name, each in in_turns(runs, repetitions).items()}
    mine, theirs = times["ours"], times["onnxruntime"]
    return [
        f"{steps}",
        f"{compiled:.2f}",
        f"{lines:,}",
        f"{mine * 1e6:,.0f}",
        f"{theirs * 1e6:,.0f}",
        f"{mine / theirs:.2f}",
    ]


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="recurrent layers by their number of steps")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--machine", default="host")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    args = parser.parse_args(words)
    header = ["steps", "compile, CPU s", "lines of C", "ours, us", "onnxruntime, us", "ratio"]
    print(text_table("two LSTMs", header, [row(steps, args.machine, args.repetitions) for steps in args.steps]))


if __name__ == "__main__":
    main()
