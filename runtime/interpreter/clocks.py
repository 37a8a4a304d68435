"""
Vector clocks of the race detector, independent of the compiler's on purpose: what is certainly complete, by unit.

Commands of a unit are numbered from 0 as they are issued. As transfers in flight complete in any order, what is
complete of a unit is a number, below which all are, and a mask of those from there on.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

Done = tuple[int, int]
"""Commands of one unit: all below a number, and those that the bits of a mask count from there on."""
Clock = tuple[Done, ...]
"""Commands of all units, in the order in which these were first used; those left out have none."""

NOTHING: Done = (0, 0)


def _union(one: Done, other: Done) -> Done:
    if one == other:
        return one
    if one[0] < other[0]:
        one, other = other, one
    base, mask = one[0], one[1] | other[1] >> (one[0] - other[0])
    while mask & 1:
        base, mask = base + 1, mask >> 1
    return base, mask


def join(one: Clock, other: Clock) -> Clock:
    """What is complete by either."""
    if one is other or not other:
        return one
    if not one:
        return other
    return tuple(_union(a, b) for a, b in zip_longest(one, other, fillvalue=NOTHING))


def joined(clocks: Iterable[Clock]) -> Clock:
    """What is complete by any."""
    result: Clock = ()
    for clock in clocks:
        result = join(result, clock)
    return result


def with_command(clock: Clock, unit: int, number: int) -> Clock:
    """The clock with one command more."""
    padded = clock + (NOTHING,) * (unit + 1 - len(clock))
    base, mask = padded[unit]
    if number < base:
        return clock
    return (*padded[:unit], _union((base, mask), (base, 1 << (number - base))), *padded[unit + 1 :])


def holds(clock: Clock, unit: int, number: int) -> bool:
    """Whether a command is complete."""
    if unit >= len(clock):
        return False
    base, mask = clock[unit]
    return number < base or bool(mask >> (number - base) & 1)
