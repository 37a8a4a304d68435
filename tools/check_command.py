# SPDX-License-Identifier: Apache-2.0
"""
Run a program before and after every pass on the same inputs, and name the first pass that changed a value. The inputs
are small integers, whose sums are exact; with --real, normal floats.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.tools.arguments import (
    add_common,
    add_interleaving,
    add_kernel,
    add_machine,
    add_model,
    add_pipeline,
    add_schedule,
    give_schedules,
    machine_options,
    natural,
    print_passes,
    read_dims,
    read_values,
    say,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_kernel(parser)
    add_machine(parser)
    parser.add_argument(
        "--until",
        metavar="LEVEL",
        default="accel",
        help="the last level to lower to: graph, tensor, loop or accel (default)",
    )
    parser.add_argument(
        "--against", metavar="SOURCE", help="the program must compute what this one does, to begin with"
    )
    add_pipeline(parser)
    add_schedule(parser)
    parser.add_argument("--input", nargs="+", action="extend", default=[], metavar="[NAME=]FILE", help="inputs")
    parser.add_argument("--real", action="store_true", help="draw floats that are no integers")
    parser.add_argument("--seed", type=natural, default=0, help="what the inputs are drawn with; default 0")
    add_interleaving(parser, several=True)
    parser.add_argument(
        "--backend",
        nargs="+",
        action="extend",
        default=[],
        choices=("native", "llvm"),
        help="after the last pass, run the program by these, too: as C, by LLVM",
    )
    parser.add_argument(
        "--reduce",
        metavar="FILE",
        type=Path,
        help="where a pass breaks the program: the smallest program found that this pass breaks in the same way, on "
        "drawn inputs, as IR with the command that shows it",
    )
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.runtime.compiler import load_input
    from penstock.runtime.interpreter import Order, read_order
    from penstock.runtime.memory import require_memory
    from penstock.runtime.memory_of_values import interpreter_need
    from penstock.runtime.pass_manager import PassFault, verify
    from penstock.runtime.pipeline import passes_for
    from penstock.runtime.schedules import require_applied
    from penstock.runtime.signature import signature_of
    from penstock.runtime.symbolic_dims import bounded_dims, require_bound
    from penstock.tools.check_sizes import check_sizes
    from penstock.tools.instruments import pass_progress
    from penstock.tools.lockstep import INTERLEAVINGS, Lockstep, ProgramBroken, default_inputs
    from penstock.tools.programs import load_for_inputs, warn_unused
    from penstock.tools.reduce import Reducer, reduce_to_file
    from penstock.tools.run_by import BACKENDS
    from penstock.tools.tensors import read_given

    if args.backend and args.until in ("graph", "tensor"):
        raise UserError(f"--backend runs the loop or the accel level, and the {args.until} level is the last one")
    given = read_given(args.input)
    interleavings: list[Order] = [*INTERLEAVINGS]
    if args.interleaving:
        interleavings = [read_order(word) for word in args.interleaving.split(",")]
    program = load_for_inputs(args, given, takes_bounds=True)
    verify(program.module, program.parsed)
    if print_passes(args, program, args.until, args.pipeline):
        return 0
    give_schedules(args, program.ctx)
    options = machine_options(args)
    passes = passes_for(program.module, args.until, args.machine, args.pipeline, machine_options=options)
    if bounded_dims(program.module):
        check_sizes(args, program, passes, interleavings, (lambda text: None) if args.quiet else print)
        return 0
    passes = (*passes, *(BACKENDS[name]() for name in args.backend))
    signature = signature_of(program.module)
    require_memory(interpreter_need(program.module, signature))
    if args.input:
        inputs = signature.bind(given.ordered, given.named)
    else:
        inputs = default_inputs(signature, seed=args.seed, real=args.real)
    watch = Lockstep(program.ctx, inputs, interleavings)
    given_module = program.module.clone() if args.reduce is not None else None
    try:
        if args.against is not None:
            values = read_values(args.value) if args.against.endswith(".onnx") else {}
            source = load_input(
                args.against,
                dims=read_dims(args.dim),
                values=values,
                allow_nan=args.allow_nan,
                max_trips=args.max_trips,
            )
            require_bound(source.module, args.against)
            verify(source.module, source.parsed)
            watch.compare_with(source.module, source.ctx, program.module)
        with pass_progress(quiet=args.quiet, verbose=args.verbose) as progress:
            watch.run(program.module, passes, parsed=program.parsed, progress=progress)
        require_applied(program.ctx, program.module)
        warn_unused(program.module, program.path)
    except (ProgramBroken, PassFault):
        if given_module is not None and args.reduce is not None:
            reducer = Reducer(program.ctx, args.seed, interleavings)
            say(args, reduce_to_file(reducer, given_module, passes, args.reduce))
        raise
    finally:
        if not args.quiet and watch.report.comparisons:
            print(watch.report)
    return 0
