# SPDX-License-Identifier: Apache-2.0
"""
When buffers are alive, on the time line of a function's ops in textual order.

An op takes one step, an op with regions as many as its regions hold and one more, a call as many as its caller is
told. A buffer is alive at a step if it is alive before or after the op of that step, or touched by it; between two
ops it is alive if some byte may have been written that may be read later. What that means is said in `dataflow`
(the equations, and what is certainly overwritten), `graph` (which paths there are), `aliases` (what views what) and
`in_flight` (asynchronous commands). So

- a buffer from outside a loop is alive throughout the loop if an iteration may read what an earlier one wrote; if every
  iteration overwrites it before it reads it, it is dead between the last read and the next write;
- a ring is one buffer, and filling a slot overwrites only part of it;
- of a buffer off chip that is written and read in parts which lie one after the other only some bytes may be alive: all
  between the first and the last of its `strips` that is;
- the iterations of `scf.parallel` and `scf.forall` run at once: what they touch, and what they make, is alive
  throughout it, and what each iteration makes cannot have one place, unless it is in registers, which are a thread's;
- a call reads and writes what its callee does, if the module has it; functions end with nothing in flight;
- a buffer whose address leaves the memrefs is alive from where it is made to the end of the function.

Two buffers may share bytes if there is no step at which these are alive in both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError, calls_itself, location_of
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import BufferOp
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.loops import iteration_count
from penstock.passes.analysis.memory.aliases import Aliases, Allocation, bits
from penstock.passes.analysis.memory.dataflow import DataFlow, Flows, outlived
from penstock.passes.analysis.memory.graph import CONTROL
from penstock.passes.analysis.memory.in_flight import kept_alive
from penstock.passes.planning.problem import Interval, Window, hulls, merge_intervals

__all__ = ["Allocation", "Liveness"]

LivePart = tuple[Interval, Window | None]
"""Some steps at which a buffer is alive, and the bytes of it that are then; None for all."""


def _no_steps(call: func.CallOp) -> int:
    return 0


class Liveness:
    """
    The steps at which each op of a function begins and ends, and at which each buffer that it makes is alive.

    `call_length` says how many steps a callee takes, `flows` finds the data flow of the functions of its module.
    The function has a body, and neither it nor its callees may change meanwhile. Commands in flight keep buffers alive,
    unless the function is `race_free`: its commands are known to be ordered where they share bytes.
    """

    def __init__(
        self,
        function: func.FuncOp,
        call_length: Callable[[func.CallOp], int] = _no_steps,
        flows: Flows | None = None,
        *,
        race_free: bool = False,
    ):
        self._function = function
        self._race_free = race_free
        self._flows = flows or Flows(function.parent_op())
        self._begin: dict[Operation, int] = {}
        self._end: dict[Operation, int] = {}
        self._call_length = call_length
        self.length = self._number(function, 0)
        """Steps of the whole function."""

    def _number(self, op: Operation, step: int) -> int:
        self._begin[op] = step
        step += 1
        for region in op.regions:
            for block in region.blocks:
                for inner in block.ops:
                    step = self._number(inner, step)
        if isinstance(op, func.CallOp):
            step += self._call_length(op)
        self._end[op] = step
        return step

    def span(self, op: Operation) -> Interval:
        """The half-open steps of `op`, what it holds included."""
        return self._begin[op], self._end[op]

    def spans(self, op: Operation) -> tuple[Interval, ...]:
        """The same as intervals, as `ProgramTime` has them."""
        return (self.span(op),)

    def op_at(self, step: int) -> Operation:
        """The innermost op that runs at a step."""
        return [op for op, begin in self._begin.items() if begin <= step < self._end[op]][-1]

    def accesses(self, buffer: SSAValue) -> list[Operation]:
        """The ops that may touch a buffer of the function, itself or through views."""
        root = 1 << self._flow.aliases.number[buffer]
        return [op for op, effect in self._flow.effects.items() if effect.touches & root]

    @cached_property
    def buffers(self) -> tuple[SSAValue, ...]:
        """All buffers that the function makes, in textual order."""
        return tuple(op.results[0] for op in self._function.walk() if isinstance(op, Allocation))

    def lifetime(self, buffer: SSAValue) -> tuple[Interval, ...]:
        """
        When some byte of a buffer, which an op of this function makes, is alive: ascending, disjoint, half-open
        intervals. Raises as `live_parts` does.
        """
        return merge_intervals(interval for interval, _ in self.live_parts(buffer))

    def live_parts(self, buffer: SSAValue) -> tuple[LivePart, ...]:
        """
        When which bytes of a buffer, which an op of this function makes, are alive: ascending, disjoint intervals.

        One that is not used is alive for the step of the op that makes it. Raises UserError for a buffer that the
        function returns: it outlives every plan; for one that is made again while it is in use; and for one that each
        of several iterations makes which run at once.
        """
        assert isinstance(buffer.owner, Operation)
        aliases = self._flow.aliases
        number = aliases.number[buffer]
        if (returned := aliases.returned.get(number)) is not None:
            raise UserError(
                "a buffer that a function returns cannot be planned",
                loc=location_of(returned),
                notes=["let the caller pass the memref that is written"],
            )
        loop = self._flow.graph.concurrent.get(buffer.owner)
        is_own = isinstance(buffer.owner, BufferOp) and buffer.owner.scope == REGISTERS
        if isinstance(loop, ForallOp) and iteration_count(loop) not in (0, 1) and not is_own:
            raise UserError(
                "a buffer that is made by iterations which run at once cannot have one place for all of them",
                loc=location_of(buffer.owner),
                notes=["make a mem.ring before scf.forall with a slot for each iteration, or run `forall-to-for`"],
            )
        if self._outlived >> number & 1:
            raise UserError(
                "a buffer that is made again while it is in use cannot be planned",
                loc=location_of(buffer.owner),
                notes=["an iteration of a loop makes it and hands it to the next: make it before the loop"],
            )
        strips = self._flow.strips
        if found := _joined([(strips.strips[each].bytes, self._lifetimes[each]) for each in strips.numbers(number)]):
            return found
        begin = self._begin[buffer.owner]
        return (((begin, begin + 1), None),)

    @property
    def aliases(self) -> Aliases:
        """The allocations and arguments that each memref may be."""
        return self._flow.aliases

    @cached_property
    def _flow(self) -> DataFlow:
        return self._flows.of(self._function)

    @cached_property
    def _outlived(self) -> int:
        return outlived(self._flow.graph, self._flow.aliases)

    @cached_property
    def _lifetimes(self) -> list[list[Interval]]:
        """The intervals of each strip."""
        found: list[list[Interval]] = [[] for _ in self._flow.strips.strips]
        began: dict[int, int] = {}
        alive, now = 0, 0
        for begin, end, mask in sorted(self._segments()):
            if begin != now:
                # Nothing is known of the steps in between: nothing is alive there.
                alive = self._change(found, began, alive, 0, now)
            alive = self._change(found, began, alive, mask, begin)
            now = end
        self._change(found, began, alive, 0, now)
        return found

    def _change(self, found: list[list[Interval]], began: dict[int, int], old: int, new: int, step: int) -> int:
        for number in bits(old & ~new):
            found[number].append((began.pop(number), step))
        for number in bits(new & ~old):
            began[number] = step
        return new

    def _segments(self) -> Iterator[tuple[int, int, int]]:
        """For each node its steps, and the set of strips that are alive at them."""
        flow = self._flow
        of_roots = flow.strips.of_roots
        lives = flow.lives()
        alive = {op: each.at for op, each in lives.items()}
        for op, roots in ({} if self._race_free else kept_alive(flow)).items():
            alive[op] |= of_roots(roots)
        concurrently: dict[Operation, int] = {}
        own = 0
        for op in flow.graph.concurrent:
            if isinstance(op, BufferOp) and op.scope == REGISTERS:
                own |= of_roots(1 << flow.aliases.number[op.memref])
        for op, loop in flow.graph.concurrent.items():
            made = of_roots(1 << flow.aliases.number[op.results[0]]) if isinstance(op, Allocation) else 0
            concurrently[loop] = concurrently.get(loop, 0) | (alive[op] | made) & ~own
        for op, mask in alive.items():
            loop = flow.graph.concurrent.get(op, op)
            begin, end = self.span(op)
            yield begin, begin + 1 if isinstance(op, CONTROL) else end, mask | concurrently.get(loop, 0)


def _joined(strips: Sequence[tuple[Window, Sequence[Interval]]]) -> tuple[LivePart, ...]:
    """The bytes between the first and the last strip of a buffer that is alive, from step to step."""
    if len(strips) == 1:
        return tuple((interval, None) for interval in strips[0][1])
    whole = strips[0][0][0], strips[-1][0][1]
    return merge_parts((interval, None if hull == whole else hull) for interval, hull in hulls(strips))


def merge_parts(parts: Iterable[LivePart]) -> tuple[LivePart, ...]:
    """The same, ascending, as one where the same bytes are alive directly after."""
    merged: list[LivePart] = []
    for (lower, upper), window in sorted(parts, key=lambda part: part[0]):
        if merged and merged[-1][1] == window and merged[-1][0][1] >= lower:
            merged[-1] = (merged[-1][0][0], max(upper, merged[-1][0][1])), window
        else:
            merged.append(((lower, upper), window))
    return tuple(merged)


class ProgramTime:
    """
    The time of each functions that are not called, one after the other, and within each call the time of its callee.

    A function that is called several times takes place several times. Of those that are `race_free` commands in flight
    keep nothing alive. Raises UserError where one calls itself.
    """

    def __init__(self, module: ModuleOp, race_free: Collection[func.FuncOp] = ()):
        self._race_free = race_free
        defined = [op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration]
        self._functions = {function.sym_name.data: function for function in defined}
        self._calls = {
            name: [op for op in function.walk() if isinstance(op, func.CallOp) and self.callee(op) is not None]
            for name, function in self._functions.items()
        }
        self._lines: dict[str, Liveness | None] = {}
        self._flows = Flows(module)
        self._starts: dict[str, list[int]] = {name: [] for name in self._functions}
        called = {call.callee.string_value() for calls in self._calls.values() for call in calls}
        clock = 0
        for name, function in self._functions.items():
            line = self.of(function)
            public = function.sym_visibility is None or function.sym_visibility.data != "private"
            if public or name not in called:
                self._take_place(name, clock)
                clock += line.length

    def functions(self) -> Iterator[func.FuncOp]:
        """The functions with a body, in order."""
        yield from self._functions.values()

    def calls_others(self, function: func.FuncOp) -> bool:
        """Whether `function` calls one that has a body here."""
        return bool(self._calls[function.sym_name.data])

    def of(self, function: func.FuncOp) -> Liveness:
        """The time of one function, which begins at 0."""
        return self._line(function, function)

    def callee(self, call: func.CallOp) -> func.FuncOp | None:
        """The function that is called; None if it has no body here."""
        return self._functions.get(call.callee.string_value())

    def lifetime(self, buffer: SSAValue) -> tuple[Interval, ...]:
        """When a buffer, which an op of some function creates, is alive."""
        assert isinstance(buffer.owner, Operation)
        function = function_around(buffer.owner)
        return self._shifted(function, self.of(function).lifetime(buffer))

    def live_parts(self, buffer: SSAValue) -> tuple[LivePart, ...]:
        """When which bytes of it are."""
        assert isinstance(buffer.owner, Operation)
        function = function_around(buffer.owner)
        return merge_parts(
            ((start + lower, start + upper), window)
            for start in self._starts[function.sym_name.data]
            for (lower, upper), window in self.of(function).live_parts(buffer)
        )

    def spans(self, op: Operation) -> tuple[Interval, ...]:
        """When an op runs, with what it holds or calls."""
        function = function_around(op)
        return self._shifted(function, self.of(function).spans(op))

    def accesses(self, buffer: SSAValue) -> list[Operation]:
        """The ops that may touch a buffer, itself or through views, in the function that makes it."""
        assert isinstance(buffer.owner, Operation)
        return self.of(function_around(buffer.owner)).accesses(buffer)

    def op_at(self, step: int) -> Operation:
        """The innermost op that runs at a step."""
        # The call that runs is the one that began last: a callee begins after its caller.
        start, name = max(
            (start, name)
            for name, starts in self._starts.items()
            for start in starts
            if start <= step < start + self._of_name(name).length
        )
        return self._of_name(name).op_at(step - start)

    def _shifted(self, function: func.FuncOp, intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
        starts = self._starts[function.sym_name.data]
        return merge_intervals((start + lower, start + upper) for start in starts for lower, upper in intervals)

    def _of_name(self, name: str) -> Liveness:
        return self.of(self._functions[name])

    def _line(self, function: func.FuncOp, site: Operation) -> Liveness:
        name = function.sym_name.data
        if name in self._lines:
            line = self._lines[name]
            if line is None:
                raise calls_itself(name, site)
            return line
        self._lines[name] = None
        free = function in self._race_free
        line = self._lines[name] = Liveness(function, self._length, self._flows, race_free=free)
        return line

    def _length(self, call: func.CallOp) -> int:
        callee = self.callee(call)
        return 0 if callee is None else self._line(callee, call).length

    def _take_place(self, name: str, start: int) -> None:
        self._starts[name].append(start)
        line = self._of_name(name)
        for call in self._calls[name]:
            self._take_place(call.callee.string_value(), start + line.span(call)[0] + 1)


def function_around(op: Operation) -> func.FuncOp:
    """The function that `op` is in, or is."""
    around: Operation | None = op
    while not isinstance(around, func.FuncOp):
        assert around is not None
        around = around.parent_op()
    return around
