"""Virtual threads: rounds of a loop that take turns on the units, each with buffers of its own."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IntegerAttr, MemRefType, ModuleOp, i64
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from penstock.dialects.accel import PopOp, PushOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp, scope_of
from penstock.passes.accel.ordering import order
from penstock.passes.accel.ordering.tokens import strip
from penstock.passes.accel.virtual_threads import conflict, loops_inside_out, take_turns, units_in
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.loops import trip_count
from penstock.passes.loop.mem_plan import MemPlanPass

MARK = "virtual_threads"
"""The attribute of a loop that says how many of its rounds are to take turns."""

_FAR = 1 << 40
"""Bytes between copies that have no place yet: more than any scope has."""


@dataclass(frozen=True)
class AccelVirtualThreadsPass(ModulePass):
    """
    Let rounds of a loop take turns on the units of the machine, so that one loads while another computes.

    As TVM lowers virtual threads to decoupled access-execute (Chen et al., "TVM", OSDI 2018): the loop is taken in
    strips of `threads` rounds, every buffer of its body gets a copy for each of them, their commands are interleaved
    into one stream, and the order is derived anew; `accel-assign-queues` then primes and drains the queues. A loop is
    marked by the attribute `virtual_threads = 2 : i64`; in a kernel without marks it is the innermost loop in which
    several units work and whose rounds do not depend on each other, with `threads` rounds. A loop inside it in which
    several units work is gone through by all threads together. What is left over of the rounds takes turns behind.

    Required: the accel level, buffers placed, tokens rather than queues. Guaranteed: the same results bit for bit, and
    every buffer has its place: those that are there keep theirs, if the copies fit beside them. Raises UserError,
    located, for fewer than one thread, for a marked loop whose rounds depend on each other or have no constant number,
    and for copies that the scope has no room for.

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
    """Rounds that take turns where no loop of a kernel is marked; with 1 nothing is changed."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.threads < 1:
            raise UserError(f"there is at least one virtual thread, not {self.threads}")
        target, functions = machine_kernels(op)
        if target is None:
            return
        for function in functions:
            if (copies := self._kernel(function, target)) is not None:
                _find_places(ctx, op, function, copies, target)

    def _kernel(self, function: func.FuncOp, target: TargetOp) -> list[BufferOp | RingOp] | None:
        """Interleave rounds; the buffers of all threads but the first, or None if nothing was done."""
        marked = [loop for loop in loops_inside_out(function) if MARK in loop.attributes]
        if not marked and self.threads == 1:
            return None
        for op in function.walk():
            if isinstance(op, PushOp | PopOp):
                raise UserError("virtual threads are made before tokens become queues", loc=location_of(op))
        chosen = [(loop, _threads_of(loop)) for loop in marked] or self._choice(function, target)
        program = trace(function, target)
        for loop, threads in chosen:
            found = conflict(loop, program, threads)
            if found is not None:
                raise found.error(loop)
        if not chosen:
            return None
        # Loops that carry tokens are replaced by others that do not; the mark stays.
        for loop, threads in chosen:
            loop.attributes[MARK] = IntegerAttr(threads, i64)
        strip(function)
        copies: list[BufferOp | RingOp] = []
        for loop in [each for each in loops_inside_out(function) if MARK in each.attributes]:
            copies += take_turns(loop, _threads_of(loop), target)
        return copies

    def _choice(self, function: func.FuncOp, target: TargetOp) -> list[tuple[scf.ForOp, int]]:
        """The loop whose rounds take turns where none is marked."""
        program = None
        for loop in loops_inside_out(function):
            trips = trip_count(loop) or 0
            if trips < 2 or len(units_in(loop, target)) < 2:
                continue
            program = trace(function, target) if program is None else program
            threads = min(self.threads, trips)
            if conflict(loop, program, threads) is None:
                return [(loop, threads)]
        return []


def _threads_of(loop: scf.ForOp) -> int:
    if trip_count(loop) is None:
        raise UserError("virtual threads need a loop with constant bounds", loc=location_of(loop))
    mark = loop.attributes[MARK]
    threads = mark.value.data if isinstance(mark, IntegerAttr) else 0
    if threads < 1:
        raise UserError(f"{MARK} is the number of rounds that take turns, at least 1", loc=location_of(loop))
    return threads


def _find_places(
    ctx: Context, module: ModuleOp, function: func.FuncOp, copies: list[BufferOp | RingOp], target: TargetOp
) -> None:
    """
    Order the commands, with places for the copies: beside what is placed or, if there is no room, all get new ones.

    A buffer is alive while a command may be in flight, which tokens tell. So they are derived twice: as if the copies
    had all the room there is, and with the places that are found by that.
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
