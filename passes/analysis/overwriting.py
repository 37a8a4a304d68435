# SPDX-License-Identifier: Apache-2.0
"""Whether a function may write a result over an argument: whether each element is read before it is overwritten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from xdsl.dialects import func, scf
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import BlockArgument, Operation

from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import memref_of
from penstock.passes.analysis.access import places_each
from penstock.passes.analysis.loop_accesses import LATER, SAME, Apart, LoopAccess
from penstock.passes.analysis.loop_dependences import NestMemory
from penstock.passes.analysis.memory.graph import CONTROL


class Overwriting:
    """What a function with a body reads and writes, and when; it must stay as it is."""

    def __init__(self, function: func.FuncOp):
        self._memory = NestMemory(function, ())
        self._place = {op: number for number, op in enumerate(function.walk())}
        self._accesses: list[LoopAccess] | None = None
        # Iterations that run at once, and branches, are in no order that is known here.
        if len(function.body.blocks) == 1 and not any(
            isinstance(op, CONTROL) and not isinstance(op, scf.ForOp) for op in self._place
        ):
            try:
                self._accesses = self._memory.accesses_in(function)
            except UserError:
                pass

    def is_safe(self, read: Sequence[BlockArgument], written: BlockArgument) -> bool:
        """
        Whether the function does the same if all these arguments are one buffer: some that it reads only, and one that
        it writes before it reads it. True is certain.
        """
        if self._accesses is None:
            return False
        ours = self._memory.roots(written)
        writes = [each for each in self._accesses if each.roots & ours and each.writes]
        if any(each.roots != ours for each in writes):
            return False
        for argument in read:
            theirs = self._memory.roots(argument)
            reads = [each for each in self._accesses if each.roots & theirs]
            if any(each.writes or each.roots != theirs for each in reads):
                return False
            # Elements of another shape are found elsewhere in the buffer: any may be any.
            there = {"roots": theirs, **({} if argument.type == written.type else {"start": None, "steps": ()})}
            if any(self._may_read_later(replace(write, **there), each) for write in writes for each in reads):
                return False
        return True

    def _may_read_later(self, write: LoopAccess, read: LoopAccess) -> bool:
        """Whether `read` may be of an element after `write` was to it."""
        shared = tuple(loop for loop in write.loops if loop in read.loops)
        for nest, apart in _later(shared):
            if self._memory.may_meet(nest, write, read, apart):
                return True
        if write.op is read.op:
            return not _is_pointwise(write, read)
        if self._place[write.op] > self._place[read.op]:
            return False
        return not shared or self._memory.may_meet(shared, write, read, dict.fromkeys(shared, SAME))


def _later(shared: tuple[scf.ForOp, ...]) -> Iterator[tuple[tuple[scf.ForOp, ...], Apart]]:
    """The ways in which one iteration of the loops around two accesses comes after another."""
    for depth, loop in enumerate(shared):
        yield shared[: depth + 1], {**dict.fromkeys(shared[:depth], SAME), loop: LATER}


def _is_pointwise(write: LoopAccess, read: LoopAccess) -> bool:
    """Whether each point of one op writes the element that it reads, which no other point accesses."""
    op: Operation = write.op
    if not isinstance(op, GenericOp) or write.start is None or (write.start, write.steps) != (read.start, read.steps):
        return False
    maps = [each.data for each in op.indexing_maps]
    values = list(op.operands)
    numbers = values.index(write.value), values.index(read.value)
    if maps[numbers[0]] != maps[numbers[1]] or op.library_call is not None:
        return False
    extents = op.get_static_loop_ranges()
    shape = memref_of(write.value).get_shape()
    moving = sum(size != 1 for size in extents)
    return places_each(maps[numbers[0]], shape) and moving == sum(size != 1 for size in shape)
