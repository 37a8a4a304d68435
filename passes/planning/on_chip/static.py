"""OnSRAM's static strategy: pin what shortens the program most for the bytes and the steps that it takes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem, Tensor
from penstock.passes.planning.on_chip.registry import Options
from penstock.passes.planning.on_chip.selection import Selection, placed
from penstock.passes.planning.on_chip.single import Span, Spans, including, lifetime, moves, stretches


def step_bytes(problem: OnChipProblem, spans: Sequence[Spans]) -> list[int]:
    """Bytes over the edge of the chip at each step."""
    found = [0] * problem.steps
    for tensor, each in zip(problem.tensors, spans, strict=True):
        for step, count in moves(tensor, each):
            found[step] += count
    return found


def step_time(problem: OnChipProblem, step: int, moved: int) -> float:
    """How long a step takes that moves so many bytes: it computes and moves at the same time."""
    compute = problem.compute[step] if step < len(problem.compute) else 0.0
    return max(compute, moved / problem.bandwidth)


def total_time(problem: OnChipProblem, allocation: OnChipAllocation) -> float:
    """How long the program takes."""
    spans = [
        tuple((run.first, run.last) for run in allocation.runs if run.tensor == tensor.id) for tensor in problem.tensors
    ]
    return sum(step_time(problem, step, moved) for step, moved in enumerate(step_bytes(problem, spans)))


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

    def best(index: int) -> tuple[float, Span] | None:
        """The stretch of a tensor of which pinning gains most, and its rank."""
        found: tuple[float, Span] | None = None
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


def _changes(tensor: Tensor, before: Spans, after: Spans) -> dict[int, int]:
    """By how much the bytes change that a tensor moves at each step."""
    found: dict[int, int] = {}
    for step, count in moves(tensor, after):
        found[step] = found.get(step, 0) + count
    for step, count in moves(tensor, before):
        found[step] = found.get(step, 0) - count
    return found
