# SPDX-License-Identifier: Apache-2.0
"""`mem-liveness`: when each buffer is alive, as attributes, as remarks, and as interference graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, ModuleOp, i64
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import USAGE, UserError, location_of, nearest_or_all
from penstock.dialects.files import write_whole
from penstock.passes.analysis.memory.interference import to_dot, to_json
from penstock.passes.analysis.memory.liveness import Allocation, Liveness
from penstock.passes.analysis.memory.memory_problems import ARENA, MemoryProblem, memory_problems
from penstock.passes.planning.problem import Interval

LIVE = "mem.live"
"""The attribute of an op that makes a buffer: the half-open steps of its function in which the buffer is alive."""

_FORMATS = {".dot": to_dot, ".json": to_json}


def _in_words(intervals: tuple[Interval, ...]) -> str:
    return " and ".join(f"[{lower}, {upper})" for lower, upper in intervals)


@dataclass(frozen=True)
class MemLivenessPass(ModulePass):
    """
    Note at every op that makes a buffer when that is alive: `memref.alloc`, `memref.alloca`, `mem.buffer`, `mem.ring`.

    The attribute `mem.live` lists half-open intervals of steps of the function: the function itself takes step 0, then
    each op takes one, in textual order. What alive means is said in `liveness`. The attribute is a note about
    the IR as it is; nothing reads it, and a later pass may make it stale.

    Required: nothing; below the loop level there is nothing to note. Guaranteed: the program stays as it is. Raises
    UserError for a buffer that a function returns; with `graph`, also for what `mem-plan` finds wrong with the
    buffers themselves, for a name that ends in neither .dot nor .json, and for a file that cannot be written, which is
    then left as it was.

    Before:
    ```mlir
    func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index
      %a = memref.alloc() : memref<16xf32>
      %b = memref.alloc() : memref<16xf32>
      mem.copy %x to %b : memref<16xf32> to memref<16xf32>
      scf.for %i = %c0 to %c8 step %c1 {
        mem.copy %b to %a : memref<16xf32> to memref<16xf32>
        mem.copy %a to %y : memref<16xf32> to memref<16xf32>
      }
      func.return
    }
    ```
    After (`mem-liveness`):
    ```mlir
    func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index
      %a = memref.alloc() {mem.live = [array<i64: 8, 10>]} : memref<16xf32>
      %b = memref.alloc() {mem.live = [array<i64: 6, 11>]} : memref<16xf32>
      mem.copy %x to %b : memref<16xf32> to memref<16xf32>
      scf.for %i = %c0 to %c8 step %c1 {
        mem.copy %b to %a : memref<16xf32> to memref<16xf32>
        mem.copy %a to %y : memref<16xf32> to memref<16xf32>
      }
      func.return
    }
    ```
    """

    name = "mem-liveness"

    remarks: bool = True
    """Whether a line a buffer goes to stderr, too."""
    graph: str | None = None
    """A file for the interference graphs of all scopes: for Graphviz if its name ends in .dot, or in .json."""
    kernel: str | None = None
    """Only the graphs of this function."""
    scope: str | None = None
    """Only the graphs of this scope; `arena` is what is off chip."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        write = None if self.graph is None else _FORMATS.get(Path(self.graph).suffix)
        if self.graph is not None and write is None:
            raise UserError(f'"{self.graph}" is no name for a graph', notes=["end it in .dot or .json"], status=USAGE)
        found = list(_lifetimes(op))
        text = None if write is None else write(self._chosen(memory_problems(op)))
        if self.graph is not None and text is not None:
            write_whole(self.graph, text)
        for allocation, intervals in found:
            allocation.attributes[LIVE] = ArrayAttr(DenseArrayBase.from_list(i64, list(each)) for each in intervals)
        if self.remarks:
            for line in self.explain(op):
                print(line, file=sys.stderr)

    def _chosen(self, memories: Sequence[MemoryProblem]) -> list[MemoryProblem]:
        """The memories of the kernel and the scope that are asked for; raises UserError where there are none."""
        chosen = list(memories)
        for option, wanted in (("kernel", self.kernel), ("scope", self.scope)):
            if wanted is not None:
                names = [each.function if option == "kernel" else each.scope or ARENA for each in chosen]
                chosen = [each for each, name in zip(chosen, names, strict=True) if name == wanted.removeprefix("@")]
                if not chosen:
                    notes = [nearest_or_all(wanted, dict.fromkeys(filter(None, names)), f"{option}s with buffers")]
                    raise UserError(f'no {option} "{wanted}" has buffers', notes=notes, status=USAGE)
        return chosen

    def explain(self, module: ModuleOp) -> list[str]:
        """When each buffer is alive, a line a buffer; changes nothing."""
        lines: list[str] = []
        for op, intervals in _lifetimes(module):
            buffer = op.results[0]
            name = f"%{buffer.name_hint}" if buffer.name_hint else "a buffer"
            lines.append(f"{location_of(op)}: remark: {name} : {buffer.type} is alive in steps {_in_words(intervals)}")
        return lines


def _lifetimes(module: ModuleOp) -> Iterator[tuple[Allocation, tuple[Interval, ...]]]:
    """Each op that makes a buffer, in textual order."""
    for function in module.ops:
        if isinstance(function, func.FuncOp) and not function.is_declaration:
            liveness = Liveness(function)
            for buffer in liveness.buffers:
                assert isinstance(buffer.owner, Allocation)
                yield buffer.owner, liveness.lifetime(buffer)
