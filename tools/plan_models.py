# SPDX-License-Identifier: Apache-2.0
"""
`penstock plan` of several models in one memory: side by side, or one after the other.

With `--share space` any may run while any other does, so each has a region of its own; nothing smaller will do, for
where two plans interleave, the bytes of the one can be taken out of the other, and that is a plan too. With `--share
time` one runs at a time, and all begin at the bottom. A region is a buffer of a planning problem, as large as the plan
of a model, and as aligned as its buffers; so what is planned is checked like any other plan.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.dialects.files import write_whole
from penstock.passes.planning.problem import Buffer, Limits, Plan, Problem, height, validate
from penstock.passes.planning.registry import DEFAULT_PLANNER, solve
from penstock.tools.arguments import say
from penstock.tools.plan_programs import Memory, load_memories
from penstock.tools.planner_runs import Found, best_of, does_not_fit
from penstock.tools.text import aligned

SHARES = ("time", "space")


@dataclass(frozen=True)
class _Planned:
    """A memory of one model, with its plan, counted from the beginning of its region."""

    model: str
    memory: Memory
    found: Found

    @property
    def plan(self) -> Plan:
        assert self.found.outcome.plan is not None
        return self.found.outcome.plan

    @property
    def taken(self) -> int:
        return height(self.memory.problem, self.plan)

    @property
    def alignment(self) -> int:
        return lcm(*(buffer.alignment for buffer in self.memory.problem.buffers))


def plan_models(args: argparse.Namespace, planners: Sequence[str] | None, limits: Limits) -> int:
    """
    Plan every memory of several models together, print what they take, and write the plans where `--output` says.

    Raises UserError where a model does not fit, alone or beside the others.
    """
    names = _names([Path(each) for each in args.problem])
    by_scope: dict[str, list[_Planned]] = {}
    for path, model in names.items():
        # Offsets that a program has are those of its own memory: it is planned anew.
        memories = load_memories(args, path, planners or (DEFAULT_PLANNER,))
        for memory in memories:
            best = best_of(memory.runs(limits))
            if not best.fits:
                fault = does_not_fit(best, limits, str(path))
                message = f"{memory.place}: {fault.message}"
                raise UserError(message, loc=fault.loc, notes=fault.notes, status=fault.status)
            by_scope.setdefault(memory.scope, []).append(_Planned(model, memory, best))
    if not by_scope:
        raise UserError("no model has buffers to plan", loc=args.problem[0])
    regions = {scope: _regions(scope, planned, args.share, limits) for scope, planned in by_scope.items()}
    print("\n".join(_table(by_scope, regions, list(names.values()))))
    if args.output is not None:
        _write(args, by_scope, regions)
    return 0


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """Each model by the name of its file; raises UserError for two of one name, of which one would hide the other."""
    for name, count in Counter(path.stem for path in paths).items():
        if count > 1:
            raise UserError(f'{count} models are called "{name}"', notes=["give them other file names"], status=USAGE)
    return {path: path.stem for path in paths}


def _regions(scope: str, planned: Sequence[_Planned], share: str, limits: Limits) -> dict[str, int]:
    """
    Where the region of each model begins in a memory; raises UserError where they do not fit.

    Functions of one model that are planned alone never run at once: their memories share the region of the model.
    """
    sizes: dict[str, int] = {}
    steps: dict[str, int] = {}
    for each in planned:
        sizes[each.model] = max(sizes.get(each.model, 0), each.taken)
        steps[each.model] = lcm(steps.get(each.model, 1), each.alignment)
    spans = [(turn, turn + 1) if share == "time" else (0, 1) for turn in range(len(sizes))]
    buffers = tuple(
        Buffer(model, (span,), size, steps[model]) for (model, size), span in zip(sizes.items(), spans, strict=True)
    )
    problem = Problem(buffers, planned[0].memory.problem.capacity)
    plan = solve(problem, limits=limits).plan
    assert plan is not None
    if problem.capacity is not None and (taken := height(problem, plan)) > problem.capacity:
        notes = [f"{model}: {size:,} bytes" for model, size in sizes.items()]
        notes.append(f"one after the other, --share time, they take {max(sizes.values()):,} bytes")
        raise UserError(f"side by side the models take {taken:,} of {problem.capacity:,} bytes of {scope}", notes=notes)
    for each in planned:
        # The regions were checked by `solve`; this is each plan at its place in them, the alignments above all.
        validate(each.memory.problem, _moved(each, plan.offsets[each.model]))
    return dict(plan.offsets)


def _moved(each: _Planned, by: int) -> Plan:
    return Plan({id: offset + by for id, offset in each.plan.offsets.items()})


def _table(by_scope: dict[str, list[_Planned]], regions: dict[str, dict[str, int]], models: Sequence[str]) -> list[str]:
    """A row for each memory: where each model lies in it, what all take, and what they would alone."""
    rows: list[tuple[str, ...]] = [("memory", "capacity", "alone, in all", "together", *models)]
    for scope, planned in by_scope.items():
        sizes = {m: max((each.taken for each in planned if each.model == m), default=0) for m in models}
        ends = {m: regions[scope][m] + sizes[m] for m in regions[scope]}
        capacity = planned[0].memory.problem.capacity
        spans = [f"[{regions[scope][m]:,}, {ends[m]:,})" if m in ends else "-" for m in models]
        limit = "-" if capacity is None else f"{capacity:,}"
        rows.append((scope, limit, f"{sum(sizes.values()):,}", f"{max(ends.values()):,}", *spans))
    return aligned(rows, left=(0,))


def _write(args: argparse.Namespace, by_scope: dict[str, list[_Planned]], regions: dict[str, dict[str, int]]) -> None:
    """A folder with the plans, each at its place in the shared memory, in a folder of each model."""
    from penstock.passes.planning.minimalloc_csv import write_csv
    from penstock.runtime.folders import write_folder

    texts: dict[str, str] = {}
    for scope, planned in by_scope.items():
        for each in planned:
            owner = f"{each.memory.memory.function}." if each.memory.memory.function else ""
            problem = replace(each.memory.problem, capacity=None)
            texts[f"{each.model}/{owner}{scope}.csv"] = write_csv(problem, _moved(each, regions[scope][each.model]))

    def fill(folder: Path) -> None:
        for name, text in texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_whole(folder / name, text)

    write_folder(Path(args.output), "folder of plans", fill)
    say(args, f"{args.output}: {len(texts)} plans")
