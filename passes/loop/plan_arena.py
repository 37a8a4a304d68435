"""`plan-arena`: the off-chip intermediates of a whole program in one arena."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp, scope_of, span_in_bytes
from penstock.passes.loop.liveness import TimeLine
from penstock.passes.planning.problem import Buffer, Problem, merge_intervals
from penstock.passes.planning.registry import DEFAULT_PLANNER, solve

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


class ProgramTime:
    """
    One time line for all that a module runs: each function that nobody calls, one after the other, and in each
    call the steps of its callee. A function that is called several times takes place several times.
    """

    def __init__(self, module: ModuleOp):
        defined = [op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration]
        self._functions = {function.sym_name.data: function for function in defined}
        self._lines: dict[str, TimeLine | None] = {}
        self._starts: dict[str, list[int]] = {name: [] for name in self._functions}
        called = {op.callee.string_value() for op in module.walk() if isinstance(op, func.CallOp)}
        clock = 0
        for name, function in self._functions.items():
            line = self._line(function, function)
            public = function.sym_visibility is None or function.sym_visibility.data != "private"
            if public or name not in called:
                self._take_place(function, clock)
                clock += line.length

    def _line(self, function: func.FuncOp, site: Operation) -> TimeLine:
        name = function.sym_name.data
        if name in self._lines:
            line = self._lines[name]
            if line is None:
                raise UserError(f"@{name} calls itself: its buffers cannot be planned", loc=location_of(site))
            return line
        self._lines[name] = None
        line = self._lines[name] = TimeLine(function, self._length)
        return line

    def _callee(self, call: func.CallOp) -> func.FuncOp | None:
        return self._functions.get(call.callee.string_value())

    def _length(self, call: func.CallOp) -> int:
        callee = self._callee(call)
        return 0 if callee is None else self._line(callee, call).length

    def _take_place(self, function: func.FuncOp, start: int) -> None:
        self._starts[function.sym_name.data].append(start)
        line = self._line(function, function)
        for op in function.walk():
            if isinstance(op, func.CallOp) and (callee := self._callee(op)) is not None:
                self._take_place(callee, start + line.span(op)[0] + 1)

    def functions(self) -> Iterator[func.FuncOp]:
        """The functions with a body, in order."""
        yield from self._functions.values()

    def lifetime(self, op: Operation, function: func.FuncOp) -> tuple[tuple[int, int], ...]:
        """When the memref that `op`, in `function`, creates is alive."""
        lower, upper = self._line(function, op).lifetime(op.results[0])
        return merge_intervals((start + lower, start + upper) for start in self._starts[function.sym_name.data])


@dataclass
class ArenaProblem:
    """The off-chip buffers of a module as a planning problem."""

    problem: Problem
    ops: dict[str, Operation] = field(default_factory=dict[str, Operation])
    """The op that creates each buffer, by the buffer's id."""


def arena_problem(module: ModuleOp) -> ArenaProblem:
    """The problem of the arena; raises UserError for a buffer of dynamic shape and for recursion."""
    time = ProgramTime(module)
    buffers: list[Buffer] = []
    ops: dict[str, Operation] = {}
    for function in time.functions():
        for op in function.walk():
            if not isinstance(op, memref.AllocOp | memref.AllocaOp | BufferOp) or scope_of(op.memref.type) is not None:
                continue
            if not op.memref.type.has_static_shape():
                raise UserError(f"the shape of {op.memref.type} is not static", loc=location_of(op))
            alignment, offset = ALIGNMENT, None
            if isinstance(op, BufferOp):
                offset = op.byte_offset
                alignment = ALIGNMENT if offset is None else 1
            elif op.alignment is not None:
                alignment = max(ALIGNMENT, op.alignment.value.data)
            id = f"{len(buffers)}: %{op.memref.name_hint or 'buffer'} of @{function.sym_name.data}"
            ops[id] = op
            buffers.append(Buffer(id, time.lifetime(op, function), span_in_bytes(op.memref.type), alignment, offset))
    return ArenaProblem(Problem(tuple(buffers)), ops)


@dataclass(frozen=True)
class PlanArenaPass(ModulePass):
    """
    Give every off-chip buffer its place in the arena, by liveness over the whole program.

    `memref.alloc` becomes `mem.buffer at N`, N bytes from the start of the arena. Two buffers share bytes where
    they are never alive together; views count as the buffer they view. The buffers of kernels lie in the same
    arena, alive at each call of their kernel, so that a kernel that is called at several places finds its bytes
    free at all of them. A `mem.buffer` that has an offset keeps it. `memref.dealloc` goes.

    Required: the loop level, static shapes, no recursion. Guaranteed: every off-chip buffer has an offset, a
    multiple of 64 unless it was given by hand. Raises UserError for a plan given by hand that overlaps, for
    an unknown planner, and for a buffer that a function returns.

    Before:
    ```mlir
    func.func @main(%x: memref<32xf32>, %y: memref<32xf32>) {
      %a = memref.alloc() : memref<32xf32>
      mem.copy %x to %a : memref<32xf32> to memref<32xf32>
      %b = memref.alloc() : memref<32xf32>
      mem.copy %a to %b : memref<32xf32> to memref<32xf32>
      %c = memref.alloc() : memref<32xf32>
      mem.copy %b to %c : memref<32xf32> to memref<32xf32>
      mem.copy %c to %y : memref<32xf32> to memref<32xf32>
      func.return
    }
    ```
    After (`plan-arena`):
    ```mlir
    func.func @main(%x: memref<32xf32>, %y: memref<32xf32>) {
      %a = mem.buffer at 0 : memref<32xf32>
      mem.copy %x to %a : memref<32xf32> to memref<32xf32>
      %b = mem.buffer at 128 : memref<32xf32>
      mem.copy %a to %b : memref<32xf32> to memref<32xf32>
      %c = mem.buffer at 0 : memref<32xf32>
      mem.copy %b to %c : memref<32xf32> to memref<32xf32>
      mem.copy %c to %y : memref<32xf32> to memref<32xf32>
      func.return
    }
    ```
    """

    name = "plan-arena"

    planner: str = DEFAULT_PLANNER
    """The planner that chooses the offsets."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for dealloc in list(op.walk()):
            if isinstance(dealloc, memref.DeallocOp):
                Rewriter.erase_op(dealloc)
        arena = arena_problem(op)
        plan = solve(arena.problem, self.planner)
        for id, old in arena.ops.items():
            offset = plan.offsets[id]
            if isinstance(old, BufferOp):
                old.offset = IntegerAttr(offset, i64)
                continue
            assert isinstance(old, memref.AllocOp | memref.AllocaOp)
            buffer = BufferOp(old.memref.type, offset)
            buffer.location = old.location
            Rewriter.replace_op(old, buffer)
