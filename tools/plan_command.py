"""
Give each buffer of a planning problem an offset in one memory, so that buffers alive together share no byte and the
peak is low. A problem is a CSV file with the columns id,lower,upper,size and, as needed, alignment, hint, gaps,
banks, offset. What was found is told on stderr. Of a model or a file of IR, the problems are listed that its
compilation for a machine poses, or written as CSV.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.byte_sizes import read_byte_size
from penstock.dialects.diagnostics import TIME_LIMIT, USAGE, USER_FAULT, UserError, did_you_mean
from penstock.dialects.files import write_whole
from penstock.passes.planning.map_text import legend, text_map
from penstock.passes.planning.problem import (
    Limits,
    Outcome,
    Plan,
    PlanError,
    Problem,
    alive_at,
    bytes_alive,
    conflicts,
    height,
    lower_bound,
    peak,
    span_text,
)
from penstock.passes.planning.registry import DEFAULT_PLANNER, planner, planner_names, solve
from penstock.tools.arguments import (
    MAX_DIGITS,
    add_common,
    add_machine,
    add_pipeline,
    machine_options,
    read_dims,
    say,
    write_texts,
)
from penstock.tools.text import STDIN, aligned, require_distinct, write_output

if TYPE_CHECKING:
    from penstock.passes.analysis.memory.memory_problems import MemoryProblem
    from penstock.runtime.compiler import LoadedProgram

PROGRAMS = (".onnx", ".mlir")
"""The ends of names of files that hold programs."""

_OF_PROBLEMS = ("capacity", "bank-size", "fixed", "verify", "fit")
_OF_PROGRAMS = ("machine", "set", "pipeline", "print-pipeline", "dim", "function", "scope")
_MAX_FAULTS = 10
"""That --verify lists."""
EPILOG = """\
the exit status is 0 with a plan that fits, 1 where it is proved that none does, and 4 where none was found in time;
without a capacity every plan fits

examples:
  penstock plan A.1048576.csv --fit --time-limit 60 -o A.plan.csv
  penstock plan problem.csv --compare first-fit-by-size,hill-climb,portfolio
  penstock plan model.onnx --machine gemmini --function fused_3 --scope spad -o spad.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("problem", metavar="PROBLEM", help="a problem (.csv), a model (.onnx) or a file of IR (.mlir)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan as CSV; - is stdout")
    parser.add_argument("--map", metavar="FILE", help="draw the plan as SVG")
    parser.add_argument("--verify", action="store_true", help="check the plan in the column offset, and do no more")
    group = parser.add_argument_group("the memory")
    group.add_argument("--capacity", metavar="BYTES", help="as 4096, 256K or 1M; default: BYTES of NAME.BYTES.csv")
    group.add_argument("--bank-size", metavar="BYTES", help="of a bank, where the problem has the column banks")
    group.add_argument("--fixed", action="store_true", help="keep buffers where the column offset has them")
    group = parser.add_argument_group("the search")
    group.add_argument("--planner", metavar="P", default=DEFAULT_PLANNER, help=f"default: {DEFAULT_PLANNER}")
    group.add_argument("--compare", metavar="P,P,...", help=f"print a table of several planners; {ALL} is all of them")
    group.add_argument("--time-limit", metavar="S", help="stop after so many seconds")
    group.add_argument("--steps", metavar="N", help="stop after so many steps, which makes runs the same everywhere")
    group.add_argument("--seed", metavar="N", default="0", help="of what is drawn at random; default: 0")
    group.add_argument("--fit", action="store_true", help="stop at the first plan within the capacity")
    group = parser.add_argument_group("of a model or a file of IR")
    add_machine(group)
    add_pipeline(group)
    group.add_argument("--dim", metavar="NAME=SIZE", action="append", default=[], help="the size of a symbolic dim")
    group.add_argument("--function", metavar="F", help="only the problems of this function")
    group.add_argument("--scope", metavar="S", help="only the problems of this scope")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    path = Path(args.problem)
    limits = read_limits(args.time_limit, args.steps, args.seed)
    is_program = path.suffix in PROGRAMS
    for option in _OF_PROBLEMS if is_program else _OF_PROGRAMS:
        if getattr(args, option.replace("-", "_")):
            kind = "a planning problem" if is_program else "a model or a file of IR"
            raise UserError(f"--{option} is for {kind}, which {path} is not", status=USAGE)
    require_distinct({"-o": args.output, "--map": args.map})
    names = None if args.compare is None else read_planners(args.compare)
    if names is None:
        planner(args.planner)
    if is_program:
        return plan_program(args, path, names or (args.planner,), limits)
    return _plan_problem(args, path, names, limits)


def _plan_problem(args: argparse.Namespace, path: Path, names: tuple[str, ...] | None, limits: Limits) -> int:
    from penstock.passes.planning.minimalloc_csv import load_csv

    capacity, bank_size = read_bytes("--capacity", args.capacity), read_bytes("--bank-size", args.bank_size)
    problem, given = load_csv(path, capacity, bank_size=bank_size, fixed=args.fixed)
    if args.verbose:
        times = len({time for buffer in problem.buffers for interval in buffer.intervals for time in interval})
        say(args, f"{path}: {len(problem.buffers):,} buffers, {times:,} times at which one comes alive or dies")
    if args.verify:
        return _verify(args, path, problem, given)
    if args.fit:
        if problem.capacity is None:
            raise UserError("--fit needs a capacity", notes=["give it: --capacity BYTES"], status=USAGE)
        limits = replace(limits, good_enough=problem.capacity)
    if given.offsets and not args.fixed:
        say(args, f"{path}: the column offset is not used; --fixed keeps its places, --verify checks them")
    if names is None:
        best = run_planner(problem, args.planner, limits)
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
        notes = [fault.message for fault in faults[1:_MAX_FAULTS]]
        notes += [f"and {len(faults) - _MAX_FAULTS} more"] if len(faults) > _MAX_FAULTS else []
        raise UserError(f"the plan is not valid: {faults[0].message}", loc=str(path), notes=notes)
    peak, bound = height(problem, given), lower_bound(problem)
    say(args, f"{path}: a valid plan of {peak:,} bytes{', optimal' if peak <= bound else ''}; lower bound {bound:,}")
    return 0


# programs

WHOLE = "(program)"
"""Stands for the function of problems that all functions share."""

_PLANS = "mem-plan"
"""The pass before which the problems are taken."""


def plan_program(args: argparse.Namespace, path: Path, planners: Sequence[str], limits: Limits) -> int:
    """List the problems of the program at `path`, or write them where `--output` says."""
    from penstock.passes.analysis.memory.memory_problems import memory_problems
    from penstock.runtime.compiler import load_input, require_bound

    program = load_input(path, dims=read_dims(args.dim))
    require_bound(program.module, str(path))
    if not _lower(args, program):
        return 0
    found = _chosen(args, path, memory_problems(program.module))
    if args.output is not None or args.map is not None:
        if not found:
            raise UserError("the program has no buffers to plan", loc=str(path))
        if args.output is not None:
            _write_problems(args, path, found, args.output, ".csv", _csv)
        if args.map is not None:
            _write_problems(args, path, found, args.map, ".svg", partial(_map_of, args, path, planners[0], limits))
        return 0
    if not found:
        say(args, f"{path}: no buffers to plan")
        return 0
    rows: list[tuple[str, ...]] = [("function", "scope", "buffers", "capacity", "bound", *planners)]
    for memory in found:
        problem = memory.unplaced()
        runs, _ = compare(problem, planners, limits, skip=False)
        capacity = "-" if problem.capacity is None else f"{problem.capacity:,}"
        peaks = ["-" if run.peak is None else f"{run.peak:,}" for run in runs]
        numbers = [f"{len(problem.buffers)}", capacity, f"{best_of(runs).bound:,}", *peaks]
        rows.append((_function(memory), _scope(memory), *numbers))
    print("\n".join(aligned(rows, left=(0, 1))))
    return 0


def _with_offsets(memory: MemoryProblem) -> Problem:
    """The problem with the buffers that have one at their offset, which may be less aligned than a planner's."""
    pairs = zip(memory.unplaced().buffers, memory.problem.buffers, strict=True)
    buffers = (each if given.offset is None else given for each, given in pairs)
    return replace(memory.problem, buffers=tuple(buffers))


def _lower(args: argparse.Namespace, program: LoadedProgram) -> bool:
    """
    Lower the program to where its buffers are planned, or by the passes of `--pipeline`; one that is below that stays
    as it is. Returns whether it did so: with `--print-pipeline` the passes are only printed.
    """
    from penstock.runtime.compiler import passes_for
    from penstock.runtime.pass_manager import pipeline_text, run_passes, verify
    from penstock.tools.instruments import pass_progress

    until = "loop" if program.level != "accel" else "accel"
    passes = passes_for(program.module, until, args.machine, args.pipeline, machine_options=machine_options(args))
    if args.pipeline is None:
        # Problems of the usual passes are those before they are solved; what is at the accel level has been planned.
        passes = () if program.level == "accel" else tuple(takewhile(lambda each: each.name != _PLANS, passes))
    if args.print_pipeline:
        print(pipeline_text(passes))
        return False
    if not passes:
        verify(program.module, program.parsed)
    with pass_progress(quiet=args.quiet, verbose=args.verbose) as progress:
        run_passes(
            program.ctx,
            program.module,
            passes,
            progress=progress,
            remark_levels=args.pipeline is not None,
            parsed=program.parsed,
        )
    return True


def _chosen(args: argparse.Namespace, path: Path, found: Sequence[MemoryProblem]) -> list[MemoryProblem]:
    """The problems of the function and the scope that were asked for; raises UserError if there are none."""
    chosen = list(found)
    for option, wanted, name_of in (("function", args.function, _function), ("scope", args.scope, _scope)):
        if wanted is None:
            continue
        names = list(dict.fromkeys(name_of(memory) for memory in chosen))
        chosen = [memory for memory in chosen if name_of(memory) == wanted.removeprefix("@")]
        if not chosen:
            near = did_you_mean(wanted, names)
            known = f"there are {', '.join(names)}" if names else "the program has no buffers to plan"
            message = f'no {option} "{wanted}" has buffers to plan'
            raise UserError(message, loc=str(path), notes=[near or known])
    return chosen


def placed(memory: MemoryProblem) -> Plan:
    """The offsets that the program gives its buffers, as far as it does."""
    return Plan({buffer.id: buffer.offset for buffer in memory.problem.buffers if buffer.offset is not None})


def _csv(memory: MemoryProblem) -> str:
    from penstock.passes.planning.minimalloc_csv import write_csv

    return write_csv(_with_offsets(memory))


def _map_of(args: argparse.Namespace, path: Path, planner: str, limits: Limits, memory: MemoryProblem) -> str:
    """A picture of the plan of the program, or, where buffers have no offset, of one that a planner finds for them."""
    from penstock.passes.planning.map_svg import svg_map

    plan, by = placed(memory), "the program"
    problem = _with_offsets(memory)
    if not _is_planned(memory):
        best = run_planner(problem, planner, limits)
        if not best.fits:
            raise does_not_fit(best, limits, str(path))
        assert best.outcome.plan is not None
        plan, by = best.outcome.plan, planner
        for line in report(best, limits.seed):
            say(args, line)
    return svg_map(problem, plan, f"{path.name}: {memory.place}: {height(problem, plan):,} bytes by {by}")


def _is_planned(memory: MemoryProblem) -> bool:
    return all(buffer.offset is not None for buffer in memory.problem.buffers)


def _write_problems(
    args: argparse.Namespace,
    path: Path,
    found: Sequence[MemoryProblem],
    name: str,
    suffix: str,
    text_of: Callable[[MemoryProblem], str],
) -> None:
    """One problem as a file, or all of them in a folder."""
    from penstock.runtime.folders import write_folder

    output = Path(name)
    if name == STDIN or output.suffix == suffix:
        if len(found) != 1:
            names = [f"--function {_function(memory)} --scope {_scope(memory)}" for memory in found[:5]]
            message = f"one file is for one problem, and there are {len(found)}"
            raise UserError(message, loc=str(path), notes=["choose one, or name a folder:", *names])
        write_output(name, text_of(found[0]))
        if name != STDIN:
            say(args, f"{output}: {_figures(found[0])}")
        return
    named: dict[str, MemoryProblem] = {}
    for memory in found:
        capacity = "" if memory.problem.capacity is None else f".{memory.problem.capacity}"
        owner = f"{memory.function}." if memory.function else ""
        named[f"{owner}{_scope(memory)}{capacity}{suffix}"] = memory

    def fill(folder: Path) -> None:
        for file, memory in named.items():
            write_whole(folder / file, text_of(memory))

    write_folder(output, "folder of planning problems", fill)
    for file, memory in named.items():
        say(args, f"{output / file}: {_figures(memory)}")


def _figures(memory: MemoryProblem) -> str:
    problem = memory.unplaced()
    plural = "s" if len(problem.buffers) != 1 else ""
    planned = f", planned in {height(problem, placed(memory)):,}" if _is_planned(memory) else ""
    return f"{len(problem.buffers)} buffer{plural}, lower bound {lower_bound(problem):,} bytes{planned}"


def _function(memory: MemoryProblem) -> str:
    return memory.function or WHOLE


def _scope(memory: MemoryProblem) -> str:
    from penstock.passes.analysis.memory.memory_problems import ARENA

    return memory.scope or ARENA


# planners

ALL = "all"
"""In place of a list of planners."""

_MAX_LISTED = 12
"""Buffers that an error lists."""
_RETRY_SECONDS = 0.5
"""Seconds at most, where time is limited, to find out what capacity would do."""


@dataclass(frozen=True)
class Found:
    """What one planner made of a problem."""

    problem: Problem
    name: str
    outcome: Outcome
    seconds: float

    @property
    def peak(self) -> int | None:
        """The bytes that its plan takes; None without a plan."""
        return None if self.outcome.plan is None else height(self.problem, self.outcome.plan)

    @property
    def bound(self) -> int:
        """The best lower bound that is known of the peak."""
        return max(self.outcome.bound, lower_bound(self.problem))

    @property
    def fits(self) -> bool:
        """Whether there is a plan, and it fits the capacity, if there is one."""
        peak = self.peak
        return peak is not None and (self.problem.capacity is None or peak <= self.problem.capacity)

    @property
    def infeasible(self) -> bool:
        """Whether it is proved that no plan fits."""
        capacity = self.problem.capacity
        return self.outcome.infeasible or (capacity is not None and self.bound > capacity)


def read_bytes(option: str, word: str | None) -> int | None:
    """A positive number of bytes, as `4096`, `4K` or `4KiB`; raises UserError for what is none."""
    if word is None:
        return None
    size = read_byte_size(word)
    if size is None or size < 1:
        notes = [f"write {option} 1048576, or {option} 1M"]
        raise UserError(f'{option} "{word}" is no positive number of bytes', notes=notes, status=USAGE)
    return size


def read_limits(seconds: str | None, steps: str | None, seed: str) -> Limits:
    """The limits that words of the command line set; raises UserError for what is no limit."""
    return Limits(
        seconds=None if seconds is None else _seconds(seconds),
        steps=None if steps is None else _count("--steps", steps, 1),
        seed=_count("--seed", seed, 0),
    )


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        notes = ["write --time-limit 10"]
        raise UserError(f'--time-limit "{word}" is no positive number of seconds', notes=notes, status=USAGE)
    return seconds


def _count(option: str, word: str, least: int) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= MAX_DIGITS and int(word) >= least):
        raise UserError(f'{option} "{word}" is no integer from {least}', status=USAGE)
    return int(word)


def read_planners(words: str) -> tuple[str, ...]:
    """The planners that `a,b,c` or `all` names; raises UserError for one that there is not."""
    if words == ALL:
        return planner_names()
    names = tuple(dict.fromkeys(name for word in words.split(",") if (name := word.strip())))
    if not names:
        raise UserError(f'"{words}" names no planner', notes=[f"there are {', '.join(planner_names())}"], status=USAGE)
    for name in names:
        planner(name)
    return names


def run_planner(problem: Problem, name: str, limits: Limits) -> Found:
    """What a planner finds, and how long it takes; raises UserError where it cannot take the problem."""
    began = time.perf_counter()
    try:
        outcome = solve(problem, name, limits)
    except PlanError as error:
        raise UserError(str(error)) from None
    return Found(problem, name, outcome, time.perf_counter() - began)


def compare(
    problem: Problem, names: Sequence[str], limits: Limits, *, skip: bool = False
) -> tuple[list[Found], list[str]]:
    """
    What each planner finds.

    With `skip`, those that are not installed or cannot take the problem are left out, and second come lines that
    say so.
    """
    found: list[Found] = []
    skipped: list[str] = []
    for name in names:
        try:
            found.append(run_planner(problem, name, limits))
        except UserError as error:
            if not skip:
                raise
            skipped.append(f"{name} is left out: {error.message}")
    return found, skipped


def best_of(found: Sequence[Found]) -> Found:
    """The lowest plan, with all that any of the planners proved; of equals the first."""
    best = min(found, key=lambda each: math.inf if each.peak is None else each.peak)
    bound = max(each.bound for each in found)
    infeasible = any(each.infeasible for each in found)
    reason = next((each.outcome.reason for each in found if each.outcome.reason is not None), None)
    return replace(best, outcome=replace(best.outcome, bound=bound, infeasible=infeasible, reason=reason))


def report(found: Found, seed: int) -> list[str]:
    """The figures of what a planner found, for a person."""
    lines: list[str] = []
    if (taken := found.peak) is not None:
        capacity = found.problem.capacity
        of = "" if capacity is None else f" of {capacity:,}"
        room = "" if capacity is None else f", {taken / capacity:.1%} of the capacity"
        fits = capacity is None or taken <= capacity
        verdict = ", which does not fit" if not fits else ", optimal" if taken <= found.bound else ""
        lines.append(f"peak: {taken:,}{of} bytes{room}{verdict}")
    lines.append(f"lower bound: {found.bound:,} bytes{_gap(taken, found.bound)}")
    lines.append(f"planner: {found.name}, seed {seed}, {found.outcome.steps:,} steps, {found.seconds:.3f} s")
    return lines


def _gap(taken: int | None, bound: int) -> str:
    return "" if taken is None or not bound else f", gap {taken / bound - 1:.2%}"


def table(found: Sequence[Found]) -> list[str]:
    """A row for each planner, held against the best bound that any of them proved."""
    bound = max(each.bound for each in found)
    rows = [("planner", "peak", "peak / bound", "seconds", "result")]
    for each in found:
        taken = each.peak
        ratio = "-" if taken is None or not bound else f"{taken / bound:.3f}"
        rows.append(
            (each.name, "-" if taken is None else f"{taken:,}", ratio, f"{each.seconds:.3f}", _result(each, bound))
        )
    return aligned(rows, left=(0, 4))


def _result(found: Found, bound: int) -> str:
    if found.peak is None:
        return "none fits" if found.infeasible else "no plan"
    if not found.fits:
        return "none fits" if found.infeasible else "too large"
    return "optimal" if found.peak <= bound else "fits" if found.problem.capacity is not None else ""


def does_not_fit(found: Found, limits: Limits, loc: str) -> UserError:
    """The fault of a problem without a plan: what is proved, who is alive at the peak, and what would do."""
    problem, capacity = found.problem, found.problem.capacity
    taken, bound = found.peak, found.bound
    moment, alive = peak(problem)
    if found.infeasible and (taken is None or taken > bound):
        # What would do is worth another look, though not another wait.
        seconds = None if limits.seconds is None else min(limits.seconds, _RETRY_SECONDS)
        again = replace(limits, seconds=seconds, good_enough=None)
        free = run_planner(replace(problem, capacity=None), found.name, again)
        taken = min((size for size in (taken, free.peak) if size is not None), default=None)
        bound = max(bound, free.bound)
    where = "" if capacity is None else f" a memory of {capacity:,} bytes"
    if not found.infeasible:
        best = "no plan was found" if taken is None else f"the best plan takes {taken:,} bytes"
        notes = [
            f"it is not proved that none fits: the lower bound is {bound:,} bytes",
            'give it longer, --time-limit, or another planner, --planner; "portfolio" tries several',
        ]
        return UserError(
            f"no plan was found{' for' * bool(where)}{where}: {best}", loc=loc, notes=notes, status=TIME_LIMIT
        )
    most = f"{alive:,} bytes are alive at time {moment}"
    why = found.outcome.reason or f"the proof is a search; the most at once, {most}"
    notes = [f"alive at time {moment}:", *_alive(problem, moment), *_repair(taken, bound)]
    return UserError(f"no plan fits{where}: {why}", loc=loc, notes=notes, status=USER_FAULT)


def _alive(problem: Problem, moment: int) -> list[str]:
    """The buffers alive at a moment, the largest first."""
    alive = sorted(alive_at(problem, moment), key=lambda buffer: -bytes_alive(buffer, moment))
    lines: list[str] = []
    for buffer in alive[:_MAX_LISTED]:
        size = bytes_alive(buffer, moment)
        part = "" if size == buffer.size else f" of {buffer.size:,}"
        life = " and ".join(span_text(interval) for interval in buffer.intervals)
        lines.append(f"  {buffer.id}: {size:,}{part} bytes, alive at {life}")
    if rest := alive[_MAX_LISTED:]:
        lines.append(f"  and {len(rest)} more of {sum(bytes_alive(buffer, moment) for buffer in rest):,} bytes")
    return lines


def _repair(taken: int | None, bound: int) -> list[str]:
    if taken is None:
        return []
    if taken <= bound:
        return [f"the least capacity that would do is {taken:,} bytes"]
    return [f"a capacity of {taken:,} bytes would do; none below {bound:,} can"]


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
