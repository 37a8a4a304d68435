# SPDX-License-Identifier: Apache-2.0
"""
Give each buffer of a planning problem an offset in one memory, so that buffers alive together share no byte and the
peak is low. A problem is a CSV file with the columns id,lower,upper,size and, as needed, alignment, hint, gaps,
banks, offset. What was found is told on stderr. Of a model or a file of IR, the problems that its compilation for a
machine poses are listed, drawn, or written as CSV. A program that has offsets is taken as it is, with these offsets,
unless planners are named.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.passes.planning.map_text import legend, text_map
from penstock.passes.planning.problem import Limits, Plan, Problem, conflicts, height, lower_bound
from penstock.passes.planning.registry import DEFAULT_PLANNER, planner
from penstock.tools.arguments import (
    add_common,
    add_kernel,
    add_kernels,
    add_machine,
    add_pipeline,
    add_remarks,
    add_schedule,
    say,
    write_texts,
)
from penstock.tools.planner_runs import (
    ALL,
    MAX_FAULTS,
    Found,
    best_of,
    compare,
    does_not_fit,
    read_bytes,
    read_limits,
    read_planners,
    report,
    run_planner,
    table,
)
from penstock.tools.text import STDIN, require_distinct

PROGRAMS = (".onnx", ".mlir", ".pk", ".plan")
"""The ends of names of files that hold programs."""

_OF_PROBLEMS = ("capacity", "bank-size", "fixed", "fit")
_OF_PROGRAMS = (
    "machine",
    "set",
    "pipeline",
    "print-pipeline",
    "schedule",
    "knob",
    "remarks",
    "dim",
    "kernel",
    "kernels",
    "function",
    "scope",
)
EPILOG = """\
the exit status is 0 with a plan that fits, 1 where it is proved that none does, and 4 where none was found in time;
without a capacity every plan fits

examples:
  penstock plan A.1048576.csv --fit --time-limit 60 -o A.plan.csv
  penstock plan problem.csv --compare first-fit-by-size,hill-climb,portfolio
  penstock plan model.onnx --machine gemmini --function fused_3 --scope spad -o spad.csv
  penstock plan model.loop.mlir --scope arena --map arena.svg
  penstock plan detector.onnx classifier.onnx --share time --scope arena -o plans
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "problem",
        metavar="PROBLEM",
        nargs="+",
        help="a problem (.csv), or a model (.onnx), IR (.mlir), kernels (.pk) or a plan (.plan); several with --share",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan as CSV; - is stdout")
    parser.add_argument("--map", metavar="FILE", help="draw the plan as SVG")
    parser.add_argument("--verify", action="store_true", help="check the offsets that are given, and do no more")
    group = parser.add_argument_group("the memory")
    group.add_argument("--capacity", metavar="BYTES", help="as 4096, 256K or 1M; default: BYTES of NAME.BYTES.csv")
    group.add_argument("--bank-size", metavar="BYTES", help="of a bank, where the problem has the column banks")
    group.add_argument("--fixed", action="store_true", help="keep buffers where the column offset has them")
    group = parser.add_argument_group("the search")
    group.add_argument("--planner", metavar="P", help=f"default: {DEFAULT_PLANNER}")
    group.add_argument("--compare", metavar="P,P,...", help=f"print a table of several planners; {ALL} is all of them")
    group.add_argument("--time-limit", metavar="S", help="stop after so many seconds")
    group.add_argument("--steps", metavar="N", help="stop after so many steps, which makes runs the same everywhere")
    group.add_argument("--seed", metavar="N", default="0", help="of what is drawn at random; default: 0")
    group.add_argument("--threads", metavar="N", default="1", help="that search side by side; default: 1")
    group.add_argument(
        "--fit",
        action=argparse.BooleanOptionalAction,
        help="stop at the first plan within the capacity; default: where there are no limits, nor planners to compare",
    )
    group = parser.add_argument_group("of a model or a file of IR")
    add_machine(group)
    add_pipeline(group)
    add_schedule(group)
    add_remarks(group)
    group.add_argument(
        "--dim",
        metavar="NAME=SIZE",
        action="append",
        default=[],
        help="the size of a symbolic dimension, such as batch=1, or the largest, 'batch<=16'",
    )
    add_kernel(group)
    add_kernels(group)
    group.add_argument(
        "--share",
        choices=("time", "space"),
        help="plan several in one memory: one runs at a time, or all at once",
    )
    group.add_argument("--function", metavar="F", help="only the problems of this function")
    group.add_argument("--scope", metavar="S", help="only the problems of this scope")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    path = Path(args.problem[0])
    limits = read_limits(args.time_limit, args.steps, args.seed, args.threads)
    is_program = path.suffix in PROGRAMS
    for option in _OF_PROBLEMS if is_program else _OF_PROGRAMS:
        if getattr(args, option.replace("-", "_")):
            kind = "a planning problem" if is_program else "a model or a file of IR"
            raise UserError(f"--{option} is for {kind}, which {path} is not", status=USAGE)
    _require_share(args)
    kind = "model" if is_program else "problem"
    require_distinct({"-o": args.output, "--map": args.map}, *args.problem, kind=kind, rewrite="-o")
    names = None if args.compare is None else read_planners(args.compare)
    if args.planner is not None and names is None:
        planner(args.planner)
    if is_program:
        from penstock.tools.plan_models import plan_models
        from penstock.tools.plan_programs import plan_program

        chosen = names or (None if args.planner is None else (args.planner,))
        return plan_models(args, chosen, limits) if args.share else plan_program(args, path, chosen, limits)
    return _plan_problem(args, path, names, limits)


def _require_share(args: argparse.Namespace) -> None:
    """Raise UserError unless there is one problem, or several programs and how they share a memory."""
    if len(args.problem) > 1 and args.share is None:
        notes = ["--share time: one runs at a time; --share space: all at once"]
        raise UserError("several programs are planned only in one memory", notes=notes, status=USAGE)
    if args.share is None:
        return
    for each in args.problem:
        if Path(each).suffix not in PROGRAMS:
            raise UserError(f"--share is for models and files of IR, which {each} is not", status=USAGE)
    for option in ("verify", "map", "print-pipeline"):
        if getattr(args, option.replace("-", "_")):
            raise UserError(f"--{option} is for one program, and --share for several", status=USAGE)


def _plan_problem(args: argparse.Namespace, path: Path, names: tuple[str, ...] | None, limits: Limits) -> int:
    from penstock.passes.planning.minimalloc_csv import load_csv

    capacity, bank_size = read_bytes("--capacity", args.capacity), read_bytes("--bank-size", args.bank_size)
    problem, given = load_csv(path, capacity, bank_size=bank_size, fixed=args.fixed)
    if args.verbose:
        times = len({time for buffer in problem.buffers for interval in buffer.intervals for time in interval})
        say(args, f"{path}: {len(problem.buffers):,} buffers, {times:,} times at which one comes alive or dies")
    if args.verify:
        return _verify(args, path, problem, given)
    if args.fit and problem.capacity is None:
        raise UserError("--fit needs a capacity", notes=["give it: --capacity BYTES"], status=USAGE)
    if args.fit or (args.fit is None and names is None and limits.seconds is None and limits.steps is None):
        limits = replace(limits, good_enough=problem.capacity)
    if given.offsets and not args.fixed:
        say(args, f"{path}: the column offset is not used; --fixed keeps its places, --verify checks them")
    if names is None:
        best = run_planner(problem, args.planner or DEFAULT_PLANNER, limits)
        for line in report(best, limits.seed):
            say(args, line)
    else:
        found, skipped = compare(problem, names, limits, skip=args.compare == ALL)
        for line in skipped:
            say(args, line)
        print("\n".join(table(found)), file=sys.stderr if STDIN in (args.output, args.map) else sys.stdout)
        best = best_of(found)
    if not best.fits:
        raise does_not_fit(best, limits, str(path))
    _write_plan(args, path, best)
    return 0


def _write_plan(args: argparse.Namespace, path: Path, best: Found) -> None:
    """The files that were asked for; on a terminal a map, if there are none."""
    plan = best.outcome.plan
    assert plan is not None
    texts: list[tuple[str, str, str]] = []
    if args.output is not None:
        from penstock.passes.planning.minimalloc_csv import write_csv

        texts.append((args.output, write_csv(best.problem, plan), "the plan"))
    if args.map is not None:
        from penstock.passes.planning.map_svg import svg_map

        title = f"{path.name}: {best.peak:,} bytes by {best.name}"
        texts.append((args.map, svg_map(best.problem, plan, title, best.bound), "the map"))
    write_texts(args, texts)
    if not texts and not args.quiet and sys.stderr.isatty():
        print_map(best.problem, plan)


def _verify(args: argparse.Namespace, path: Path, problem: Problem, given: Plan) -> int:
    """Check the plan of the file itself, and name what it breaks."""
    if not given.offsets:
        raise UserError("there is no plan to check", loc=str(path), notes=["it would be in the column offset"])
    faults = list(conflicts(problem, given))
    if faults:
        notes = [fault.message for fault in faults[1:MAX_FAULTS]]
        notes += [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        raise UserError(f"the plan is not valid: {faults[0].message}", loc=str(path), notes=notes)
    peak, bound = height(problem, given), lower_bound(problem)
    say(args, f"{path}: a valid plan of {peak:,} bytes{', optimal' if peak <= bound else ''}; lower bound {bound:,}")
    return 0


# on the terminal

_MAP_ROWS = 20
"""Of the memory."""

_MIN_COLUMNS = 20
"""Letters of a row: a terminal that is narrower breaks lines."""
_LEGEND_LINES = 6
_COLOURS = (117, 150, 216, 182, 222, 115, 174, 110, 186, 140, 209, 152)
"""Light colours of the 256 that terminals have, with black letters on them; neighbours are far apart."""


def print_map(problem: Problem, plan: Plan) -> None:
    """Print the map on stderr; as plain letters where the terminal has no colours."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    # The widest label takes as many letters as the highest byte.
    widest = text_map(problem, plan, 1, _MAP_ROWS).margin
    picture = text_map(problem, plan, max(_MIN_COLUMNS, console.width - widest - 1), _MAP_ROWS)
    lines = picture.lines()
    for row, line in zip(picture.cells, lines, strict=False):
        text = Text(line, no_wrap=True, overflow="crop")
        start = 0
        for end in range(1, len(row) + 1):
            if end == len(row) or row[end] != row[start]:
                if (buffer := row[start]) is not None:
                    colour = f"black on color({_COLOURS[buffer % len(_COLOURS)]})"
                    text.stylize(colour, picture.margin + start, picture.margin + end)
                start = end
        console.print(text)
    for line in [*lines[len(picture.cells) :], *legend(problem, max(_MIN_COLUMNS, console.width - 1), _LEGEND_LINES)]:
        console.print(Text(line, no_wrap=True, overflow="crop"))
