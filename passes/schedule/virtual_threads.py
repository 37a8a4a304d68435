# SPDX-License-Identifier: Apache-2.0
"""
Virtual threads: iterations of a loop that are interleaved on the units, each with its own buffers.

As TVM lowers virtual threads to decoupled access-execute (Chen et al., "TVM", OSDI 2018): the loop is taken in strips
of as many iterations as there are threads, every buffer of its body gets a copy for each, their commands are
interleaved into one stream, and the order is derived anew. A loop inside it in which several units work is executed by
all threads together. The iterations that are left over are interleaved after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from xdsl.builder import Builder
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.analysis.commands.program import Command, CommandOp, Program, unit_of
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.effects import is_computed
from penstock.passes.analysis.loops import constant_of, loops_around, trip_count
from penstock.passes.index_builder import for_loop, materialize
from penstock.passes.schedule.ordering import order, require_tokens
from penstock.passes.schedule.ordering.tokens import strip
from penstock.passes.schedule.scope_offsets import NoRoom, ScopeOffsets
from penstock.passes.schedule.state import TransformState

_FAR = 1 << 40
"""Bytes between copies that have no offset yet: more than any scope has."""


def interleave_iterations(state: TransformState, loop: scf.ForOp, threads: int) -> None:
    """
    Interleave iterations of a loop, each with buffers of its own, which get places beside what is placed, or if they do
    not fit there with all other buffers of the kernel.

    Required: the accel level, buffers placed, tokens rather than queues. Raises UserError, with the kernel as it was,
    for a loop whose iterations depend on each other or whose number is not known, and for copies that do not fit.
    """
    function, target = state.kernel, state.target
    if target is None:
        raise UserError("the kernel is one of the host, where no units run beside each other")
    require_tokens(function)
    if trip_count(loop) is None:
        raise UserError("virtual threads need a loop with constant bounds", loc=location_of(loop))
    # Every compilation imports this file, and that one takes long to load.
    from penstock.passes.analysis.commands.trace import trace

    if (found := conflict(loop, trace(function, target), threads)) is not None:
        ops = [command.op for command in reversed(found) if command.op is not None]
        raise UserError(
            "the iterations of this loop depend on each other: they are no virtual threads",
            loc=location_of(loop),
            notes=[f"{op.name} at {location_of(op)}" for op in ops],
        )
    body = loop.body.block
    with state.undone_on_error():
        # Loops that carry tokens are replaced by others that do not, with the same body.
        strip(function)
        loop = next(op for op in function.walk() if isinstance(op, scf.ForOp) and op.body.block is body)
        copies = _interleave(loop, threads, target)
        # A buffer is alive while a command may be in flight, which depends on tokens. So they are derived twice: as if
        # the copies overlapped nothing, and with the offsets that are found by that.
        for number, copy in enumerate(copies):
            copy.offset = IntegerAttr(_FAR * (1 + number), i64)
        order(function, target)
        for copy in copies:
            copy.offset = None
        full = ScopeOffsets(function, target, state.kept, in_flight=True).replan()
        if full is not None:
            size = sum(copy.size_in_bytes for copy in copies if copy.scope == full)
            raise NoRoom(
                f'the scope "{full}" has no room for the buffers of {threads} threads',
                notes=[f"those of all threads but the first are {size:,} bytes"],
            )
        order(function, target)


def units_in(op: Operation, target: TargetOp) -> set[str]:
    """The units that the commands in an op are given to."""
    return {unit_of(each, target) for each in op.walk() if isinstance(each, CommandOp)}


def loops_inside_out(function: func.FuncOp) -> Iterator[scf.ForOp]:
    """The loops of a function, inner ones before those around them."""
    for op in function.walk(reverse=True):
        if isinstance(op, scf.ForOp):
            yield op


def conflict(loop: scf.ForOp, program: Program, threads: int) -> tuple[Command, Command] | None:
    """
    Two commands of iterations that would be interleaved and access the same bytes, one of them writing; or None.

    `program` is the function as it is. The buffers of the loop's body do not count, as each thread has its own.
    """
    depth = len(loops_around(loop))
    own = [
        (op.scope, *op.byte_range)
        for op in loop.body.walk()
        if isinstance(op, ScopedAllocation) and op.byte_range is not None
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
    for iterations in groups.values():
        earlier: dict[tuple[Region, bool], Command] = {}
        for _, commands in sorted(iterations.items()):
            accesses = [
                (region, writes, command)
                for command in commands
                for regions, writes in ((command.reads, False), (command.writes, True))
                for region in regions
                if counts(region)
            ]
            for region, writes, command in accesses:
                for (other, wrote), first in earlier.items():
                    if (writes or wrote) and region.overlaps(other):
                        return first, command
            for region, writes, command in accesses:
                earlier.setdefault((region, writes), command)
    return None


def _interleave(loop: scf.ForOp, threads: int, target: TargetOp) -> list[ScopedAllocation]:
    """
    Interleave `threads` iterations of a loop, command by command, and the rest of its iterations after it as well.

    The loop carries nothing and has constant bounds. A loop in its body in which several units work is executed by all
    threads together; one of a single unit belongs to one thread at a time. Returned are the buffers of all threads but
    the first.
    """
    trips, lower, step = trip_count(loop), constant_of(loop.lb), constant_of(loop.step)
    if trips is None or lower is None or step is None or loop.iter_args:
        raise UserError("virtual threads need a loop that carries nothing but tokens", loc=location_of(loop))
    interleaving = _Interleaving(target)
    builder = Builder(InsertPoint.before(loop))
    groups, rest = divmod(trips, threads)
    counter = loop.body.block.args[0]
    if groups == 1:
        values = [materialize(builder, lower + number * step) for number in range(threads)]
        interleaving.of(builder, loop.body.block, counter, values)
    elif groups:
        end = materialize(builder, lower + groups * threads * step)
        stride = materialize(builder, threads * step)
        new, inside = for_loop(builder, (loop.lb, end, stride), like=loop, counter=counter)
        own = new.body.block.args[0]
        interleaving.of(inside, loop.body.block, counter, [own, *_later(inside, own, step, threads)])
        inside.insert(scf.YieldOp())
    if rest:
        first = lower + groups * threads * step
        values = [materialize(builder, first + number * step) for number in range(rest)]
        interleaving.of(builder, loop.body.block, counter, values)
    Rewriter.erase_op(loop)
    return interleaving.copies


def _later(builder: Builder, counter: SSAValue, step: int, threads: int) -> list[SSAValue]:
    """The counters of the iterations after the first that are interleaved with it."""
    found: list[SSAValue] = []
    for thread in range(1, threads):
        value = builder.insert(arith.AddiOp(counter, materialize(builder, thread * step))).result
        value.name_hint = counter.name_hint
        found.append(value)
    return found


class _Interleaving:
    """Emits the iterations of several threads, an op of each in turn."""

    def __init__(self, target: TargetOp):
        self._target = target
        self.copies: list[ScopedAllocation] = []

    def of(self, builder: Builder, block: Block, counter: SSAValue, values: Sequence[SSAValue]) -> None:
        """One iteration of `block` for each of `values`, its counter."""
        self._ops(builder, block, [{counter: value} for value in values])

    def _ops(self, builder: Builder, block: Block, threads: list[dict[SSAValue, SSAValue]]) -> None:
        for op in block.ops:
            if isinstance(op, scf.YieldOp):
                continue
            same = all(
                values.get(operand, operand) is threads[0].get(operand, operand)
                for operand in op.operands
                for values in threads
            )
            if isinstance(op, scf.ForOp) and same and not op.iter_args and len(units_in(op, self._target)) > 1:
                self._together(builder, op, threads)
            elif same and is_computed(op):
                copy = builder.insert(op.clone(threads[0]))
                for values in threads[1:]:
                    values.update(zip(op.results, copy.results, strict=True))
            else:
                for number, values in enumerate(threads):
                    copy = builder.insert(op.clone(values))
                    if number:
                        self.copies += [each for each in copy.walk() if isinstance(each, ScopedAllocation)]

    def _together(self, builder: Builder, op: scf.ForOp, threads: list[dict[SSAValue, SSAValue]]) -> None:
        lower, upper, step = (threads[0].get(value, value) for value in (op.lb, op.ub, op.step))
        counter = op.body.block.args[0]
        new, inside = for_loop(builder, (lower, upper, step), like=op, counter=counter)
        self._ops(inside, op.body.block, [{**values, counter: new.body.block.args[0]} for values in threads])
        inside.insert(scf.YieldOp())
