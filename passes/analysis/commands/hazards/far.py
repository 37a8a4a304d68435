"""Whether two ranges of bytes ever meet, if both move: sums of multiples, searched with bounds."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.passes.analysis.commands.region import Region

Term = tuple[int, int]
"""A step in bytes, and the most often that it is taken; the least is never."""


class UndecidedError(Exception):
    """The search would take too long, or the question cannot be asked in this way."""


_BUDGET = 20_000


def meet(one: Region, other: Region, terms: Iterable[Term]) -> bool:
    """
    Whether `other` overlaps `one` for some multiples, as it moves by `terms` against it.

    Exact. Raises UndecidedError if more than some thousands of combinations would have to be looked at.
    """
    steps: dict[int, int] = {}
    distance = other.start - one.start
    moves = [*terms]
    moves += [(stride, count - 1) for count, stride in other.dims]
    moves += [(-stride, count - 1) for count, stride in one.dims]
    for step, most in moves:
        if step < 0:
            distance += step * most
        if step and most:
            steps[abs(step)] = steps.get(abs(step), 0) + most
    ordered = sorted(steps.items(), reverse=True)
    rest = [0] * (len(ordered) + 1)
    for at in range(len(ordered) - 1, -1, -1):
        rest[at] = rest[at + 1] + ordered[at][0] * ordered[at][1]
    least, most = 1 - other.length, one.length - 1
    looked = 0
    pending = [(0, distance)]
    while pending:
        at, reached = pending.pop()
        looked += 1
        if looked > _BUDGET:
            raise UndecidedError
        if at == len(ordered):
            if least <= reached <= most:
                return True
            continue
        step, times = ordered[at]
        low = max(0, -((reached + rest[at + 1] - least) // step))
        high = min(times, (most - reached) // step)
        if high - low > _BUDGET:
            raise UndecidedError
        pending.extend((at + 1, reached + step * taken) for taken in range(low, high + 1))
    return False
