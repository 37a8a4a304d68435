"""How long a kernel takes by the model of latency hiding, for given numbers of slots."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects import func, scf
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import RingOp
from penstock.passes.analysis.commands.program import Command, CommandOp, MachineModel
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.loops import trip_count
from penstock.passes.planning.pipelining import NestTime, TimedLoop, TimedStep, time_of
from penstock.passes.schedule.ordering.accesses import CommandInfo


@dataclass
class Model:
    """One kernel, its tokens aside, as steps in loops."""

    function: func.FuncOp
    target: TargetOp
    commands: Sequence[CommandInfo]
    opens: Mapping[CommandOp, Collection[SSAValue]]
    """The storages that a command takes the next slot of, the first time it is issued in an iteration of theirs."""
    skewed: bool
    """Whether loops are going to be skewed, so that the transfers of different engines of a unit pass each other."""
    nest: tuple[TimedStep | TimedLoop, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._machine = MachineModel.of(self.target)
        self._infos = {info.op: info for info in self.commands}
        self._costs = _costs(self.function, self.target)
        self._names = {
            storage: f"storage {number}"
            for number, storage in enumerate(dict.fromkeys(a.storage for c in self.commands for a in c.accesses))
        }
        self.nest = tuple(self._block(self.function.body.block, opening=True))

    @property
    def has_shared_unit(self) -> bool:
        """Whether some unit has transfers of several engines, of which one may hold up the other."""
        engines = {(command.unit, command.engine) for command in self._costs.values() if command.engine is not None}
        return len({unit for unit, _ in engines}) < len(engines)

    def time(self, slots: Mapping[SSAValue, int]) -> NestTime:
        """The time with so many slots of storages; rings at hand have their own, all others one."""
        known = {s: s.owner.slot_count for s in self._names if isinstance(s.owner, RingOp)} | dict(slots)
        return time_of(self.nest, {self._names[s]: count for s, count in known.items() if s in self._names})

    def _block(self, block: Block, opening: bool) -> Iterator[TimedStep | TimedLoop]:
        for op in block.ops:
            if isinstance(op, CommandOp):
                yield self._step(op, opening)
            elif isinstance(op, scf.ForOp):
                yield from self._loop(op, opening)

    def _loop(self, loop: scf.ForOp, opening: bool) -> Iterator[TimedStep | TimedLoop]:
        trips, body = trip_count(loop) or 0, loop.body.block
        if trips and opening and self._opens_from_outside(loop):
            # A slot is taken once, by the first of several pieces.
            first, rest = (tuple(self._block(body, opening=each)) for each in (True, False))
            yield from _joined(TimedLoop(1, first), TimedLoop(trips - 1, rest))
        elif parts := tuple(self._block(body, opening)):
            yield from _joined(TimedLoop(trips, parts))

    def _opens_from_outside(self, loop: scf.ForOp) -> bool:
        return any(
            not _has_slots_inside(storage, loop)
            for op in loop.walk()
            if isinstance(op, CommandOp)
            for storage in self.opens.get(op, ())
        )

    def _step(self, op: CommandOp, opening: bool) -> TimedStep:
        info, cost = self._infos[op], self._costs.get(op)
        reads = tuple(dict.fromkeys(self._names[a.storage] for a in info.accesses if not a.writes))
        writes = tuple(dict.fromkeys(self._names[a.storage] for a in info.accesses if a.writes))
        opens = tuple(self._names[storage] for storage in self.opens.get(op, ()) if opening)
        engine = self._machine.engines[cost.engine] if cost is not None and cost.engine is not None else None
        cycles = cost.cycles if cost is not None else 0
        if engine is None:
            return TimedStep(info.unit, cycles, reads=reads, writes=writes, opens=opens)
        stream = f"{info.unit} for {engine.name}" if self.skewed else None
        timing = engine.bus, engine.latency, engine.outstanding
        leaves = any(access.writes and access.scope is None for access in info.accesses)
        return TimedStep(
            info.unit, cycles, *timing, reads=reads, writes=writes, opens=opens, stream=stream, leaves=leaves
        )


def _joined(*loops: TimedLoop) -> Iterator[TimedStep | TimedLoop]:
    """The loops, or one step where they do nothing but the pieces of one transfer, which wait for no other piece."""
    found = [_pieces(loop) for loop in loops if loop.trips]
    steps = [step for step in found if step is not None]
    if len(steps) < len(found) or len({replace(step, count=1, opens=()) for step in steps}) != 1:
        yield from loops
    else:
        yield replace(steps[0], count=sum(step.count for step in steps))


def _pieces(loop: TimedLoop) -> TimedStep | None:
    if len(loop.body) != 1 or not isinstance(step := loop.body[0], TimedStep):
        return None
    opens_again = bool(step.opens) and loop.trips > 1
    return replace(step, count=step.count * loop.trips) if step.outstanding > 1 and not opens_again else None


def _has_slots_inside(storage: SSAValue, loop: scf.ForOp) -> bool:
    """Whether iterations of this loop have slots of their own."""
    owner = storage.owner
    if isinstance(owner, Operation) and loop.is_ancestor(owner):
        return True
    return any(loop.is_ancestor(use.operation) for use in storage.uses) and isinstance(owner, RingOp)


def _costs(function: func.FuncOp, target: TargetOp) -> dict[Operation, Command]:
    """A command of each op: that of the middle iteration of all loops, as the first has its padding."""
    program = trace(function, target, iterations=lambda loop, trips: [trips // 2] if trips else [])
    return {command.op: command for command in program.commands if command.op is not None}
