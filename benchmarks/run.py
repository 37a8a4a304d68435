# SPDX-License-Identifier: Apache-2.0
"""
All benchmarks, each in a process of its own, in one table. Names as arguments choose some of them.

Ours stands beside a reference measured in the same run, alternating with it; seconds are CPU seconds unless a row
says otherwise. The status is 1 if a benchmark breaks, not if a target is missed: these are measurements, no tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, say, table

BENCHMARKS = ("text", "loop_interpreter", "graph_interpreter", "graph_passes", "compile_resnet50", "native", "engine")


def measure(name: str) -> list[Row] | None:
    """The rows of a benchmark; None if it broke."""
    script = Path(__file__).with_name(f"{name}.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        if subprocess.run([sys.executable, str(script), "--json", str(file)], check=False).returncode:
            return None
        return [Row(**row) for row in json.loads(file.read_text())]


def main() -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    rows: list[Row] = []
    broken: list[str] = []
    for name in names:
        found = measure(name)
        if found is None:
            broken.append(name)
        else:
            rows += [Row(f"{name}:", None), *found]
    print(table(rows))
    for name in broken:
        say(f"error: the benchmark {name} broke")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
