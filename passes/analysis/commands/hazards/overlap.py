"""Which of the byte ranges that a program touches have bytes in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from penstock.passes.analysis.commands.region import Region

_Shape = tuple[int, tuple[tuple[int, int], ...]]


@lru_cache(maxsize=1 << 16)
def _meet(one: _Shape, other: _Shape, distance: int) -> bool:
    mine = Region("", 0, 0, one[0], one[1])
    return mine.overlaps(Region("", 0, distance, other[0], other[1]))


def overlap(one: Region, other: Region) -> bool:
    """Whether two ranges of the same storage have a byte in common."""
    if one.start >= other.end or other.start >= one.end:
        return False
    if not one.dims and not other.dims:
        return True
    return _meet((one.length, one.dims), (other.length, other.dims), other.start - one.start)


def neighbours(regions: Sequence[Region], written: Sequence[bool]) -> list[list[int]]:
    """For each of the different ranges of a storage, itself first, those it overlaps, if one of the two is written."""
    found: list[list[int]] = [[number] for number in range(len(regions))]
    ends = [region.end for region in regions]
    active: list[int] = []
    for number in sorted(range(len(regions)), key=lambda number: regions[number].start):
        region = regions[number]
        start = region.start
        active = [other for other in active if ends[other] > start]
        for other in active:
            if (written[number] or written[other]) and overlap(regions[other], region):
                found[number].append(other)
                found[other].append(number)
        active.append(number)
    return found


def named_bytes(region: Region) -> str:
    """The bytes in a message."""
    where = f'"{region.space}"' if region.storage == 0 else f"argument {region.storage} in {region.space}"
    return f"bytes {region.start}..{region.end - 1} of {where}"
