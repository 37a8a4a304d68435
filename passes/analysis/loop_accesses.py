# SPDX-License-Identifier: Apache-2.0
"""
Accesses of the ops in a nest of loops, and whether two of them may be to one element.

An access is a box, or what index maps make of a box, at an offset in the dims of its buffer. Two accesses meet where
the difference of their indices can be zero: a sum of multiples of strides (of loops, of the dims of the boxes) and of
sets of numbers (of indices that are not affine, which are evaluated over their loops). Whether zero is such a sum is
decided exactly, the widest strides first and without the sums that the remaining ones cannot bring back to zero; past
`MAX_SUMS` it is assumed to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, scf
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.commands.loop_domain import counters_of, evaluate
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.loops import constant_of, is_inside, loops_around, trip_count

MAX_SUMS = 1 << 18
"""Partial sums, or pairs of iterations, that are looked at; beyond it two accesses are assumed to meet."""

Apart = Mapping[scf.ForOp, tuple[int | None, int | None]]
"""For a loop around two accesses how many iterations after the first the second is, from ... to; None: no bound."""

SAME = (0, 0)
LATER = (1, None)
EARLIER = (None, -1)
ANY = (None, None)

Vector = tuple[int, ...]
Numbers = NDArray[np.int64]
Progression = tuple[Vector, int, int]
"""(vector, lo, hi): the multiples of the vector from lo to hi."""
Digit = tuple[Vector, int]
"""What one step moves in each dim, and the number of values."""


@dataclass(frozen=True, eq=False)
class LoopAccess:
    """What an op within a nest reads or writes of one buffer."""

    op: Operation
    value: SSAValue
    """The operand."""
    roots: int
    """The allocations and arguments that the operand may be a view of, as `Aliases` numbers them."""
    reads: bool
    writes: bool
    combiner: str | None = None
    """Of an output that every point of a `linalg.generic` combines with something else: the name of the op."""
    start: tuple[AffineIndex, ...] | None = None
    """The index of its first element in each dim of its root; None where that is not known, and it may be any."""
    steps: tuple[tuple[int, Vector], ...] = ()
    """The other elements: (count, what one step moves in each dim of the root)."""

    @cached_property
    def loops(self) -> tuple[scf.ForOp, ...]:
        """All loops around the op, outermost first."""
        return loops_around(self.op)


def distances_within(loop: scf.ForOp, bounds: tuple[int | None, int | None]) -> tuple[int, int] | None:
    """The distances between two iterations of a loop that are within bounds; None if there are none."""
    trips = trip_count(loop)
    most = MAX_SUMS if trips is None else trips - 1
    lo = -most if bounds[0] is None else max(bounds[0], -most)
    hi = most if bounds[1] is None else min(bounds[1], most)
    return (lo, hi) if lo <= hi else None


def _digit_distances(high: Digit, low: Digit, bounds: tuple[int | None, int | None]) -> Sequence[Sequence[Progression]]:
    """The ways in which two numbers of two digits may be so far apart: digits may be any, or the high ones the same."""
    (outer, rows), (inner, columns) = high, low
    any_column = (inner, 1 - columns, columns - 1)
    match bounds:
        case (int(distance), int(other)) if distance == other:
            row, column = divmod(distance, columns)
            ways = (row, column), (row + 1, column - columns)
            return [
                [(outer, down, down), (inner, along, along)]
                for down, along in ways
                if abs(down) < rows and abs(along) < columns
            ]
        case (1, None):
            return [[(outer, 1, rows - 1), any_column], [(inner, 1, columns - 1)]]
        case (None, -1):
            return [[(outer, 1 - rows, -1), any_column], [(inner, 1 - columns, -1)]]
        case _:
            return [[(outer, 1 - rows, rows - 1), any_column]]


class IndexDifference:
    """The difference of the indices of two accesses to one root, as a sum of what loops and boxes contribute."""

    def __init__(self, nest: Sequence[scf.ForOp], first: LoopAccess, second: LoopAccess, apart: Apart):
        self._nest = nest
        self._first, self._second = first, second
        self._apart = apart
        assert first.start is not None
        assert second.start is not None
        self._starts = first.start, second.start
        self._constant = tuple(b.base - a.base for a, b in zip(*self._starts, strict=True))
        self._progressions: list[Progression] = []
        self._sets: list[Numbers] = []
        """One of the rows of each."""
        self._choices: list[Sequence[Sequence[Progression]]] = []
        """Of each the progressions of one."""

    def is_possible(self) -> bool:
        """Whether it may be zero in all dims."""
        ranges = {loop: distances_within(loop, bounds) for loop, bounds in self._apart.items()}
        if None in ranges.values():
            return False
        for count, step in self._first.steps:
            self._progressions.append((step, 1 - count, 0))
        for count, step in self._second.steps:
            self._progressions.append((step, 0, count - 1))
        groups = self._groups()
        if groups is None:
            return True
        for symbols, loops in groups:
            contributed = self._contribution(symbols, loops)
            if contributed is None:
                return True
            if not contributed:
                return False
        return any(
            self._is_zero_possible([each for chosen in choice for each in chosen]) for choice in product(*self._choices)
        )

    def _groups(self) -> list[tuple[list[SSAValue], list[scf.ForOp]]] | None:
        """Symbols of the indices with the loops that they depend on, those together that share one; None: unknown."""
        symbols = dict.fromkeys(symbol for start in self._starts for index in start for symbol in index.terms)
        loops = list(dict.fromkeys((*self._first.loops, *self._second.loops)))
        groups: list[tuple[list[SSAValue], list[scf.ForOp]]] = []
        for symbol in symbols:
            if not is_inside(symbol, self._nest[0]) and self._coefficients(symbol)[0] == self._coefficients(symbol)[1]:
                continue
            used = counters_of(symbol, loops)
            if any(trip_count(loop) is None or constant_of(loop.lb) is None for loop in used) or not used:
                return None
            together, tied = [symbol], [loop for loop in loops if loop in used]
            for group in [group for group in groups if set(group[1]) & used]:
                groups.remove(group)
                together, tied = group[0] + together, [loop for loop in loops if loop in (*group[1], *tied)]
            groups.append((together, tied))
        return groups

    def _coefficients(self, symbol: SSAValue) -> tuple[Vector, Vector]:
        """What a symbol is multiplied by in each dim of the first and of the second access."""
        first, second = (tuple(index.terms.get(symbol, 0) for index in start) for start in self._starts)
        return first, second

    def _contribution(self, symbols: Sequence[SSAValue], loops: Sequence[scf.ForOp]) -> bool | None:
        """Add what symbols of these loops contribute; False if no iterations are so far apart, None if unknown."""
        loop = loops[0]
        first, second = self._coefficients(symbols[0])
        is_counter = len(symbols) == len(loops) == 1 and symbols[0] is loop.body.block.args[0]
        step = constant_of(loop.step) or 1
        shared = loop in self._first.loops and loop in self._second.loops
        if is_counter and shared and first == second:
            bounds = distances_within(loop, self._apart.get(loop, SAME))
            if bounds is None:
                return False
            self._progressions.append((tuple(step * each for each in first), *bounds))
            return True
        if is_counter and not shared:
            # Where the access is not inside the loop, the coefficient is zero.
            lower, trips = constant_of(loop.lb), trip_count(loop)
            assert lower is not None
            assert trips is not None
            vector = tuple(b - a for a, b in zip(first, second, strict=True))
            self._constant = tuple(c + lower * each for c, each in zip(self._constant, vector, strict=True))
            self._progressions.append((tuple(step * each for each in vector), 0, trips - 1))
            return trips > 0
        digits = self._digits(symbols, loop) if len(loops) == 1 and shared else None
        if digits is None:
            ways = self._clamped(symbols, loops)
            if ways is None:
                return self._pairs(symbols, loops)
            self._choices.append(ways)
            return len(ways) > 0
        self._choices.append(_digit_distances(*digits, self._apart.get(loop, SAME)))
        return True

    def _digits(self, symbols: Sequence[SSAValue], loop: scf.ForOp) -> tuple[Digit, Digit] | None:
        """
        The quotient and the remainder of a counter by a divisor of its range, as those of a fused loop are, with what
        each is multiplied by in the indices; None if symbols are other functions of it, or the accesses differ.
        """
        counter, trips = loop.body.block.args[0], trip_count(loop)
        if constant_of(loop.lb) != 0 or constant_of(loop.step) != 1 or not trips:
            return None
        divisors: set[int | None] = set()
        rank = len(self._constant)
        quotient, remainder, whole = [0] * rank, [0] * rank, [0] * rank
        for symbol in symbols:
            first, second = self._coefficients(symbol)
            if first != second:
                return None
            total = whole
            if symbol is not counter:
                owner = symbol.owner
                if not isinstance(owner, arith.DivUIOp | arith.RemUIOp) or owner.lhs is not counter:
                    return None
                divisors.add(constant_of(owner.rhs))
                total = quotient if isinstance(owner, arith.DivUIOp) else remainder
            total[:] = [known + each for known, each in zip(total, first, strict=True)]
        divisor = divisors.pop() if len(divisors) == 1 else None
        if not divisor or trips % divisor:
            return None
        high = tuple(divisor * each + more for each, more in zip(whole, quotient, strict=True))
        low = tuple(each + more for each, more in zip(whole, remainder, strict=True))
        return (high, trips // divisor), (low, divisor)

    def _clamped(self, symbols: Sequence[SSAValue], loops: Sequence[scf.ForOp]) -> list[list[Progression]] | None:
        """
        What `min(index, limit)` contributes where the index is affine and only the last of all iterations reaches the
        limit, as that of tiles does of which the last is shifted inwards; None where it is something else.
        """
        owner = symbols[0].owner
        vector, other = self._coefficients(symbols[0])
        if len(symbols) > 1 or vector != other or not isinstance(owner, arith.MinSIOp):
            return None
        index, limit = AffineIndex.of(owner.lhs), constant_of(owner.rhs)
        counters = {loop.body.block.args[0]: loop for loop in loops}
        if limit is None or set(index.terms) != set(counters) or index.rest is not None:
            return None
        moves: dict[scf.ForOp, int] = {}
        last = index.base
        for counter, loop in counters.items():
            lower, step, trips = constant_of(loop.lb), constant_of(loop.step), trip_count(loop)
            if lower is None or not step or not trips or not all(loop in a.loops for a in (self._first, self._second)):
                return None
            moves[loop] = index.terms[counter] * step
            last += index.terms[counter] * lower + moves[loop] * (trips - 1)
        if min(moves.values()) <= 0 or not last - min(moves.values()) <= limit < last:
            return None
        # Both as if there were no limit, or one of the two at the limit, in the last iteration.
        shift = tuple(each * (last - limit) for each in vector)
        ways: list[list[Progression]] = []
        for sign in (0, 1, -1):
            way: list[Progression] = [(shift, -sign, -sign)] if sign else []
            for loop, move in moves.items():
                within = distances_within(loop, self._apart.get(loop, SAME))
                lo, hi = within or (1, 0)
                lo, hi = (max(lo, 0), hi) if sign > 0 else (lo, min(hi, 0)) if sign < 0 else (lo, hi)
                way.append((tuple(each * move for each in vector), lo, hi))
            if all(lo <= hi for _, lo, hi in way):
                ways.append(way)
        return ways

    def _pairs(self, symbols: Sequence[SSAValue], loops: Sequence[scf.ForOp]) -> bool | None:
        """The contributions of all pairs of iterations of some loops, evaluated one by one."""
        sides = [[loop for loop in loops if loop in access.loops] for access in (self._first, self._second)]
        trips = [[trip_count(loop) or 0 for loop in side] for side in sides]
        if prod(trips[0]) * prod(trips[1]) > MAX_SUMS:
            return None
        points = [np.indices(counts).reshape(len(counts), prod(counts)) for counts in trips]
        values: list[Numbers] = []
        for number, (side, at) in enumerate(zip(sides, points, strict=True)):
            counters: dict[SSAValue, Numbers] = {
                loop.body.block.args[0]: (constant_of(loop.lb) or 0) + (constant_of(loop.step) or 1) * iteration
                for loop, iteration in zip(side, at, strict=True)
            }
            total = np.zeros((at.shape[1], len(self._constant)), np.int64)
            for symbol in symbols:
                coefficients = self._coefficients(symbol)[number]
                if any(coefficients):
                    try:
                        found = evaluate(symbol, counters)
                    except UserError:
                        return None
                    total += np.broadcast_to(found, at.shape[1])[:, None] * np.asarray(coefficients)
            values.append(total)
        permitted = np.ones((len(values[0]), len(values[1])), np.bool_)
        for loop in loops:
            if loop in sides[0] and loop in sides[1]:
                bounds = distances_within(loop, self._apart.get(loop, SAME))
                if bounds is None:
                    return False
                later = points[1][sides[1].index(loop)][None, :] - points[0][sides[0].index(loop)][:, None]
                permitted &= (later >= bounds[0]) & (later <= bounds[1])
        first, second = np.nonzero(permitted)
        differences = np.unique(values[1][second] - values[0][first], axis=0)
        self._sets.append(differences)
        return len(differences) > 0

    def _is_zero_possible(self, chosen: Sequence[Progression]) -> bool:
        """Whether the constant and one of each contribution may add up to zero in all dims."""
        multiples = [*self._progressions, *chosen]
        rank = len(self._constant)
        if rank == 0:
            return True
        # The largest sum in each dim makes the dims digits of one number.
        most = [abs(each) for each in self._constant]
        for vector, lo, hi in multiples:
            most = [m + abs(each) * max(abs(lo), abs(hi)) for m, each in zip(most, vector, strict=True)]
        for rows in self._sets:
            most = [m + int(each) for m, each in zip(most, np.abs(rows).max(axis=0), strict=True)]
        weights = [1] * rank
        for dim in reversed(range(rank - 1)):
            weights[dim] = weights[dim + 1] * (2 * most[dim + 1] + 1)
        if weights[0] * (2 * most[0] + 1) >= 1 << 62:
            return True

        def number(vector: Sequence[int]) -> int:
            return sum(each * weight for each, weight in zip(vector, weights, strict=True))

        progressions = [(number(vector), lo, hi) for vector, lo, hi in multiples]
        sets = [np.unique(rows @ np.asarray(weights, np.int64)) for rows in self._sets]
        return reaches_zero(number(self._constant), progressions, sets)


def reaches_zero(constant: int, progressions: Sequence[tuple[int, int, int]], sets: Sequence[Numbers]) -> bool:
    """
    Whether zero is `constant` + for each (stride, lo, hi) the stride times a number from lo to hi + one number of each
    set; True too if more than `MAX_SUMS` sums had to be looked at.
    """
    if any(lo > hi for _, lo, hi in progressions):
        return False
    strides: dict[int, tuple[int, int]] = {}
    for stride, lo, hi in progressions:
        if stride < 0:
            stride, lo, hi = -stride, -hi, -lo
        if stride:
            known = strides.get(stride, (0, 0))
            strides[stride] = known[0] + lo, known[1] + hi
    divisor = gcd(*strides, *(int(each) for numbers in sets for each in numbers))
    if divisor == 0 or constant % divisor:
        return constant == 0 if divisor == 0 else False
    # The sums from which multiples of the narrow strides lead to zero are an interval.
    low = high = 0
    wide: list[tuple[int, int, int]] = []
    for stride, (lo, hi) in sorted(strides.items()):
        stride //= divisor
        if lo == hi or stride <= high - low + 1:
            low, high = low - stride * hi, high - stride * lo
        else:
            wide.append((stride, lo, hi))
    spans = [(stride * lo, stride * hi) for stride, lo, hi in wide]
    spans += [(int(numbers.min()) // divisor, int(numbers.max()) // divisor) for numbers in sets]
    choices: list[tuple[int, int, int] | Numbers] = [*wide, *(numbers // divisor for numbers in sets)]
    order = sorted(range(len(choices)), key=lambda each: spans[each][0] - spans[each][1])
    sums = np.asarray([constant // divisor], np.int64)
    for place, index in enumerate(order):
        least = sum(spans[each][0] for each in order[place + 1 :])
        largest = sum(spans[each][1] for each in order[place + 1 :])
        lowest, highest = low - largest, high - least
        choice = choices[index]
        if isinstance(choice, tuple):
            stride, lo, hi = choice
            lo = max(lo, -((int(sums.max()) - lowest) // stride))
            hi = min(hi, (highest - int(sums.min())) // stride)
            if hi - lo >= MAX_SUMS:
                return True
            choice = stride * np.arange(lo, hi + 1, dtype=np.int64)
        if len(sums) * len(choice) > MAX_SUMS:
            return True
        sums = np.unique(np.add.outer(sums, choice))
        sums = sums[(sums >= lowest) & (sums <= highest)]
        if not len(sums):
            return False
    return bool(np.any((sums >= low) & (sums <= high)))
