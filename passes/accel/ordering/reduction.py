"""
Which dependences need a token: a rehearsal of the kernel, a few rounds of each loop, with everything in order.

A dependence that another path of orders implies, every time, needs none: transitive reduction. All paths between two
commands lie between them in program order, and loops do the same in every round, so a few rounds show all there is:
at least two more than a ring has slots, and as many too few or too many for whole turns of it as there really are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm, prod

from xdsl.dialects import func, scf
from xdsl.ir import Block

from penstock.dialects.accel import BarrierOp
from penstock.dialects.mem import RingOp
from penstock.passes.accel.ordering.accesses import CommandInfo, CommandOp
from penstock.passes.accel.ordering.conflicts import Dependence, ring_steps
from penstock.passes.accel.ordering.counting import trips_of
from penstock.passes.accel.ordering.progress import Progress

ROUNDS = 3
"""The first round, one that follows another, and one that has both before it."""
LONGEST = 40_000
"""Commands in a rehearsal; a kernel that needs more keeps all its dependences."""


@dataclass(frozen=True)
class Source:
    """What tokens are kept of: a command, or a command for each slot of a ring, which it accesses at this turn."""

    command: CommandInfo
    ring: RingOp | None = None
    turn: int = 0

    @staticmethod
    def of(dependence: Dependence) -> Source:
        return Source(dependence.source, dependence.ring, dependence.source_turn)


@dataclass
class Findings:
    """What a rehearsal has shown."""

    needed: dict[Dependence, None]
    """The dependences that need a token, in order."""
    renewed: dict[Source, Block | CommandOp | None]
    """
    Of sources that may be in flight more than once: where the earlier rounds of them are sure to be complete, so that
    tokens are collected anew. In each round of the loop with this body, at the command itself, or never.
    """
    steps: Mapping[RingOp, Mapping[Block, int]]
    """By how many slots of a ring each loop moves on in a round."""


@dataclass
class _Rehearsal:
    commands: Sequence[CommandInfo]
    dependences: Sequence[Dependence]
    in_order: frozenset[str]
    steps: Mapping[RingOp, Mapping[Block, int]]
    """By how many slots each loop moves on in a round."""
    rounds: Mapping[Block, int]
    progress: Progress = field(default_factory=Progress)
    counts: dict[Block, int] = field(default_factory=dict[Block, int])
    sofar: dict[Source, list[int]] = field(default_factory=dict[Source, list[int]])
    """The commands issued of each source, as masks; in each slot."""
    before_round: dict[Block, dict[Source, list[int]]] = field(default_factory=dict[Block, dict[Source, list[int]]])
    essential: dict[tuple[Dependence, ...], None] = field(default_factory=dict[tuple[Dependence, ...], None])
    incomplete: dict[Source, set[Block | CommandOp]] = field(default_factory=dict[Source, set[Block | CommandOp]])
    """Where, at least once, an earlier round was not sure to be complete."""

    def __post_init__(self) -> None:
        self.infos = {info.op: info for info in self.commands}
        self.into: dict[CommandInfo, list[Dependence]] = {}
        for each in self.dependences:
            self.into.setdefault(each.sink, []).append(each)
            source = Source.of(each)
            self.sofar[source] = [0] * (each.ring.slot_count if each.ring is not None else 1)
        self.of: dict[CommandInfo, list[Source]] = {}
        for source in self.sofar:
            self.of.setdefault(source.command, []).append(source)

    def run(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                body = op.body.block
                for number in range(self.rounds[body]):
                    self.counts[body] = number
                    self.before_round[body] = {source: list(masks) for source, masks in self.sofar.items()}
                    self.run(body)
            elif isinstance(op, BarrierOp):
                self.progress.barrier()
            elif isinstance(op, CommandOp):
                self._issue(self.infos[op])

    def _issue(self, info: CommandInfo) -> None:
        covered = self.progress.before(info)
        waits = [(each, self._wanted(each) & ~covered) for each in self.into.get(info, ())]
        open = 0
        for _, mask in waits:
            open |= mask
        while open := open & ~covered:
            latest = open.bit_length() - 1
            self.essential[tuple(each for each, mask in waits if mask >> latest & 1)] = None
            covered |= self.progress.done[latest]
        self._record(info, covered, 1 << self.progress.issue(info, covered))

    def _wanted(self, each: Dependence) -> int:
        source = Source.of(each)
        slot = self._slot(each.sink, each.ring, each.sink_turn)
        return (self.before_round[each.since] if each.since is not None else self.sofar)[source][slot]

    def _record(self, info: CommandInfo, covered: int, issued: int) -> None:
        for source in self.of.get(info, ()):
            masks, slot = self.sofar[source], self._slot(info, source.ring, source.turn)
            if info.unit in self.in_order:
                masks[slot] = issued
                continue
            late = self.incomplete.setdefault(source, set())
            if masks[slot] & ~covered:
                late.add(info.op)
            for loop in info.loops:
                if self.before_round[loop][source][slot] & ~covered:
                    late.add(loop)
            masks[slot] |= issued

    def _slot(self, info: CommandInfo, ring: RingOp | None, turn: int) -> int:
        if ring is None:
            return 0
        steps = self.steps[ring]
        return (turn + sum(steps[loop] * self.counts[loop] for loop in info.loops)) % ring.slot_count


def reduce(
    function: func.FuncOp,
    commands: Sequence[CommandInfo],
    dependences: Sequence[Dependence],
    in_order: frozenset[str],
) -> Findings:
    """Leave out the dependences that others imply."""
    steps = {each.ring: steps_of(each.ring, commands) for each in dependences if each.ring is not None}
    rounds = rounds_of(function, commands, steps)
    if rounds is None:
        return Findings(dict.fromkeys(dependences), {}, steps)
    rehearsal = _Rehearsal(commands, dependences, in_order, steps, rounds)
    rehearsal.run(function.body.block)
    renewed: dict[Source, Block | CommandOp | None] = {}
    for source, late in rehearsal.incomplete.items():
        renewed[source] = next((place for place in _places(source, steps) if place not in late), None)
    return Findings(_choose(rehearsal.essential, dependences), renewed, steps)


def _choose(
    essential: Mapping[tuple[Dependence, ...], None], dependences: Sequence[Dependence]
) -> dict[Dependence, None]:
    """Few dependences of which one is in each of the tuples."""
    chosen: set[Dependence] = set()
    for ways in sorted(essential, key=len):
        if not chosen.intersection(ways):
            chosen.add(ways[0])
    return {each: None for each in dependences if each in chosen}


def _places(source: Source, steps: Mapping[RingOp, Mapping[Block, int]]) -> Iterator[Block | CommandOp]:
    yield source.command.op
    inner: list[Block] = []
    for loop in reversed(source.command.loops):
        # One slot is collected anew: all rounds within must access the same.
        if source.ring is None or not any(steps[source.ring][each] for each in inner):
            yield loop
        inner.append(loop)


def steps_of(ring: RingOp, commands: Sequence[CommandInfo]) -> Mapping[Block, int]:
    """By how many slots each loop around an access of a ring moves on in a round; the ring is understood."""
    steps = ring_steps(ring, commands)
    assert steps is not None
    return steps


def rounds_of(
    function: func.FuncOp, commands: Sequence[CommandInfo], steps: Mapping[RingOp, Mapping[Block, int]]
) -> dict[Block, int] | None:
    """How often each loop goes round in a rehearsal; None where the real number is not known, or that is too long."""
    depths: dict[Block, int] = {}
    for ring, loops in steps.items():
        for loop, step in loops.items():
            if step:
                depths[loop] = lcm(depths.get(loop, 1), ring.slot_count)
    found: dict[Block, int] = {}
    for op in function.walk():
        if isinstance(op, scf.ForOp):
            body = op.body.block
            trips = trips_of(body)
            if trips is None:
                return None
            turn = depths.get(body, 1)
            least = turn + 2 if turn > 1 else ROUNDS
            found[body] = trips if trips <= least else least + (trips - least) % turn
    return None if sum(prod(found[loop] for loop in info.loops) for info in commands) > LONGEST else found
