# SPDX-License-Identifier: Apache-2.0
"""The strategies that keep a tensor whole or not at all, and the points of reference: nothing, one step, no limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.passes.planning.on_chip.problem import (
    OnChipAllocation,
    OnChipProblem,
    RunSpan,
    RunSpans,
    Tensor,
    movements_of,
)
from penstock.passes.planning.on_chip.registry import Options
from penstock.passes.planning.on_chip.selection import (
    Selection,
    cheapest,
    cost,
    including,
    lifetime,
    placed,
    saved,
    stretches,
)


def none(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """Stream all that can be streamed."""
    return placed(Selection(problem), (), options.planner)


def one_step(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """
    Keep what a step makes for the very next one, if there is room: OnSRAM's point of reference.

    See Pal et al., "OnSRAM: Efficient Inter-Node On-Chip Scratchpad Management", ACM TECS 2022.
    """
    selection = Selection(problem)
    order: list[int] = []
    for index, tensor in sorted(enumerate(problem.tensors), key=lambda each: each[1].accesses[0].step):
        ends = tensor.accesses[:2]
        if tensor.source or len(ends) < 2 or ends[1].step != ends[0].step + 1:
            continue
        spans = including(selection.spans[index], (0, 1))
        if all(access.may_reside for access in ends) and saved(tensor, selection.spans[index], (0, 1)) > 0:
            if selection.fits(index, spans):
                selection.put(index, spans)
                order.append(index)
    return placed(selection, order, options.planner)


def unlimited(problem: OnChipProblem) -> OnChipAllocation:
    """What could be had in a memory without end: a point of reference, and no answer, as nothing has a place."""
    selection = Selection(replace(problem, capacity=1 << 62))
    for index, tensor in enumerate(problem.tensors):
        selection.put(index, cheapest(tensor)[1])
    found = selection.allocation()
    return replace(found, bound=found.off_chip_bytes)


Worth = Callable[[Tensor, int, RunSpan], float]
"""Of keeping a tensor over a stretch of its accesses, with the bytes that this saves."""


def pinned(problem: OnChipProblem, worth: Worth) -> tuple[Selection, list[int]]:
    """
    Tensors kept over their whole lives, those of most worth first, as long as there are bytes enough; and their
    numbers in that order.
    """
    selection = Selection(problem)
    ranked: list[tuple[float, int, int, RunSpan]] = []
    for index, tensor in enumerate(problem.tensors):
        for span in stretches(tensor):
            if (gain := saved(tensor, selection.spans[index], span)) > 0:
                ranked.append((-worth(tensor, gain, span), -gain, index, span))
    order: list[int] = []
    for _, _, index, span in sorted(ranked):
        tensor = problem.tensors[index]
        spans = including(selection.spans[index], span)
        if cost(tensor, spans) < cost(tensor, selection.spans[index]) and selection.fits(index, spans):
            selection.put(index, spans)
            order.append(index)
    return selection, list(dict.fromkeys(order))


def toplib(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """
    Promote off-chip data into what is left: a knapsack by bytes saved a byte taken, each over its own live range.

    Ours in detail; see Li et al., "TOpLib", NPC 2020, of which it is the last step. Of equal ones the one that lives
    for fewer steps goes first.
    """
    longest = problem.steps + 1

    def worth(tensor: Tensor, gain: int, span: RunSpan) -> float:
        return gain / max(tensor.size, 1) - lifetime(tensor, span) / longest

    return placed(*pinned(problem, worth), options.planner)


def saved_a_step(tensor: Tensor, gain: int, span: RunSpan) -> float:
    """Accesses saved for each step that the tensor stays."""
    return gain / max(tensor.moved, 1) / lifetime(tensor, span)


def greedy(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """Keep whole lives by accesses saved a step that they take."""
    return placed(*pinned(problem, saved_a_step), options.planner)


def step_bytes(problem: OnChipProblem, spans: Sequence[RunSpans]) -> list[int]:
    """Bytes over the edge of the chip at each step."""
    found = [0] * problem.steps
    for tensor, each in zip(problem.tensors, spans, strict=True):
        for movement in movements_of(tensor, each):
            found[movement.step] += movement.bytes
    return found


def step_time(problem: OnChipProblem, step: int, moved: int) -> float:
    """How long a step takes that moves so many bytes: it computes and moves at the same time."""
    compute = problem.compute[step] if step < len(problem.compute) else 0.0
    return max(compute, moved / problem.bandwidth)


def onsram_static(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """
    Pin whole lives by benefit / (size x steps); the benefit is the time saved at the steps that access the tensor.

    A step takes the longer of computing and moving, so nothing is gained where it computes for longer. Pinned is what
    fits beside the workspace and the staging of what is not pinned; after each pin the benefits are found anew, and
    it ends when nothing is gained. Ours in detail; see Pal et al., "OnSRAM", ACM TECS 2022.
    """
    selection = Selection(problem)
    moved = step_bytes(problem, selection.spans)
    readers: list[set[int]] = [set() for _ in range(problem.steps)]
    for index, tensor in enumerate(problem.tensors):
        for access in tensor.accesses:
            readers[access.step].add(index)

    def best(index: int) -> tuple[float, RunSpan] | None:
        """The stretch of a tensor of which pinning gains most, and its rank."""
        found: tuple[float, RunSpan] | None = None
        tensor = problem.tensors[index]
        for span in stretches(tensor):
            spans = including(selection.spans[index], span)
            if spans == selection.spans[index]:
                continue
            gain = sum(
                step_time(problem, step, moved[step]) - step_time(problem, step, moved[step] + change)
                for step, change in _changes(tensor, selection.spans[index], spans).items()
            )
            rank = gain / (max(tensor.size, 1) * lifetime(tensor, span))
            if gain > 0 and (found is None or rank > found[0]) and selection.fits(index, spans):
                found = (rank, span)
        return found

    ranks = {index: best(index) for index in range(len(problem.tensors))}
    order: list[int] = []
    while True:
        known = [(-found[0], index, found[1]) for index, found in ranks.items() if found is not None]
        if not known:
            return placed(selection, list(dict.fromkeys(order)), options.planner)
        _, index, span = min(known)
        tensor = problem.tensors[index]
        spans = including(selection.spans[index], span)
        for step, change in _changes(tensor, selection.spans[index], spans).items():
            moved[step] += change
        selection.put(index, spans)
        order.append(index)
        steps = range(tensor.accesses[0].step, tensor.accesses[-1].step + 1)
        for other in sorted({index} | {each for step in steps for each in readers[step]}):
            ranks[other] = best(other)
        for other, found in ranks.items():
            if found is not None and not selection.fits(other, including(selection.spans[other], found[1])):
                ranks[other] = best(other)


def _changes(tensor: Tensor, before: RunSpans, after: RunSpans) -> dict[int, int]:
    """By how much the bytes change that a tensor moves at each step."""
    found: dict[int, int] = {}
    for spans, sign in ((after, 1), (before, -1)):
        for movement in movements_of(tensor, spans):
            found[movement.step] = found.get(movement.step, 0) + sign * movement.bytes
    return found
