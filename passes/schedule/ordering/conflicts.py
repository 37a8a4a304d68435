# SPDX-License-Identifier: Apache-2.0
"""Dependences: pairs of commands of which one must be complete before the other starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Block, SSAValue

from penstock.dialects.machine import DRAM
from penstock.dialects.mem import RingOp
from penstock.passes.analysis.commands.region import Region
from penstock.passes.schedule.ordering.accesses import CommandAccess, CommandInfo, trips_of

MAX_DISTANCES = 512
"""Distances between two accesses that are compared one by one; of more, some are assumed to overlap."""


@dataclass(frozen=True)
class Dependence:
    """
    That `source`, issued earlier, comes before `sink`.

    Of the iterations of `source` those count that were issued before the current one of `since`, a loop around both;
    all of them where there is none, and only the last with `only_last`. With a `ring`, those that accessed the slot
    that `sink` accesses.
    """

    source: CommandInfo
    sink: CommandInfo
    since: Block | None = None
    ring: RingOp | None = None
    source_turn: int = 0
    """The slot that `source` accesses, after that which the iterations of the loops around it count to."""
    sink_turn: int = 0
    only_last: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether all iterations of the source so far count."""
        return self.since is None and self.ring is None


def dependences(commands: Sequence[CommandInfo], in_order: frozenset[str]) -> list[Dependence]:
    """All that the order of the units does not imply."""
    numbered = _numbered_rings(commands)
    hulls = {command: _Hull.of(command) for command in commands}
    found: list[Dependence] = []
    for sink in commands:
        hull = hulls[sink]
        for source in commands:
            if source.unit == sink.unit and (source.unit in in_order or sink.alone or not source.transfers):
                continue
            if not hull.may_meet(hulls[source]):
                continue
            for each in _between(source, sink, numbered):
                is_last = source.unit not in in_order and each.is_plain and _meet_in_last_iterations(source, sink)
                found.append(replace(each, only_last=is_last))
    return found


@dataclass(frozen=True)
class _Hull:
    """What a command may access at most: of most pairs in a long kernel it says that they have nothing in common."""

    storages: frozenset[SSAValue]
    bytes: Mapping[str | None, tuple[int, int]]
    """By scope, None off chip, where the first one is of storages that have a place, and the end of the last."""

    @staticmethod
    def of(command: CommandInfo) -> _Hull:
        found: dict[str | None, tuple[int, int]] = {}
        for access in command.accesses:
            if (occupied := access.range) is not None:
                low, high = _reach(access, occupied)
                start, end = found.get(access.scope, (low, high))
                found[access.scope] = min(low, start), max(high, end)
        return _Hull(frozenset(access.storage for access in command.accesses), found)

    def may_meet(self, other: _Hull) -> bool:
        if not self.storages.isdisjoint(other.storages):
            return True
        return any(
            low < other.bytes[scope][1] and other.bytes[scope][0] < high
            for scope, (low, high) in self.bytes.items()
            if scope in other.bytes
        )


def ring_steps(ring: RingOp, commands: Sequence[CommandInfo]) -> Mapping[Block, int] | None:
    """By how many slots each loop moves on in an iteration, if all accesses agree; None if they are not affine."""
    steps: dict[Block, int] = {}
    for command in commands:
        for access in command.accesses:
            if access.storage is not ring.storage:
                continue
            if access.slot is None or any(loop not in command.loops for loop in access.slot.terms):
                return None
            for loop in command.loops:
                step = access.slot.terms.get(loop, 0) % ring.slot_count
                if steps.setdefault(loop, step) != step or (step and trips_of(loop) is None):
                    return None
    return steps


def _numbered_rings(commands: Sequence[CommandInfo]) -> dict[SSAValue, RingOp]:
    rings = {a.storage: a.storage.owner for c in commands for a in c.accesses if isinstance(a.storage.owner, RingOp)}
    return {storage: ring for storage, ring in rings.items() if ring_steps(ring, commands) is not None}


def _between(source: CommandInfo, sink: CommandInfo, numbered: Mapping[SSAValue, RingOp]) -> Iterator[Dependence]:
    levels: list[int] = []
    rings: dict[tuple[RingOp, int, int], Block | None] = {}
    common = common_loops(source, sink)
    for first in source.accesses:
        for second in sink.accesses:
            if not (first.writes or second.writes) or not _may_meet(first, second):
                continue
            ring = numbered.get(first.storage) if first.storage is second.storage else None
            if ring is not None and _is_one_slot(first, ring) and _is_one_slot(second, ring):
                # Such a slot is a storage of its own.
                if _turn(first, ring) != _turn(second, ring):
                    continue
                ring = None
            if ring is not None:
                turns = ring, _turn(first, ring), _turn(second, ring)
                apart = _apart(source, sink, common, first, second, ring)
                rings[turns] = apart if rings.get(turns, apart) is apart else None
            elif (level := _deepest(source, sink, common, first, second)) is not None:
                levels.append(level)
    if levels:
        level = max(levels)
        yield Dependence(source, sink, common[level] if level < len(common) else None)
        if level == len(common):
            return
    if rings and (common or _precedes(source, sink)):
        for (ring, turn, sink_turn), apart in rings.items():
            yield Dependence(source, sink, apart, ring, turn, sink_turn)


def _apart(
    source: CommandInfo,
    sink: CommandInfo,
    common: Sequence[Block],
    first: CommandAccess,
    second: CommandAccess,
    ring: RingOp,
) -> Block | None:
    """The innermost loop that moves on to other slots, if within an iteration of it two accesses never meet."""
    assert first.slot is not None
    assert second.slot is not None
    moving = [level for level, loop in enumerate(common) if first.slot.terms.get(loop, 0) % ring.slot_count]
    terms = (*first.slot.terms.items(), *second.slot.terms.items())
    turning = {loop for loop, step in terms if step % ring.slot_count}
    # The tokens at the beginning of an iteration serve where its slots stay the same throughout it.
    if not moving or not turning.issubset(common):
        return None
    inner = range(moving[-1] + 1, len(common))
    if any(_meet_at(source, sink, common, level, first, second) for level in inner):
        return None
    if _precedes(source, sink) and _meet_at(source, sink, common, len(common), first, second):
        return None
    return common[moving[-1]]


def _is_one_slot(access: CommandAccess, ring: RingOp) -> bool:
    """Whether it is to the same slot in all iterations."""
    return access.slot is not None and not any(step % ring.slot_count for step in access.slot.terms.values())


def _turn(access: CommandAccess, ring: RingOp) -> int:
    assert access.slot is not None
    return access.slot.constant % ring.slot_count


def common_loops(one: CommandInfo, other: CommandInfo) -> tuple[Block, ...]:
    """The loops around both, outermost first."""
    found: list[Block] = []
    for mine, theirs in zip(one.loops, other.loops, strict=False):
        if mine is not theirs:
            break
        found.append(mine)
    return tuple(found)


def _precedes(one: CommandInfo, other: CommandInfo) -> bool:
    return one.number < other.number


def _may_meet(one: CommandAccess, other: CommandAccess) -> bool:
    """Whether their storages have bytes in common, within the bounds that the two keep."""
    if one.storage is not other.storage:
        ranges = (one.range, other.range) if one.scope == other.scope else (None, None)
        if ranges[0] is None or ranges[1] is None:
            return False
        (low, high), (start, end) = _reach(one, ranges[0]), _reach(other, ranges[1])
        return low < end and start < high
    if one.start is None or other.start is None or one.slot is not None or other.slot is not None:
        return True
    mine, theirs = one.start.bounds, other.start.bounds
    if mine is None or theirs is None:
        return True
    return mine[0] < theirs[1] + other.span and theirs[0] < mine[1] + one.span


def _reach(access: CommandAccess, occupied: tuple[int, int]) -> tuple[int, int]:
    bounds = access.start.bounds if access.start is not None else None
    if bounds is None or isinstance(access.storage.owner, RingOp):
        return occupied
    return occupied[0] + bounds[0], occupied[0] + bounds[1] + access.span


def _deepest(
    source: CommandInfo, sink: CommandInfo, common: Sequence[Block], first: CommandAccess, second: CommandAccess
) -> int | None:
    """
    Where an access of `source` may meet a later one of `sink`: within the same iteration of all common loops (their
    number), at the earliest in a later iteration of the loop of the number returned, or nowhere (None).
    """
    if _precedes(source, sink) and _meet_at(source, sink, common, len(common), first, second):
        return len(common)
    for level in reversed(range(len(common))):
        if _meet_at(source, sink, common, level, first, second):
            return level
    return None


def _meet_in_last_iterations(source: CommandInfo, sink: CommandInfo) -> bool:
    """Whether `sink`, after loops around `source`, may access only what their last iterations access."""
    common = common_loops(source, sink)
    ended = source.loops[len(common) :]
    trips = {loop: trips_of(loop) for loop in ended}
    if not ended or not _precedes(source, sink):
        return False
    for first in source.accesses:
        for second in sink.accesses:
            if not (first.writes or second.writes) or not _may_meet(first, second):
                continue
            if first.slot is not None or second.slot is not None:
                return False
            if any(_meet_at(source, sink, common, level, first, second) for level in range(len(common))):
                return False
            for loop, count in trips.items():
                fewer = {loop: count - 1} if count is not None else {}
                if count != 1 and _meet_at(source, sink, common, len(common), first, second, fewer):
                    return False
    return True


def _meet_at(
    source: CommandInfo,
    sink: CommandInfo,
    common: Sequence[Block],
    level: int,
    first: CommandAccess,
    second: CommandAccess,
    fewer: Mapping[Block, int] | None = None,
) -> bool:
    """
    Whether they may meet in the same iterations of `common[:level]`, and `sink` in a later one of the next loop.

    Of the loops in `fewer`, which are not around both, only so many iterations count.
    """
    later = common[level] if level < len(common) else None
    if later is not None and (trips := trips_of(later)) is not None and trips < 2:
        return False
    if first.storage is not second.storage or first.start is None or second.start is None:
        return True
    a, b = first.start.terms, second.start.terms
    distances = {second.start.constant - first.start.constant}
    for loop in common[:level]:
        if a.get(loop, 0) != b.get(loop, 0):
            return True
    choices: list[list[int]] = []
    if later is not None:
        trips, step = trips_of(later), b.get(later, 0)
        if step != a.get(later, 0) or trips is None:
            return True
        choices.append(sorted({step * distance for distance in range(1, trips if step else 2)}))
    for terms, loops, sign in ((a, source.loops, -1), (b, sink.loops, 1)):
        for loop in loops:
            if loop in common[: level + 1] or not (step := terms.get(loop, 0)):
                continue
            if (trips := (fewer or {}).get(loop, trips_of(loop))) is None:
                return True
            if a.get(loop, 0) != b.get(loop, 0):
                choices.append([sign * step * iteration for iteration in range(trips)])
            elif sign > 0:
                # Of two iterations of one loop only the distance counts.
                choices.append([step * iteration for iteration in range(1 - trips, trips)])
    for steps in choices:
        if len(steps) * len(distances) > 8 * MAX_DISTANCES:
            return True
        distances = {distance + step for distance in distances for step in steps}
    near = [d for d in distances if -second.span < d < first.span]
    if len(near) > MAX_DISTANCES:
        return True
    fixed = _region(first, 0)
    return any(fixed.overlaps(_region(second, distance)) for distance in near)


def _region(access: CommandAccess, start: int) -> Region:
    return Region(access.scope or DRAM, 0, start, access.length, access.dims)


def may_conflict(
    source: CommandInfo, sink: CommandInfo, loop: Block | None = None, trips: Mapping[Block, int] | None = None
) -> bool:
    """
    Whether `sink` may access what `source` accesses in the same iteration, one of them writing.

    With a `loop`, in the next iteration of that; of some loops around `sink` only the first `trips` iterations count.
    """
    common = common_loops(source, sink)
    level = len(common) if loop is None else common.index(loop)
    for first in source.accesses:
        for second in sink.accesses:
            if not (first.writes or second.writes) or not _may_meet(first, second):
                continue
            if first.storage is second.storage and first.slot is not None and second.slot is not None:
                if _same_slot(source, sink, first, second, loop, trips or {}):
                    return True
            elif _meet_at(source, sink, common, level, first, second):
                return True
    return False


def _same_slot(
    source: CommandInfo,
    sink: CommandInfo,
    first: CommandAccess,
    second: CommandAccess,
    loop: Block | None,
    known_trips: Mapping[Block, int],
) -> bool:
    """Whether two accesses of a ring may be to one slot: in the same iteration of loops around, or the next of one."""
    ring = first.storage.owner
    assert isinstance(ring, RingOp)
    assert first.slot is not None
    assert second.slot is not None
    a, b, slots = first.slot.terms, second.slot.terms, ring.slot_count
    common = common_loops(source, sink)
    fixed = common if loop is None else common[: common.index(loop) + 1]
    if any((a.get(each, 0) - b.get(each, 0)) % slots for each in fixed):
        return True
    start = second.slot.constant - first.slot.constant + (b.get(loop, 0) if loop is not None else 0)
    distances = {start % slots}
    for terms, info, sign in ((a, source, -1), (b, sink, 1)):
        for each in info.loops:
            if each in fixed or not terms.get(each, 0) % slots:
                continue
            trips = trips_of(each)
            if trips is None:
                return True
            trips = min(trips, known_trips.get(each, trips)) if info is sink else trips
            steps = [sign * terms[each] * number for number in range(min(trips, slots))]
            distances = {(distance + step) % slots for distance in distances for step in steps}
    return 0 in distances
