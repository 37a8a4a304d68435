# SPDX-License-Identifier: Apache-2.0
"""How long a kernel takes by the model of latency hiding, for given numbers of slots."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects import func, scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import RingOp
from penstock.passes.analysis.commands.program import Command, CommandOp, MachineModel
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.loops import trip_count
from penstock.passes.planning.pipelining import NestTime, TimedLoop, TimedStep, time_of
from penstock.passes.planning.skewed_nest import Skewed
from penstock.passes.planning.skewed_nest import skewed as skewed_nest
from penstock.passes.schedule.ordering.accesses import CommandInfo

MAX_PIECES = 64
"""Iterations of a loop around one transfer that are looked at one by one; of more, the middle one stands for all."""


@dataclass
class Model:
    """One kernel, its tokens aside, as steps in loops."""

    function: func.FuncOp
    target: TargetOp
    commands: Sequence[CommandInfo]
    opens: Mapping[CommandOp, Collection[SSAValue]]
    """The storages that a command takes the next slot of, the first time it is issued in an iteration of theirs."""
    nest: tuple[TimedStep | TimedLoop, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._times: dict[Hashable, NestTime] = {}
        self._machine = MachineModel.of(self.target)
        self._infos = {info.op: info for info in self.commands}
        self._costs = _costs(self.function, self.target)
        self._names = {storage: f"storage {number}" for number, storage in enumerate(_ordering_storages(self.commands))}
        self.nest = tuple(self._block(self.function.body.block, frozenset(self._names)))

    def time(self, slots: Mapping[SSAValue, int], skewed: Skewed) -> NestTime:
        """
        The time with so many slots of storages, these loops `skewed` where they can be; rings at hand have their own
        slots, all other storages one.
        """
        known = {s: s.owner.slot_count for s in self._names if isinstance(s.owner, RingOp)} | dict(slots)
        named = {self._names[s]: count for s, count in known.items() if s in self._names}
        key = frozenset(named.items()), skewed
        if key not in self._times:
            self._times[key] = time_of(skewed_nest(self.nest, named, skewed), named)
        return self._times[key]

    def _block(self, block: Block, opening: frozenset[SSAValue]) -> Iterator[TimedStep | TimedLoop]:
        """The steps of a block, which take the next slots of the storages `opening`."""
        for op in block.ops:
            if isinstance(op, CommandOp):
                yield self._step(op, opening)
            elif isinstance(op, scf.ForOp) and (trips := trip_count(op)):
                # A slot is taken once, by all of several pieces.
                used = [s for each in op.walk() if isinstance(each, CommandOp) for s in self.opens.get(each, ())]
                outside = frozenset(s for s in used if s in opening and not _has_slots_inside(s, op))
                if parts := tuple(self._block(op.body.block, opening - outside)):
                    yield _joined(TimedLoop(trips, parts, tuple(self._names[s] for s in self._names if s in outside)))

    def _step(self, op: CommandOp, opening: frozenset[SSAValue]) -> TimedStep:
        info, cost = self._infos[op], self._costs.get(op)
        named = [(self._names[a.storage], a.writes) for a in info.accesses if a.storage in self._names]
        reads, writes = (tuple(dict.fromkeys(n for n, is_written in named if is_written == w)) for w in (False, True))
        opens = tuple(self._names[storage] for storage in self.opens.get(op, ()) if storage in opening)
        engine = self._machine.engines[cost.engine] if cost is not None and cost.engine is not None else None
        cycles = cost.cycles if cost is not None else 0
        stream = info.stream if info.stream != info.unit else None
        if engine is None:
            return TimedStep(
                info.unit, cycles, reads=reads, writes=writes, opens=opens, stream=stream, runs_on=info.runs_on
            )
        timing = engine.bus, engine.latency, engine.outstanding
        leaves = any(access.writes and access.scope is None for access in info.accesses)
        step = TimedStep(info.unit, cycles, *timing, reads=reads, writes=writes, opens=opens, leaves=leaves)
        return replace(step, stream=stream, runs_on=info.runs_on)


def _joined(loop: TimedLoop) -> TimedStep | TimedLoop:
    """The loop, or one step where it does nothing but the pieces of one transfer, which wait for no other piece."""
    if len(loop.body) != 1 or not isinstance(step := loop.body[0], TimedStep):
        return loop
    if step.outstanding == 1 or (step.opens and loop.trips > 1):
        return loop
    return replace(step, count=step.count * loop.trips, opens=(*loop.opens, *step.opens))


def _ordering_storages(commands: Sequence[CommandInfo]) -> list[SSAValue]:
    """The storages whose accesses wait for each other: not arguments that are only read, or only written in parts."""
    ways: dict[SSAValue, set[bool]] = {}
    for access in (access for command in commands for access in command.accesses):
        ways.setdefault(access.storage, set()).add(access.writes)
    return [storage for storage, found in ways.items() if len(found) > 1 or not isinstance(storage, BlockArgument)]


def _has_slots_inside(storage: SSAValue, loop: scf.ForOp) -> bool:
    """Whether iterations of this loop have slots of their own."""
    owner = storage.owner
    if isinstance(owner, Operation) and loop.is_ancestor(owner):
        return True
    return any(loop.is_ancestor(use.operation) for use in storage.uses) and isinstance(owner, RingOp)


def _costs(function: func.FuncOp, target: TargetOp) -> dict[Operation, Command]:
    """
    A command of each op: that of the middle iteration of all loops, as the first has its padding. Of two iterations,
    and of the pieces of one transfer, some of which may be padding, the mean.
    """
    program = trace(function, target, iterations=_typical_iterations)
    found: dict[Operation, list[Command]] = {}
    for command in program.commands:
        if command.op is not None:
            found.setdefault(command.op, []).append(command)
    return {op: replace(each[0], cycles=-(-sum(c.cycles for c in each) // len(each))) for op, each in found.items()}


def _typical_iterations(loop: scf.ForOp, trips: int) -> Sequence[int]:
    is_of_pieces = trips <= MAX_PIECES and sum(isinstance(op, CommandOp) for op in loop.walk()) == 1
    return range(trips) if is_of_pieces or trips <= 2 else [trips // 2]
