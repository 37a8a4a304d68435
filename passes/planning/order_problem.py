# SPDX-License-Identifier: Apache-2.0
"""
Orders of operations as plain data: what each op touches, what must come before it, and what is alive in an order.

A buffer is alive from the first op that touches it to the last, so an order decides what is alive together; the peak
of an order is the largest sum of bytes that are alive during one op. A buffer may be a strip of a larger one, of which
all from the first to the last byte that is alive takes room, as where it is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from penstock.passes.planning.problem import Interval, Window, hulls


@dataclass(frozen=True)
class OrderProblem:
    """Ops, numbered in the order in which they stand, which is one that is allowed."""

    sizes: tuple[int, ...]
    """Bytes of each buffer."""
    touched: tuple[frozenset[int], ...]
    """For each op the buffers that it reads or writes."""
    before: tuple[frozenset[int], ...]
    """For each op those that must come before it; smaller numbers."""
    inside: tuple[int, ...]
    """Bytes that each op needs for itself while it runs."""
    strips: tuple[tuple[int, int], ...] = ()
    """For each buffer the larger one that it is a strip of, a number, and its first byte there; empty where none is."""

    def __post_init__(self) -> None:
        if not len(self.touched) == len(self.before) == len(self.inside):
            raise ValueError("an order problem says of each op what it touches, what comes before it, what it needs")
        if self.strips and len(self.strips) != len(self.sizes):
            raise ValueError("an order problem says of each buffer, or of none, what it is a strip of")
        if any(not other < op for op, others in enumerate(self.before) for other in others):
            raise ValueError("an op of an order problem comes after itself")


def alive(problem: OrderProblem, order: Sequence[int]) -> list[int]:
    """The bytes that take room during each op of an order, with what it needs for itself."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, op in enumerate(order):
        for buffer in problem.touched[op]:
            first.setdefault(buffer, place)
            last[buffer] = place
    change = [0] * (len(order) + 1)
    strips: dict[int, list[tuple[Window, list[Interval]]]] = {}
    for buffer, place in first.items():
        whole, start = problem.strips[buffer] if problem.strips else (buffer, 0)
        window = start, start + problem.sizes[buffer]
        strips.setdefault(whole, []).append((window, [(place, last[buffer] + 1)]))
    for own in strips.values():
        for (begin, end), (low, high) in hulls(own):
            change[begin] += high - low
            change[end] -= high - low
    return [total + problem.inside[op] for op, total in zip(order, accumulate(change[:-1]), strict=True)]


def room(problem: OrderProblem, buffers: Iterable[int]) -> int:
    """The bytes that these take where they are alive at once."""
    ends: dict[int, tuple[int, int]] = {}
    for buffer in buffers:
        whole, start = problem.strips[buffer] if problem.strips else (buffer, 0)
        low, high = ends.get(whole, (start, start))
        ends[whole] = min(low, start), max(high, start + problem.sizes[buffer])
    return sum(high - low for low, high in ends.values())


def peak_of(problem: OrderProblem, order: Sequence[int]) -> int:
    """
    The most bytes that take room during one op of an order.

    Raises ValueError unless each op stands in it once, after all that must come before it. It shares nothing with the
    search: what it says of an order is a certificate.
    """
    place = {op: number for number, op in enumerate(order)}
    if len(order) != len(problem.touched) or len(place) != len(order):
        raise ValueError("an order has each op once")
    if any(place[other] > place[op] for op, others in enumerate(problem.before) for other in others):
        raise ValueError("an op of an order comes before what it needs")
    return max(alive(problem, order), default=0)
