# SPDX-License-Identifier: Apache-2.0
"""
A planning problem as arrays: pieces, sections and which pieces meet, in units, one part of the time axis at a time.

The terms are those of minimalloc (Moffitt, ASPLOS 2023). A *section* is a slice of time in which the same buffers
are alive; those whose buffers are all alive in a neighbour too say nothing new and are left out. A *part*
(minimalloc: partition) is a span of time that nothing outlives on either side: parts are problems of their own.

Ours: a buffer of which only a window is alive at times is several *pieces*, tied to each other by a fixed distance;
any other buffer is one piece, which may be alive in several intervals. All numbers are multiples of a *unit*, the
greatest number of bytes that divides all sizes, and sizes are rounded up to what the alignments make of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.conflicts import meetings
from penstock.passes.planning.problem import FAR, AllowedOffsets, Buffer, Problem, Window

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Lists of numbers end to end: list i is `values[starts[i]:starts[i + 1]]`."""

    starts: Numbers
    values: Numbers

    @classmethod
    def of(cls, lists: Iterable[Iterable[int]]) -> Rows:
        """The lists, end to end."""
        arrays = [np.asarray(list(each), np.int64) for each in lists]
        starts = np.cumsum([0, *(len(each) for each in arrays)], dtype=np.int64)
        return cls(starts, np.concatenate([np.empty(0, np.int64), *arrays]))

    def __getitem__(self, index: int) -> Numbers:
        return self.values[self.starts[index] : self.starts[index + 1]]

    def __len__(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class Subproblem:
    """
    The pieces that share a span of time that nothing outlives.

    Shapes: [pieces] unless told otherwise; sizes, shifts and alignments are counted in units.
    """

    buffers: tuple[Buffer, ...]
    """Whose piece each is."""
    unit: int
    """Bytes of a unit."""
    size: Numbers
    shift: Numbers
    """Where in its buffer the piece begins."""
    align: Numbers
    """The place of its buffer is a multiple of this."""
    tie: Numbers
    """The next piece of the same buffer, around in a circle; itself where there is but one."""
    twin: Numbers
    """Pieces with the same number here may be swapped in any plan; -1 where there is no such other one."""
    allowed: tuple[tuple[tuple[int, int], ...], ...]
    """Bytes between which the offset of its buffer lies, both ends included, if no height is set."""
    sections: Rows
    """The sections that it is alive in."""
    members: Rows
    """[sections] The pieces alive in each, ascending."""
    near: Rows
    """The other pieces that it meets."""
    spans: Numbers
    """[pieces, 2] The first and the last moment, as time in the problem."""

    @cached_property
    def total(self) -> Numbers:
        """[sections] The units alive."""
        return np.add.reduceat(self.size[self.members.values], self.members.starts[:-1])

    def ranges(self, height: int) -> list[list[tuple[int, int]]]:
        """The units between which each piece lies, both ends included, in plans of no more than `height` bytes."""
        ranges: list[list[tuple[int, int]]] = []
        for buffer, shift, allowed in zip(self.buffers, self.shift.tolist(), self.allowed, strict=True):
            spans = ((-(-low // self.unit), min(high, height - buffer.size) // self.unit) for low, high in allowed)
            ranges.append([(low + shift, high + shift) for low, high in spans if low <= high])
        return ranges


@dataclass(frozen=True)
class Instance:
    """A whole problem: its parts, and where those buffers go that take no bytes."""

    problem: Problem
    parts: tuple[Subproblem, ...]
    empty: dict[str, int]


@dataclass(frozen=True)
class _Piece:
    buffer: Buffer
    window: Window
    spans: tuple[tuple[int, int], ...]

    @property
    def lattice(self) -> int:
        """Its place is a multiple of this many bytes."""
        return gcd(self.buffer.alignment, self.window[0])


def compact(problem: Problem) -> Instance:
    """
    The arrays of a problem.

    Raises PlanError where a buffer names banks and the problem has no bank size.
    """
    lowest = ((buffer, AllowedOffsets.of(buffer, problem.bank_size).lowest(0)) for buffer in problem.buffers)
    # one that fits nowhere stays, whatever its size, so that no plan is found
    empty = {buffer.id: offset for buffer, offset in lowest if not buffer.size and offset != FAR}
    groups = time_parts(tuple(buffer for buffer in problem.buffers if buffer.id not in empty))
    return Instance(problem, tuple(_part(group, problem.bank_size) for group in groups), empty)


def time_parts(buffers: tuple[Buffer, ...]) -> list[list[Buffer]]:
    """The buffers by the spans of time that nothing outlives on either side; those of each in their order."""
    parts: list[list[tuple[int, Buffer]]] = []
    reach = None
    for index, buffer in sorted(enumerate(buffers), key=lambda each: each[1].lower):
        if reach is None or buffer.lower >= reach:
            parts.append([])
        parts[-1].append((index, buffer))
        reach = buffer.upper if reach is None else max(reach, buffer.upper)
    return [[buffer for _, buffer in sorted(part, key=lambda each: each[0])] for part in parts]


def _pieces(buffer: Buffer) -> list[_Piece]:
    """The buffer whole, or one piece for each of its windows."""
    spans: dict[Window, list[tuple[int, int]]] = {}
    for index, interval in enumerate(buffer.intervals):
        window = buffer.windows[index] if buffer.windows else (0, buffer.size)
        spans.setdefault(window, []).append(interval)
    return [_Piece(buffer, window, tuple(intervals)) for window, intervals in spans.items()]


def _part(buffers: list[Buffer], bank_size: int | None) -> Subproblem:
    pieces: list[_Piece] = []
    tie: list[int] = []
    for buffer in buffers:
        own = _pieces(buffer)
        tie += [len(pieces) + (index + 1) % len(own) for index in range(len(own))]
        pieces += own
    members = _sections(pieces)
    sections: list[list[int]] = [[] for _ in pieces]
    for index, alive in enumerate(members):
        for piece in alive:
            sections[piece].append(index)
    near = _near(pieces)
    sizes = _rounded(pieces, near)
    allowed = tuple(AllowedOffsets.of(piece.buffer, bank_size).ranges for piece in pieces)
    numbers = [*sizes, *(piece.window[0] for piece in pieces), *(buffer.offset or 0 for buffer in buffers)]
    if any(buffer.banks is not None for buffer in buffers):
        numbers.append(bank_size or 0)
    unit = common_unit(numbers, (buffer.alignment for buffer in buffers))
    return Subproblem(
        buffers=tuple(piece.buffer for piece in pieces),
        unit=unit,
        size=np.array(sizes, np.int64) // unit,
        shift=np.array([piece.window[0] // unit for piece in pieces], np.int64),
        # where the unit is a multiple of the alignment, every place is aligned
        align=np.array([max(1, piece.buffer.alignment // unit) for piece in pieces], np.int64),
        tie=np.array(tie, np.int64),
        twin=np.array(_twins(pieces, sections, tie), np.int64),
        allowed=allowed,
        sections=Rows.of(sections),
        members=Rows.of(members),
        near=near,
        spans=np.array([(piece.spans[0][0], piece.spans[-1][1]) for piece in pieces], np.int64),
    )


def _sections(pieces: list[_Piece]) -> list[list[int]]:
    """The pieces alive in each slice, without slices whose pieces are all alive in the one before or after."""
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for index, piece in enumerate(pieces):
        for lower, upper in piece.spans:
            starts.setdefault(lower, []).append(index)
            ends.setdefault(upper, []).append(index)
    alive: set[int] = set()
    sections: list[list[int]] = []
    grown = False
    for time in sorted({*starts, *ends}):
        ending = [piece for piece in ends.get(time, ()) if piece not in starts.get(time, ())]
        starting = [piece for piece in starts.get(time, ()) if piece not in alive]
        # the slice before is maximal if pieces were added since the last one that was kept, and one leaves now
        if ending and grown:
            sections.append(sorted(alive))
            grown = False
        alive.difference_update(ending)
        alive.update(starting)
        grown = grown or bool(starting)
    return sections


def _near(pieces: list[_Piece]) -> Rows:
    """The pieces that each piece meets."""
    rows = sorted((*span, index) for index, piece in enumerate(pieces) for span in piece.spans)
    lower, upper, owner = np.array(rows, np.int64).T
    first, other = meetings(lower, upper, owner, len(pieces))
    return Rows(first, other.astype(np.int64))


def _rounded(pieces: list[_Piece], near: Rows) -> list[int]:
    """The bytes that pieces keep from those above them: all places are multiples of the alignments around."""
    # with zero, which divides nothing, last: so that no list is empty, nor begins at the end
    lattice = np.array([*(piece.lattice for piece in pieces), 0], np.int64)
    others = np.append(lattice[near.values], 0)
    common = np.gcd(lattice[:-1], np.gcd.reduceat(others, near.starts[:-1]) * (np.diff(near.starts) > 0))
    sizes = np.array([high - low for low, high in (piece.window for piece in pieces)], np.int64)
    return (-(-sizes // common) * common).tolist()


def common_unit(numbers: Iterable[int], alignments: Iterable[int]) -> int:
    """The largest number of bytes that divides all `numbers` and of each alignment is a divisor or a multiple."""
    unit, left = gcd(*numbers), sorted(set(alignments))
    while unit and (odd := [each for each in left if unit % each and each % unit]):
        unit = gcd(unit, odd[0])
    return max(unit, 1)


def _twins(pieces: list[_Piece], sections: list[list[int]], tie: list[int]) -> list[int]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, piece in enumerate(pieces):
        if tie[index] == index and piece.buffer.offset is None:
            buffer = piece.buffer
            banks = None if buffer.banks is None else tuple(sorted(set(buffer.banks)))
            key = (buffer.size, piece.window, buffer.alignment, banks, tuple(sections[index]))
            groups.setdefault(key, []).append(index)
    twin = [-1] * len(pieces)
    for number, group in enumerate(groups.values()):
        for index in group:
            twin[index] = number if len(group) > 1 else -1
    return twin
