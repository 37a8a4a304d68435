# SPDX-License-Identifier: Apache-2.0
"""Studies of many runs: a plan for `penstock sweep`, whose results are kept under build/science."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT

FOLDER = ROOT / "build" / "science"


def swept(
    name: str, programs: Mapping[str, Any], axes: Mapping[str, Sequence[object]], metrics: Sequence[str]
) -> dict[tuple[str, ...], dict[str, float]]:
    """
    The figures of programs, texts of MLIR or models of ONNX, in all combinations of what a plan varies.

    The key has the name of the program, and then the value of each axis in its order. A run without figures is not
    there; it is told on stderr with its reason.
    """
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    files = [_write(folder, each, program) for each, program in programs.items()]
    plan = [f"inputs = {json.dumps(files)}", *(f"{axis} = {json.dumps(list(each))}" for axis, each in axes.items())]
    (folder / "plan.toml").write_text("\n".join(plan) + "\n")
    start = "from penstock.tools.main import main; main()"
    command = [sys.executable, "-c", start, "sweep", "plan.toml", "-o", "table.csv", "-q", "--jobs", "1"]
    subprocess.run([*command, "--metrics", ",".join(metrics)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[tuple[str, ...], dict[str, float]] = {}
    columns = ["machine" if axis == "machines" else axis for axis in axes]
    for row in rows:
        key = (Path(row["input"]).stem, *(row[column] for column in columns if column in row))
        if row["status"] == "ok":
            found[key] = {metric: float(row[metric] or "nan") for metric in metrics}
        else:
            print(f"science: {name}: {', '.join(key)}: {row['reason']}", file=sys.stderr, flush=True)
    return found


def _write(folder: Path, name: str, program: Any) -> str:
    """A program as a file; what is the same is not written again."""
    is_text = isinstance(program, str)
    path = folder / f"{name}.{'mlir' if is_text else 'onnx'}"
    data = program.encode() if is_text else program.SerializeToString()
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
    return path.name
