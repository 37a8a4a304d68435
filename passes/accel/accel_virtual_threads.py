"""Virtual threads: iterations of a loop that are interleaved on the units, each with its own buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import NoMemoryEffect
from xdsl.utils.hints import isa

from penstock.dialects.accel import PopOp, PushOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp, scope_of
from penstock.passes.analysis.commands.program import Command, CommandOp, Program, unit_of
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.loops import constant_of, loops_around, trip_count
from penstock.passes.index_builder import materialize
from penstock.passes.loop.mem_plan import MemPlanPass
from penstock.passes.schedule.ordering import order
from penstock.passes.schedule.ordering.tokens import strip

MARK = "virtual_threads"
"""The attribute of a loop that says how many of its iterations are interleaved."""

_FAR = 1 << 40
"""Bytes between copies that have no offset yet: more than any scope has."""


@dataclass(frozen=True)
class AccelVirtualThreadsPass(ModulePass):
    """
    Interleave iterations of a loop on the units of the machine, so that one loads while another computes.

    As TVM lowers virtual threads to decoupled access-execute (Chen et al., "TVM", OSDI 2018): the loop is taken in
    strips of `threads` iterations, every buffer of its body gets a copy for each, their commands are interleaved into
    one stream, and the order is derived anew; `accel-assign-queues` then primes and drains the queues. A loop is
    marked by the attribute `virtual_threads = 2 : i64`; in a kernel without marks it is the innermost loop in which
    several units work and whose iterations are independent, with `threads` of them. A loop inside it in which
    several units work is executed by all threads together. The iterations that are left over are interleaved after it.

    Required: the accel level, buffers placed, tokens rather than queues. Guaranteed: the same results bit for bit, and
    every buffer has its offset: those that are there keep theirs, if the copies fit beside them. Raises UserError,
    located, for fewer than one thread, for a marked loop whose iterations depend on each other or whose trip count is
    not constant, and for copies that do not fit in the scope.

    Before:
    ```mlir
    func.func private @k(%x: memref<64x16xi8>, %y: memref<64x16xi8>) attributes {device = @gemmini} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %end = arith.constant 5 : index
      %free = accel.ready
      %done = scf.for %i = %zero to %end step %one iter_args(%before = %free) -> (!accel.token) {
        %a = mem.buffer at 0 : memref<1x16xi8, "spad">
        %t = accel.dma %x[%i, 0] to %a on "mvin" after (%before) : memref<64x16xi8> to memref<1x16xi8, "spad">
        %u = accel.dma %a to %y[%i, 0] on "mvout" after (%t) : memref<1x16xi8, "spad"> to memref<64x16xi8>
        scf.yield %u : !accel.token
      }
      accel.barrier
      func.return
    }
    ```
    After (`accel-virtual-threads` on `gemmini`):
    ```mlir
    func.func private @k(%x: memref<64x16xi8>, %y: memref<64x16xi8>) attributes {device = @gemmini} {
      %0 = accel.ready
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %end = arith.constant 5 : index
      %1 = arith.constant 4 : index
      %2 = arith.constant 2 : index
      %3, %4 = scf.for %i = %zero to %1 step %2 iter_args(%5 = %0, %6 = %0) -> (!accel.token, !accel.token) {
        %7 = arith.constant 1 : index
        %i_1 = arith.addi %i, %7 : index
        %a = mem.buffer at 0 : memref<1x16xi8, "spad">
        %a_1 = mem.buffer at 16 : memref<1x16xi8, "spad">
        %t = accel.dma %x[%i, 0] to %a on "mvin" after(%5) : memref<64x16xi8> to memref<1x16xi8, "spad">
        %t_1 = accel.dma %x[%i_1, 0] to %a_1 on "mvin" after(%6) : memref<64x16xi8> to memref<1x16xi8, "spad">
        %u = accel.dma %a to %y[%i, 0] on "mvout" after(%t) : memref<1x16xi8, "spad"> to memref<64x16xi8>
        %u_1 = accel.dma %a_1 to %y[%i_1, 0] on "mvout" after(%t_1) : memref<1x16xi8, "spad"> to memref<64x16xi8>
        scf.yield %u, %u_1 : !accel.token, !accel.token
      }
      %8 = arith.constant 4 : index
      %a_2 = mem.buffer at 0 : memref<1x16xi8, "spad">
      %t_2 = accel.dma %x[%8, 0] to %a_2 on "mvin" after(%3) : memref<64x16xi8> to memref<1x16xi8, "spad">
      %u_2 = accel.dma %a_2 to %y[%8, 0] on "mvout" after(%t_2) : memref<1x16xi8, "spad"> to memref<64x16xi8>
      accel.barrier
      func.return
    }
    ```
    """

    name = "accel-virtual-threads"

    threads: int = 2
    """Iterations that are interleaved where no loop of a kernel is marked; with 1 nothing is changed."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.threads < 1:
            raise UserError(f"there is at least one virtual thread, not {self.threads}")
        target, functions = machine_kernels(op)
        if target is None:
            return
        for function in functions:
            if (copies := self._kernel(function, target)) is not None:
                _plan_copies(ctx, op, function, copies, target)

    def _kernel(self, function: func.FuncOp, target: TargetOp) -> list[BufferOp | RingOp] | None:
        """Interleave iterations; the buffers of all threads but the first, or None if nothing was done."""
        marked = [loop for loop in _loops_inside_out(function) if MARK in loop.attributes]
        if not marked and self.threads == 1:
            return None
        for op in function.walk():
            if isinstance(op, PushOp | PopOp):
                raise UserError("virtual threads are made before tokens become queues", loc=location_of(op))
        chosen = [(loop, _threads_of(loop)) for loop in marked] or self._choice(function, target)
        program = trace(function, target)
        for loop, threads in chosen:
            if (found := _conflict(loop, program, threads)) is not None:
                ops = [command.op for command in reversed(found) if command.op is not None]
                raise UserError(
                    "the iterations of this loop depend on each other: they are no virtual threads",
                    loc=location_of(loop),
                    notes=[f"{op.name} at {location_of(op)}" for op in ops],
                )
        if not chosen:
            return None
        # Loops that carry tokens are replaced by others that do not; the mark stays.
        for loop, threads in chosen:
            loop.attributes[MARK] = IntegerAttr(threads, i64)
        strip(function)
        copies: list[BufferOp | RingOp] = []
        for loop in [each for each in _loops_inside_out(function) if MARK in each.attributes]:
            copies += _interleave(loop, _threads_of(loop), target)
        return copies

    def _choice(self, function: func.FuncOp, target: TargetOp) -> list[tuple[scf.ForOp, int]]:
        """The loop whose iterations are interleaved where none is marked."""
        program = None
        for loop in _loops_inside_out(function):
            trips = trip_count(loop) or 0
            if trips < 2 or len(_units_in(loop, target)) < 2:
                continue
            program = trace(function, target) if program is None else program
            threads = min(self.threads, trips)
            if _conflict(loop, program, threads) is None:
                return [(loop, threads)]
        return []


def _threads_of(loop: scf.ForOp) -> int:
    if trip_count(loop) is None:
        raise UserError("virtual threads need a loop with constant bounds", loc=location_of(loop))
    mark = loop.attributes[MARK]
    threads = mark.value.data if isinstance(mark, IntegerAttr) else 0
    if threads < 1:
        raise UserError(f"{MARK} is the number of iterations that are interleaved, at least 1", loc=location_of(loop))
    return threads


def _plan_copies(
    ctx: Context, module: ModuleOp, function: func.FuncOp, copies: list[BufferOp | RingOp], target: TargetOp
) -> None:
    """
    Order the commands, with offsets for the copies: beside what is placed or, if they do not fit, all get new ones.

    A buffer is alive while a command may be in flight, which depends on tokens. So they are derived twice: as if the
    copies overlapped nothing, and with the offsets that are found by that.
    """
    for number, copy in enumerate(copies):
        copy.offset = IntegerAttr(_FAR * (1 + number), i64)
    order(function, target)
    for copy in copies:
        copy.offset = None
    try:
        MemPlanPass().apply(ctx, module)
    except UserError:
        # What lies in a scope between kernels is not this kernel's to move.
        if any(isa(value.type, MemRefType) and scope_of(value.type) is not None for value in function.args):
            raise
        for op in function.walk():
            if isinstance(op, BufferOp | RingOp) and op.scope is not None:
                op.offset = None
        MemPlanPass().apply(ctx, module)
    order(function, target)


def _units_in(op: Operation, target: TargetOp) -> set[str]:
    """The units that the commands in an op are given to."""
    return {unit_of(each, target) for each in op.walk() if isinstance(each, CommandOp)}


def _loops_inside_out(function: func.FuncOp) -> Iterator[scf.ForOp]:
    """The loops of a function, inner ones before those around them."""
    for op in function.walk(reverse=True):
        if isinstance(op, scf.ForOp):
            yield op


def _conflict(loop: scf.ForOp, program: Program, threads: int) -> tuple[Command, Command] | None:
    """
    Two commands of iterations that would be interleaved and access the same bytes, one of them writing; or None.

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


def _interleave(loop: scf.ForOp, threads: int, target: TargetOp) -> list[BufferOp | RingOp]:
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
        body = Block(arg_types=[IndexType()])
        body.args[0].name_hint = counter.name_hint
        inside = Builder(InsertPoint.at_end(body))
        interleaving.of(inside, loop.body.block, counter, [body.args[0], *_later(inside, body.args[0], step, threads)])
        inside.insert(scf.YieldOp())
        new = scf.ForOp(loop.lb, end, stride, [], body)
        new.location = loop.location
        builder.insert(new)
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
        self.copies: list[BufferOp | RingOp] = []

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
            if isinstance(op, scf.ForOp) and same and not op.iter_args and len(_units_in(op, self._target)) > 1:
                self._together(builder, op, threads)
            elif same and not op.regions and op.has_trait(NoMemoryEffect):
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
