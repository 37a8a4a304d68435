# SPDX-License-Identifier: Apache-2.0
"""
What a person waits for who explores a machine: CPU seconds and the peak memory of one network from its model to cycles.

    python -m benchmarks.exploring [--folder WHEELS] [--only NAME] [--passes N]

Each network is imported, compiled, proved free of hazards and simulated as `penstock simulate` does, in a process of
its own. `rapidocr-det` is a detector of text that a package ships, 330 ops (see `benchmarks.models` for `--folder`);
`resnet50_int8` is ResNet-50 with scales that are powers of two.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, cpu_seconds, say
from benchmarks.planning_runs import text_table


@dataclass(frozen=True)
class Exploration:
    """A network on a machine, and what it may take from the import on: CPU seconds, and MB."""

    machine: str
    seconds: float
    megabytes: float = 1000.0


EXPLORED = {
    "rapidocr-det": Exploration("gemmini-fp32", 15.0),
    "resnet18_int8": Exploration("vta-pynq", 60.0),
    "resnet50_int8": Exploration("vta-pynq", 60.0),
}


class _PassTimes:
    """An observer: CPU seconds of every pass, with the verification after it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = 0.0

    def before(self, module_pass: Any, module: Any) -> None:
        self._started = cpu_seconds()

    def after(self, module_pass: Any, module: Any) -> None:
        self.seconds[module_pass.name] = self.seconds.get(module_pass.name, 0.0) + cpu_seconds() - self._started


def _model(name: str, folder: Path | None) -> tuple[Any, dict[str, int]]:
    """The model of a network, and the sizes that it leaves open."""
    from benchmarks.models import MODELS
    from benchmarks.networks import network, new_model

    if name == "resnet50_int8":
        new_model(name)  # puts the builders where they are found
        from resnet18_int8 import resnet50_int8  # pyright: ignore

        return resnet50_int8(), {}  # pyright: ignore
    if name not in MODELS:
        return network(name)[0], {}
    from penstock.lowering.from_onnx.model import load_model
    from penstock.runtime.specialize import Specialiser

    path = MODELS[name].path(folder)
    if path is None:
        raise FileNotFoundError(f"the package {MODELS[name].package} is not installed")
    specialiser = Specialiser(load_model(path), [], str(path))
    fitted = specialiser.fit([], MODELS[name].inputs(), {})
    return specialiser.with_constants(fitted.constants), dict(fitted.dims)


def explore(name: str, folder: Path | None) -> dict[str, Any]:
    """The figures of one network, in this process."""
    from penstock.runtime.compiler import compile_module, import_program
    from penstock.runtime.simulator.run import run_program
    from penstock.runtime.simulator.workloads import Workloads

    model, dims = _model(name, folder)
    started = cpu_seconds()
    program = import_program(model, dims)
    imported = cpu_seconds()
    times, workloads = _PassTimes(), Workloads()
    # The last of the passes proves that there are no hazards.
    compile_module(program.module, program.ctx, EXPLORED[name].machine, observers=[times, workloads])
    compiled = cpu_seconds()
    run = run_program(program.module, workloads, verify=False)
    done = cpu_seconds()
    proof = times.seconds.pop("accel-check-hazards")
    return {
        "import": imported - started,
        "compile": compiled - imported - proof,
        "hazards": proof,
        "simulate": done - compiled,
        "all": done - started,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "cycles": run.cycles,
        "commands": sum(len(each.simulation.program.commands) * each.runs for each in run.kernels),
        "passes": times.seconds,
    }


def main() -> int:
    """Measure all networks, or one, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=EXPLORED, help="one network")
    parser.add_argument("--folder", type=Path, help="where wheels were unpacked; default: the installed packages")
    parser.add_argument("--passes", type=int, default=6, metavar="N", help="how many passes are listed")
    parser.add_argument("--one", choices=EXPLORED, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(explore(args.one, args.folder)))
        return 0
    rows: list[Sequence[object]] = []
    slowest: list[Sequence[object]] = []
    for name in EXPLORED if args.only is None else [args.only]:
        command = [sys.executable, "-m", "benchmarks.exploring", "--one", name]
        command += ["--folder", str(args.folder)] if args.folder is not None else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"exploring: {name}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
            continue
        found, aim = json.loads(done.stdout.splitlines()[-1]), EXPLORED[name]
        seconds = [f"{found[part]:.1f}" for part in ("import", "compile", "hazards", "simulate", "all")]
        limits = f"<= {aim.seconds:g} s, {aim.megabytes:g} MB"
        met = found["all"] <= aim.seconds and found["megabytes"] <= aim.megabytes
        memory = f"{found['megabytes']:.0f}"
        rows.append([name, aim.machine, *seconds, memory, found["cycles"], found["commands"], limits, met])
        passes = sorted(found["passes"].items(), key=lambda each: -each[1])[: args.passes]
        slowest += [[name, step, f"{taken:.2f}"] for step, taken in passes]
    head = "network machine import compile hazards simulate all MB cycles commands aim met".split()
    print(text_table("From a model to cycles, CPU seconds", head, rows))
    print(text_table("Passes that take most of it", ["network", "pass", "CPU s"], slowest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
