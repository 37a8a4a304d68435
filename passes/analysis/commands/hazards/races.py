# SPDX-License-Identifier: Apache-2.0
"""Data races: the last accesses to every range of bytes, against what is complete when a command starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from xdsl.ir import Operation

from penstock.passes.analysis.commands.happens_before import Clock, HappensBefore, Start, happens_before
from penstock.passes.analysis.commands.hazards.network import Hazard, HazardKind, iteration, ops_of, origin, run, title
from penstock.passes.analysis.commands.program import Command, Program
from penstock.passes.analysis.commands.region import Region

MAX_HAZARDS = 100
"""The most hazards that are named, unless a caller says otherwise."""


def check(program: Program, *, most: int = MAX_HAZARDS) -> list[Hazard]:
    """
    The hazards of a program: none means that every timing of it computes the same.

    Exact: units are in order and meet in tokens, a Kahn network. Deadlocks and the final counts of queues do not depend
    on timing and are found by one run; a queue of the kind "error" must have room for a push in every timing; and of
    two accesses to a common byte, one of them a write, one must happen before the other.
    A transfer touches its bytes from its start to its end. Off-chip storages count as scopes do.

    Raises nothing. Named are at most `most` hazards, and each pair of ops once; after a deadlock nothing else is.
    """
    order, hazards = run(program)
    if len(order) == len(program.commands):
        hazards += [race(program, *pair) for pair in islice(races(program, happens_before(program, order)), most)]
    return hazards[:most]


Accesses = Callable[[Command], tuple[Sequence[Region], Sequence[Region]]]
Touched = tuple[int, Region, bool]
"""The number of a command, what it touches, and whether it writes that."""


@dataclass(slots=True)
class _Range:
    """The accesses to one range of bytes that may race with a later one."""

    region: Region
    near: list[_Range] = field(default_factory=list["_Range"], repr=False)
    """The ranges that overlap it, itself first."""
    writes: list[int] = field(default_factory=list[int])
    reads: list[int] = field(default_factory=list[int])


def _ranges(program: Program, accesses: Accesses) -> dict[int, _Range]:
    """
    The ranges of all storages that are written, with what overlaps them, by the identity of each region: hashing
    regions costs more than all the rest.
    """
    known: dict[int, tuple[Region, bool]] = {}
    for command in program.commands:
        reads, writes = accesses(command)
        for region in reads:
            known.setdefault(id(region), (region, False))
        for region in writes:
            known[id(region)] = region, True
    storages: dict[tuple[str, int], dict[Region, bool]] = {}
    for region, is_written in known.values():
        written = storages.setdefault((region.space, region.storage), {})
        written[region] = is_written or written.get(region, False)
    ranges: dict[Region, _Range] = {}
    for written in storages.values():
        if any(written.values()):
            regions = list(written)
            ranges |= {region: _Range(region) for region in regions}
            for region, near in zip(regions, _neighbours(regions, list(written.values())), strict=True):
                ranges[region].near = [ranges[regions[number]] for number in near]
    return {id(region): found for region, _ in known.values() if (found := ranges.get(region)) is not None}


def _neighbours(regions: Sequence[Region], written: Sequence[bool]) -> list[list[int]]:
    """For each of the different ranges of a storage, itself first, those it overlaps, if one of the two is written."""
    found: list[list[int]] = [[number] for number in range(len(regions))]
    ends = [region.end for region in regions]
    active: list[int] = []
    for number in sorted(range(len(regions)), key=lambda number: regions[number].start):
        region = regions[number]
        start = region.start
        active = [other for other in active if ends[other] > start]
        for other in active:
            if (written[number] or written[other]) and regions[other].overlaps(region):
                found[number].append(other)
                found[other].append(number)
        active.append(number)
    return found


def races(
    program: Program, starts: Iterable[Start], accesses: Accesses = lambda command: (command.reads, command.writes)
) -> Iterator[tuple[Touched, Touched]]:
    """
    The pairs of accesses to a common byte, one a write, without happens-before; two ops are named once. `accesses` are
    what is read and written by a command, as far as it counts.

    For each range the accesses are kept that do not happen before a later one to the same range: what races with an
    access that is left out races with the one that it happens before.
    """
    ranges = _ranges(program, accesses)
    found: set[tuple[Operation | int, Operation | int]] = set()
    for number, relation, clock, _ in starts:
        reads, written = accesses(program.commands[number])
        for writes, regions in ((False, reads), (True, written)):
            for region in regions:
                mine = ranges.get(id(region))
                if mine is None:
                    continue
                for near in mine.near:
                    for wrote, others in ((True, near.writes), (False, near.reads if writes else ())):
                        for other in others:
                            if other != number and not relation.is_complete(other, clock):
                                one, two = (program.commands[each].op or each for each in (number, other))
                                if (one, two) not in found:
                                    found.add((one, two))
                                    yield (number, region, writes), (other, near.region, wrote)
                mine.reads = _incomplete(mine.reads, relation, clock)
                if writes:
                    mine.writes = [*_incomplete(mine.writes, relation, clock), number]
                else:
                    mine.reads.append(number)


def _incomplete(numbers: Sequence[int], relation: HappensBefore, clock: Clock) -> list[int]:
    return [number for number in numbers if not relation.is_complete(number, clock)]


def race(program: Program, later: Touched, earlier: Touched) -> Hazard:
    """Two accesses without happens-before; the later one in the program comes first."""
    (number, region, writes), (other, theirs, wrote) = later, earlier
    if number < other:
        number, region, writes, other, theirs, wrote = other, theirs, wrote, number, region, writes
    commands = program.commands
    one, two = commands[number], commands[other]
    verbs = {True: "writes", False: "reads"}
    is_itself = one.op is not None and one.op is two.op
    who = "it" if is_itself else f"{title(two)}{origin(two)}"
    when = "" if not is_itself else iteration(two) or " in an earlier iteration"
    also = " also" if is_itself and writes == wrote else ""
    what = _named_bytes(program, region)
    message = (
        f"data race: {title(one)}{iteration(one)} {verbs[writes]} {what}, which {who}{also} {verbs[wrote]}{when}"
        + (f" ({_named_bytes(program, theirs)})" if theirs != region else "")
        + ", with no happens-before between the two"
    )
    token = f"its own token{when.replace(' in ', ' of ', 1)}" if is_itself else f"the token of {who}"
    return Hazard(
        HazardKind.RACE, message, (number, other), ops_of(commands, (number, other)), (f"let it come after {token}",)
    )


def _named_bytes(program: Program, region: Region) -> str:
    """The bytes of a region in a message, by the name of its storage."""
    if region.storage and region.storage < len(program.storages):
        where = program.storages[region.storage]
    elif region.storage:
        where = f"argument {region.storage} in {region.space}"
    else:
        where = f'"{region.space}"'
    return f"bytes {region.start}..{region.end - 1} of {where}"
