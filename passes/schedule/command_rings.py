# SPDX-License-Identifier: Apache-2.0
"""Buffers of commands that a ring may take the place of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np
from xdsl.dialects import func
from xdsl.ir import Block

from penstock.dialects.mem import BufferOp, element_bytes, static_strides
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.loops import iterations
from penstock.passes.schedule.ordering.accesses import CommandAccess, CommandInfo, trips_of
from penstock.passes.schedule.rings import Candidate, loops_of_ring, why_no_turns

MAX_COMMANDS = 4096
"""Commands that may fill a buffer together, and are looked at one by one."""


def users_of(buffer: BufferOp, commands: Sequence[CommandInfo]) -> list[CommandInfo]:
    """The commands that access a buffer."""
    return [info for info in commands if any(a.storage is buffer.memref for a in info.accesses)]


def candidates(function: func.FuncOp, commands: Sequence[CommandInfo]) -> list[Candidate]:
    """
    The buffers in scopes that each iteration of a loop fills anew, and that several units use: only several units gain
    by the overlap of iterations. Their depth is as large as it could be: the iterations that there are.
    """
    found: list[Candidate] = []
    for buffer in function.walk():
        if isinstance(buffer, BufferOp) and len({info.unit for info in users_of(buffer, commands)}) > 1:
            loops = loops_of_ring(buffer, counted=True)
            if why_no_turns(buffer, loops, partial(is_filled_first, buffer, commands)) is None:
                found.append(Candidate(buffer, loops, iterations(loops) or 1))
    return found


def is_filled_first(buffer: BufferOp, commands: Sequence[CommandInfo]) -> bool:
    """Whether an iteration writes every byte of the buffer before any is read."""
    first = filling(buffer, users_of(buffer, commands))
    if not first or any(not a.writes for info in first for a in info.accesses if a.storage is buffer.memref):
        return False
    written = np.zeros(buffer.size_in_bytes, np.bool_)
    for info in first:
        for access in info.accesses:
            if access.storage is not buffer.memref:
                continue
            if (starts := _starts(access, [loop for loop in info.loops if _is_inside(loop, buffer)])) is None:
                return False
            for start in starts:
                _mark(written, Region("", 0, start, access.length, access.dims))
    type = buffer.type
    size = element_bytes(type)
    layout = zip(type.get_shape(), static_strides(type), strict=True)
    dims = tuple((count, stride * size) for count, stride in layout if count > 1)
    needed = np.zeros(buffer.size_in_bytes, np.bool_)
    _mark(needed, Region("", 0, 0, size, dims))
    return bool(np.all(written | ~needed))


def filling(buffer: BufferOp, users: Sequence[CommandInfo]) -> list[CommandInfo]:
    """The commands of the first op after the buffer, a command or a loop, that uses it."""
    op = buffer.next_op
    while op is not None:
        if inside := [info for info in users if op is info.op or op.is_ancestor(info.op)]:
            return inside
        op = op.next_op
    return []


def _is_inside(loop: Block, buffer: BufferOp) -> bool:
    return buffer.parent is not None and loop is not buffer.parent and buffer.parent.is_ancestor(loop)


def _starts(access: CommandAccess, loops: Sequence[Block]) -> Iterator[int] | None:
    """Where an access begins in each iteration of `loops`; None where that is not known, or there are too many."""
    start = access.start
    trips = [trips_of(loop) for loop in loops]
    if start is None or any(loop not in loops for loop in start.terms) or None in trips:
        return None
    counts = [count for count in trips if count is not None]
    if prod(counts) > MAX_COMMANDS:
        return None
    steps = [start.terms.get(loop, 0) for loop in loops]
    constant = start.constant
    return (
        constant + sum(step * number for step, number in zip(steps, iterations, strict=True))
        for iterations in product(*(range(count) for count in counts))
    )


def _mark(bytes: np.ndarray[tuple[int], np.dtype[np.bool_]], region: Region) -> None:
    starts = region.starts
    for offset in range(region.length):
        at = starts + offset
        bytes[at[(at >= 0) & (at < len(bytes))]] = True
