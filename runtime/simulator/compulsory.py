"""The bytes that a kernel's commands cannot do without: what they read off chip once, and what they write once."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from penstock.dialects.machine import DRAM
from penstock.passes.analysis.commands.program import Program
from penstock.passes.analysis.commands.region import Region

LARGEST = 1 << 31
"""The bytes of the largest storage whose bytes are counted one by one."""

_READ, _WRITTEN = 1, 2


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
    if any(end > LARGEST for end in ends.values()):
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
