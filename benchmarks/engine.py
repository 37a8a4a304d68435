# SPDX-License-Identifier: Apache-2.0
"""
A plan of resnet50: how long it takes to load, and how much two contexts in two threads run in the time of one; and how
long a call takes that computes next to nothing, beside one of onnxruntime, with inputs and outputs bound in both.

Each load is one of a process of its own, from the call of `Engine.load` on, with the file in the cache of the system;
imports of Python are counted apart. Wall time is longer, and the ratio of the threads smaller, where the machine has
other work: its load is printed, the CPU time of loading stands beside, and the two threads stand beside two processes,
which share nothing that could be in the way.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, limited, once, paired, report, say
from benchmarks.networks import check_agreement, inputs_of, network, new_model, onnxruntime_on_one_thread
from benchmarks.peers import onnxruntime

if TYPE_CHECKING:
    from penstock import Engine

MODEL = "resnet50"
LOAD_MILLISECONDS = 50
SPEED_UP = 1.8
PROCESSES = 7
REPETITIONS = 5
RUNS = 4
"""In a thread, for each measurement."""
CALLS = 2000
"""Of the small program, for each measurement."""

LOAD = """
import json, sys, time
started = time.perf_counter()
import numpy
from penstock import Engine
imported = time.perf_counter()
cpu = time.process_time()
engine = Engine.load(sys.argv[1])
context = engine.context()
loaded = time.perf_counter()
cpu = time.process_time() - cpu
context.run([numpy.zeros(spec.shape, spec.dtype) for spec in engine.signature.inputs])
print(json.dumps([imported - started, loaded - imported, time.perf_counter() - loaded, cpu]))
"""


def rows() -> Sequence[Row]:
    """Loading, and contexts in threads."""
    import numpy as np

    import penstock

    model, feeds = network(MODEL)
    say(f"engine: compiling {MODEL}")
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "model.plan")
        compiled = penstock.compile(model)
        assert isinstance(compiled, penstock.Engine)
        compiled.save(plan)
        load = f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        say(f"engine: a plan of {plan.stat().st_size / 1e6:.0f} MB; {load}")
        np.savez(plan.with_name("inputs.npz"), **feeds)
        found = _loading(plan)
        engine = penstock.Engine.load(plan)
        inputs = list(feeds.values())
        check_agreement(engine.run(inputs), onnxruntime_on_one_thread(model, feeds, optimised=True)(), MODEL)
        found += _threads(engine, inputs)
        return [*found, _call()]


def _call() -> Row:
    """A call of a program that adds four numbers."""
    import penstock

    builder = new_model("sum")
    x = builder.input("x", [4])
    builder.output(builder.node("Add", [x, x]), [4])
    model = builder.finish()
    feeds = inputs_of(model)
    engine = penstock.compile(model)
    assert isinstance(engine, penstock.Engine)
    context, theirs, inputs = engine.context(), onnxruntime(model, feeds, threads=1), [*feeds.values()]
    outputs = context.run(inputs)

    def ours() -> None:
        for _ in range(CALLS):
            context.run(inputs, out=outputs)

    def reference() -> None:
        for _ in range(CALLS):
            theirs()

    return paired("a call, CPU", ours, "onnxruntime", reference, repetitions=REPETITIONS, scale=1e6 / CALLS, unit="us")


def _loading(plan: Path) -> list[Row]:
    seconds: list[list[float]] = []
    for _ in range(PROCESSES):
        done = subprocess.run([sys.executable, "-c", LOAD, str(plan)], capture_output=True, text=True, check=True)
        seconds.append(json.loads(done.stdout))
    imports, loads, runs, cpu = (1e3 * statistics.median(each) for each in zip(*seconds, strict=True))
    return [
        limited("Engine.load and a context, wall", loads, LOAD_MILLISECONDS, unit="ms"),
        limited("Engine.load and a context, CPU", cpu, LOAD_MILLISECONDS, unit="ms"),
        Row("  before it, imports", imports, unit="ms"),
        Row("  after it, the first run", runs, unit="ms"),
        Row("penstock run, CPU", 1e3 * min(once(lambda: _run(plan)) for _ in range(3)), unit="ms"),
        Row("  of it Python and NumPy", 1e3 * min(once(_import_numpy) for _ in range(3)), unit="ms"),
    ]


def _run(plan: Path) -> None:
    """The command, on the inputs that are beside the plan."""
    words = ["run", str(plan), "--input", "inputs.npz", "-q"]
    program = "import sys; from penstock.tools.main import run; sys.exit(run(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", program, *words], cwd=plan.parent, check=True)


def _import_numpy() -> None:
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)


def _threads(engine: Engine, inputs: Sequence[object]) -> list[Row]:
    contexts = [engine.context() for _ in range(2)]

    def work(number: int) -> None:
        for _ in range(RUNS):
            contexts[number].run(inputs)

    def threads(count: int) -> float:
        return _seconds([threading.Thread(target=work, args=[number]) for number in range(count)])

    def processes() -> float:
        # What a process has of the parent it has before it is started.
        return _seconds(
            [multiprocessing.get_context("fork").Process(target=work, args=[number]) for number in range(2)]
        )

    threads(2)
    found = [(threads(1), threads(2), processes()) for _ in range(REPETITIONS)]
    rows: list[Row] = []
    for place, what in ((1, "threads"), (2, "processes")):
        speed_up = statistics.median(2 * each[0] / each[place] for each in found)
        target = f"runs in the time of one >= {SPEED_UP}" if what == "threads" else ""
        least = min(each[place] for each in found) * 1e3
        one = min(each[0] for each in found) * 1e3
        met = speed_up >= SPEED_UP if target else None
        rows.append(Row(f"{RUNS} runs in each of two {what}, wall", least, "in one", one, speed_up, target, met, "ms"))
    return rows


class _Worker(Protocol):
    def start(self) -> None: ...
    def join(self) -> None: ...


def _seconds(workers: Sequence[_Worker]) -> float:
    started = time.perf_counter()
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return time.perf_counter() - started


if __name__ == "__main__":
    report(rows, __doc__)
