# SPDX-License-Identifier: Apache-2.0
"""
Sums over the iterations of loops, in closed form where the loops are independent and by arrays where they are not.

Loops that no index ties together multiply; only those that do are walked, a million iterations at a time. So the
cost is that of the largest set of loops that meet in one index or in each other's bounds, not that of the nest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import func, scf
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.index import AffineIndex, apply, is_index_arithmetic
from penstock.passes.analysis.loops import constant_of, nest_around, trip_count
from penstock.passes.index_builder import Index

Indices = NDArray[np.int64]

MAX_ITERATIONS_AT_ONCE = 1 << 20
"""Iterations that are looked at together."""


@dataclass(frozen=True)
class ClippedSpan:
    """The part of `size` elements from `offset` on that lies in a dim of `bound` elements."""

    offset: Index
    size: int
    bound: int

    def length(self, values: Mapping[SSAValue, Indices]) -> Indices:
        """How many elements that is, at each of some iterations, given the counters of the loops there."""
        offset = evaluate(self.offset, values)
        return np.clip(np.minimum(offset + self.size, self.bound) - np.maximum(offset, 0), 0, None)

    def constant_length(self) -> int | None:
        """The elements, where they are the same in all iterations: the offset is known, or all is within bounds."""
        if (limits := AffineIndex.of(self.offset).bounds) is None:
            return None
        first, last = limits
        if first == last:
            return max(0, min(first + self.size, self.bound) - max(first, 0))
        return self.size if first >= 0 and last + self.size <= self.bound else None


def evaluate(index: Index, values: Mapping[SSAValue, Indices]) -> Indices:
    """
    An index at each of some iterations; raises UserError where it is not made of loop counters and constants.
    """
    if isinstance(index, int):
        return np.asarray(index, np.int64)
    if (known := values.get(index)) is not None:
        return known
    if (constant := constant_of(index)) is not None:
        return np.asarray(constant, np.int64)
    owner = index.owner
    if not isinstance(owner, Operation) or not is_index_arithmetic(owner):
        raise _not_countable(index)
    return apply(owner, [evaluate(operand, values) for operand in owner.operands])


def _not_countable(index: SSAValue) -> UserError:
    owner = index.owner
    what = f"{owner.name} yields it" if isinstance(owner, Operation) else "it comes from outside"
    at = owner if isinstance(owner, Operation) else owner.parent_op()
    return UserError(
        f"an index is neither a loop counter nor computed from some: {what}",
        loc=location_of(at) if at is not None else None,
    )


def iteration_domain(op: Operation) -> tuple[scf.ForOp, ...]:
    """
    The loops that decide how often `op` runs, outermost first, up to its function.

    Raises UserError where something else than loops decides it.
    """
    loops = nest_around(op)
    parent = (loops[0] if loops else op).parent_op()
    if parent is not None and not isinstance(parent, func.FuncOp):
        raise UserError(f"how often {op.name} runs is decided by {parent.name}", loc=location_of(op))
    return loops


def sum_over_loops(loops: Sequence[scf.ForOp], spans: Sequence[ClippedSpan] = ()) -> int:
    """
    The product of the lengths of `spans`, summed over all iterations of `loops`, a nest from the outside in;
    without spans the number of iterations. Raises UserError for an index that is not computed from the loops.
    """
    constant = [span.constant_length() for span in spans]
    factor = prod(length for length in constant if length is not None)
    varying = [span for span, length in zip(spans, constant, strict=True) if length is None]
    for group, inside in _groups(loops, varying):
        trips = trip_count(group[0]) if len(group) == 1 and not inside else None
        factor *= trips if trips is not None else _walk({}, 1, group, inside)
    return factor


def _groups(
    loops: Sequence[scf.ForOp], spans: Sequence[ClippedSpan]
) -> Iterator[tuple[list[scf.ForOp], list[ClippedSpan]]]:
    """Loops and spans that depend on each other, apart from those that do not; loops stay in order."""
    group = {loop: number for number, loop in enumerate(loops)}

    def unite(members: set[scf.ForOp]) -> None:
        numbers = {group[loop] for loop in members}
        for loop, number in group.items():
            if number in numbers:
                group[loop] = min(numbers)

    for loop in loops:
        unite({loop, *(found for bound in (loop.lb, loop.ub, loop.step) for found in counters_of(bound, loops))})
    used = [counters_of(span.offset, loops) for span in spans]
    for members in used:
        unite(members)
    for number in dict.fromkeys(group.values()):
        together = [loop for loop in loops if group[loop] == number]
        yield together, [span for span, found in zip(spans, used, strict=True) if found & set(together)]
    if fixed := [span for span, found in zip(spans, used, strict=True) if not found]:
        yield [], fixed


def counters_of(index: Index, loops: Sequence[scf.ForOp]) -> set[scf.ForOp]:
    """The loops whose counters an index is computed from."""
    if isinstance(index, int):
        return set()
    owner = index.owner
    if isinstance(owner, Block):
        return {loop for loop in loops if index is loop.body.block.args[0]}
    return set[scf.ForOp]().union(*(counters_of(operand, loops) for operand in owner.operands))


def _walk(
    values: Mapping[SSAValue, Indices], count: int, loops: Sequence[scf.ForOp], spans: Sequence[ClippedSpan]
) -> int:
    """The sum over the iterations of `loops` inside each of `count` iterations with the counters `values`."""
    if not loops:
        lengths = np.ones(count, np.int64)
        for span in spans:
            lengths *= span.length(values)
        return int(lengths.sum())
    loop, *inner = loops
    lower, upper, step = (np.broadcast_to(evaluate(bound, values), count) for bound in (loop.lb, loop.ub, loop.step))
    trips = np.maximum(0, -(-(upper - lower) // step))
    ends = np.cumsum(trips)
    total = 0
    for start in range(0, int(ends[-1]) if count else 0, MAX_ITERATIONS_AT_ONCE):
        numbers = np.arange(start, min(start + MAX_ITERATIONS_AT_ONCE, int(ends[-1])))
        outer = np.searchsorted(ends, numbers, side="right")
        counters = {value: indices[outer] for value, indices in values.items()}
        first = (ends - trips)[outer]
        counters[loop.body.block.args[0]] = lower[outer] + (numbers - first) * step[outer]
        total += _walk(counters, len(numbers), inner, spans)
    return total
