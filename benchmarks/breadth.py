# SPDX-License-Identifier: Apache-2.0
"""
Every network of examples/networks: what its compilation takes, what becomes of it, and how fast it runs.

A network a row, each measured in a process of its own, on a model file written by another one, so that the peak of
memory is that of a compilation from the file to loaded C for gemmini-fp32, and of nothing else. Columns:

- IR: CPU seconds from the file to the accel level and the C text; cc: those of the C compiler; nothing is cached;
- peak: the largest resident memory up to there, and the size of the model's file;
- kernels: operations that compute something before fusion -> groups after it;
- MACs: millions of multiply-accumulates of an inference, and the share that the machine does;
- ms: onnxruntime's CPU time for an inference on one thread, with all its optimisations, and its wall-clock time on
  as many threads as it likes;
- graph, host, accel: ours over onnxruntime's, both on one thread: the interpreter at graph level (onnxruntime without
  its optimisations), C of the host from loop level, and the C that executes what gemmini-fp32 would do, transfers and
  intrinsics: a functional model of the machine, which owes its reader values and not speed.

Ratios are medians of alternating repetitions. The outputs are compared with onnxruntime's first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Read by the BLAS that NumPy brings when it is first imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import cpu_seconds, once, paired, say
from benchmarks.networks import check_agreement, names, network, onnxruntime_session

MACHINE = "gemmini-fp32"
REPETITIONS = 5
COLUMNS = ("network", "IR s", "cc s", "peak MB", "model MB", "kernels", "MACs M", "on machine", "ms", "ms threads")
RATIOS = ("graph", "host", "accel")


def prepare(name: str, small: bool, folder: Path) -> None:
    """Write the model and its inputs."""
    import numpy as np

    model, feeds = network(name, small=small)
    np.savez(folder / "inputs.npz", **feeds)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def measure(name: str, folder: Path) -> dict[str, Any]:
    """One row, from the files that `prepare` has written."""
    import numpy as np

    from penstock.lowering.to_c import emit_c
    from penstock.passes.analysis.kernels import partition, share_on_machine
    from penstock.passes.toolchain import find_compiler
    from penstock.runtime.compiler import compile_module, load_input
    from penstock.runtime.engine import Engine, compile_program
    from penstock.runtime.interpreter import run_module
    from penstock.runtime.native import build
    from penstock.runtime.report import FusionCount

    find_compiler().flags()  # asked once on a machine, and not of this network
    path = folder / "model.onnx"
    row: dict[str, Any] = {"network": name, "model MB": path.stat().st_size / 1e6}
    fusion, started = FusionCount(), cpu_seconds()
    program = load_input(path)
    compile_module(program.module, program.ctx, MACHINE, observers=[fusion])
    source = emit_c(program.module)
    row["IR s"], started = cpu_seconds() - started, cpu_seconds()
    build(source)
    row["cc s"] = cpu_seconds() - started
    engine = Engine(program.module, program.ctx)
    row["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    placements = partition(program.module)
    row["kernels"] = f"{fusion.operations} -> {fusion.groups}"
    row["MACs M"] = sum(placement.macs for placement in placements) / 1e6
    row["on machine"] = share_on_machine(placements)

    with np.load(folder / "inputs.npz") as file:
        feeds = {key: file[key] for key in file.files}
    inputs = list(feeds.values())
    graph = load_input(path)
    host = compile_program(load_input(path))
    one = onnxruntime_session(path.read_bytes(), feeds, optimised=True, threads=1)
    plain = onnxruntime_session(path.read_bytes(), feeds, optimised=False, threads=1)
    runs: dict[str, tuple[Callable[[], Sequence[Any]], Callable[[], Sequence[Any]]]] = {
        "graph": (lambda: run_module(graph.module, inputs, graph.ctx.weights), plain),
        "host": (lambda: host.run(inputs), one),
        "accel": (lambda: engine.run(inputs), one),
    }
    for what, (ours, theirs) in runs.items():
        check_agreement(ours(), theirs(), f"{name}, {what}")
        found = paired(what, ours, "onnxruntime", theirs, repetitions=REPETITIONS, warm=False, scale=1e3)
        row[what] = found.ratio
        row["ms"] = found.theirs
    threaded = onnxruntime_session(path.read_bytes(), feeds, optimised=True, threads=0)
    threaded()
    row["ms threads"] = min(once(threaded, _wall) for _ in range(REPETITIONS)) * 1e3
    return row


def _wall() -> float:
    import time

    return time.perf_counter()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as text: a network a line, numbers to the right."""
    heads = (*COLUMNS, *RATIOS)
    cells = [heads, *(tuple(_cell(head, row[head]) for head in heads) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def _cell(head: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if head == "on machine":
        return f"{100 * value:.2f} %"
    return f"{value:.0f}" if head.endswith("MB") else f"{value:.1f}" if head.startswith("MACs") else f"{value:.2f}"


def _in_a_process(arguments: Sequence[str], cache: Path) -> bool:
    """Run this file with arguments, without anything compiled before; whether it succeeded."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=False, env={**os.environ, "PENSTOCK_CACHE": str(cache)}).returncode == 0


def main() -> int:
    """Measure what was asked for and print the table; the status is 1 if a network breaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK", help="all of floats by default")
    parser.add_argument("--quick", action="store_true", help="the networks at small sizes")
    parser.add_argument("--step", nargs=2, metavar=("STEP", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step is not None:
        (name,), step, folder = args.names, args.step[0], Path(args.step[1])
        if step == "prepare":
            prepare(name, args.quick, folder)
        else:
            (folder / "row.json").write_text(json.dumps(measure(name, folder)))
        return 0
    # The network of 8-bit integers is for machines of integers.
    known = [name for name in names() if name != "int8_cnn"]
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"there is no network {unknown[0]}; there are {', '.join(known)}")
    rows: list[dict[str, Any]] = []
    broken = False
    for name in args.names or known:
        say(f"breadth: {name}")
        with tempfile.TemporaryDirectory() as folder:
            words = [name, *(["--quick"] if args.quick else [])]
            if all(_in_a_process([*words, "--step", step, folder], Path(folder)) for step in ("prepare", "measure")):
                rows.append(json.loads(Path(folder, "row.json").read_text()))
            else:
                broken = True
                say(f"error: {name} broke")
    print(table(rows))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
