"""`penstock plan` on a model or IR: the planning problems that its compilation poses, as a table or as CSV files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.files import write_whole
from penstock.passes.planning.problem import Limits, Plan, Problem, height, lower_bound
from penstock.tools.arguments import read_dims, say
from penstock.tools.planners import best_of, compare, does_not_fit, report, run_planner
from penstock.tools.text import STDIN, aligned, write_output

if TYPE_CHECKING:
    from penstock.passes.analysis.memory.memory_problems import MemoryProblem
    from penstock.runtime.compiler import Program

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
    _lower(args, program)
    found = _chosen(args, path, memory_problems(program.module))
    if args.output is not None or args.map is not None:
        if not found:
            raise UserError("the program has no buffers to plan", loc=str(path))
        if args.output is not None:
            _write(args, path, found, args.output, ".csv", _csv)
        if args.map is not None:
            _write(args, path, found, args.map, ".svg", lambda memory: _map(args, path, memory, planners[0], limits))
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


def _lower(args: argparse.Namespace, program: Program) -> None:
    """Lower the program to where its buffers are planned; one that is below that stays as it is."""
    from penstock.dialects.machine import find_target
    from penstock.runtime.compiler import attach_machine, pipeline
    from penstock.runtime.pass_manager import read_pipeline, run_passes, verify
    from penstock.tools.instruments import pass_progress

    if args.machine is not None:
        attach_machine(program.module, args.machine)
    if program.level == "accel":
        verify(program.module, program.parsed)
        return
    target = find_target(program.module)
    specs = pipeline("loop", target.machine_name if target else None, start=program.level)
    passes = read_pipeline(",".join(takewhile(lambda spec: spec.split("{")[0] != _PLANS, specs)))
    with pass_progress(quiet=args.quiet, verbose=args.verbose) as progress:
        for number, each in enumerate(passes):
            if progress is not None:
                progress(number, len(passes), each)
            run_passes(program.ctx, program.module, [each], parsed=program.parsed)


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


def _map(args: argparse.Namespace, path: Path, memory: MemoryProblem, planner: str, limits: Limits) -> str:
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


def _write(
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
