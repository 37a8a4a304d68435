# SPDX-License-Identifier: Apache-2.0
"""From the optimum of one dimension, space, to one with places: pack, and forbid only what does not pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal, Protocol

from penstock.passes.planning import registry
from penstock.passes.planning.on_chip.eager import onsram_eager
from penstock.passes.planning.on_chip.pinning import greedy, onsram_static, toplib
from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem, RunSpans, memory
from penstock.passes.planning.on_chip.registry import Options
from penstock.passes.planning.on_chip.selection import Placing, Selection, cost, place, placed
from penstock.passes.planning.problem import Buffer, Limits, PlanError, Problem

MAX_UNPROVED = 4
"""Rejected sets that the planner found no places for, but could not prove to have none, before it gives up."""


@dataclass(frozen=True)
class Condition:
    """Something that an answer says of a tensor: that a gap is kept, or that an access is resident or streamed."""

    what: Literal["kept", "resident", "streamed"]
    tensor: int
    """Its number."""
    index: int
    """Of the gap or the access."""


@dataclass(frozen=True)
class SpaceSolution:
    """What a solver of one dimension says."""

    spans: Sequence[RunSpans] | None
    """The runs of every tensor; None if it ran out of time before it found any."""
    bound: int
    """Bytes that no answer can do without, as far as it proved."""


class Solver(Protocol):
    """Minimises the bytes moved, whatever the places."""

    def solve(self, seconds: float | None) -> SpaceSolution:
        """The best answer, or the best in time; raises PlanError if there is none."""
        ...

    def forbid(self, conditions: Sequence[Condition]) -> None:
        """From now on, not all of these hold in an answer."""
        ...


def refine(problem: OnChipProblem, solver: Solver, options: Options) -> OnChipAllocation:
    """
    The fewest bytes over the edge of the chip, proved, and placed.

    What the solver keeps is packed. If a set of runs is proved to have no offsets, all of them together are forbidden,
    and the solver runs again. Where the planner finds no offsets and no proof either, they are forbidden as well,
    but no later bound counts. Raises PlanError if what has to be on chip does not fit.
    """
    started = monotonic()
    bound = 0
    unproved = 0
    latest: Selection | None = None
    while unproved <= MAX_UNPROVED:
        left = None if options.seconds is None else max(options.seconds - (monotonic() - started), 0.0)
        if left == 0.0:
            break
        try:
            answer = solver.solve(left)
        except PlanError:
            if not unproved:
                raise
            break
        if not unproved:
            bound = max(bound, answer.bound)
        if answer.spans is None or (selection := _selection(problem, answer.spans)) is None:
            break
        latest = selection
        limits = Limits(seconds=left, good_enough=problem.capacity)
        found = place(problem, selection.allocation(), options.planner, limits)
        if found.fits:
            return replace(found.allocation, bound=bound)
        unproved += not found.hopeless
        solver.forbid(_violated(problem, found, options.planner))
    best = min(_feasible(problem, latest, options), key=lambda found: found.off_chip_bytes)
    return replace(best, bound=max(bound, best.bound))


def _feasible(problem: OnChipProblem, latest: Selection | None, options: Options) -> list[OnChipAllocation]:
    """Answers that need no proof: those of simple strategies, and what has places of the latest selection."""
    answers: list[OnChipAllocation] = []
    failure = PlanError("what has to be on chip does not fit")
    for strategy in (greedy, toplib, onsram_static, onsram_eager):
        try:
            answers.append(strategy(problem, options))
        except PlanError as error:
            failure = error
    if latest is not None:
        pairs = zip(problem.tensors, latest.spans, latest.needed, strict=True)
        worth = [(cost(tensor, needed) - cost(tensor, spans)) / max(tensor.size, 1) for tensor, spans, needed in pairs]
        order = [index for index in sorted(range(len(worth)), key=lambda index: -worth[index]) if worth[index]]
        try:
            answers.append(placed(latest, order, options.planner))
        except PlanError as error:
            failure = error
    if not answers:
        raise failure
    return answers


def _selection(problem: OnChipProblem, spans: Sequence[RunSpans]) -> Selection | None:
    """The runs, without single accesses that save nothing; None if they take more than there is."""
    selection = Selection(problem)
    for index, each in enumerate(spans):
        selection.put(index, each)
    for index, tensor in enumerate(problem.tensors):
        for span in spans[index]:
            if span[0] < span[1] or span in selection.needed[index]:
                continue
            without = tuple(other for other in selection.spans[index] if other != span)
            if cost(tensor, without) <= cost(tensor, selection.spans[index]) and selection.fits(index, without):
                selection.put(index, without)
    fits = all(taken <= selection.capacity for taken in selection.taken)
    return selection if fits else None


def _violated(problem: OnChipProblem, placing: Placing, planner: str) -> list[Condition]:
    """
    What must not be said again: the runs and blocks of a smallest set that has no places, as far as is proved; without
    a proof, what is on chip together with something that has only found a place outside.
    """
    allocation = placing.allocation
    packing, plan = memory(problem, allocation)
    buffers = list(packing.buffers)
    if placing.hopeless:
        buffers = _smallest(buffers, problem.capacity, planner)
    elif outside := [each for each in buffers if plan.offsets.get(each.id, 0) + each.size > problem.capacity]:
        buffers = [each for each in buffers if any(each.meets(other) for other in outside)]
    number = {tensor.id: index for index, tensor in enumerate(problem.tensors)}
    runs = {f"{run.tensor}:{run.first}": run for run in allocation.runs}
    conditions: dict[Condition, None] = {}
    for buffer in buffers:
        if (run := runs.get(buffer.id)) is None:
            # The block of a step is as large as it is because of what is streamed.
            conditions |= dict.fromkeys(_staged(problem, allocation, buffer.lower))
        elif run.first == run.last:
            conditions[Condition("resident", number[run.tensor], run.first)] = None
        else:
            gaps = range(run.first, run.last)
            conditions |= dict.fromkeys(Condition("kept", number[run.tensor], gap) for gap in gaps)
    return list(conditions)


def _staged(problem: OnChipProblem, allocation: OnChipAllocation, step: int) -> list[Condition]:
    """That what a step streams, and stages, is streamed."""
    found: list[Condition] = []
    for number, tensor in enumerate(problem.tensors):
        for index, access in enumerate(tensor.accesses):
            if access.step == step and access.staging and index not in allocation.resident(tensor.id):
                found.append(Condition("streamed", number, index))
    return found


def _smallest(buffers: list[Buffer], capacity: int, planner: str) -> list[Buffer]:
    """Those of the buffers that have no places, of which no one can be left out, as far as is proved."""
    left = sorted(buffers, key=lambda each: (each.size * each.duration, each.id))
    count = len(left)
    while count := count // 2:
        start = 0
        while start < len(left):
            fewer = left[:start] + left[start + count :]
            outcome = registry.solve(Problem(tuple(fewer), capacity), planner, Limits(good_enough=capacity))
            if outcome.infeasible:
                left = fewer
            else:
                start += count
    return left
