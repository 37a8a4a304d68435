# SPDX-License-Identifier: Apache-2.0
"""
Count the cycles that the kernels of a model or a file of IR take on a machine, unit by unit and bus by bus. What is
above the accelerator level is compiled first. A kernel whose commands are not proved free of hazards has no cycles:
it is refused. Functions that the host runs are named, and not simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.tools.arguments import (
    add_common,
    add_machine,
    add_model,
    add_no_verify,
    add_pipeline,
    add_schedule,
    give_schedules,
    print_passes,
    warn_unverified,
    write_texts,
)
from penstock.tools.text import STDIN, require_distinct

if TYPE_CHECKING:
    from penstock.runtime.compiler import LoadedProgram
    from penstock.runtime.simulator.run import ProgramRun
    from penstock.runtime.simulator.timeline import CycleWindow
    from penstock.runtime.simulator.workloads import Workloads

EPILOG = """\
examples:
  penstock simulate model.onnx --machine vta-pynq
  penstock simulate model.accel.mlir --kernel fused_3 --svg fused_3.svg --trace fused_3.json
  penstock simulate model.onnx --machine gemmini --csv cycles.csv --json cycles.json --map spad=spad.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_machine(parser)
    add_no_verify(parser)
    add_pipeline(parser)
    add_schedule(parser)
    parser.add_argument("--kernel", metavar="NAME", help="only the runs of this kernel; of a .pk file, which kernel")
    group = parser.add_argument_group("files, written as a whole or not at all; - is stdout")
    group.add_argument("--csv", metavar="FILE", help="the figures, a row for each kernel")
    group.add_argument("--json", metavar="FILE", help="the figures, in the schema of docs/simulation.md")
    group.add_argument("--trace", metavar="FILE", help="what happens when, for https://ui.perfetto.dev")
    group.add_argument("--svg", metavar="FILE", help="a picture of it")
    group.add_argument(
        "--map",
        metavar="SCOPE=FILE",
        action="append",
        default=[],
        help="a picture of what lies where in a scope over the cycles; repeatable",
    )
    group.add_argument("--window", metavar="FROM:TO", help="only these cycles in the trace and the picture")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.runtime.simulator.run import run_program
    from penstock.tools.programs import load_bound, say_remarks, unused_notes
    from penstock.tools.simulation_tables import report

    maps = [_read_map(text) for text in args.map]
    outputs = {f"--{name}": getattr(args, name) for name in ("csv", "json", "trace", "svg")}
    scopes = [scope for scope, _ in maps]
    for scope in scopes:
        if scopes.count(scope) > 1:
            raise UserError(f'--map is given twice for "{scope}"', status=USAGE)
    require_distinct({**outputs, **{f"--map {scope}": path for scope, path in maps}}, args.model)
    window = None if args.window is None else _read_window(args.window)
    if window is not None and args.trace is None and args.svg is None:
        raise UserError("--window is for --trace and --svg", status=USAGE)
    is_text = args.model.endswith(".pk")
    program = load_bound(args, args.kernel if is_text else None)
    # What is at the accel level is simulated as it is.
    pipeline = "" if args.pipeline is None and program.level == "accel" else args.pipeline
    _require_machine(args, program)
    if print_passes(args, program, "accel", pipeline):
        return 0
    give_schedules(args, program.ctx)
    workloads, proved = _lower(args, program, pipeline)
    say_remarks(args, program.module)
    run = run_program(
        program.module, workloads, None if is_text else args.kernel, verify=not (proved or args.no_verify)
    )
    if not run.kernels:
        notes = unused_notes(program.module)
        raise UserError(f'nothing runs on the machine "{run.target.machine_name}"', loc=str(program.path), notes=notes)
    texts = _texts(args, run, window, program.path.name)
    texts += _maps(program, run, maps)
    # With -q, a report is what was asked for only where no file is.
    if not (args.quiet and texts) and not any(name == STDIN for name, _, _ in texts):
        print("\n".join(report(run)))
    write_texts(args, texts)
    return 0


def _read_map(text: str) -> tuple[str, str]:
    scope, equals, path = text.partition("=")
    if not (scope and equals and path):
        raise UserError(f'"{text}" is no map of a scope', notes=["write --map spad=spad.svg"], status=USAGE)
    return scope, path


def _maps(program: LoadedProgram, run: ProgramRun, maps: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """The pictures of scopes that were asked for, as `_texts` has the other files."""
    if not maps:
        return []
    from penstock.runtime.occupancy import occupancy_svg
    from penstock.runtime.provenance import Provenance

    provenance, title = Provenance(program.module, run), f"{program.path.name} on {run.target.machine_name}"
    return [(path, occupancy_svg(provenance, scope, title), f"the map of {scope}") for scope, path in maps]


def _require_machine(args: argparse.Namespace, program: LoadedProgram) -> None:
    from penstock.dialects.machine import find_target

    if args.machine is None and find_target(program.module) is None:
        notes = ["say which: --machine NAME", "`penstock list machines` names them"]
        raise UserError("there is no machine to simulate", loc=str(program.path), notes=notes, status=USAGE)


def _lower(args: argparse.Namespace, program: LoadedProgram, pipeline: str | None) -> tuple[Workloads, bool]:
    """Lower a program; returns what its kernels compute, noted on the way, and whether they are free of hazards."""
    from penstock.runtime.simulator.workloads import Workloads
    from penstock.tools.observed import lower_to_accel

    if args.no_verify and program.level != "accel":
        message = f"--no-verify is for IR at the accel level, and {program.path} is at the {program.level} level"
        raise UserError(message, status=USAGE)
    warn_unverified(args)
    workloads = Workloads()
    proved = lower_to_accel(args, program, pipeline, [workloads], no_verify=args.no_verify)
    return workloads, proved


def _texts(
    args: argparse.Namespace, run: ProgramRun, window: CycleWindow | None, name: str
) -> list[tuple[str, str, str]]:
    """The files that were asked for: their names, what is in them, and what that is."""
    from penstock.runtime.simulator.figures import csv_text, json_text
    from penstock.runtime.simulator.perfetto import trace_text
    from penstock.runtime.simulator.timeline import CycleWindow

    span = CycleWindow(0, max(run.cycles, 1))
    if window is not None:
        if window.first >= run.cycles:
            raise UserError(f"--window begins at cycle {window.first:,}, and the run has {run.cycles:,}", status=USAGE)
        span = CycleWindow(window.first, min(window.last, run.cycles))
    found: list[tuple[str, str, str]] = []
    if args.csv is not None:
        found.append((args.csv, csv_text(run), "the figures as CSV"))
    if args.json is not None:
        found.append((args.json, json_text(run), "the figures as JSON"))
    if args.trace is not None:
        found.append((args.trace, trace_text(run, span), "the trace"))
    if args.svg is not None:
        title = f"{name} on {run.target.machine_name}: {run.cycles:,} cycles"
        found.append((args.svg, run.svg(span, title), "the picture"))
    return found


def _read_window(text: str) -> CycleWindow:
    from penstock.runtime.simulator.timeline import CycleWindow

    first, colon, last = text.partition(":")
    numbers = [each.replace("_", "") for each in (first or "0", last or "9" * 18)]
    if not colon or not all(each.isdecimal() and len(each) < 20 for each in numbers):
        raise UserError(f'"{text}" is no window', notes=["write --window 1000:2000"], status=USAGE)
    low, high = map(int, numbers)
    if low >= high:
        raise UserError(f"the window {text} is empty", status=USAGE)
    return CycleWindow(low, high)
