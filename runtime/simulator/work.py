# SPDX-License-Identifier: Apache-2.0
"""
What the multiply-accumulates of a kernel are for: useful, redundant and padded ones.

*Useful* are those of the kernel before it is tiled: its attribute `macs`, which `assign-devices` writes, every later
pass keeps, and a kernel that was written by hand may state itself. *Redundant* are those that are done again: where
tiles overlap, elements of the result are computed and stored more than once, each with as many products. *Padded* is
what else the applications of an intrinsic have room for: idle lanes in a block that is not full, and products with
what is beyond the end of a dim. The three add up to the applications times the products of each.

Nothing is known of a kernel that does not state `macs`, or whose commands contradict it: fewer products than that, or
results stored again without the products that this would take, as where sums that are not complete leave the chip.
Redundant and padded ones cannot be separated where the result does not leave the chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.analysis.commands.program import Command, Kind, Program
from penstock.passes.analysis.commands.region import Region


@dataclass(frozen=True)
class MacCounts:
    """Multiply-accumulates of one run of a kernel; None for what is not known."""

    issued: int
    """What the applications of intrinsics that multiply have room for."""
    useful: int | None
    redundant: int | None
    padded: int | None


def mac_counts(program: Program, target: TargetOp, useful: int | None) -> MacCounts:
    """The multiply-accumulates of a program whose kernel says that `useful` products are to be done, if it says so."""
    intrinsics = target.intrinsics()

    def room(command: Command) -> int:
        """The products of all lanes in the cycles of its applications."""
        intrinsic = intrinsics.get(command.name)
        if intrinsic is None or not intrinsic.initiation_interval:
            return 0
        cycles = command.cycles - intrinsic.depth - command.loading - command.conflicting
        return cycles * intrinsic.macs_per_issue() // intrinsic.initiation_interval

    multiplying = [each for each in program.commands if each.kind is Kind.EXEC and each.macs]
    executed = sum(each.macs for each in multiplying)
    issued = sum(max(each.macs, room(each)) for each in multiplying)
    unknown = MacCounts(issued, None, None, None)
    if not executed:
        return MacCounts(0, 0, 0, 0) if not useful else unknown
    if useful is None or useful > executed:
        return unknown
    redundant = _again(program, useful)
    if redundant is None:
        # What stays on chip is not seen twice; without any surplus there is nothing to separate.
        return (
            MacCounts(issued, useful, 0, issued - useful)
            if useful == executed
            else MacCounts(issued, useful, None, None)
        )
    return (
        MacCounts(issued, useful, redundant, issued - useful - redundant) if useful + redundant <= executed else unknown
    )


def _again(program: Program, useful: int) -> int | None:
    """The products of the elements that are stored off chip once more; None where no element is stored there."""
    stored = sum(region.size for each in program.commands for region in each.writes if region.space == DRAM)
    touched = compulsory(program) if stored else None
    return None if touched is None else useful * (stored - touched[1]) // touched[1]


MAX_COUNTED_BYTES = 1 << 31
"""Of a storage whose bytes are counted one by one."""

_READ, _WRITTEN = 1, 2


@lru_cache(maxsize=1)
def compulsory(program: Program) -> tuple[int, int] | None:
    """
    How many bytes off chip the commands read, other than what they have written themselves, and how many they write,
    each byte counted once; None for storages that are too large to count in.

    The kernel is taken as it is: what it does not touch, such as what a strided window skips, does not count.
    """
    ends: dict[int, int] = {}
    for command in program.commands:
        for region in (*command.reads, *command.writes):
            if region.space == DRAM:
                ends[region.storage] = max(ends.get(region.storage, 0), region.end)
    if any(end > MAX_COUNTED_BYTES for end in ends.values()):
        return None
    marks = {storage: np.zeros(end, np.uint8) for storage, end in ends.items()}
    seen: set[tuple[Region, int]] = set()
    for command in program.commands:
        for regions, mark in ((command.reads, _READ), (command.writes, _WRITTEN)):
            for region in regions:
                if region.space == DRAM and (region, mark) not in seen:
                    seen.add((region, mark))
                    _mark(marks[region.storage], region, mark)
    read = sum(int(np.count_nonzero(each & _READ)) for each in marks.values())
    return read, sum(int(np.count_nonzero(each & _WRITTEN)) for each in marks.values())


def _mark(marks: NDArray[np.uint8], region: Region, mark: int) -> None:
    """Note that the bytes of a region are touched; what is written already needs not be read."""
    counts = [count for count, _ in region.dims]
    strides = [stride for _, stride in region.dims]
    if prod(counts) and region.length:
        bytes_of = as_strided(marks[region.start :], [*counts, region.length], [*strides, 1])
        if mark == _WRITTEN:
            bytes_of |= _WRITTEN
        else:
            bytes_of |= (bytes_of == 0).astype(np.uint8) * np.uint8(_READ)
