# SPDX-License-Identifier: Apache-2.0
"""
Run random inputs of a level through the whole compiler: around every pass on the interpreter, in several orders of an
accelerator's commands, and at the end by C. An input is right, or refused at a place; what is neither is reduced and
saved, with the command that shows it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.tools.arguments import add_common, natural, say

LEVELS = ("graph", "kernel", "tensor", "loop", "accel", "machine", "schedule", "corrupt")

EPILOG = """\
levels:
  graph    ONNX models of a few nodes, for the host
  kernel   kernels of the kernel language
  tensor   chains and trees of structured ops on tensors
  loop     nests of loops around copies, structured ops, loads and stores
  accel    ONNX models for accelerators
  machine  machine files with parts left out or changed, and small programs
  schedule primitives of schedules on random kernels, for the host and for machines
  corrupt  files of every kind with bytes or words changed: models, weights, IR of each level, kernels, machine
           files, planning problems, schedules and plans
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--level", required=True, choices=LEVELS)
    parser.add_argument("--seed", type=natural, default=0, help="the number of the first input; default 0")
    parser.add_argument("--count", type=natural, default=100, help="how many inputs; default 100")
    parser.add_argument(
        "--backend",
        nargs="+",
        choices=("native", "llvm"),
        default=["native"],
        help="what runs a program after its last pass, too: of several, of which one may stand there more than once, "
        "one is drawn for each program; default: native, which is C",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("fuzz"), metavar="FOLDER", help="for what is wrong; default: fuzz"
    )
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.dialects.files import temporary_folder
    from penstock.passes.code_cache import cache_in
    from penstock.tools.fuzz.run import Fuzzer
    from penstock.tools.instruments import step_progress

    with (
        temporary_folder(prefix="penstock-fuzz-") as work,
        cache_in(work / "cache"),
        step_progress(quiet=args.quiet) as progress,
    ):
        fuzzer = Fuzzer(args.level, args.output, work, args.backend)
        for seed in range(args.seed, args.seed + args.count):
            progress(seed - args.seed, args.count, f"{args.level} {seed}")
            known = len(fuzzer.tally.wrong)
            fuzzer.run(seed)
            for line in fuzzer.tally.wrong[known:]:
                print(f"error: {line}", file=sys.stderr)
    for line in fuzzer.tally.saved:
        say(args, line)
    say(args, f"{args.level}: {fuzzer.tally}")
    for message, count in fuzzer.tally.refused.most_common():
        say(args, f"  refused {count}: {message}")
    return 1 if fuzzer.tally.wrong else 0
