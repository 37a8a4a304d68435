# SPDX-License-Identifier: Apache-2.0
"""
CPU seconds of whole `penstock` commands, from the start of Python to the written file, and the peak memory of one, with
what is aimed at.

With `--before PYTHON`, the interpreter of an environment in which another version of Penstock is installed, each
command runs with both versions in turn and the table has the ratio; without it, a row has our seconds alone. The
first run of every command is not counted: it fills the caches of Python and of the C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import ROOT, Row, limited, say, table
from benchmarks.networks import layers_of_bert, network


@dataclass(frozen=True)
class Command:
    """A compilation that is timed: the network, what is emitted for which machine, and the CPU seconds aimed at."""

    model: str
    emit: str
    machine: str | None
    at_most: float

    def __str__(self) -> str:
        return f"{self.model} to {self.emit}, {self.machine or 'host'}"

    def arguments(self, model: Path, output: Path) -> list[str]:
        machine = [] if self.machine is None else ["--machine", self.machine]
        return ["compile", str(model), "-q", "--emit", self.emit, *machine, "-o", str(output)]


COMMANDS = (
    Command("digits", "accel", "gemmini-fp32", 1.5),
    Command("resnet50", "c", None, 2.0),
    Command("densenet121", "c", None, 4.0),
    Command("resnet50", "c", "native", 2.0),
    Command("densenet121", "c", "native", 4.0),
    Command("bert_layer", "accel", "gemmini-fp32", 3.0),
    Command("bert_layer", "accel", "rapid-core-like", 4.0),
    Command("resnet50", "accel", "gemmini-fp32", 8.0),
    Command("resnet50", "accel", "rapid-core-like", 8.0),
    Command("mobilenet_v2", "accel", "gemmini-fp32", 10.0),
    Command("densenet121", "accel", "rapid-core-like", 12.0),
)
HELP_AT_MOST = 0.4
LARGE = "vgg19"
"""The model of 574 MB of which the peak memory is taken."""
MEGABYTES_AT_MOST = 700.0


@dataclass(frozen=True)
class Cost:
    """What a command took, with what it started."""

    cpu_seconds: float
    peak_megabytes: float


def cost_of(python: str, arguments: Sequence[str]) -> Cost:
    """What `penstock` takes with these arguments; raises RuntimeError if it fails."""
    command = [python, "-c", "import sys; from penstock.tools.main import main; sys.exit(main())", *arguments]
    # Where Python may not keep what it compiled, each command would compile hundreds of modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"penstock {' '.join(arguments)} ended with status {process.returncode}")
    # In KiB; on macOS in bytes.
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / scale)


def _measure(what: str, arguments: Sequence[str], at_most: float, before: str | None, repetitions: int) -> Row:
    say(f"compile_time: {what}")
    pythons = [sys.executable] if before is None else [sys.executable, before]
    for python in pythons:
        cost_of(python, arguments)
    seconds: dict[str, list[float]] = {python: [] for python in pythons}
    for _ in range(repetitions):
        for python in pythons:
            seconds[python].append(cost_of(python, arguments).cpu_seconds)
    ours = limited(what, min(seconds[sys.executable]), at_most)
    if before is None:
        return ours
    theirs = min(seconds[before])
    return Row(what, ours.ours, "before", theirs, (ours.ours or 0.0) / theirs, ours.target, ours.met)


def _write_model(name: str, file: Path) -> None:
    import onnx

    if name == "digits":
        file.write_bytes((ROOT / "examples" / "digits" / "digits.onnx").read_bytes())
        return
    onnx.save(layers_of_bert(1) if name == "bert_layer" else network(name)[0], file)


def rows(before: str | None, repetitions: int) -> list[Row]:
    """The help text, then the compilations."""
    found = [_measure("penstock --help", ["--help"], HELP_AT_MOST, before, repetitions)]
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            model = Path(folder, f"{command.model}.onnx")
            if not model.exists():
                _write_model(command.model, model)
            output = Path(folder, f"{command.model}.{command.emit}")
            found.append(_measure(str(command), command.arguments(model, output), command.at_most, before, repetitions))
        found.append(_peak_memory(Path(folder), before))
    return found


def _peak_memory(folder: Path, before: str | None) -> Row:
    model = folder / f"{LARGE}.onnx"
    _write_model(LARGE, model)
    command = Command(LARGE, "c", None, 0.0)
    say(f"compile_time: memory of {command}")
    arguments = command.arguments(model, folder / "large")
    ours = limited(
        f"{command}, peak memory", cost_of(sys.executable, arguments).peak_megabytes, MEGABYTES_AT_MOST, unit="MB"
    )
    if before is None:
        return ours
    theirs = cost_of(before, arguments).peak_megabytes
    return Row(ours.what, ours.ours, "before", theirs, (ours.ours or 0.0) / theirs, ours.target, ours.met, ours.unit)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE instead of printing them")
    parser.add_argument("--before", metavar="PYTHON", help="the Python of an environment with another version")
    parser.add_argument("--repetitions", type=int, default=1)
    args = parser.parse_args()
    found = rows(args.before, args.repetitions)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in found]))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
