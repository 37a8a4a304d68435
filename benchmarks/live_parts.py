# SPDX-License-Identifier: Apache-2.0
"""
What it is worth to know which bytes of a buffer are alive: `python -m benchmarks.live_parts`.

Each program is lowered once, and its arena planned twice: with buffers that are alive by parts, and as if all of a
buffer were alive while any of it is. The parts of a concatenation of channels are runs of bytes where channels come
first, as in the models themselves (`-layout`), and interleaved where they come last, as the host wants them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import cpu_seconds, say
from benchmarks.networks import network
from benchmarks.planning_runs import text_table
from penstock.dialects.context import make_context
from penstock.lowering.from_onnx import import_model
from penstock.passes.analysis.memory.memory_problems import memory_problems
from penstock.passes.planning.problem import Problem, height, lower_bound
from penstock.passes.planning.registry import solve
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for

NETWORKS = ("squeezenet", "shufflenet", "inception_v1", "densenet121")
DRAWN = 4
LAYOUTS = {"channels last": "default", "channels first": "default, -layout"}
HEAD = ("network", "layout", "buffers", "by parts", "whole, KiB", "parts, KiB", "less", "bound, KiB", "CPU s")


def rows_of(name: str, model: Any, machine: str) -> list[Sequence[object]]:
    """A line for each layout."""
    rows: list[Sequence[object]] = []
    for layout, pipeline in LAYOUTS.items():
        say(f"live parts: {name}, {layout}")
        started = cpu_seconds()
        module, store = import_model(model)
        ctx = make_context()
        ctx.weights = store
        passes = passes_for(module, "loop", machine, pipeline)
        at = [each.name for each in passes].index("mem-plan")
        run_passes(ctx, module, passes[:at], verify_each=False)
        for memory in memory_problems(module):
            if memory.scope is None:
                problem = memory.problem
                whole = Problem(tuple(replace(each, windows=()) for each in problem.buffers))
                least, most = planned(problem), planned(whole)
                count = len(problem.buffers)
                by_parts = sum(bool(each.windows) for each in problem.buffers)
                cells = (f"{most / 1024:,.1f}", f"{least / 1024:,.1f}", f"{1 - least / most:.1%}")
                bound = f"{lower_bound(problem) / 1024:,.1f}"
                rows.append((name, layout, count, by_parts, *cells, bound, f"{cpu_seconds() - started:.1f}"))
    return rows


def planned(problem: Problem) -> int:
    """The bytes of a plan of an arena."""
    plan = solve(problem).plan
    assert plan is not None
    return height(problem, plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=NETWORKS, metavar="NAME", help="default: %(default)s")
    parser.add_argument("--machine", default="native", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--drawn", type=int, default=DRAWN, metavar="N", help="NASNet-like networks (%(default)s)")
    args = parser.parse_args()
    sys.path.append(str(Path(__file__).parents[1] / "examples" / "networks"))
    rows = [row for name in args.networks for row in rows_of(name, network(name)[0], args.machine)]
    wired = importlib.import_module("wired")
    for seed in range(args.drawn):
        rows += rows_of(f"NASNet-like, seed {seed}", wired.nasnet_like(seed), args.machine)
    print(text_table(f"The arena for {args.machine}, with buffers that are alive by parts", HEAD, rows))


if __name__ == "__main__":
    main()
