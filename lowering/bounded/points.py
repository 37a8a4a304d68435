# SPDX-License-Identifier: Apache-2.0
"""
The sizes at which a program is compiled, to find its numbers as functions of its sizes. Plain data in and out.

A size, an offset or a stride of a program is a sum of products of its sizes and numbers: `N`, `2 * T + 1`, `N * T`. In
each size it is linear, so its values at the corners of a box of sizes, two for each, say which one it is (multilinear
interpolation). Its value at one more point, where sizes are even and twice as large, tells what is none of them: a
square, and a quotient, which is the same number at all corners if the divisor is large.

What is the smaller of a size and a number is a number at all of these points, which lie above the bounds. So shapes are
also looked at where they can be in a run, at `within`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph.sizes import Dim, Size, named_size

MOST_SIZES = 3
"""How many sizes may be open at once: a program is compiled at 2^n + 1 points."""

STEP = 2
"""From one corner to the next: all are odd, so that half of a size is seen to be none."""

_SPAN = 2 * STEP + 2 * MOST_SIZES
"""How far the corners of two sizes, and points and numbers of the program, are apart at least."""


@dataclass(frozen=True)
class Points:
    """Sizes that may be from 1 to a bound, by name."""

    bounds: Mapping[str, int]
    taken: frozenset[int] = frozenset()
    """Numbers of the program itself, with which a size must not be confused."""

    def __post_init__(self) -> None:
        if len(self.bounds) > MOST_SIZES:
            words = ", ".join(f'"{name}"' for name in self.bounds)
            raise UserError(
                f"{len(self.bounds)} sizes are open, {words}, and at most {MOST_SIZES} may be",
                notes=["bind the others: --dim NAME=SIZE"],
            )

    @cached_property
    def first(self) -> dict[str, int]:
        """The lowest corner: above the bounds, no two alike, and none of what the program has already."""
        found: dict[str, int] = {}
        for name, most in self.bounds.items():
            size = max(most, 4) | 1
            while any(abs(size - other) <= _SPAN for other in found.values()) or self.taken.intersection(
                range(size, size + _SPAN + 1)
            ):
                size += STEP
            found[name] = size
        return found

    @cached_property
    def all(self) -> list[dict[str, int]]:
        """The corners, the lowest first, and the point that checks what was found."""
        corners = [
            {name: size + STEP * (number >> place & 1) for place, (name, size) in enumerate(self.first.items())}
            for number in range(1 << len(self.bounds))
        ]
        return [*corners, self._check]

    @cached_property
    def _check(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, size in self.first.items():
            size *= 2
            while size in self.taken or size in found.values():
                size += 2
            found[name] = size
        return found

    @cached_property
    def within(self) -> list[dict[str, int]]:
        """Sizes of runs: each at 1, at its bound, and at one between."""
        choices = [sorted({1, min(3, most), most}) for most in self.bounds.values()]
        return [dict(zip(self.bounds, sizes, strict=True)) for sizes in product(*choices)]

    def fit(self, values: Sequence[int]) -> Size | None:
        """The function of the sizes that has these values at the points; None if it is no sum of products."""
        if len(set(values)) == 1:
            return values[0]
        names = list(self.bounds)
        found: Size = 0
        for subset in range(1 << len(names)):
            # The mixed difference along the sizes of the subset.
            difference = sum(
                (-1) ** (subset ^ corner).bit_count() * values[corner]
                for corner in range(subset + 1)
                if corner & subset == corner
            )
            scale = STEP ** subset.bit_count()
            if difference % scale:
                return None
            term: Size = difference // scale
            for place, name in enumerate(names):
                if subset >> place & 1:
                    term = term * (named_size(name) - self.first[name])
            found = found + term
        return found if size_at(found, self.all[-1]) == values[-1] else None

    def range_of(self, size: Size) -> tuple[int, int]:
        """The least and the largest value of a size that `fit` found: what is linear in each has them at corners."""
        values = [size_at(size, corner) for corner in self._box()]
        return min(values), max(values)

    def _box(self) -> Iterator[dict[str, int]]:
        for sizes in product(*((1, most) for most in self.bounds.values())):
            yield dict(zip(self.bounds, sizes, strict=True))


def size_at(size: Size, sizes: Mapping[str, int]) -> int:
    """The number that a sum of products of named sizes is."""
    if not isinstance(size, Dim):
        return size
    return sum(factor * prod(sizes[atom.text] for atom in monomial) for monomial, factor in size.terms.items())
