# SPDX-License-Identifier: Apache-2.0
"""`penstock plan` of a program: the problems that its buffers pose, and the plan that it has or that planners find."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError, did_you_mean, location_of
from penstock.dialects.files import write_whole
from penstock.passes.planning.problem import Limits, Plan, Problem, conflicts, height, lower_bound
from penstock.passes.planning.registry import DEFAULT_PLANNER
from penstock.tools.arguments import give_schedules, machine_options, read_bindings, say
from penstock.tools.plan_sizes import bounds_around, sizes_table
from penstock.tools.planner_runs import MAX_FAULTS, Found, best_of, compare, does_not_fit, report
from penstock.tools.text import STDIN, aligned, write_output

if TYPE_CHECKING:
    from penstock.passes.analysis.memory.memory_problems import MemoryProblem
    from penstock.runtime.compiler import LoadedProgram

WHOLE = "(program)"
"""Stands for the function of problems that all functions share."""

PROGRAM = "the program"
COMPILER = "the compiler"
"""Stand for the planner of offsets that are written in the program, and of those that a pass before the plan wrote."""

_LETTERS = 60, 12
"""The width and the height of a picture of letters."""

_PLANS = "mem-plan"
"""The pass before which the problems are taken."""


@dataclass(frozen=True, eq=False)
class Memory:
    """One memory of a program, with the planners that were asked for, if any, and who wrote the offsets that it has."""

    memory: MemoryProblem
    planners: Sequence[str] | None
    writer: str

    @property
    def is_planned(self) -> bool:
        """Whether its plan is the one that is written."""
        return self.planners is None and all(each.offset is not None for each in self.memory.problem.buffers)

    @property
    def function(self) -> str:
        return self.memory.function or WHOLE

    @property
    def place(self) -> str:
        return self.memory.place

    @property
    def scope(self) -> str:
        from penstock.passes.analysis.memory.memory_problems import ARENA

        return self.memory.scope or ARENA

    @property
    def problem(self) -> Problem:
        """
        The problem as it is planned and written: without the offsets of the program where planners were asked for, and
        otherwise with the buffers that have one at their offset, which may be less aligned than a planner's.
        """
        anew = self.memory.unplaced()
        if self.planners is not None:
            return anew
        pairs = zip(anew.buffers, self.memory.problem.buffers, strict=True)
        return replace(anew, buffers=tuple(each if given.offset is None else given for each, given in pairs))

    def runs(self, limits: Limits) -> list[Found]:
        """What each planner finds; raises UserError, located, for offsets in the program that are not a plan."""
        from penstock.passes.analysis.memory.memory_problems import check_given

        if self.planners is None:
            check_given(self.memory)
        return compare(self.problem, self.planners or (DEFAULT_PLANNER,), limits)[0]


def plan_program(args: argparse.Namespace, path: Path, planners: Sequence[str] | None, limits: Limits) -> int:
    """
    List the problems of the program at `path` and their plans, or write them where `--output` and `--map` say.

    The plan of a memory is the one that the program has, unless there are `planners`, who plan it anew.
    """
    from penstock.passes.analysis.memory.memory_problems import written_plan

    loaded = _load(args, path, planners)
    if loaded is None:
        return 0
    writer, found = loaded
    if args.verify:
        return _verify(args, path, found)
    asked = args.output is not None or args.map is not None
    if not found:
        if asked:
            raise UserError("the program has no buffers to plan", loc=str(path))
        say(args, f"{path}: no buffers to plan")
        return 0
    if writer == PROGRAM and any(written_plan(each.memory).offsets for each in found):
        what = "not used; --verify checks them" if planners else "kept; --planner plans anew, --verify checks them"
        say(args, f"{path}: the offsets of the program are {what}")
    for each in found:
        _warn_of_faults(each)
    if not asked:
        print("\n".join(_table(found, planners, limits)))
    plans = _Plans(args, path, limits)
    if not asked:
        for each in found:
            if bounds := bounds_around(each.memory):
                print("\n".join(["", *plans.at_sizes(each, bounds)]))
            if args.verbose:
                print("\n".join(["", *plans.drawn(each)]))
        return 0
    if args.output is not None:
        _write(args, path, found, args.output, ".csv", plans.csv, plans.figures)
    if args.map is not None:
        _write(args, path, found, args.map, ".svg", plans.svg, partial(plans.figures, drawn=True))
    return 0


def load_memories(args: argparse.Namespace, path: Path, planners: Sequence[str] | None) -> list[Memory]:
    """The memories of the program at `path` that were asked for, to be planned."""
    loaded = _load(args, path, planners)
    return [] if loaded is None else loaded[1]


def _load(args: argparse.Namespace, path: Path, planners: Sequence[str] | None) -> tuple[str, list[Memory]] | None:
    """Who wrote the offsets of the program at `path`, and its memories; None where its passes were to be printed."""
    from penstock.passes.analysis.memory.memory_problems import memory_problems
    from penstock.runtime.compiler import load_input
    from penstock.runtime.symbolic_dims import require_bound
    from penstock.tools.programs import say_remarks, warn_unused

    program = load_input(path, dims=read_bindings(args.dim), kernel=args.kernel, kernels=args.kernels)
    require_bound(program.module, str(path), takes_bounds=True)
    if (writer := _lower(args, program)) is None:
        return None
    warn_unused(program.module, path)
    say_remarks(args, program.module)
    return writer, _chosen(args, path, [Memory(memory, planners, writer) for memory in memory_problems(program.module)])


def _lower(args: argparse.Namespace, program: LoadedProgram) -> str | None:
    """
    Lower the program to where its buffers are planned, or by the passes of `--pipeline`; one with offsets, and one that
    is below that, stays as it is. Returns who wrote the offsets that it has then, `PROGRAM` or `COMPILER`; None where
    `--print-pipeline` only prints the passes.
    """
    from penstock.passes.analysis.memory.liveness import Allocation
    from penstock.passes.analysis.memory.memory_problems import offset_of
    from penstock.runtime.bounded import lower_at_points, passes_of_points, require_host
    from penstock.runtime.machines import attach_machine
    from penstock.runtime.pass_manager import pipeline_text, run_passes, verify
    from penstock.runtime.pipeline import passes_for
    from penstock.runtime.schedules import require_applied
    from penstock.runtime.symbolic_dims import bounded_dims
    from penstock.tools.instruments import pass_progress
    from penstock.tools.remarks import printed_remarks

    allocations = (op for op in program.module.walk() if isinstance(op, Allocation))
    is_planned = program.level == "accel" or any(offset_of(op) is not None for op in allocations)
    if args.pipeline is None and not args.print_pipeline and (args.verify or is_planned):
        attach_machine(program.module, args.machine, machine_options(args))
        if args.schedule is not None:
            raise UserError("--schedule is for a program that is yet to be cut into tiles", status=USAGE)
        verify(program.module, program.parsed)
        return PROGRAM
    until = "loop" if program.level != "accel" else "accel"
    passes = passes_for(program.module, until, args.machine, args.pipeline, machine_options=machine_options(args))
    if args.pipeline is None:
        # Problems of the usual passes are those before they are solved; what has offsets has been planned.
        passes = () if is_planned else tuple(takewhile(lambda each: each.name != _PLANS, passes))
    if args.print_pipeline:
        print(pipeline_text(passes))
        return None
    give_schedules(args, program.ctx)
    with printed_remarks(args.remarks) as observers, pass_progress(quiet=args.quiet, verbose=args.verbose) as progress:
        if bounded_dims(program.module):
            require_host(program.module, until, threads=1, measure=False)
            first, passes = passes_of_points(passes)
            lower_at_points(program.module, program.ctx, first, observers=observers, progress=progress)
        run_passes(
            program.ctx,
            program.module,
            passes,
            observers=observers,
            progress=progress,
            remark_levels=args.pipeline is not None,
            parsed=program.parsed,
        )
    require_applied(program.ctx, program.module)
    return COMPILER if args.pipeline is None else PROGRAM


def _chosen(args: argparse.Namespace, path: Path, found: Sequence[Memory]) -> list[Memory]:
    """The memories of the function and the scope that were asked for; raises UserError if there are none."""
    chosen = list(found)
    for option, wanted in (("function", args.function), ("scope", args.scope)):
        if wanted is None:
            continue
        named = [(each.function if option == "function" else each.scope, each) for each in chosen]
        names = list(dict.fromkeys(name for name, _ in named))
        chosen = [each for name, each in named if name == wanted.removeprefix("@")]
        if not chosen:
            near = did_you_mean(wanted, names)
            known = f"there are {', '.join(names)}" if names else "the program has no buffers to plan"
            message = f'no {option} "{wanted}" has buffers to plan'
            if option == "scope" and args.function is not None:
                message += f" in @{args.function.removeprefix('@')}"
                if any(each.scope == wanted for each in found):
                    known = f'"{wanted}" is planned without --function, for others or for the program as a whole'
            raise UserError(message, loc=str(path), notes=[near or known])
    return chosen


def _verify(args: argparse.Namespace, path: Path, found: Sequence[Memory]) -> int:
    """Check the offsets of the program itself, and name what they break."""
    from penstock.passes.analysis.memory.memory_problems import fault_of, written_plan

    if not any(written_plan(each.memory).offsets for each in found):
        note = "offsets are written at the loop and the accel level, as in `mem.buffer at 64`"
        raise UserError("there is no plan to check", loc=str(path), notes=[note])
    broken = [
        fault_of(each.memory, plan, conflict)
        for each in found
        for plan in [written_plan(each.memory)]
        for conflict in conflicts(each.memory.problem, plan)
    ]
    if broken:
        first, *others = broken
        notes = [*first.notes, *(f"{fault.loc}: {fault.message}" for fault in others[: MAX_FAULTS - 1])]
        notes += [f"and {len(broken) - MAX_FAULTS} more"] if len(broken) > MAX_FAULTS else []
        raise UserError(f"the plan is not valid: {first.message}", loc=first.loc, notes=notes)
    for each in found:
        taken, bound = height(each.memory.problem, written_plan(each.memory)), lower_bound(each.memory.unplaced())
        optimal = ", optimal" if taken <= bound else ""
        say(args, f"{path}: {each.memory.place}: a valid plan of {taken:,} bytes{optimal}; lower bound {bound:,}")
    return 0


def _warn_of_faults(each: Memory) -> None:
    """Say that the plan of the program is not valid: it is shown as it is, so that a person sees what is wrong."""
    from penstock.passes.analysis.memory.memory_problems import fault_of, written_plan

    if each.is_planned:
        plan = written_plan(each.memory)
        for conflict in islice(conflicts(each.memory.problem, plan), 1):
            fault = fault_of(each.memory, plan, conflict)
            print(f"{fault.loc}: warning: the plan is not valid: {fault.message}", file=sys.stderr)


def _table(found: Sequence[Memory], planners: Sequence[str] | None, limits: Limits) -> list[str]:
    """A row for each memory: its problem, the bytes of the plan that it has, and of those that planners find."""
    from penstock.passes.analysis.memory.memory_problems import written_plan

    own = {
        each: height(each.memory.problem, plan)
        for each in found
        if each.writer == PROGRAM and len((plan := written_plan(each.memory)).offsets) == len(each.problem.buffers)
    }
    # What a pass has placed is planned as well, for its figures.
    runs = {
        each: [] if planners is None and each in own else replace(each, planners=names).runs(limits)
        for each in found
        for names in [planners or ((DEFAULT_PLANNER,) if each.writer == COMPILER else None)]
    }
    names = planners or ((DEFAULT_PLANNER,) if any(runs.values()) else ())
    head = ("function", "scope", "buffers", "capacity", "bound", *((PROGRAM,) if own else ()), *names)
    rows: list[tuple[str, ...]] = [head]
    for each in found:
        problem, ran = each.problem, runs[each]
        bound = best_of(ran).bound if ran else lower_bound(each.memory.unplaced())
        peaks = [run.peak for run in ran] or [None] * len(names)
        numbers = [problem.capacity, bound, *((own.get(each),) if own else ()), *peaks]
        cells = ["-" if number is None else f"{number:,}" for number in numbers]
        rows.append((each.function, each.scope, str(len(problem.buffers)), *cells))
    return aligned(rows, left=(0, 1))


class _Plans:
    """The plans of memories as files, each found once."""

    def __init__(self, args: argparse.Namespace, path: Path, limits: Limits):
        self._args = args
        self._path = path
        self._limits = limits
        self._found: dict[Memory, tuple[Plan, str]] = {}

    def csv(self, each: Memory) -> str:
        """The problem, with the offsets of the program, or of the planners that were asked for."""
        from penstock.passes.planning.minimalloc_csv import write_csv

        return write_csv(each.problem, None if each.planners is None else self._plan(each)[0])

    def at_sizes(self, each: Memory, bounds: Mapping[str, int]) -> list[str]:
        """What the plan comes to at sizes that only a run knows."""
        return sizes_table(each.memory, each.memory.unplaced(), self._plan(each)[0], bounds)

    def svg(self, each: Memory) -> str:
        """A picture of the plan; of the buffers that have no offset, as a planner puts them beside the others."""
        from penstock.passes.planning.map_svg import svg_map

        plan, by = self._plan(each)
        title = f"{self._path.name}: {each.memory.place}: {_taken(each.problem, plan, by)}"
        places = {id: location_of(op) for id, op in each.memory.ops.items()}
        return svg_map(each.problem, plan, title, lower_bound(each.memory.unplaced()), places)

    def drawn(self, each: Memory) -> list[str]:
        """A picture of the plan in letters, and what they stand for."""
        from penstock.passes.planning.map_text import symbol, text_map

        plan, by = self._plan(each)
        lines = [f"{each.memory.place}: {_taken(each.problem, plan, by)}"]
        lines += text_map(each.problem, plan, *_LETTERS).lines()
        for number, buffer in enumerate(each.problem.buffers):
            offset = plan.offsets[buffer.id]
            lines.append(f"{symbol(number)}  {each.memory.describe(buffer)}, at {offset:,}")
        return lines

    def figures(self, each: Memory, *, drawn: bool = False) -> str:
        """The figures of a memory, for a person."""
        count, bound = len(each.problem.buffers), lower_bound(each.memory.unplaced())
        planned = ""
        if drawn or each.is_planned or each.planners is not None:
            plan, by = self._plan(each)
            planned = f", planned in {height(each.problem, plan):,} by {by}"
        return f"{count} buffer{'s' if count != 1 else ''}, lower bound {bound:,} bytes{planned}"

    def _plan(self, each: Memory) -> tuple[Plan, str]:
        """The plan, and whose it is; raises UserError where there is none."""
        from penstock.passes.analysis.memory.memory_problems import written_plan

        if each not in self._found:
            own = (written_plan(each.memory), each.writer)
            self._found[each] = own if each.is_planned else self._planned(each)
        return self._found[each]

    def _planned(self, each: Memory) -> tuple[Plan, str]:
        best = best_of(each.runs(self._limits))
        if not best.fits:
            fault = does_not_fit(best, self._limits, str(self._path))
            message = f"{each.memory.place}: {fault.message}"
            raise UserError(message, loc=fault.loc, notes=fault.notes, status=fault.status)
        for line in report(best, self._limits.seed):
            say(self._args, line)
        assert best.outcome.plan is not None
        return best.outcome.plan, best.name


def _taken(problem: Problem, plan: Plan, by: str) -> str:
    """The bytes that a plan takes, whose it is, and the bytes that it leaves."""
    taken, capacity = height(problem, plan), problem.capacity
    if capacity is None:
        return f"{taken:,} bytes by {by}"
    return f"{taken:,} of {capacity:,} bytes by {by}, {capacity - taken:,} left"


def _write(
    args: argparse.Namespace,
    path: Path,
    found: Sequence[Memory],
    name: str,
    suffix: str,
    text_of: Callable[[Memory], str],
    figures: Callable[[Memory], str],
) -> None:
    """One memory as a file, or all of them in a folder."""
    from penstock.runtime.folders import write_folder

    output = Path(name)
    if name == STDIN or output.suffix == suffix:
        if len(found) != 1:
            names = [f"--function {each.function} --scope {each.scope}" for each in found[:5]]
            message = f"one file is for one problem, and there are {len(found)}"
            raise UserError(message, loc=str(path), notes=["choose one, or name a folder:", *names])
        write_output(name, text_of(found[0]))
        if name != STDIN:
            say(args, f"{output}: {figures(found[0])}")
        return
    named: dict[str, Memory] = {}
    for each in found:
        capacity = "" if each.problem.capacity is None else f".{each.problem.capacity}"
        owner = f"{each.memory.function}." if each.memory.function else ""
        named[f"{owner}{each.scope}{capacity}{suffix}"] = each

    def fill(folder: Path) -> None:
        for file, each in named.items():
            write_whole(folder / file, text_of(each))

    write_folder(output, "folder of planning problems", fill)
    for file, each in named.items():
        say(args, f"{output / file}: {figures(each)}")
