# SPDX-License-Identifier: Apache-2.0
"""
Whether a tiler keeps to its contract: kernels of networks on models of machines, and random problems, are posed to it.
The table has the cycles and bytes that its plans are modelled to take, beside the least and those of the usual tiler.
The status is 1, with the smallest problem found that shows it, where it breaks a rule. With a machine, the problems are
those that the kernels of a model or a file of IR pose on it.
"""

from __future__ import annotations

import argparse
from itertools import takewhile
from pathlib import Path

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.passes.planning.conformance.tilers import RANDOM_PROBLEMS, RULES, check_tiler, figures_table
from penstock.passes.planning.tile_problem import TileProblem
from penstock.passes.planning.tilers.registry import tiler
from penstock.tools.arguments import add_machine, machine_options, natural, read_dims
from penstock.tools.instruments import step_progress
from penstock.tools.text import aligned

_TILES = "tile"
"""The pass before which the problems are taken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tiler", metavar="NAME", help="a tiler of an installed package, or of ours")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="whose kernels are posed: an ONNX model, or IR")
    add_machine(parser)
    parser.add_argument(
        "--dim", metavar="NAME=SIZE", action="append", default=[], help="the size of a symbolic dimension of MODEL"
    )
    parser.add_argument(
        "--random",
        type=natural,
        default=RANDOM_PROBLEMS,
        metavar="N",
        help=f"how many random problems are posed, too; {RANDOM_PROBLEMS} by default",
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of the random problems")


def execute(args: argparse.Namespace) -> int:
    chosen = tiler(args.tiler)
    if args.model is None and (args.machine or args.set or args.dim):
        raise UserError("test-tiler: --machine, --set and --dim are for a MODEL, and none is given", status=USAGE)
    problems = None if args.model is None else kernel_problems(args)
    with step_progress() as begun:
        report = check_tiler(chosen, problems=problems, random=args.random, seed=args.seed, begun=begun)
    if report.fault is not None:
        raise report.fault.error(f'the tiler "{args.tiler}"', RULES, args.seed)
    print("\n".join(aligned(figures_table(report), left=(0, 1))))
    print(f"{report.planned} plans for {report.posed} problems, {report.posed - len(report.figures)} of them random")
    print(f'"{args.tiler}" keeps every rule: {", ".join(RULES)}')
    return 0


def kernel_problems(args: argparse.Namespace) -> list[tuple[str, TileProblem]]:
    """
    What the kernels of a program that run on a machine ask of a tiler, each with its kernel's name.

    Raises UserError where none does.
    """
    # The IR is imported where there is some.
    from penstock.passes.analysis.kernels import machine_kernels
    from penstock.passes.schedule.tiled_ops import TiledOps
    from penstock.passes.tensor.tile_plan import root_of
    from penstock.runtime.compiler import load_input
    from penstock.runtime.pass_manager import run_passes
    from penstock.runtime.pipeline import passes_for
    from penstock.runtime.symbolic_dims import require_bound

    program = load_input(Path(args.model), dims=read_dims(args.dim))
    require_bound(program.module, args.model)
    passes = passes_for(program.module, "tensor", args.machine, machine_options=machine_options(args))
    run_passes(program.ctx, program.module, tuple(takewhile(lambda each: each.name != _TILES, passes)))
    target, found = machine_kernels(program.module)
    roots = [(kernel.sym_name.data, root_of(kernel)) for kernel in found]
    problems = [(name, TiledOps(root, target).problem) for name, root in roots if root is not None]
    if not problems:
        raise UserError("no kernel of it runs on a machine", loc=args.model, notes=["--machine names one"])
    return problems
