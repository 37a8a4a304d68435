# SPDX-License-Identifier: Apache-2.0
"""
Functions as Python source.

A `SourceWriter` turns a `func.func` into the text of one Python function: scalar and control ops inline (see `scalar`
and `control`), every other op as a call. `Compiled` is the result, with the op of every line, so that a fault in inline
code is located without a check around each op.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.functions import entry_block
from penstock.dialects.verification import require_dominance
from penstock.runtime.interpreter.body import captured_values
from penstock.runtime.interpreter.commands import Touch
from penstock.runtime.interpreter.ownership import Ownership
from penstock.runtime.interpreter.registry import ACCESSES, EMITTERS, INTERPRETERS, Accesses
from penstock.runtime.interpreter.scopes import scalar_view

Listener = Callable[[Operation, Sequence[Any], Sequence[Any]], None]
"""Called after each op with the op, the values of its results and those of its operands; memrefs as they are now."""


@dataclass(frozen=True)
class Compiled:
    """A function ready to run."""

    function: Callable[..., tuple[Any, ...]]
    filename: str
    """What the code calls its file; frames of a traceback are known by it."""
    lines: Sequence[Operation | None]
    """The op of each line of the source."""
    source: str
    is_kernel: bool
    """Whether it issues commands to units."""


class SourceWriter:
    """
    Writes one function. `execution` is what calls are given; with a `listener` it is called after each op. While
    `notes_accesses`, what ops read and write is noted.
    """

    def __init__(
        self, execution: Any, ownership: Ownership, listener: Listener | None, *, notes_accesses: bool = False
    ):
        self.execution = execution
        self.ownership = ownership
        self.notes_accesses = notes_accesses
        self.non_negative: set[SSAValue] = set()
        """Index values known to be at least 0, so that indexing with them needs no check."""
        self.bits: dict[SSAValue, int] = {}
        """The bits of index values that loops count and constants make, without a sign; others may wrap around."""
        self.constants: dict[SSAValue, int | float | bool] = {}
        """Scalars known while compiling."""
        self._listener = listener
        self._names: dict[SSAValue, str] = {}
        self._bindings: dict[str, Any] = {}
        self._bound: dict[int, str] = {}
        self._lines: list[str] = []
        self._ops: list[Operation | None] = []
        self._current: Operation | None = None
        self._depth = 1
        self._kernel = False

    # names

    def name(self, value: SSAValue) -> str:
        """The Python variable of a value."""
        found = self._names.get(value)
        if found is None:
            found = self._names[value] = f"v{len(self._names)}"
        return found

    def names(self, values: Iterable[SSAValue]) -> str:
        """The variables of several values as the inside of a tuple."""
        return "".join(f"{self.name(value)}, " for value in values)

    def alias(self, value: SSAValue, text: str) -> None:
        """Let an expression stand for a value: a literal."""
        self._names[value] = text

    def bind(self, thing: Any, prefix: str) -> str:
        """A name by which the source can refer to a Python object."""
        found = self._bound.get(id(thing))
        if found is None:
            found = self._bound[id(thing)] = f"{prefix}{len(self._bindings)}"
            self._bindings[found] = thing
        return found

    def view_name(self, value: SSAValue) -> str:
        """The variable through which the scalars of a memref are read and written."""
        return f"{self.name(value)}_s"

    # lines

    def line(self, text: str) -> None:
        """A line of source, for the op being written."""
        self._lines.append("    " * self._depth + text)
        self._ops.append(self._current)

    def assign(self, value: SSAValue, expression: str) -> None:
        """Define a value."""
        self.line(f"{self.name(value)} = {expression}")

    @contextmanager
    def indented(self) -> Generator[None]:
        """Lines one level deeper, of which there is at least one."""
        self._depth += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.line("pass")
        self._depth -= 1

    # ops

    def ops(self, ops: Iterable[Operation]) -> None:
        """Write ops one after another."""
        for op in ops:
            outer, self._current = self._current, op
            self._write(op)
            self._current = outer

    def defined(self, values: Iterable[SSAValue]) -> None:
        """What must follow the definition of values: views of the memrefs that scalars are read through."""
        for value in values:
            if isinstance(value.type, MemRefType) and _is_accessed(value):
                self.line(f"{self.view_name(value)} = {self.bind(scalar_view, 'view')}({self.name(value)})")

    def _write(self, op: Operation) -> None:
        if op.name.startswith("accel."):
            self._kernel = True
        if self.notes_accesses:
            self._note_accesses(op)
        emitter = EMITTERS.get(type(op))
        if emitter is not None:
            emitter(self, op)
        elif (function := INTERPRETERS.get(type(op))) is not None:
            self._call(op, function)
        else:
            raise UserError(f"{op.name} is not interpreted", loc=location_of(op), status=UNSUPPORTED)
        if self._listener is not None and op.next_op is not None:
            listener = self.bind(self._listener, "listener")
            results, operands = self.names(op.results), self.names(op.operands)
            self.line(f"{listener}({self.bind(op, 'op')}, ({results}), ({operands}))")

    def _call(self, op: Operation, function: Callable[..., Any]) -> None:
        operands: Sequence[SSAValue] = op.operands
        if op.regions:
            operands = [*operands, *captured_values(op)]
        target = f"{self.names(op.results)} = " if op.results else ""
        called, execution = self.bind(function, "f"), self.bind(self.execution, "execution")
        self.line(f"{target}{called}({execution}, {self.bind(op, 'op')}, ({self.names(operands)}))")
        self.defined(op.results)

    def _note_accesses(self, op: Operation) -> None:
        """Let it be known, before an op of an iteration, what it accesses."""
        if op.name.startswith("accel."):
            raise UserError(
                f"{op.name} in an iteration of scf.forall is not interpreted", loc=location_of(op), status=UNSUPPORTED
            )
        if isinstance(op, _WITHOUT_ACCESS) or not any(isinstance(value.type, MemRefType) for value in op.operands):
            return
        note, accesses = self.bind(_note, "note"), self.bind(ACCESSES.find(type(op)) or _all_operands, "accesses")
        execution, known = self.bind(self.execution, "execution"), self.bind(op, "op")
        self.line(f"{note}({execution}, {accesses}, {known}, ({self.names(op.operands)}))")

    def finish(self, function: func.FuncOp) -> Compiled:
        """The function whose body has been written."""
        block = entry_block(function, "interpreted")
        filename = f"<@{function.sym_name.data}{', accesses noted' if self.notes_accesses else ''}>"
        header = f"def function({', '.join(self.name(arg) for arg in block.args)}):"
        source = "\n".join([header, *self._lines, ""])
        try:
            code = compile(source, filename, "exec")
        except SyntaxError as error:  # Python nests 20 blocks
            raise UserError(
                f"@{function.sym_name.data} nests its loops too deeply to be interpreted: {error.msg}",
                loc=location_of(function),
                status=UNSUPPORTED,
            ) from error
        exec(code, self._bindings)
        return Compiled(self._bindings["function"], filename, [None, None, *self._ops], source, self._kernel)


_WITHOUT_ACCESS = (
    memref.AllocOp,
    memref.AllocaOp,
    memref.CastOp,
    memref.CollapseShapeOp,
    memref.DeallocOp,
    memref.DimOp,
    memref.ExpandShapeOp,
    memref.MemorySpaceCastOp,
    memref.RankOp,
    memref.ReinterpretCastOp,
    memref.SubviewOp,
    arith.SelectOp,
    func.CallOp,
    func.ReturnOp,
    scf.ConditionOp,
    scf.ForOp,
    scf.WhileOp,
    scf.YieldOp,
)
"""Ops that are given memrefs and access no element, or of which it is noted op by op what they access."""


def _note(execution: Any, accesses: Accesses, op: Operation, args: Sequence[Any]) -> None:
    reads, writes = accesses(execution, op, args)
    execution.interleaving.races.accessed(op, reads, writes)


def _all_operands(execution: Any, op: Operation, args: Sequence[Any]) -> tuple[Sequence[Touch], Sequence[Touch]]:
    """What an op may access that does not say it."""
    pairs = zip(args, op.operands, strict=True)
    touches = [Touch(value, None, operand) for value, operand in pairs if isinstance(operand.type, MemRefType)]
    return touches, touches


def _is_accessed(value: SSAValue) -> bool:
    return any(isinstance(use.operation, memref.LoadOp | memref.StoreOp) for use in value.uses)


def compile_function(
    function: func.FuncOp, execution: Any, listener: Listener | None = None, *, notes_accesses: bool = False
) -> Compiled:
    """
    Compile a function; raises UserError for a declaration, and at an op that nothing interprets. One that is called in
    an iteration notes what it accesses.
    """
    entry_block(function, "interpreted")
    # A Python variable outlives the loop or the branch that sets it; a value does not.
    require_dominance(function)
    writer = SourceWriter(execution, Ownership(function), listener, notes_accesses=notes_accesses)
    EMITTERS[func.FuncOp](writer, function)
    return writer.finish(function)
