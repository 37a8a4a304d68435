"""Accesses to the same bytes in no order: the last ones to every range of bytes, against what each command knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.passes.analysis.commands.hazards.hazard import Fault, Hazard, ops_of, place, title
from penstock.passes.analysis.commands.hazards.network import Flow
from penstock.passes.analysis.commands.hazards.order import Order
from penstock.passes.analysis.commands.hazards.overlap import named_bytes, neighbours
from penstock.passes.analysis.commands.program import Command, Program
from penstock.passes.analysis.commands.region import Region

_Storage = tuple[str, int]


@dataclass(slots=True)
class _Range:
    """The accesses to one range of bytes that a later one could be in no order with."""

    region: Region
    near: list[_Range] = field(default_factory=list["_Range"], repr=False)
    """The ranges that overlap it, itself first."""
    written: bool = False
    writes: list[int] = field(default_factory=list[int])
    reads: list[int] = field(default_factory=list[int])


def ranges_of(program: Program) -> dict[Region, _Range]:
    """The ranges of all storages that are written, with what overlaps them."""
    places: dict[_Storage, dict[Region, bool]] = {}
    for command in program.commands:
        for region in command.reads:
            places.setdefault((region.space, region.storage), {}).setdefault(region, False)
        for region in command.writes:
            places.setdefault((region.space, region.storage), {})[region] = True
    found: dict[Region, _Range] = {}
    for written in places.values():
        if not any(written.values()):
            continue
        regions = list(written)
        ranges = [_Range(region, written=written[region]) for region in regions]
        for each, near in zip(ranges, neighbours(regions, list(written.values())), strict=True):
            each.near = [ranges[number] for number in near]
        found.update(zip(regions, ranges, strict=True))
    return found


class Races:
    """Commands in the order of a flow; whatever races with an earlier one becomes a hazard."""

    def __init__(self, program: Program, flow: Flow, most: int):
        self._program = program
        self._order = Order(program, flow)
        self._flow = flow
        self._most = most
        self._ranges = ranges_of(program)
        # Ranges are looked up by what they are only once: hashing them costs more than all the rest.
        self._by_identity: dict[int, _Range | None] = {}
        self._entries = [0] * len(program.commands)
        """How many ranges know each command."""
        self.hazards: list[Hazard] = []
        self._told: set[tuple[int, int]] = set()

    def run(self) -> list[Hazard]:
        """All races, up to `most`, of which each names two accesses; two ops are named once."""
        barriers = iter([*self._program.barriers, -1])
        barrier = next(barriers)
        for at, number in enumerate(self._flow.order):
            while at == barrier:
                self._barrier()
                barrier = next(barriers)
            self._visit(number)
            if len(self.hazards) >= self._most:
                break
            if not at & 255:
                self._order.tidy(lambda number: self._entries[number] > 0)
        return self.hazards

    def _barrier(self) -> None:
        self._order.barrier()
        for each in self._ranges.values():
            each.writes.clear()
            each.reads.clear()

    def _range(self, region: Region) -> _Range | None:
        key = id(region)
        if key not in self._by_identity:
            self._by_identity[key] = self._ranges.get(region)
        return self._by_identity[key]

    def _visit(self, number: int) -> None:
        before = self._order.start(number)
        command = self._program.commands[number]
        bit, entries = self._order.bit, self._entries
        for region in command.reads:
            mine = self._range(region)
            if mine is None:
                continue
            for near in mine.near:
                for other in near.writes:
                    at = bit.get(other)
                    if at is not None and not before >> at & 1:
                        self._race(number, region, False, other, near.region, True)
            # Who comes after this read comes after all those before it.
            mine.reads = self._left(mine.reads, before)
            mine.reads.append(number)
            entries[number] += 1
        for region in command.writes:
            mine = self._range(region)
            if mine is None:
                continue
            for near in mine.near:
                for other in near.writes:
                    at = bit.get(other)
                    if at is not None and not before >> at & 1 and other != number:
                        self._race(number, region, True, other, near.region, True)
                for other in near.reads:
                    at = bit.get(other)
                    if at is not None and not before >> at & 1 and other != number:
                        self._race(number, region, True, other, near.region, False)
            mine.writes = self._left(mine.writes, before)
            # What this write comes after need not be known any more: who races with that races with this.
            mine.reads = self._left(mine.reads, before)
            mine.writes.append(number)
            entries[number] += 1

    def _left(self, numbers: list[int], before: int) -> list[int]:
        """Those of `numbers` that are not complete; the others are forgotten."""
        kept: list[int] = []
        for other in numbers:
            at = self._order.bit.get(other)
            if at is not None and not before >> at & 1:
                kept.append(other)
            else:
                self._entries[other] -= 1
        return kept

    def _race(self, number: int, region: Region, writes: bool, other: int, theirs: Region, wrote: bool) -> None:
        hazard = race(self._program, (number, region, writes), (other, theirs, wrote))
        key = (
            id(self._program.commands[number].op) if hazard.ops else number,
            other if not hazard.ops else id(hazard.ops[-1]),
        )
        if key not in self._told and len(self.hazards) < self._most:
            self._told.add(key)
            self.hazards.append(hazard)


Access = tuple[int, Region, bool]
"""The number of a command, what it touches, and whether it writes that."""


def race(program: Program, later: Access, earlier: Access) -> Hazard:
    """Two accesses in no order; the later one in the program comes first."""
    (number, region, writes), (other, theirs, wrote) = later, earlier
    if number < other:
        number, region, writes, other, theirs, wrote = other, theirs, wrote, number, region, writes
    commands = program.commands
    one, two = commands[number], commands[other]
    verbs = {True: "writes", False: "reads"}
    is_itself = one.op is not None and one.op is two.op
    who = "it" if is_itself else f"{title(two)}{place(two)}"
    when = "" if not is_itself else rounds(two) or " in an earlier round"
    also = " also" if is_itself and writes == wrote else ""
    what = named_storage(program, region)
    message = (
        f"{title(one)}{rounds(one)} {verbs[writes]} {what}, which {who}{also} {verbs[wrote]}{when}"
        + (f" ({named_storage(program, theirs)})" if theirs != region else "")
        + ", and nothing orders the two"
    )
    token = f"its own token{when.replace(' in ', ' of ', 1)}" if is_itself else f"the token of {who}"
    return Hazard(
        Fault.RACE, message, (number, other), ops_of(commands, (number, other)), (f"let it come after {token}",)
    )


def rounds(command: Command) -> str:
    """The rounds alone: where the message stands says the rest."""
    return f" in round {', '.join(map(str, command.counters))}" if command.counters else ""


def named_storage(program: Program, region: Region) -> str:
    """The bytes of a region in a message, by the name of its storage."""
    if region.storage and region.storage < len(program.storages):
        return f"bytes {region.start}..{region.end - 1} of {program.storages[region.storage]}"
    return named_bytes(region)
