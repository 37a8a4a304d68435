"""Transfers, `mem.copy` and `accel.dma`, as loops around copies of adjacent elements; DMA runs when it is issued."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import memref
from xdsl.ir import SSAValue

from penstock.dialects.accel import DmaOp
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import CopyOp
from penstock.dialects.window import WindowedTransfer
from penstock.lowering.to_c.copies import Axis, describe_transfer, is_in_bounds, merged_axes
from penstock.lowering.to_c.emitter import CView
from penstock.lowering.to_c.text import Size
from penstock.lowering.to_llvm.emitter import LlvmEmitter, refuse
from penstock.lowering.to_llvm.types import memory_type

MOST_WRITTEN_OUT = 16
"""Iterations of a loop over registers that are written out one by one."""

Terms = list[tuple[Size, Size]]


def emit_transfer(emitter: LlvmEmitter, op: WindowedTransfer) -> None:
    """The loops that do a `mem.copy` or an `accel.dma`."""
    source, dest = emitter.view(op.source), emitter.view(op.dest)
    describe_transfer(emitter, op, source, dest)
    may_be_out_of_bounds = op.padding is not None or (isinstance(op, DmaOp) and op.clipped is not None)
    if isinstance(op, DmaOp):
        emitter.count("transfers", 1)
    if 0 in op.box:
        return
    axes, offsets = _axes(emitter, op, source, dest, may_be_out_of_bounds)
    if op.padding is not None:
        _fill_outside(emitter, axes, dest, op.padding)
    _count_bytes(emitter, op, axes, source, dest)
    if not any(axis.is_static and axis.count == 0 for axis in axes):
        _move(emitter, axes, offsets, source, dest)


def emit_memref_copy(emitter: LlvmEmitter, op: memref.CopyOp) -> None:
    """A copy of a whole memref."""
    source, dest = emitter.view(op.source), emitter.view(op.destination)
    emitter.describe(op, "memref.copy")
    axes: list[Axis] = []
    for size, *strides in zip(source.shape, source.strides, dest.strides, strict=True):
        if not isinstance(size, int):
            raise refuse(op, "memref.copy of a memref of unknown shape cannot be lowered to LLVM IR")
        axes.append(Axis(size, 0, size, (strides[0], strides[1])))
    if not any(axis.count == 0 for axis in axes):
        _move(emitter, axes, ([], []), source, dest)


def _axes(
    emitter: LlvmEmitter, op: WindowedTransfer, source: CView, dest: CView, may_be_out_of_bounds: bool
) -> tuple[list[Axis], tuple[Terms, Terms]]:
    """The dims of the box, and where it begins in the source and in the destination."""
    side = op.window_side
    at = op.mixed_source_offsets() if side == "source" else op.mixed_dest_offsets()
    window = source if side == "source" else dest
    may_clip = may_be_out_of_bounds or side == "dest"
    axes: list[Axis] = []
    starts = [emitter.size(offset) for offset in at]
    for dim, (start, size, bound) in enumerate(zip(starts, op.box, window.shape, strict=True)):
        low, high = 0, size
        if may_clip and isinstance(bound, int) and not is_in_bounds(at[dim], size, bound):
            low, high = _bounds(emitter, start, size, bound)
        axes.append(Axis(size, low, high, (source.strides[dim], dest.strides[dim])))
    begin: Terms = list(zip(starts, window.strides, strict=True))
    return axes, (begin, []) if side == "source" else ([], begin)


def _bounds(emitter: LlvmEmitter, start: Size, size: int, bound: int) -> tuple[Size, Size]:
    """The part of `size` elements at `start` that lies in `bound` elements."""
    if isinstance(start, int):
        low, high = max(0, -start), min(size, bound - start)
        return (low, high) if low < high else (0, 0)
    low = emitter.intrinsic("smax", "i64", emitter.asm.value(f"sub nsw i64 0, {start}"), "0")
    return low, emitter.intrinsic("smin", "i64", emitter.asm.value(f"sub nsw i64 {bound}, {start}"), str(size))


def _fill_outside(emitter: LlvmEmitter, axes: Sequence[Axis], dest: CView, padding: SSAValue) -> None:
    """Fill the destination with what is read outside, if anything lies outside."""
    if all(axis.is_whole for axis in axes):
        return
    asm, value = emitter.asm, emitter.scalar(padding).text
    fill, after = asm.new_label(), asm.new_label()
    outside = [
        asm.value(f"icmp {comparison} i64 {bound}, {limit}")
        for axis in axes
        if not axis.is_static
        for comparison, bound, limit in (("sgt", axis.low, 0), ("slt", axis.high, axis.size))
    ]
    if any(axis.is_static and not axis.is_whole for axis in axes):
        asm.jump(fill)
    else:
        any_outside = outside[0]
        for each in outside[1:]:
            any_outside = asm.value(f"or i1 {any_outside}, {each}")
        asm.branch(any_outside, fill, after)
    asm.start(fill)
    whole = [Axis(axis.size, 0, axis.size, (axis.strides[1], axis.strides[1])) for axis in axes]
    type = memory_type(dest.ctype)

    def point(terms: tuple[Terms, Terms]) -> None:
        emitter.store(dest.ctype, asm.at(dest.pointer, type, asm.sum_of(terms[1])), value)

    _loops(emitter, merged_axes(whole, asm.times), point)
    asm.jump_into(after)


def _extent(emitter: LlvmEmitter, axis: Axis) -> Size:
    """How many elements are moved along an axis; none where the bounds have crossed."""
    if axis.is_static:
        return axis.count
    count = emitter.asm.value(f"sub nsw i64 {axis.high}, {axis.low}")
    return emitter.intrinsic("smax", "i64", count, "0")


def _count_bytes(emitter: LlvmEmitter, op: WindowedTransfer, axes: Sequence[Axis], source: CView, dest: CView) -> None:
    if source.scope is None and dest.scope is None and isinstance(op, CopyOp):
        return
    counters = [name for name, view in (("bytes_in", source), ("bytes_out", dest)) if view.scope is None]
    amount = emitter.product([source.ctype.size, *(_extent(emitter, axis) for axis in axes)])
    for counter in counters or ["bytes_on_chip"]:
        emitter.count(counter, amount)


def _move(emitter: LlvmEmitter, axes: Sequence[Axis], offsets: tuple[Terms, Terms], source: CView, dest: CView) -> None:
    asm, ctype = emitter.asm, source.ctype
    type = memory_type(ctype)
    merged = merged_axes(axes, asm.times)

    def pointers(terms: tuple[Terms, Terms]) -> tuple[str, str]:
        places = (asm.sum_of([*offsets[side], *terms[side]]) for side in (0, 1))
        first, second = (asm.at(view.pointer, type, at) for view, at in zip((source, dest), places, strict=True))
        return first, second

    def element(terms: tuple[Terms, Terms]) -> None:
        left, right = pointers(terms)
        asm.store(type, asm.load(type, left, ctype.size), right, ctype.size)

    def row(terms: tuple[Terms, Terms]) -> None:
        left, right = pointers(([*terms[0], (run.low, 1)], [*terms[1], (run.low, 1)]))
        asm.copy_bytes(right, left, asm.times(count, ctype.size), ctype.size)

    is_in_registers = REGISTERS in (source.scope, dest.scope)
    if not merged or merged[-1].strides != (1, 1):
        _loops(emitter, merged, element, write_out=is_in_registers)
        return
    run = merged[-1]
    count = _extent(emitter, run)
    _loops(emitter, merged[:-1], row, write_out=is_in_registers)


def _loops(
    emitter: LlvmEmitter,
    axes: Sequence[Axis],
    point: Callable[[tuple[Terms, Terms]], None],
    *,
    write_out: bool = False,
) -> None:
    """Loops over the parts of the dims, and at every point what `point` writes, given both sides' offsets."""

    def nest(number: int, terms: tuple[Terms, Terms]) -> None:
        if number == len(axes):
            point(terms)
            return
        axis, is_last = axes[number], number == len(axes) - 1

        def further(counter: Size) -> None:
            found = [[*terms[side], (counter, axis.strides[side])] for side in (0, 1)]
            nest(number + 1, (found[0], found[1]))

        if write_out and isinstance(axis.low, int) and isinstance(axis.high, int) and axis.size <= MOST_WRITTEN_OUT:
            for counter in range(axis.low, axis.high):
                further(counter)
            return
        with emitter.asm.loop(axis.low, axis.high, is_independent=is_last) as loop:
            further(loop.counter)

    nest(0, ([], []))
