"""Which loops can run as virtual threads, and taking several rounds of one in turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import NoMemoryEffect

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp
from penstock.passes.analysis.commands.program import Command, Program
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.loops import constant_of, loops_around, trip_count


def units_in(op: Operation, target: TargetOp) -> set[str]:
    """The units that the commands in an op are given to."""
    units: set[str] = set()
    for each in op.walk():
        engine = None
        if isinstance(each, DmaOp):
            engine = each.engine.data
        elif isinstance(each, ExecOp):
            intrinsic = target.intrinsics()[each.intrinsic_name]
            engine = intrinsic.dma_name
            if intrinsic.unit_name is not None:
                units.add(intrinsic.unit_name)
        if engine is not None:
            units.add(target.dmas()[engine].unit_name)
    return units


def loops_inside_out(function: func.FuncOp) -> Iterator[scf.ForOp]:
    """The loops of a function, inner ones before those around them."""
    for op in function.walk(reverse=True):
        if isinstance(op, scf.ForOp):
            yield op


@dataclass(frozen=True)
class Conflict:
    """Two rounds of a loop that touch the same bytes, one of them writing."""

    first: Command
    second: Command

    def error(self, loop: scf.ForOp) -> UserError:
        """The conflict as a fault of who wants the rounds to run at once."""
        ops = [command.op for command in (self.second, self.first) if command.op is not None]
        return UserError(
            "the rounds of this loop depend on each other: they are no virtual threads",
            loc=location_of(loop),
            notes=[f"{op.name} at {location_of(op)}" for op in ops],
        )


def conflict(loop: scf.ForOp, program: Program, threads: int) -> Conflict | None:
    """
    Two commands of rounds that would take turns and may not; None if there are none.

    `program` is the function as it is. The buffers of the loop's body do not count, as each thread has its own.
    """
    depth = len(loops_around(loop))
    own = [
        (op.scope, op.byte_offset, op.byte_offset + op.size_in_bytes)
        for op in loop.body.walk()
        if isinstance(op, BufferOp | RingOp) and op.byte_offset is not None
    ]

    def counts(region: Region) -> bool:
        return not any(
            region.space == scope and start <= region.start and region.end <= end for scope, start, end in own
        )

    inside = {op for op in loop.body.walk()}
    groups: dict[tuple[int, ...], dict[int, list[Command]]] = defaultdict(lambda: defaultdict(list))
    for command in program.commands:
        if command.op in inside:
            outer, number = command.counters[:depth], command.counters[depth]
            groups[(*outer, number // threads)][number % threads].append(command)
    for rounds in groups.values():
        earlier = _Touched()
        for _, commands in sorted(rounds.items()):
            touched = [
                (command, region, writes)
                for command in commands
                for regions, writes in ((command.reads, False), (command.writes, True))
                for region in regions
                if counts(region)
            ]
            for command, region, writes in touched:
                other = earlier.meeting(region, writes=writes)
                if other is not None:
                    return Conflict(other, command)
            for each in touched:
                earlier.add(*each)
    return None


class _Touched:
    """What some commands touch, by storage."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, bool], dict[Region, Command]] = defaultdict(dict)

    def add(self, command: Command, region: Region, writes: bool) -> None:
        self._found[region.space, region.storage, writes].setdefault(region, command)

    def meeting(self, region: Region, *, writes: bool) -> Command | None:
        """A command that touches a byte of `region`, one of the two writing."""
        for kind in (True, False) if writes else (True,):
            for other, command in self._found.get((region.space, region.storage, kind), {}).items():
                if region.overlaps(other):
                    return command
        return None


def take_turns(loop: scf.ForOp, threads: int, target: TargetOp) -> list[BufferOp | RingOp]:
    """
    Let `threads` rounds of a loop take turns, command by command, and the rest of its rounds after it as well.

    The loop carries nothing and has constant bounds. A loop in its body in which several units work is gone through by
    all threads together; one of a single unit belongs to one thread at a time. Returned are the buffers of all threads
    but the first.
    """
    trips, lower, step = trip_count(loop), constant_of(loop.lb), constant_of(loop.step)
    if trips is None or lower is None or step is None or loop.iter_args:
        raise UserError("virtual threads need a loop that carries nothing but tokens", loc=location_of(loop))
    turns = _Turns(target)
    builder = Builder(InsertPoint.before(loop))
    groups, rest = divmod(trips, threads)
    counter = loop.body.block.args[0]
    if groups == 1:
        values = [_index(builder, lower + number * step) for number in range(threads)]
        turns.of(builder, loop.body.block, counter, values)
    elif groups:
        end = _index(builder, lower + groups * threads * step)
        stride = _index(builder, threads * step)
        body = Block(arg_types=[IndexType()])
        body.args[0].name_hint = counter.name_hint
        inside = Builder(InsertPoint.at_end(body))
        turns.of(inside, loop.body.block, counter, [body.args[0], *_later(inside, body.args[0], step, threads)])
        inside.insert(scf.YieldOp())
        new = scf.ForOp(loop.lb, end, stride, [], body)
        new.location = loop.location
        builder.insert(new)
    if rest:
        first = lower + groups * threads * step
        values = [_index(builder, first + number * step) for number in range(rest)]
        turns.of(builder, loop.body.block, counter, values)
    Rewriter.erase_op(loop)
    return turns.copies


def _index(builder: Builder, number: int) -> SSAValue:
    return builder.insert(arith.ConstantOp(IntegerAttr(number, IndexType()))).result


def _later(builder: Builder, counter: SSAValue, step: int, threads: int) -> list[SSAValue]:
    """The counters of the rounds after the first that take turns with it."""
    found: list[SSAValue] = []
    for thread in range(1, threads):
        value = builder.insert(arith.AddiOp(counter, _index(builder, thread * step))).result
        value.name_hint = counter.name_hint
        found.append(value)
    return found


class _Turns:
    """Emits the rounds of several threads, an op of each in turn."""

    def __init__(self, target: TargetOp):
        self._target = target
        self.copies: list[BufferOp | RingOp] = []

    def of(self, builder: Builder, block: Block, counter: SSAValue, values: Sequence[SSAValue]) -> None:
        """One round of `block` for each of `values`, its counter."""
        self._ops(builder, block, [{counter: value} for value in values])

    def _ops(self, builder: Builder, block: Block, threads: list[dict[SSAValue, SSAValue]]) -> None:
        for op in block.ops:
            if isinstance(op, scf.YieldOp):
                continue
            alike = all(
                values.get(operand, operand) is threads[0].get(operand, operand)
                for operand in op.operands
                for values in threads
            )
            if isinstance(op, scf.ForOp) and alike and not op.iter_args and len(units_in(op, self._target)) > 1:
                self._together(builder, op, threads)
            elif alike and not op.regions and op.has_trait(NoMemoryEffect):
                copy = builder.insert(op.clone(threads[0]))
                for values in threads[1:]:
                    values.update(zip(op.results, copy.results, strict=True))
            else:
                for number, values in enumerate(threads):
                    copy = builder.insert(op.clone(values))
                    if number:
                        self.copies += [each for each in copy.walk() if isinstance(each, BufferOp | RingOp)]

    def _together(self, builder: Builder, op: scf.ForOp, threads: list[dict[SSAValue, SSAValue]]) -> None:
        lower, upper, step = (threads[0].get(value, value) for value in (op.lb, op.ub, op.step))
        body = Block(arg_types=[IndexType()])
        body.args[0].name_hint = op.body.block.args[0].name_hint
        inside = Builder(InsertPoint.at_end(body))
        self._ops(inside, op.body.block, [{**values, op.body.block.args[0]: body.args[0]} for values in threads])
        inside.insert(scf.YieldOp())
        new = scf.ForOp(lower, upper, step, [], body)
        new.location = op.location
        builder.insert(new)
