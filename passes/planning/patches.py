# SPDX-License-Identifier: Apache-2.0
"""
Which parts of a network are computed by spatial patches, and in how many, so that it fits a memory.

A chain of windowed and elementwise steps has one result. A patch of the result needs a patch of everything before it,
larger by the halo of each window; where patches overlap, what lies in the overlap is computed once for each of them.
The fewer pixels a patch has, the less memory, and the more is computed twice. See Alwani et al., "Fused-Layer CNN
Accelerators", MICRO 2016, and Lin et al., "MCUNetV2: Memory-Efficient Patch-based Inference for Tiny Deep Learning",
NeurIPS 2021.

Units: bytes, multiply-accumulates, and elements of a spatial dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
"""Patches along one dimension that are tried."""
MOST_PATCHES = 64
"""Patches of a chain at most: each of them is program text."""
LONGEST = 32
"""Steps of a chain at most."""


class Window(NamedTuple):
    """What an element of a result reads along one dimension: `extent` elements, `stride` after those of the last."""

    extent: int = 1
    stride: int = 1
    before: int = 0
    """Elements of padding before the first."""


class Reading(NamedTuple):
    """The elements [start, stop) that a patch reads along a dimension, and the padding around them."""

    start: int
    stop: int
    before: int
    after: int


def reading(window: Window, start: int, stop: int, size: int) -> Reading | None:
    """What the elements [start, stop) of a result read of `size` elements; None if some of that is padding only."""
    first = start * window.stride - window.before
    end = (stop - 1) * window.stride - window.before + window.extent
    inside = Reading(max(first, 0), min(end, size), max(-first, 0), max(end - size, 0))
    return inside if inside.start < inside.stop else None


class Read(NamedTuple):
    """One operand of a step: the number of a value, and its window along each dimension."""

    value: int
    windows: tuple[Window, ...]


@dataclass(frozen=True)
class Step:
    """Makes the value whose number is that of the step plus one."""

    reads: tuple[Read, ...]
    sizes: tuple[int, ...]
    """Of the spatial dimensions of the result."""
    pixel_bytes: int
    pixel_macs: int
    can_patch: bool = True
    """Whether it has spatial dimensions, so that a part of the result needs a part of the operands."""
    is_view: bool = False
    """Whether its result has no bytes of its own, but those of what it reads."""
    inside: int = 0
    """Bytes that it needs while it is executed, of one that has no patches."""


class Spans(NamedTuple):
    """The elements [start, stop) of each value that the patches of a chain need along one dimension."""

    of_patches: tuple[tuple[tuple[int, int] | None, ...], ...]
    """For each patch, for each value from the input of the chain on; None of a value that nothing needs."""

    @property
    def longest(self) -> tuple[int, ...]:
        """The most elements of each value in one patch."""
        lengths = ([0 if span is None else span[1] - span[0] for span in patch] for patch in self.of_patches)
        return tuple(map(max, zip(*lengths, strict=True)))

    @property
    def total(self) -> tuple[int, ...]:
        """The elements of each value in all patches."""
        lengths = ([0 if span is None else span[1] - span[0] for span in patch] for patch in self.of_patches)
        return tuple(map(sum, zip(*lengths, strict=True)))


@dataclass(frozen=True)
class Chain:
    """Steps of a network from `first` up to `last`, the patches along each dimension, and what they cost."""

    first: int
    last: int
    patches: tuple[int, ...]
    peak: int
    macs: int

    @property
    def is_patched(self) -> bool:
        """Whether it is in more than one patch."""
        return prod(self.patches) > 1


class PatchPlan(NamedTuple):
    """Chains that follow each other and hold every step."""

    chains: tuple[Chain, ...]

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once."""
        return max((chain.peak for chain in self.chains), default=0)

    @property
    def macs(self) -> int:
        """Of all chains, what is computed again with them."""
        return sum(chain.macs for chain in self.chains)


@dataclass(frozen=True)
class PatchProblem:
    """
    Steps in the order in which they are executed. Value 0 is the input of the first one.

    What nothing allocates, the inputs and the results of the program, has 0 bytes a pixel.
    """

    input_sizes: tuple[int, ...]
    input_bytes: int
    """For each pixel of the input."""
    steps: tuple[Step, ...]

    def sizes(self, value: int) -> tuple[int, ...]:
        """Of the spatial dimensions of a value."""
        return self.steps[value - 1].sizes if value else self.input_sizes

    def bytes_of(self, value: int) -> int:
        """All of a value."""
        pixel = self._pixel_bytes(value - 1) if value else self.input_bytes
        return pixel * prod(self.sizes(value))

    def _pixel_bytes(self, number: int) -> int:
        return 0 if self.steps[number].is_view else self.steps[number].pixel_bytes

    @property
    def macs(self) -> int:
        """Of all steps, each computed once."""
        return sum(step.pixel_macs * prod(step.sizes) for step in self.steps)

    @cached_property
    def _last_reads(self) -> tuple[int, ...]:
        """The last step that reads each value, or a view of it; the one that makes it where none does."""
        last = [max(value - 1, 0) for value in range(len(self.steps) + 1)]
        for number, step in reversed(list(enumerate(self.steps))):
            for read in step.reads:
                last[read.value] = max(last[read.value], last[number + 1] if step.is_view else number)
        return tuple(last)

    @cached_property
    def _deaths(self) -> tuple[tuple[int, ...], ...]:
        """The values that no step after each one reads."""
        dead: list[list[int]] = [[] for _ in range(len(self.steps) + 1)]
        for value, number in enumerate(self._last_reads):
            dead[number].append(value)
        return tuple(map(tuple, dead))

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """The steps before which only the result of the one before is alive: where chains begin and end."""
        reaches = 0
        found = [0]
        for number in range(1, len(self.steps) + 1):
            reaches = max(reaches, self._last_reads[number - 1])
            if reaches < number:
                found.append(number)
        return tuple(found)

    def spans(self, first: int, last: int, dim: int, count: int) -> Spans | None:
        """
        What `count` patches of the result of steps [first, last) need along `dim` of each value from `first` on, None
        if there are no such patches.
        """
        size = self.sizes(last)[dim]
        if count > size:
            return None
        patches: list[tuple[tuple[int, int] | None, ...]] = []
        for patch in range(count):
            needed: list[tuple[int, int] | None] = [None] * (last - first + 1)
            needed[-1] = (size * patch // count, size * (patch + 1) // count)
            for number in reversed(range(first, last)):
                if (box := needed[number + 1 - first]) is None:
                    continue
                for value, windows in self.steps[number].reads:
                    found = reading(windows[dim], *box, self.sizes(value)[dim])
                    if found is None:
                        return None
                    old = needed[value - first]
                    hull = found[:2] if old is None else (min(old[0], found.start), max(old[1], found.stop))
                    needed[value - first] = hull
            patches.append(tuple(needed))
        return Spans(tuple(patches))

    def chain(self, first: int, last: int, spans: Sequence[Spans]) -> Chain:
        """Steps [first, last) in patches."""
        longest = [prod(each) for each in zip(*(one.longest for one in spans), strict=True)]
        total = [prod(each) for each in zip(*(one.total for one in spans), strict=True)]
        # The operand of a chain is whole, and the patches are written into what is whole of its result.
        held = self.bytes_of(first) + self.bytes_of(last)
        alive = most = 0
        for number in range(first, last):
            if number + 1 < last:
                alive += self._pixel_bytes(number) * longest[number + 1 - first]
            most = max(most, alive)
            for value in self._deaths[number]:
                if value > first:
                    alive -= self._pixel_bytes(value - 1) * longest[value - first]
        macs = sum(self.steps[number].pixel_macs * total[number + 1 - first] for number in range(first, last))
        return Chain(first, last, tuple(len(one.of_patches) for one in spans), held + most, macs)

    def _chains_between(self, first: int, last: int) -> Iterator[Chain]:
        rank = len(self.sizes(last))
        counts = COUNTS if all(step.can_patch for step in self.steps[first:last]) else (1,)
        along = [[found for count in counts if (found := self.spans(first, last, dim, count))] for dim in range(rank)]
        found = [
            self.chain(first, last, spans)
            for spans in product(*along)
            if prod(len(each.of_patches) for each in spans) <= MOST_PATCHES
        ]
        # Only what no other beats in both.
        least = None
        for chain in sorted(found, key=lambda chain: (chain.macs, chain.peak, chain.patches)):
            if least is None or chain.peak < least:
                least = chain.peak
                yield chain

    @cached_property
    def chains(self) -> tuple[tuple[Chain, ...], ...]:
        """For each cut the chains that end there."""
        starts = self.cuts
        return tuple(
            tuple(
                chain
                for first in starts[:index]
                if number - first <= LONGEST or first == starts[index - 1]
                for chain in self._between(first, number)
            )
            for index, number in enumerate(starts)
        )

    def _between(self, first: int, last: int) -> Iterator[Chain]:
        if all(step.can_patch for step in self.steps[first:last]):
            yield from self._chains_between(first, last)
        else:
            yield self._whole(first, last)

    def _whole(self, first: int, last: int) -> Chain:
        """Steps of which some have no patches, one after the other."""
        alive = most = self.bytes_of(first)
        for number in range(first, last):
            alive += self.bytes_of(number + 1)
            most = max(most, alive + self.steps[number].inside)
            for value in self._deaths[number]:
                if value >= first:
                    alive -= self.bytes_of(value)
        macs = sum(step.pixel_macs * prod(step.sizes) for step in self.steps[first:last])
        return Chain(first, last, (1,), most, macs)


def least_macs(problem: PatchProblem, limit: int | None = None) -> PatchPlan | None:
    """
    The chains that compute least among those whose peak is within a limit, with the fewest patches; None if none is.

    Exact for chains between the cuts of the problem, of the counts that are tried: a shortest path over the cuts.
    """
    best: dict[int, tuple[tuple[int, int, int], PatchPlan]] = {0: ((0, 0, 0), PatchPlan(()))}
    for number, chains in zip(problem.cuts[1:], problem.chains[1:], strict=True):
        for chain in chains:
            if chain.first not in best or (limit is not None and chain.peak > limit):
                continue
            (macs, patches, peak), plan = best[chain.first]
            key = (macs + chain.macs, patches + prod(chain.patches) * chain.is_patched, max(peak, chain.peak))
            if number not in best or key < best[number][0]:
                best[number] = key, PatchPlan((*plan.chains, chain))
    found = best.get(len(problem.steps))
    return None if found is None else found[1]


def least_peak(problem: PatchProblem) -> int:
    """The least peak of any chains."""
    best = {0: 0}
    for number, chains in zip(problem.cuts[1:], problem.chains[1:], strict=True):
        best[number] = min(max(best[chain.first], chain.peak) for chain in chains)
    return best[len(problem.steps)]


def pareto(problem: PatchProblem) -> Iterator[PatchPlan]:
    """The plans of which none has both a lower peak and no more to compute, from the highest peak to the lowest."""
    limit = None
    while (plan := least_macs(problem, limit)) is not None:
        yield plan
        limit = plan.peak - 1
