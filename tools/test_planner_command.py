# SPDX-License-Identifier: Apache-2.0
"""
Whether a planner keeps to its contract: random problems of which the answer is known are posed to it, with each feature
that a problem may have. The status is 1, with the smallest problem found that shows it, where it breaks a rule.
"""

from __future__ import annotations

import argparse

from penstock.passes.planning.conformance.planners import PROBLEMS, RULES, STEPS, check_planner, figures_table
from penstock.passes.planning.registry import planner
from penstock.tools.arguments import natural
from penstock.tools.instruments import step_progress
from penstock.tools.text import aligned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("planner", metavar="NAME", help="a planner of an installed package, or of ours")
    parser.add_argument(
        "--problems", type=natural, default=PROBLEMS, metavar="N", help=f"how many are posed; {PROBLEMS} by default"
    )
    parser.add_argument(
        "--steps", type=natural, default=STEPS, metavar="N", help=f"the limit for each; {STEPS:,} by default"
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of the problems and of the planner")


def execute(args: argparse.Namespace) -> int:
    chosen = planner(args.planner)
    with step_progress() as begun:
        report = check_planner(chosen, problems=args.problems, seed=args.seed, steps=args.steps, begun=begun)
    if report.fault is not None:
        raise report.fault.error(f'the planner "{args.planner}"', RULES, args.seed)
    print("\n".join(aligned(figures_table(report), left=(0,))))
    print(f'"{args.planner}" keeps every rule: {", ".join(RULES)}')
    return 0
