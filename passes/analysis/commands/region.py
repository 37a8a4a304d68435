# SPDX-License-Identifier: Apache-2.0
"""Sets of bytes that a command touches: runs of bytes at the points of a grid."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Region:
    """`length` bytes from `start` + the sum of one multiple below `count` of each stride of `dims`."""

    space: str
    """The scope; "dram" off chip."""
    storage: int
    """Off chip the number of the allocation or argument; 0 in a scope, whose offsets are absolute."""
    start: int
    length: int
    dims: tuple[tuple[int, int], ...] = ()
    """(count, stride in bytes), outermost first; counts above 1, strides positive."""

    @staticmethod
    def of(space: str, storage: int, start: int, element_bytes: int, steps: Collection[tuple[int, int]]) -> Region:
        """The elements at `start` + the sum of one multiple below `count` of each stride of `steps`, in bytes."""
        length, dims = element_bytes, list[tuple[int, int]]()
        for stride, count in sorted((abs(stride), count) for count, stride in steps if count > 1 and stride):
            if not dims and stride <= length:
                length += (count - 1) * stride
            elif dims and stride % dims[-1][1] == 0 and stride // dims[-1][1] <= dims[-1][0]:
                inner, step = dims[-1]
                dims[-1] = inner + (count - 1) * (stride // step), step
            else:
                dims.append((count, stride))
        start += sum((count - 1) * stride for count, stride in steps if stride < 0)
        return Region(space, storage, start, length, tuple(reversed(dims)))

    @cached_property
    def end(self) -> int:
        """The first byte after all of them."""
        return self.start + sum((count - 1) * stride for count, stride in self.dims) + self.length

    @property
    def size(self) -> int:
        """How many bytes they are, if no two runs overlap."""
        size = self.length
        for count, _ in self.dims:
            size *= count
        return size

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where the runs begin, ascending."""
        found = np.full(1, self.start, np.int64)
        inside, is_ascending = 0, True
        for count, stride in reversed(self.dims):
            found = (np.arange(count, dtype=np.int64)[:, None] * stride + found).ravel()
            is_ascending &= stride > inside
            inside += (count - 1) * stride
        return found if is_ascending else np.unique(found)

    def overlaps(self, other: Region) -> bool:
        """Whether they have a byte in common."""
        if (self.space, self.storage) != (other.space, other.storage):
            return False
        if self.start >= other.end or other.start >= self.end:
            return False
        if not self.dims and not other.dims:
            return True
        return _overlap((self.length, self.dims), (other.length, other.dims), other.start - self.start)


_Shape = tuple[int, tuple[tuple[int, int], ...]]


@lru_cache(maxsize=1 << 16)
def _overlap(one: _Shape, other: _Shape, distance: int) -> bool:
    """Whether two regions have a byte in common, by their lengths and dims, and how far the second starts after."""
    few, many = sorted(
        (Region("", 0, 0, *one), Region("", 0, distance, *other)), key=lambda region: region.size // region.length
    )
    at = np.searchsorted(many.starts, few.starts + few.length, side="left") - 1
    # The last run of the one that begins before a run of the other ends: does it reach into it?
    return bool(np.any((at >= 0) & (many.starts[at] + many.length > few.starts)))
