# SPDX-License-Identifier: Apache-2.0
"""
Compile and simulate programs on machines in all combinations of what a plan varies: numbers of the machine, planners,
tilers, on-chip strategies, depths, schedules, passes on and off. What several runs have in common is computed once, and
kept; results are kept in a file, and a sweep that was stopped goes on where it was. A run that fails is a row with its
reason.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.tools.arguments import SWEPT, add_common, natural, read_dims, say
from penstock.tools.text import STDIN, require_distinct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.tools.sweep.grid import Run
    from penstock.tools.sweep.plan import PlanText, SweepPlan
    from penstock.tools.sweep.plots import Picture
    from penstock.tools.sweep.steps import Step
    from penstock.tools.sweep.store import Result, Store
    from penstock.tools.sweep.tables import Table

_STORE = "sweep.sqlite"
_COMPARED = "cycles"

EPILOG = """\
the exit status is 0 where all runs have ended, with figures or without; docs/sweep.md says what a plan is

examples:
  penstock sweep study.toml -o study.csv -o study.tex
  penstock sweep digits.onnx --machines gemmini-fp32 --set scope.spad.size=8K,64K --planner portfolio,exact --depth 1,2
  penstock sweep study.toml --jobs 8 --compare planner --pareto peak.spad:cycles=front.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN|MODEL", nargs="+", help="a plan (.toml), or the programs to compile")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="write the table, by its name as .csv, .parquet, .md or .tex; - is stdout, the default; repeatable",
    )
    parser.add_argument("--metrics", metavar="M,M,...", help="the figures of the table; all is all of them")
    parser.add_argument(
        "--compare",
        metavar="AXIS[:M]",
        action="append",
        default=[],
        help=f"say in a line what an axis changes of a figure, by default {_COMPARED}; of all axes if none is named",
    )
    for picture, text in (("pareto", "two figures"), ("scaling", "an axis and a figure")):
        parser.add_argument(
            f"--{picture}",
            metavar="X:Y[:AXIS]=FILE",
            action="append",
            default=[],
            help=f"draw {text} as .svg or .png, with a colour for each value of AXIS; repeatable",
        )
    group = parser.add_argument_group("what is varied, beside what the plan says; values with commas between them")
    group.add_argument(
        "--set",
        metavar="PATH=V,V,...",
        action="append",
        default=[],
        help="values of a number of the machine, as scope.spad.size=32K,64K; repeatable",
    )
    for axis in SWEPT:
        group.add_argument(f"--{axis}", metavar="V,V,...", help=_HELP[axis])
    group.add_argument(
        "--dim", metavar="NAME=SIZE", action="append", default=[], help="the size of a symbolic dimension"
    )
    group = parser.add_argument_group("how")
    group.add_argument("--jobs", metavar="N", type=natural, help="processes of this machine; default: one a CPU")
    group.add_argument("--scheduler", metavar="ADDRESS", help="run on the Dask cluster of this scheduler")
    group.add_argument("--store", metavar="FILE", help=f"where results are kept; default: PLAN.sqlite, or {_STORE}")
    group.add_argument("--retry", action="store_true", help="run again what has no figures")
    group.add_argument("--dry-run", action="store_true", help="say how many runs there are, and do no more")
    add_common(parser)


_HELP = {
    "machines": "names of `penstock list machines`, or machine files",
    "planner": "planners of `penstock list planners`; default, here and below, leaves it to the compiler",
    "tiler": "tilers of `penstock list tilers`",
    "on-chip": "strategies of `penstock list strategies`",
    "depth": "slots of what loops refill, as tile takes them",
    "schedule": "files of schedules",
    "passes": "passes that run in half of the runs, and are left out in the others",
}


def execute(args: argparse.Namespace) -> int:
    from penstock.tools.sweep.grid import runs_of
    from penstock.tools.sweep.store import open_store
    from penstock.tools.sweep.tables import Table

    if args.jobs == 0:
        raise UserError("a sweep takes at least one process", status=USAGE)
    _require_outputs(args)
    plan = _plan(args)
    runs = runs_of(plan)
    with open_store(_store_path(args)) as store:
        results = store.results(run.key for run in runs)
        if args.retry:
            store.forget(key for key, result in results.items() if not result.is_ok)
            results = {key: result for key, result in results.items() if result.is_ok}
        wanted = [run for run in {run.key: run for run in runs}.values() if run.key not in results]
        say(args, f"{len(runs):,} runs, {len(runs) - sum(run.key not in results for run in runs):,} of them done")
        if args.dry_run:
            return 0
        if wanted:
            _run(args, plan, wanted, store)
            results = store.results(run.key for run in runs)
    table = Table.of(plan, runs, results)
    _write(args, table)
    return 0


def _require_outputs(args: argparse.Namespace) -> None:
    from penstock.tools.sweep.plots import require_matplotlib
    from penstock.tools.sweep.tables import KINDS, require_pyarrow

    pictures = [picture for _, picture in _pictures(args)]
    require_distinct({f"-o {name}": name for name in (*args.output, *(each.path for each in pictures))})
    if pictures:
        require_matplotlib()
    for name in args.output:
        kind = Path(name).suffix
        if name != STDIN and kind not in KINDS:
            raise UserError(f"-o {name}: a table ends in {', '.join(KINDS)}", status=USAGE)
        if kind == ".parquet":
            require_pyarrow()


def _pictures(args: argparse.Namespace) -> list[tuple[str, Picture]]:
    """The pictures that are asked for, each with its kind; raises UserError for words that ask for none."""
    from penstock.tools.sweep.plots import Picture

    return [(kind, Picture.read(text, f"--{kind}")) for kind in ("pareto", "scaling") for text in getattr(args, kind)]


def _plan(args: argparse.Namespace) -> SweepPlan:
    """The plan of a command line: that of a file, and what flags change of it."""
    from penstock.tools.sweep.plan import PlanText, read_plan

    text, (first, *others) = PlanText(), args.plan
    if first.endswith(".toml"):
        if others:
            raise UserError(f"a plan names its inputs itself, so {others[0]} is one too many", status=USAGE)
        text = PlanText.read(Path(first))
    else:
        text.give("inputs", args.plan)
    for key in SWEPT:
        if (words := getattr(args, key.replace("-", "_"))) is not None:
            text.give(key, words.split(","))
            for number, column in enumerate(_columns(words, 1)):
                text.place((key, number), f"--{key}", 1, column)
    _give_numbers(args, text)
    return read_plan(text)


def _give_numbers(args: argparse.Namespace, text: PlanText) -> None:
    """Bring `--set` and `--dim` into a plan, beside what it says itself."""
    numbers = dict(text.table("set"))
    for line, word in enumerate(args.set, start=1):
        path, equals, values = word.partition("=")
        if not equals:
            place = f"--set:{line}:{len(word) + 1}"
            raise UserError(
                "there are no values", loc=place, notes=["write --set scope.spad.size=32K,64K"], status=USAGE
            )
        numbers[path] = values.split(",")
        text.place(("set", path), "--set", line, 1)
        for number, column in enumerate(_columns(values, len(path) + 2)):
            text.place(("set", path, number), "--set", line, column)
    if args.set:
        text.document["set"] = numbers
    if args.dim:
        text.document["dims"] = {**text.table("dims"), **read_dims(args.dim)}


def _columns(words: str, first: int) -> list[int]:
    """The columns in which words with commas between them begin."""
    columns = [first]
    for word in words.split(",")[:-1]:
        columns.append(columns[-1] + len(word) + 1)
    return columns


def _store_path(args: argparse.Namespace) -> Path:
    if args.store is not None:
        return Path(args.store)
    first = Path(args.plan[0])
    return first.with_suffix(".sqlite") if first.suffix == ".toml" else Path(_STORE)


def _run(args: argparse.Namespace, plan: SweepPlan, wanted: Sequence[Run], store: Store) -> None:
    """Run what is wanted, and keep each result as it comes."""
    from penstock.tools.sweep.progress import sweep_progress
    from penstock.tools.sweep.runner import Sweep
    from penstock.tools.sweep.workers import usable_cores, workers

    with sweep_progress(len(wanted), quiet=args.quiet, verbose=args.verbose) as progress:

        class Keeping:
            def begun(self, step: Step) -> None:
                progress.begun(step)

            def ended(self, runs: Sequence[Run], result: Result) -> None:
                store.add((run.key, run.labels, result) for run in runs)
                progress.ended(runs, result)

        with workers(args.jobs or usable_cores(), args.scheduler) as where:
            Sweep(plan, wanted, where, Keeping()).run()


def _comparisons(args: argparse.Namespace, table: Table) -> Iterator[str]:
    """A line for each comparison that is asked for; without any, and without -q, for each axis."""
    from penstock.tools.sweep.comparison import comparison_line

    for word in args.compare:
        axis, _, metric = word.partition(":")
        yield comparison_line(table, axis, metric or _COMPARED)
    if not args.compare and not args.quiet and _COMPARED in table.known():
        for axis in table.plan.axes:
            if len(axis.choices) > 1:
                yield comparison_line(table, axis.name, _COMPARED)


def _write(args: argparse.Namespace, table: Table) -> None:
    from penstock.tools.sweep.plots import draw_pareto, draw_scaling

    metrics = table.metrics(args.metrics)
    for name in args.output or [STDIN]:
        table.write(name, metrics)
    for kind, picture in _pictures(args):
        (draw_pareto if kind == "pareto" else draw_scaling)(table, picture)
    for line in _comparisons(args, table):
        print(line, file=sys.stderr)
    failed = [row for row in table.rows if not row.result.is_ok]
    if failed:
        say(args, f"{len(failed):,} of {len(table.rows):,} runs have no figures: {failed[0].result.reason}")
