# SPDX-License-Identifier: Apache-2.0
"""
Print what the kernels of a model or of a file of IR compute, each as a kernel of the language (.pk): what fusion took
together, before it is cut into tiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.func import FuncOp

from penstock.dialects.diagnostics import USAGE, UserError, nearest_or_all
from penstock.lowering.from_kernel.printer import print_source
from penstock.lowering.from_kernel.syntax import Kernel, Source
from penstock.lowering.to_kernel import kernel_of
from penstock.passes.analysis.kernels import kernels
from penstock.tools.arguments import add_machine, add_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_machine(parser)
    parser.add_argument("--kernel", metavar="NAME", help="only this kernel, which must have a form in the language")


def execute(args: argparse.Namespace) -> int:
    from penstock.runtime.machines import attach_machine
    from penstock.runtime.pass_manager import read_pipeline, run_passes
    from penstock.runtime.pipeline import pipeline
    from penstock.runtime.symbolic_dims import require_bound
    from penstock.tools.programs import load_given

    program = load_given(args, None)
    if program.level not in ("graph", "tensor"):
        message = f"the program is at the {program.level} level, and kernels are shown from the tensor level"
        raise UserError(message, loc=args.model)
    require_bound(program.module, args.model)
    attach_machine(program.module, args.machine)
    if program.level == "graph":
        passes = ",".join([*pipeline("graph", args.machine), "graph-to-tensor"])
        run_passes(program.ctx, program.module, read_pipeline(passes), parsed=program.parsed)
    found = {kernel.sym_name.data: kernel for kernel in kernels(program.module)}
    if args.kernel is None:
        print(print_source(_source(list(found.values()))), end="")
    elif args.kernel in found:
        print(print_source(Source((kernel_of(found[args.kernel]),))), end="")
    else:
        note = nearest_or_all(args.kernel, found, "kernels")
        raise UserError(f'the program has no kernel "{args.kernel}"', notes=[note], status=USAGE)
    return 0


def _source(functions: Sequence[FuncOp]) -> Source:
    """All kernels; of one without a form, a comment says why."""
    shown: list[Kernel] = []
    comments: list[str] = []
    for function in functions:
        try:
            kernel = kernel_of(function)
        except UserError as error:
            comments.append(f"# {function.sym_name.data}: {error.message}")
        else:
            shown.append(replace(kernel, before=tuple(comments)))
            comments = []
    return Source(tuple(shown), tuple(comments))
