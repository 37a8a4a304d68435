"""
The bytes that the kernels of a machine move over the chip's edge, counted on the loop level without running it.

What a copy, or an intrinsic that a DMA engine performs on the way, moves is what the commands that it becomes move, on
the accel level: windows that hang over an edge count what lies inside, and a row that several commands read counts as
often. The interpreter of the loop level, for which one op reads it once, then counts less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import BlockArgument, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import CopyOp, element_bytes, scope_of
from penstock.passes.analysis.access import steps_of
from penstock.passes.analysis.commands.command_loops import commands
from penstock.passes.analysis.commands.loop_domain import Span, iteration_domain, sum_over_loops
from penstock.passes.analysis.commands.traffic import executions, touched_elements
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.memory.storage import storage_of
from penstock.passes.loop.tensorize import prove
from penstock.runtime.interpreter.domain import Access


@dataclass(frozen=True)
class Crossing:
    """What one op moves over the edge in one call of its kernel."""

    storage: SSAValue
    """What lives off chip: an argument of the kernel, or an allocation in it."""
    into: int
    """Bytes from off chip."""
    out: int
    """Bytes to off chip."""

    @property
    def argument(self) -> int | None:
        """The number of the argument; None for an allocation."""
        return self.storage.index if isinstance(self.storage, BlockArgument) else None


def crossings(kernel: func.FuncOp, target: TargetOp) -> Iterator[Crossing]:
    """
    All that one call of a kernel moves over the edge, op by op.

    Raises UserError, located, where loops and constants do not decide how much that is.
    """
    for op in kernel.walk():
        if isinstance(op, CopyOp):
            yield from _of_copy(op)
        elif isinstance(op, GenericOp) and op.library_call is not None:
            intrinsic = target.intrinsics().get(op.library_call.data)
            if intrinsic is not None and intrinsic.dma_name is not None:
                yield from _of_generic(op, target)


def _is_off_chip(value: SSAValue) -> bool:
    return isa(value.type, MemRefType) and scope_of(value.type) is None


def _of_copy(op: CopyOp) -> Iterator[Crossing]:
    source, dest = _is_off_chip(op.source), _is_off_chip(op.dest)
    if source == dest:
        return
    if op.window_side == "dest":
        at, bounds = op.mixed_dest_offsets(), op.dest_type.get_shape()
    else:
        at, bounds = op.mixed_source_offsets(), op.source_type.get_shape()
    spans = [Span(offset, size, bound) for offset, size, bound in zip(at, op.box, bounds, strict=True)]
    moved = sum_over_loops(iteration_domain(op), spans) * element_bytes(op.source_type)
    if source:
        yield Crossing(storage_of(op.source), moved, 0)
    else:
        yield Crossing(storage_of(op.dest), 0, moved)


def _of_generic(op: GenericOp, target: TargetOp) -> Iterator[Crossing]:
    """An intrinsic on the way reads its inputs, and writes its output: each of the commands that it takes anew."""
    times = sum_over_loops(iteration_domain(op))
    match = prove(op, target)
    steps = [steps_of(op.indexing_maps.data[number].data, op.operands[number]) for number in match.buffers]
    pieces = list(commands(match, op.get_static_loop_ranges(), target, steps))
    for number, value in enumerate(op.operands):
        if not isa(value.type, MemRefType) or not _is_off_chip(value):
            continue
        access = Access.of(op.indexing_maps.data[number].data)
        touched = sum(count * touched_elements(access, extents, value.type.get_shape()) for count, extents in pieces)
        size = times * touched * element_bytes(value.type)
        written = number >= len(op.inputs)
        yield Crossing(storage_of(value), 0 if written else size, size if written else 0)


def edge_traffic(module: ModuleOp) -> tuple[int, int]:
    """The bytes from and to off chip in one run of `@main`, at the loop level."""
    target, functions = machine_kernels(module)
    if target is None:
        return 0, 0
    times = {function.sym_name.data: count for function, count in executions(module)}
    into = out = 0
    for function in functions:
        for crossing in crossings(function, target):
            into += times[function.sym_name.data] * crossing.into
            out += times[function.sym_name.data] * crossing.out
    return into, out
