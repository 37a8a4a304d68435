# SPDX-License-Identifier: Apache-2.0
"""
What conflicts of banks cost, and what it is worth to plan around them: `python -m benchmarks.banks`.

A study of a machine that has banks, whose scratchpad stalls for one cycle in each application of an intrinsic of which
two operands share a bank (assumed: `conflict = 1`). "Unaware" is the program that is compiled for the machine without
that line, and timed on the one with it; "aware" is compiled for it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64

from benchmarks.measure import ROOT, say
from benchmarks.networks import network
from benchmarks.planning_runs import text_table
from penstock.dialects.context import make_context
from penstock.dialects.machine import find_target
from penstock.lowering.from_onnx import import_model
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.simulator.run import run_program

DIGITS = "digits"
HEAD = ("program", "planned", "cycles", "of which conflicts", "conflicts", "commands with one", "of")


def compiled(name: str, machine: str) -> ModuleOp:
    """A network at the accelerator level."""
    file = ROOT / "examples" / "digits" / "digits.onnx"
    module, store = import_model(file if name == DIGITS else network(name)[0])
    ctx = make_context()
    ctx.weights = store
    run_passes(ctx, module, passes_for(module, "accel", machine), verify_each=False)
    return module


def row_of(name: str, how: str, module: ModuleOp) -> Sequence[object]:
    """A line of the table."""
    run = run_program(module)
    cycles = conflicting = conflicts = concerned = count = 0
    for kernel in run.kernels:
        times = kernel.runs
        for command in kernel.simulation.commands:
            conflicting += times * command.conflicting
            conflicts += times * command.conflicts
            concerned += times * bool(command.conflicts)
            count += times * bool(command.macs)
        cycles += times * kernel.simulation.cycles
    return name, how, f"{cycles:,}", f"{conflicting:,}", f"{conflicts:,}", f"{concerned:,}", f"{count:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=[DIGITS], metavar="NAME", help="default: %(default)s")
    parser.add_argument("--machine", default="gemmini-fp32", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--scope", default="spad", metavar="NAME", help="default: %(default)s")
    args = parser.parse_args()
    rows: list[Sequence[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "banked.toml"
        file.write_text(
            f'[machine]\nextends = "{args.machine}"\nname = "{args.machine}"\n'
            f'[[scope]]\nname = "{args.scope}"\nconflict = {{ value = 1, assumed = true }}\n'
        )
        for name in args.networks:
            say(f"banks: {name}")
            unaware = compiled(name, args.machine)
            target = find_target(unaware)
            assert target is not None
            target.scope(args.scope).conflict = IntegerAttr(1, i64)
            rows += [row_of(name, "unaware", unaware), row_of(name, "aware", compiled(name, str(file)))]
    print(text_table(f'Conflicts of banks in "{args.scope}" of {args.machine}, one cycle each', HEAD, rows))


if __name__ == "__main__":
    main()
