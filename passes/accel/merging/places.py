# SPDX-License-Identifier: Apache-2.0
"""Places on chip for the parts of a merged kernel, so that a part may be loaded for while the one before runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm

from xdsl.dialects.builtin import IntegerAttr, i64

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.planning.problem import merge_intervals

LARGEST_ELEMENT = 8
"""Bytes: places that are multiples of it suit every element."""

Bytes = tuple[str, int, int]
"""A scope, and bytes of it, from and to."""


def bytes_of(op: ScopedAllocation, target: TargetOp) -> Bytes:
    """The bytes of a buffer with a place in a scope, in whole granules."""
    scope, offset = op.scope or "", op.byte_offset or 0
    granule = target.scope(scope).granule_bytes
    return scope, offset, offset + -(-op.size_in_bytes // granule) * granule


def keep_apart(parts: Sequence[Sequence[ScopedAllocation]], held: Sequence[Sequence[Bytes]], target: TargetOp) -> None:
    """
    Move buffers of each part off the bytes that the part before uses, where there is room.

    A part keeps its own plan: a buffer goes only where nothing of its part is, nor what is `held` during it.
    """
    before: list[Bytes] = []
    for own, kept in zip(parts, held, strict=True):
        for op in own:
            place = bytes_of(op, target)
            if not any(meet(place, each) for each in before):
                continue
            others = [bytes_of(other, target) for other in own if other is not op]
            offset = _gap((*others, *kept, *before), place, target)
            if offset is not None:
                op.offset = IntegerAttr(offset, i64)
        before = [*(bytes_of(op, target) for op in own), *kept]


def meet(one: Bytes, other: Bytes) -> bool:
    """Whether they have bytes in common."""
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _gap(taken: Iterable[Bytes], wanted: Bytes, target: TargetOp) -> int | None:
    """The first place for so many bytes in a scope beside all that is taken."""
    scope, low, high = wanted
    description = target.scope(scope)
    alignment = lcm(description.granule_bytes, LARGEST_ELEMENT)
    spans = merge_intervals((start, end) for name, start, end in taken if name == scope and start < end)
    offset = 0
    for start, end in spans:
        if offset + high - low <= start:
            break
        offset = max(offset, -(-end // alignment) * alignment)
    return offset if offset + high - low <= description.size_bytes else None
