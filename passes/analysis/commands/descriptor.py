# SPDX-License-Identifier: Apache-2.0
"""
What a transfer is to its engine: rows at the points of a grid, padding around them, and what that costs.

A descriptor has as many dims as its engine allows. The innermost is a *row*: elements that are adjacent on both sides.
Each of the others steps from row to row with one stride on either side. Neighbouring dims of a box that are contiguous
on both sides share one dim of the descriptor; a dim that is padded may share one with the dims inside it, for its
padding then is so many whole rows of theirs. Nothing else is merged.

Counts and padding of rows are measured in *entries*, granules of the scope on the chip, strides off chip in as many
elements as an entry holds, and those of the other dims in rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from penstock.dialects.machine import DRAM, DmaOp, TargetOp
from penstock.passes.analysis.commands.program import View
from penstock.passes.planning.pipelining import TransferCost


def descriptor_dims(
    box: Sequence[int],
    strides: Sequence[Sequence[int]],
    *,
    max_counts: Sequence[int] = (),
    out_of_bounds: Mapping[int, int] | None = None,
    entry: int = 1,
    pad_max: int | None = None,
) -> list[list[int]]:
    """
    The dims of `box` that each dim of a descriptor spells, innermost first, and in each the innermost first.

    `strides` are those of the box in elements, for each side; `max_counts` what an engine says, outermost first;
    `out_of_bounds` the dims of the box in which it may be out of bounds, so that it is padded or clipped, with the most
    elements that are padded on a side; `entry` the elements of an entry; `pad_max` how much padding a dim of a
    descriptor takes. Neighbours that are contiguous on all sides share one dim, as far as it counts; a dim of
    `out_of_bounds` has nothing outside it in its dim, and inside whole entries, and no more padding than there can be.
    A dim of size 1 needs none if it is always in bounds. Where the elements of the innermost dim are not adjacent, the
    first list is empty: a row is a single element.
    """
    out_of_bounds = out_of_bounds or {}
    limits = max_counts[::-1]
    spelled: list[list[int]] = []
    for dim in reversed(range(len(box))):
        if box[dim] <= 1 and dim not in out_of_bounds:
            continue
        if not spelled and any(side[dim] != 1 for side in strides):
            spelled.append([])
        shared = spelled[-1] if spelled else []
        if shared and shared[-1] not in out_of_bounds:
            inside = prod(box[each] for each in shared)
            follows = all(side[dim] == box[shared[-1]] * side[shared[-1]] for side in strides)
            unit = entry if len(spelled) == 1 else 1
            padded = out_of_bounds.get(dim, 0) * inside // unit
            whole = dim not in out_of_bounds or (inside % entry == 0 and (pad_max is None or padded <= pad_max))
            count = -(-inside * box[dim] // unit)
            if follows and whole and all(count <= limit for limit in limits[len(spelled) - 1 : len(spelled)]):
                shared.append(dim)
                continue
        spelled.append([dim])
    return spelled


def transfer_cost(engine: DmaOp, target: TargetOp) -> TransferCost:
    """How long transfers of an engine occupy its bus."""
    rates = [] if engine.bus_name is None else [target.buses()[engine.bus_name].bytes_per_cycle]
    if engine.own_rate is not None:
        rates.append(engine.own_rate)
    return TransferCost(
        min(rates, key=lambda rate: Fraction(*rate), default=(1, 0)),
        engine.row_overhead_cycles,
        engine.burst_cost,
        engine.padding_rate,
    )


def entry_elements(target: TargetOp, scopes: Sequence[str], element_bytes: Sequence[int]) -> int:
    """How many elements an entry holds on the chip, of a transfer between these scopes; of two, where it ends."""
    on_chip = [(scope, size) for scope, size in zip(scopes, element_bytes, strict=True) if scope != DRAM]
    if not on_chip:
        return 1
    scope, size = on_chip[-1]
    return max(1, target.scope(scope).granule_bytes // size)


@dataclass(frozen=True)
class Descriptor:
    """A transfer as its engine gets it. Dims are outermost first; the last one is the elements of a row."""

    counts: tuple[int, ...]
    """What is moved, without padding."""
    strides: tuple[tuple[int, ...], ...]
    """For each side, in bytes."""
    padding: tuple[tuple[int, int], ...]
    """Before and after, in each dim."""
    entry: int
    """The elements of an entry."""
    bus_bytes: int
    """The bytes of an element that cross the bus: those off chip, or of the source between two scopes."""

    @property
    def rows(self) -> int:
        """How many rows are moved."""
        return prod(self.counts[:-1]) if self.counts[-1] else 0

    @property
    def row_bytes(self) -> int:
        """The bytes of each row that cross the bus."""
        return self.counts[-1] * self.bus_bytes

    @property
    def padded_bytes(self) -> int:
        """The bytes of padding, as wide as those that cross the bus."""
        around = prod(count + before + after for count, (before, after) in zip(self.counts, self.padding, strict=True))
        return (around - prod(self.counts)) * self.bus_bytes if self.padding else 0

    def cycles(self, cost: TransferCost) -> int:
        """How long it occupies its bus."""
        return cost.cycles(self.rows, self.row_bytes, self.padded_bytes)

    @property
    def entry_counts(self) -> tuple[int, ...]:
        """The counts of what is moved, the last one in entries."""
        return (*self.counts[:-1], -(-self.counts[-1] // self.entry))

    @property
    def entry_padding(self) -> tuple[tuple[int, int], ...]:
        """The padding, that of the last dim in entries."""
        before, after = self.padding[-1]
        return (*self.padding[:-1], (-(-before // self.entry), -(-after // self.entry)))


def describe(
    sides: Sequence[View],
    padding: Sequence[tuple[int, int]] = (),
    *,
    engine: DmaOp,
    entry: int = 1,
    at_any_padding: bool = False,
) -> Descriptor:
    """
    The descriptor of a transfer: `sides` are the elements that are moved, of equal shape, inputs first and what is
    written last; `padding` goes around them on the side that is written. Dims that would share more padding than the
    engine writes are kept apart, unless `at_any_padding`.
    """
    moved = sides[-1].shape
    around = tuple(padding) or ((0, 0),) * len(moved)
    box = [size + before + after for size, (before, after) in zip(moved, around, strict=True)]
    out_of_bounds = {dim: max(pads) for dim, pads in enumerate(around) if any(pads)}
    strides = [_free(moved, box, side, fixed=side is sides[-1]) for side in sides]
    pad_max = None if at_any_padding else engine.pad_limit
    groups = descriptor_dims(
        box, strides, max_counts=engine.max_counts, out_of_bounds=out_of_bounds, entry=entry, pad_max=pad_max
    )
    if not groups:
        groups.append([])
    counts: list[int] = []
    steps: list[list[int]] = [[] for _ in sides]
    pads: list[tuple[int, int]] = []
    for group in reversed(groups):
        inside = prod(box[dim] for dim in group[:-1])
        counts.append(prod(moved[dim] for dim in group))
        pads.append((around[group[-1]][0] * inside, around[group[-1]][1] * inside) if group else (0, 0))
        for side, step, view in zip(strides, steps, sides, strict=True):
            step.append((side[group[0]] if group else 1) * view.element_bytes)
    if 0 in moved:
        counts = [0] * len(counts)
    off_chip = [view.element_bytes for view in sides if view.space == DRAM]
    crossing = sum(off_chip) if off_chip else sum(view.element_bytes for view in sides[:1] if len(sides) > 1)
    return Descriptor(tuple(counts), tuple(tuple(step) for step in steps), tuple(pads), entry, crossing)


def _free(moved: Sequence[int], box: Sequence[int], view: View, *, fixed: bool) -> list[int]:
    """The strides of a view in elements, where a dim that it does not step along follows the one inside it."""
    strides = [stride // view.element_bytes for stride in view.strides]
    if fixed:
        return strides
    inside = 1
    for dim in reversed(range(len(moved))):
        if moved[dim] == 1:
            strides[dim] = inside
        if box[dim] > 1:
            inside = strides[dim] * box[dim]
    return strides
