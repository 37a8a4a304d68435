# SPDX-License-Identifier: Apache-2.0
"""What strategies share: runs of tensors without offsets, what they cost and take at each step, and offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd

from penstock.passes.planning import registry
from penstock.passes.planning.on_chip.problem import (
    OnChipAllocation,
    OnChipProblem,
    ResidentRun,
    RunSpan,
    RunSpans,
    Tensor,
    counted,
    memory,
    movements_of,
)
from penstock.passes.planning.problem import Limits, PlanError, height


def cost(tensor: Tensor, spans: RunSpans) -> int:
    """Bytes over the edge of the chip of a tensor with these runs."""
    return sum(each.bytes for each in movements_of(tensor, spans))


def forced(tensor: Tensor) -> RunSpans:
    """The runs that there have to be: of the accesses that may not be streamed, each alone."""
    return tuple((index, index) for index, access in enumerate(tensor.accesses) if not access.may_stream)


def stretches(tensor: Tensor) -> RunSpans:
    """The longest runs that there may be."""
    found: list[RunSpan] = []
    for index, access in enumerate(tensor.accesses):
        if not access.may_reside:
            continue
        if found and found[-1][1] == index - 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return tuple(found)


def including(spans: RunSpans, new: RunSpan) -> RunSpans:
    """The runs with one more, which swallows those that it covers."""
    others = (span for span in spans if span[1] < new[0] or new[1] < span[0])
    return tuple(sorted([*others, new]))


def saved(tensor: Tensor, spans: RunSpans, more: RunSpan) -> int:
    """Bytes that one more run of a tensor saves."""
    return cost(tensor, spans) - cost(tensor, including(spans, more))


def lifetime(tensor: Tensor, span: RunSpan) -> int:
    """Steps of a run, both ends included."""
    return tensor.accesses[span[1]].step - tensor.accesses[span[0]].step + 1


def cheapest(tensor: Tensor, prices: Sequence[float] = ()) -> tuple[float, RunSpans]:
    """
    The runs of least cost where a byte on chip costs `prices[t]` at step t, and that cost.

    The cost is that of the bytes moved, of the bytes on chip from the step of the first to that of the last access
    of each run, and of those staged. Without prices it is the least that the tensor can move. Of equal ones the
    runs that keep more are chosen.
    """
    until = list(accumulate(prices, initial=0.0))

    def price(lower: int, upper: int) -> float:
        """Of one byte over these steps."""
        return until[upper] - until[lower] if prices else 0.0

    states: dict[str, tuple[float, RunSpans]] = {"streamed": (0.0, ())}
    for index, access in enumerate(tensor.accesses):
        here = price(access.step, access.step + 1)
        reached: dict[str, tuple[float, RunSpans]] = {}
        for state, (before, spans) in states.items():
            closed = before + (tensor.moved if state == "newer" else 0)
            if access.may_reside:
                writes = tensor.writes(index)
                if state != "streamed":
                    since = tensor.accesses[index - 1].step + 1
                    value = before + tensor.size * (price(since, access.step) + here)
                    run = (*spans[:-1], (spans[-1][0], index))
                    _improve(reached, "newer" if writes or state == "newer" else "same", value, run)
                fill = tensor.moved if index or tensor.source else 0
                value = closed + fill + tensor.size * here
                _improve(reached, "newer" if writes else "same", value, (*spans, (index, index)))
            if access.may_stream:
                value = closed + tensor.streamed(index) + access.staging * here
                _improve(reached, "streamed", value, spans)
        states = reached
    back = tensor.moved if tensor.output else 0
    ends = [(value + (back if state == "newer" else 0), spans) for state, (value, spans) in states.items()]
    return min(ends, key=lambda end: end[0])


def _improve(states: dict[str, tuple[float, RunSpans]], state: str, value: float, spans: RunSpans) -> None:
    """Keep the better way to a state; the first of equal ones."""
    if state not in states or value < states[state][0]:
        states[state] = (value, spans)


def unconstrained_bytes(problem: OnChipProblem) -> int:
    """The bytes moved if the memory had no end: what no answer can do without."""
    return sum(round(cheapest(tensor)[0]) for tensor in problem.tensors)


class Selection:
    """
    Runs of every tensor, and the bytes that they take at each step, workspace and staging included.

    Sizes count as the multiples of the common alignment that they take in any packing.
    """

    def __init__(self, problem: OnChipProblem):
        self.problem = problem
        self.grain = gcd(problem.workspace_alignment, *(tensor.alignment for tensor in problem.tensors))
        self.capacity = self.rounded(problem.capacity)
        self.spans: list[RunSpans] = [() for _ in problem.tensors]
        self.taken = [self.capacity - space for space in self.space]
        for tensor in problem.tensors:
            for access in tensor.accesses:
                self.taken[access.step] += access.staging
        for index, tensor in enumerate(problem.tensors):
            self.put(index, forced(tensor))
        self._keep_what_takes_less()
        self.needed = list(self.spans)
        """Of each tensor the runs that there have to be."""
        for step, taken in enumerate(self.taken):
            if taken > self.capacity:
                raise PlanError(f"step {step} needs {taken} bytes on chip, of {problem.capacity}")

    def _keep_what_takes_less(self) -> None:
        """Where a step has no room to stream what takes less on chip than is staged of it: keep that, the cheapest
        first."""
        candidates: list[tuple[int, int, int]] = []
        for number, tensor in enumerate(self.problem.tensors):
            for index, access in enumerate(tensor.accesses):
                if access.may_reside and access.may_stream and self.rounded(tensor.size) < access.staging:
                    candidates.append((-saved(tensor, self.spans[number], (index, index)), number, index))
        for _, number, index in sorted(candidates):
            if self.taken[self.problem.tensors[number].accesses[index].step] > self.capacity:
                self.put(number, including(self.spans[number], (index, index)))

    def rounded(self, size: int) -> int:
        """A size as the multiple of the common alignment that it takes."""
        return -(-size // self.grain) * self.grain

    @property
    def space(self) -> list[int]:
        """The bytes that each step leaves beside its workspace."""
        workspace = (*self.problem.workspace, *[0] * (self.problem.steps - len(self.problem.workspace)))
        return [self.capacity - self.rounded(size) for size in workspace]

    def changes(self, index: int, spans: RunSpans) -> Iterator[tuple[int, int]]:
        """What one tensor with these runs adds at which step, as (step, bytes)."""
        tensor = self.problem.tensors[index]
        size = self.rounded(tensor.size)
        for first, last in spans:
            for step in range(tensor.accesses[first].step, tensor.accesses[last].step + 1):
                yield step, size
            for access in tensor.accesses[first : last + 1]:
                if access.staging:
                    yield access.step, -access.staging

    def put(self, index: int, spans: RunSpans) -> None:
        """Give one tensor these runs instead of those that it has."""
        for step, count in self.changes(index, self.spans[index]):
            self.taken[step] -= count
        self.spans[index] = spans
        for step, count in self.changes(index, spans):
            self.taken[step] += count

    def fits(self, index: int, spans: RunSpans) -> bool:
        """Whether there are bytes enough, at every step, for one tensor to have these runs instead."""
        before = self.spans[index]
        self.put(index, spans)
        changed = (*self.changes(index, before), *self.changes(index, spans))
        found = all(self.taken[step] <= self.capacity for step, _ in changed)
        self.put(index, before)
        return found

    def bytes_moved(self) -> int:
        """Bytes over the edge of the chip, all tensors together."""
        return sum(cost(tensor, spans) for tensor, spans in zip(self.problem.tensors, self.spans, strict=True))

    def allocation(self) -> OnChipAllocation:
        """The runs as an `OnChipAllocation` in which everything lies at 0."""
        runs = tuple(
            ResidentRun(tensor.id, first, last, 0)
            for tensor, spans in zip(self.problem.tensors, self.spans, strict=True)
            for first, last in spans
        )
        return counted(self.problem, OnChipAllocation(runs))


@dataclass(frozen=True)
class Placing:
    """What a planner made of an allocation."""

    allocation: OnChipAllocation
    """With the places that it found, which may be outside of the memory; with none where it found none."""
    fits: bool
    """Whether all of them are inside."""
    hopeless: bool
    """Whether it is proved that there are none inside."""


def place(problem: OnChipProblem, allocation: OnChipAllocation, planner: str, limits: Limits) -> Placing:
    """Ask a planner for the places of an allocation. That it finds none inside proves nothing by itself."""
    packing, _ = memory(problem, allocation)
    outcome = registry.solve(packing, planner, limits)
    if outcome.plan is None:
        return Placing(allocation, not packing.buffers, outcome.infeasible)
    offsets = outcome.plan.offsets
    runs = tuple(replace(run, offset=offsets[f"{run.tensor}:{run.first}"]) for run in allocation.runs)
    blocks = {buffer.lower: offsets[buffer.id] for buffer in packing.buffers[len(runs) :]}
    found = replace(allocation, runs=runs, workspace=blocks)
    return Placing(found, height(packing, outcome.plan) <= problem.capacity, outcome.infeasible)


def placed(selection: Selection, order: Sequence[int], planner: str) -> OnChipAllocation:
    """
    The runs of a selection with places. While the planner finds none, a tensor in `order` gives up the runs that were
    put outside of the memory: of such tensors, the last one.

    Raises PlanError if there is no place even for what has to be on chip.
    """
    problem = selection.problem
    limits = Limits(good_enough=problem.capacity)
    sizes = {tensor.id: tensor.size for tensor in problem.tensors}
    left = list(order)
    while True:
        found = place(problem, selection.allocation(), planner, limits)
        if found.fits:
            return replace(found.allocation, bound=unconstrained_bytes(problem))
        runs = [run for run in found.allocation.runs if run.offset + sizes[run.tensor] > problem.capacity]
        for index in reversed(left):
            tensor = problem.tensors[index]
            outside = {(run.first, run.last) for run in runs if run.tensor == tensor.id} - set(selection.needed[index])
            if outside:
                selection.put(index, _without(selection.spans[index], outside, selection.needed[index]))
                break
        else:
            if not left:
                raise PlanError(f'"{planner}" finds no offsets for what has to be on chip')
            last = left.pop()
            selection.put(last, selection.needed[last])


def _without(spans: RunSpans, dropped: AbstractSet[RunSpan], needed: RunSpans) -> RunSpans:
    """Runs without some of them, but for those needed of what these cover."""
    has_to = {(at, at) for first, last in dropped for at in range(first, last + 1)} & set(needed)
    return tuple(sorted({span for span in spans if span not in dropped} | has_to))
