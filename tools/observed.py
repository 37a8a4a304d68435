# SPDX-License-Identifier: Apache-2.0
"""Programs that a command lowers to the accelerator level, and what it notes of them on the way."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.passes.analysis.kernels import machine_of
from penstock.runtime.compiler import LoadedProgram, compile_module
from penstock.runtime.levels import require_level
from penstock.runtime.pass_manager import Observer, run_passes, verify
from penstock.runtime.pipeline import passes_for
from penstock.runtime.proofs import prove
from penstock.runtime.provenance import Provenance
from penstock.runtime.schedules import require_applied
from penstock.runtime.simulator.run import ProgramRun, run_program
from penstock.runtime.simulator.workloads import Workloads
from penstock.tools.arguments import give_schedules, machine_options, print_passes
from penstock.tools.instruments import pass_progress
from penstock.tools.programs import load_bound, warn_unused
from penstock.tools.report.levels import Levels


@dataclass(frozen=True)
class ObservedProgram:
    """A lowered program, its run on its machine, and its text at each level."""

    path: str
    provenance: Provenance
    levels: Levels

    @property
    def title(self) -> str:
        run = self.provenance.run
        name = self.path.replace("\\", "/").rpartition("/")[2]
        return f"{name} on {'the host' if run is None else run.target.machine_name}"


def observed_program(args: argparse.Namespace) -> ObservedProgram | None:
    """
    The program of `args.model`, lowered as `args` says and simulated, where it is for a machine; None where only the
    passes are printed. Raises UserError as the compiler and the simulator do.
    """
    program = load_bound(args, args.kernel if args.model.endswith(".pk") else None)
    # What is at the accel level is taken as it is.
    pipeline = "" if args.pipeline is None and program.level == "accel" else args.pipeline
    if print_passes(args, program, "accel", pipeline):
        return None
    give_schedules(args, program.ctx)
    levels, workloads = Levels(), Workloads()
    if program.level != "accel":
        levels.take(program.module, "as it came in")
    proved = lower_to_accel(args, program, pipeline, [levels, workloads])
    warn_unused(program.module, program.path)
    levels.take(program.module, program.level)
    run: ProgramRun | None = None
    if machine_of(program.module) is not None:
        run = run_program(program.module, workloads, verify=not proved)
    return ObservedProgram(str(program.path), Provenance(program.module, run if run and run.kernels else None), levels)


def lower_to_accel(
    args: argparse.Namespace,
    program: LoadedProgram,
    pipeline: str | None,
    observers: Sequence[Observer],
    *,
    no_verify: bool = False,
) -> bool:
    """
    Lower a program to the accelerator level in place, by the compiler's passes or by those of `pipeline`, for the
    machine that `args` says, with its schedules. Returns whether its kernels are proved free of hazards: others are
    when they are simulated. Raises UserError for what else is not proved safe, but with `no_verify`.
    """
    options = machine_options(args)
    if pipeline is None:
        with pass_progress(quiet=args.quiet, verbose=args.verbose) as progress, program.naming_faults():
            compile_module(
                program.module,
                program.ctx,
                args.machine,
                "accel",
                progress,
                machine_options=options,
                parsed=program.parsed,
                observers=observers,
            )
        return True
    passes = passes_for(program.module, "accel", args.machine, pipeline, machine_options=options)
    verify(program.module, program.parsed)
    if args.pipeline is not None:
        if not no_verify:
            prove(program.module)
        with pass_progress(quiet=args.quiet, verbose=args.verbose) as progress, program.naming_faults():
            run_passes(
                program.ctx,
                program.module,
                passes,
                observers=observers,
                progress=progress,
                remark_levels=True,
                parsed=program.parsed,
            )
        require_level(program.module, "accel", str(program.path))
    if not no_verify:
        prove(program.module, hazards=False)
    require_applied(program.ctx, program.module)
    return False
