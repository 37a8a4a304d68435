# SPDX-License-Identifier: Apache-2.0
"""What is wrong with cycles that are an expression of the dims of an intrinsic."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product

from penstock.dialects.cycles import Cycles
from penstock.dialects.diagnostics import ExpressionFault
from penstock.dialects.machine.part import PartFault


def cycle_faults(
    key: str, cost: Cycles | int, shape: Sequence[tuple[int, int] | None], least: int, dims: Collection[int]
) -> Iterator[PartFault]:
    """
    The faults of the expression `cost` of `key`: its text, a value below `least` where extents are the least or the
    largest of `shape`, and dims that it may not depend on.
    """
    if isinstance(cost, int):
        return
    try:
        used = sorted(cost.used)
        corners = product(*((1,) if each is None else sorted({*each}) for each in shape))
        value, extents = min((cost.at(corner), corner) for corner in corners)
    except ExpressionFault as fault:
        yield PartFault(key, f"{key} {fault.message}", fault.notes, offset=1 + fault.column)
        return
    for dim in used:
        if dim not in dims:
            yield PartFault(key, f'{key} depends on dim "{cost.dims[dim]}", which the stationary operand does not have')
    if value < least:
        at = " and ".join(f"{cost.dims[dim]} = {extents[dim]}" for dim in used)
        yield PartFault(key, f"{key} must be at least {least}, but is {value}" + (f" at {at}" if at else ""))
