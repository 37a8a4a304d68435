# SPDX-License-Identifier: Apache-2.0
"""How iterations are divided among threads, each of which runs adjacent ones: plain data in, plain data out."""

from __future__ import annotations

from dataclasses import dataclass

ENOUGH = 1.04
"""A division is as good as the best one up to this factor of its time."""

FINEST = 64
"""Strips for each thread, at most, that are looked at."""
LARGEST = 4096
"""Iterations of a strip, at most, that divides all iterations and is looked at for that."""


@dataclass(frozen=True)
class Strips:
    """`count` strips of `size` iterations each, which are divided among threads, and `rest` iterations after them."""

    count: int
    size: int
    rest: int

    def longest(self, threads: int) -> int:
        """The iterations of the thread that has most, with those after the strips."""
        return largest_share(self.count, threads) * self.size + self.rest


def largest_share(iterations: int, threads: int) -> int:
    """The iterations of the thread that has most."""
    return -(-iterations // threads)


def strips(iterations: int, threads: int, least: int = 1) -> Strips:
    """
    The strips of at least `least` iterations with which the threads are done first, or nearly: as few as may be, and
    without a rest, which costs code, where there is a choice.
    """
    sizes = {max(least, iterations // (threads * each)) for each in range(1, FINEST + 1)}
    sizes |= {size for size in range(least, min(iterations, LARGEST) + 1) if iterations % size == 0}
    choices = [Strips(iterations // size, size, iterations % size) for size in sizes if size <= iterations]
    if not choices:
        return Strips(1, iterations, 0)
    best = min(each.longest(threads) for each in choices)
    good = [each for each in choices if each.longest(threads) <= ENOUGH * best]
    return min(good, key=lambda each: (each.rest > 0, each.count))
