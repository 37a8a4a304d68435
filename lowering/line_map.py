# SPDX-License-Identifier: Apache-2.0
"""The text of a module's functions with the operation that begins each line, and the names that it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO

from xdsl.dialects.builtin import ArrayAttr, CallSiteLoc, FileLineColLoc, FusedLoc, ModuleOp, NameLoc
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.printer import Printer
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import render_location


def origins(loc: Attribute) -> tuple[str, ...]:
    """
    The names of nodes and, where there is no name, the places in files that a location is made of, each once; none if
    it is unknown.
    """
    if isinstance(loc, FusedLoc):
        assert isa(loc.locations, ArrayAttr)
        return tuple(dict.fromkeys(each for part in loc.locations for each in origins(part)))
    if isinstance(loc, CallSiteLoc):
        return tuple(dict.fromkeys((*origins(loc.callee), *origins(loc.caller))))
    if isinstance(loc, NameLoc):
        return (loc.desc.data,)
    return (render_location(loc),) if isinstance(loc, FileLineColLoc) else ()


def origins_of(op: Operation) -> tuple[str, ...]:
    """Where an operation comes from: its location, or that of what is around it in its function."""
    current: Operation | None = op
    while current is not None and (current is op or not isinstance(current, FuncOp)):
        if found := origins(current.location):
            return found
        current = current.parent_op()
    return ()


@dataclass(frozen=True)
class Line:
    """A line of the text of a function."""

    text: str
    op: Operation | None
    """The operation that begins in it; None for what only ends one or names a block."""
    function: str


class _LinePrinter(Printer):
    """A printer that notes in which line each operation begins."""

    def start(self) -> dict[int, Operation]:
        self.begins: dict[int, Operation] = {}
        return self.begins

    def print_op(self, op: Operation) -> None:
        self.begins.setdefault(self._current_line, op)
        super().print_op(op)


def function_lines(module: ModuleOp) -> list[Line]:
    """The functions of a module line by line, without the machine; an operation within a line is that line's first."""
    found: list[Line] = []
    for function in module.ops:
        if not isinstance(function, FuncOp):
            continue
        stream = StringIO()
        printer = _LinePrinter(stream)
        begins = printer.start()
        printer.print_op(function)
        name = function.sym_name.data
        texts = stream.getvalue().split("\n")
        found += [Line(text, begins.get(number), name) for number, text in enumerate(texts)]
    return found
