# SPDX-License-Identifier: Apache-2.0
"""
Run a model, a file of IR or a plan. Inputs are .npy, .npz or ONNX .pb files, in the order of the model's inputs or as
NAME=FILE; outputs are written as output_0.npy and so on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.runtime.engine import Backend, Engine
from penstock.runtime.folders import write_folder
from penstock.runtime.plan import is_plan
from penstock.runtime.tensor_specs import TensorSpec, lines_of_run
from penstock.tools.arguments import (
    add_common,
    add_interleaving,
    add_kernel,
    add_machine,
    add_model,
    add_no_verify,
    add_pipeline,
    add_schedule,
    add_threads,
    give_schedules,
    machine_options,
    print_passes,
    require_compiler,
    say,
    warn_unverified,
)
from penstock.tools.tensors import FORMATS, GivenTensors, read_given, write_tensor

if TYPE_CHECKING:
    from penstock.runtime.compiler import LoadedProgram
    from penstock.runtime.interpreter import Order

RUN_LEVELS = ("graph", "tensor", "loop", "accel", "c", "llvm")
_FOR_COMPILING = ("machine", "set", "dim", "pipeline", "print_pipeline", "schedule", "knob")


_NO_VERIFY = "--no-verify is for a file of IR that is run as it stands"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_kernel(parser)
    parser.add_argument(
        "--input", nargs="+", action="extend", default=[], metavar="[NAME=]FILE", help="one or more tensors"
    )
    parser.add_argument("--output-dir", metavar="DIR", default=".", help="where the outputs go; default: here")
    parser.add_argument("--output-format", choices=FORMATS, default="npy", help="default: npy")
    parser.add_argument(
        "--level",
        choices=RUN_LEVELS,
        help=(
            "what executes: the interpreter at a level, or code that a C compiler or LLVM makes;"
            " default: c for models and plans, llvm where there is no C compiler, the level it is at for IR"
        ),
    )
    add_machine(parser)
    add_pipeline(parser)
    add_schedule(parser)
    add_threads(parser)
    add_interleaving(parser)
    add_no_verify(parser)
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    given = read_given(args.input)
    if is_plan(args.model):
        engine = _engine_of_plan(args)
    else:
        # Not needed for a plan, which runs without the compiler.
        from penstock.tools.programs import load_for_inputs, say_remarks, warn_unused

        program = load_for_inputs(args, given, takes_bounds=args.level != "graph")
        pipeline = "" if _is_run_as_it_stands(args, program) else args.pipeline
        if print_passes(args, program, _until(args), pipeline):
            return 0
        give_schedules(args, program.ctx)
        engine = _engine(args, given, program)
        say_remarks(args, engine.module)
        warn_unused(engine.module, program.path)
    if args.interleaving is not None:
        engine.interleaving = _interleaving(args.interleaving, engine)
    started = time.perf_counter()
    outputs = lines_of_run(engine.signature, engine.run(given.ordered, given.named))
    seconds = time.perf_counter() - started
    folder = Path(args.output_dir)
    named = {f"output_{index}.{args.output_format}": spec for index, spec in enumerate(engine.signature.outputs)}

    def fill(fresh: Path) -> None:
        for (name, spec), array in zip(named.items(), outputs, strict=True):
            write_tensor(fresh / name, array, spec.name)

    write_folder(folder, "folder of outputs", fill)
    for (name, spec), array in zip(named.items(), outputs, strict=True):
        say(args, f"{folder / name}: {TensorSpec(spec.name, array.shape, spec.dtype)}")
    if args.verbose:
        say(args, f"ran in {seconds:.4f} s ({engine.backend})")
    return 0


def _interleaving(text: str, engine: Engine) -> Order:
    """The order that `--interleaving` names; raises UserError where it would not be followed."""
    from penstock.runtime.interpreter import read_order

    order = read_order(text)
    if engine.backend != "interpreter":
        raise UserError("--interleaving is for the interpreter: add --level accel", status=USAGE)
    return order


def _is_run_as_it_stands(args: argparse.Namespace, program: LoadedProgram) -> bool:
    """Whether a file of IR is not compiled: it may have been edited by hand."""
    asked = (args.level, args.machine, args.pipeline, args.schedule, args.threads)
    return program.parsed is not None and not args.set and all(each is None for each in asked)


def _until(args: argparse.Namespace) -> str:
    """The level that is compiled to."""
    return "accel" if args.level in (None, "c", "llvm") else args.level


def _backend(args: argparse.Namespace) -> Backend:
    if args.level in (None, "c"):
        return "native"
    return "llvm" if args.level == "llvm" else "interpreter"


def _engine(args: argparse.Namespace, given: GivenTensors, program: LoadedProgram) -> Engine:
    """The engine that the arguments ask for; inputs that do not fit are refused before anything is compiled."""
    from penstock.runtime.engine import compile_program
    from penstock.runtime.pass_manager import verify
    from penstock.runtime.signature import signature_of
    from penstock.tools.instruments import pass_progress

    signature = signature_of(program.module)
    signature.bind(given.ordered, given.named)
    if _is_run_as_it_stands(args, program):
        verify(program.module, program.parsed)
        warn_unverified(args)
        return Engine(program.module, program.ctx, signature, "interpreter", verify=not args.no_verify)
    if args.no_verify:
        raise UserError(_NO_VERIFY, status=USAGE)
    backend = _backend(args)
    if backend == "native":
        otherwise = "--level loop or --level accel runs the program in the interpreter"
        require_compiler(otherwise, or_llvm=args.level is None)
    with pass_progress(quiet=args.quiet, verbose=args.verbose) as progress:
        return compile_program(
            program,
            machine=args.machine,
            until=_until(args),
            backend=backend,
            pipeline=args.pipeline,
            machine_options=machine_options(args),
            threads=1 if args.threads is None else args.threads,
            progress=progress,
        )


def _engine_of_plan(args: argparse.Namespace) -> Engine:
    if given := [option for option in _FOR_COMPILING if getattr(args, option) not in (None, [], False)]:
        words = ", ".join(f"--{option.replace('_', '-')}" for option in given)
        verb = "is" if len(given) == 1 else "are"
        raise UserError(f"a plan is compiled already: {words} {verb} for compiling", status=USAGE)
    if args.no_verify:
        raise UserError(_NO_VERIFY, status=USAGE)
    level, backend = args.level, _backend(args)
    if backend != "interpreter":
        return Engine.load(args.model, backend, threads=args.threads)
    from penstock.runtime.levels import level_of

    engine = Engine.load(args.model, "interpreter", threads=args.threads)
    if level != level_of(engine.module):
        raise UserError(
            f"the plan is at {level_of(engine.module)} level, not at {level} level",
            notes=["run the model itself at that level, or leave --level out"],
            status=USAGE,
        )
    return engine
