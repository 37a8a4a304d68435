# SPDX-License-Identifier: Apache-2.0
"""
What a sweep takes: a study of 192 runs, cold, again with all results kept, and with the results gone but not the cache.

    python -m benchmarks.sweep [--networks squeezenet,bvlc_alexnet] [--jobs 2]

Two networks at the sizes of quick tests, four planners, four tilers, three depths and two sizes of the scratchpad of
gemmini-fp32. CPU seconds are those of the command and all of its processes, the start of Python included.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import as_installed, say
from benchmarks.networks import network
from benchmarks.planning_runs import text_table

NETWORKS = ("squeezenet", "bvlc_alexnet")
PLAN = """
inputs = [{inputs}]
machines = ["gemmini-fp32"]
planner = ["portfolio", "exact", "best-fit-by-size", "color-by-size"]
tiler = ["pipelined", "largest", "smaug", "exhaustive"]
depth = ["auto", 1, 2]

[set]
scope.spad.size = ["64K", "256K"]
"""


def timed(folder: Path, jobs: int) -> tuple[float, float]:
    """CPU seconds and seconds of the sweep."""
    command = [
        sys.executable,
        "-c",
        "from penstock.tools.main import main; main()",
        "sweep",
        "study.toml",
        "-o",
        "t.csv",
    ]
    environment = {**os.environ, **as_installed(folder / "bytecode"), "PENSTOCK_CACHE": str(folder / "cache")}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*command, "--jobs", str(jobs), "--metrics", "all"], cwd=folder, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - started


def main() -> None:
    """Measure, and say what the runs would have taken one by one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = args.networks.split(",")
        for each in names:
            (folder / f"{each}.onnx").write_bytes(network(each, small=True)[0].SerializeToString())
        (folder / "study.toml").write_text(PLAN.format(inputs=", ".join(f'"{each}.onnx"' for each in names)))
        rows: list[tuple[str, str, str]] = []
        tables: list[str] = []
        for what in ("cold", "results kept", "results gone, cache kept"):
            if what.startswith("results gone"):
                (folder / "study.sqlite").unlink()
            cpu, wall = timed(folder, args.jobs)
            say(f"sweep: {what}: {cpu:.1f} CPU s")
            rows.append((what, f"{cpu:.1f}", f"{wall:.1f}"))
            tables.append((folder / "t.csv").read_text())
        with (folder / "t.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        size = sum(path.stat().st_size for path in (folder / "cache" / "sweeps").iterdir())
    status = Counter(row["status"] for row in found)
    passes = sum(float(row["cpu_s"] or 0) for row in found)
    print(text_table(f"A sweep of {len(found)} runs in {args.jobs} processes", ("", "CPU s", "s"), rows))
    print(f"runs: {', '.join(f'{count} {name}' for name, count in status.items())}")
    print(f"the passes alone, run by run: {passes:.0f} CPU s; the cache: {size / 1e6:.0f} MB")
    print("the tables are the same" if len(set(tables)) == 1 else "the tables differ")


if __name__ == "__main__":
    main()
