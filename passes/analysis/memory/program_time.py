"""The time of all that a module runs, for buffers that are alive while other functions run; see `Liveness` for one."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import calls_itself
from penstock.passes.analysis.memory.dataflow import Flows
from penstock.passes.analysis.memory.liveness import Liveness
from penstock.passes.planning.problem import Interval, merge_intervals


class ProgramTime:
    """
    The time of each functions that are not called, one after the other, and within each call the time of its callee.

    A function that is called several times takes place several times. Raises UserError where one calls itself.
    """

    def __init__(self, module: ModuleOp):
        defined = [op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration]
        self._functions = {function.sym_name.data: function for function in defined}
        self._calls = {
            name: [op for op in function.walk() if isinstance(op, func.CallOp) and self.callee(op) is not None]
            for name, function in self._functions.items()
        }
        self._lines: dict[str, Liveness | None] = {}
        self._flows: Flows = {}
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
        line = self._lines[name] = Liveness(function, self._length, self._flows)
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
