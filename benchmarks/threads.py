"""
How much faster programs of the host are with several threads, and whether the results are the same bytes.

    python -m benchmarks.threads [--threads N] [--machine NAME] [--repeat R] MODEL...

Runs with one thread and with N take turns, so that both have the same load of the machine; the median of the ratios is
printed, and the best time of each. Threads that share their cores with other programs show little.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

import penstock
from penstock.dialects.weights import Array
from penstock.runtime.engine import Engine


def measure(path: Path, threads: int, machine: str | None, repeat: int) -> str:
    """A line for one model: milliseconds with one thread and with several, and the median of their ratios."""
    engines: list[Engine] = []
    for count in (1, threads):
        engine = penstock.compile(path, machine, threads=count)
        assert isinstance(engine, Engine), f"{path} has symbolic dimensions"
        engines.append(engine)
    generator = np.random.default_rng(0)
    inputs: list[Array] = [
        generator.standard_normal(spec.shape).astype(spec.dtype) for spec in engines[0].signature.inputs
    ]
    results = [engine.run(inputs) for engine in engines]
    same = all(a.tobytes() == b.tobytes() for a, b in zip(*results, strict=True))
    seconds: list[list[float]] = [[], []]
    for _ in range(repeat):
        for engine, found in zip(engines, seconds, strict=True):
            started = time.perf_counter()
            engine.run(inputs)
            found.append(time.perf_counter() - started)
    ratio = median(one / several for one, several in zip(*seconds, strict=True))
    one, several = (1e3 * min(found) for found in seconds)
    return f"{path.stem:24} {one:9.2f} {several:9.2f} {ratio:8.2f}  {'same bytes' if same else 'DIFFERENT'}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description="Speed-up by threads.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--machine", default="native", metavar="NAME")
    parser.add_argument("--repeat", type=int, default=15, metavar="R")
    given = parser.parse_args(arguments)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':24} {'1, ms':>9} {f'{given.threads}, ms':>9} {'speed-up':>8}")
    for path in given.models:
        print(measure(path, given.threads, given.machine, given.repeat), flush=True)


if __name__ == "__main__":
    main()
