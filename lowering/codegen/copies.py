# SPDX-License-Identifier: Apache-2.0
"""
Transfers, `mem.copy` and `accel.dma`, as loops around copies of adjacent elements; DMA runs when it is issued.

A box whose window may be out of bounds is clipped at run time, one pair of bounds a dim. Where `else` says what is
read outside, the destination is filled there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import memref
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from penstock.dialects.accel import DmaOp
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import CopyOp
from penstock.dialects.window import WindowedTransfer
from penstock.lowering.codegen.bounds import domain, inside, part, require
from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.text import Expr, Size
from penstock.lowering.codegen.views import Terms, View, static_product
from penstock.passes.analysis.index import AffineIndex

MOST_UNROLLED = 16
"""Iterations of a loop over registers that is unrolled."""


@dataclass(frozen=True)
class Axis:
    """One dim of a box: the part `low` to below `high` of it is moved."""

    size: Size
    low: Size
    high: Size
    strides: tuple[Size, Size]
    """In the source and in the destination, in elements."""

    @property
    def is_whole(self) -> bool:
        return self.low == 0 and self.high == self.size

    @property
    def count(self) -> int | None:
        """How many are moved; None where the bounds are not static."""
        return max(0, self.high - self.low) if isinstance(self.low, int) and isinstance(self.high, int) else None


def emit_transfer(emitter: Emitter, op: WindowedTransfer) -> None:
    """The loops that do a `mem.copy` or an `accel.dma`."""
    source, dest = emitter.view(op.source), emitter.view(op.dest)
    _describe(emitter, op, source, dest)
    may_be_out_of_bounds = op.padding is not None or (isinstance(op, DmaOp) and op.clipped is not None)
    if isinstance(op, DmaOp):
        emitter.count("transfers", 1)
    if 0 in (dest if op.window_side == "source" else source).shape:
        return  # the box is empty, and not only the tensor around it
    axes, offsets = _axes(emitter, op, source, dest, may_be_out_of_bounds)
    if op.padding is not None:
        _fill_outside(emitter, axes, dest, emitter.scalar(op.padding))
    _count_bytes(emitter, op, axes, source, dest)
    _move(emitter, axes, offsets, source, dest)


def emit_memref_copy(emitter: Emitter, op: memref.CopyOp) -> None:
    """A copy of a whole memref."""
    source, dest = emitter.view(op.source), emitter.view(op.destination)
    emitter.describe(op, "memref.copy")
    require(emitter, domain(emitter, op, AffineMap.identity(len(source.shape)), source.shape, dest.shape))
    axes: list[Axis] = []
    for size, *strides in zip(source.shape, source.strides, dest.strides, strict=True):
        axes.append(Axis(size, 0, size, (strides[0], strides[1])))
    _move(emitter, axes, ([], []), source, dest)


def _describe(emitter: Emitter, op: WindowedTransfer, source: View, dest: View) -> None:
    """A comment that says what is moved."""
    ends = f"{source.scope or 'off chip'} to {dest.scope or 'off chip'}"
    moved = dest.shape if op.window_side == "source" else source.shape
    box = " x ".join(map(str, moved)) or "one element"
    engine = f" on {op.engine.data}" if isinstance(op, DmaOp) else ""
    emitter.describe(op, f"{op.name}{engine}, {ends}: {box}")


def _axes(
    emitter: Emitter, op: WindowedTransfer, source: View, dest: View, may_be_out_of_bounds: bool
) -> tuple[list[Axis], tuple[Terms, Terms]]:
    """The dims of the box, and where it begins in the source and in the destination."""
    side = op.window_side
    at = op.mixed_source_offsets() if side == "source" else op.mixed_dest_offsets()
    window, box = (source, dest.shape) if side == "source" else (dest, source.shape)
    may_clip = may_be_out_of_bounds or side == "dest"
    axes: list[Axis] = []
    starts: list[Size] = []
    for dim, (offset, size, bound) in enumerate(zip(at, box, window.shape, strict=True)):
        start = emitter.named(emitter.size(offset))
        low, high = _bounds(emitter, offset, start, size, bound) if may_clip else (0, size)
        if not may_clip and isinstance(size, int) and isinstance(bound, int):
            start = inside(emitter, offset, bound, size)
        elif not may_clip:
            require(emitter, part(emitter, start, size, 1, bound))
        starts.append(start)
        axes.append(Axis(size, low, high, (source.strides[dim], dest.strides[dim])))
    begin: Terms = list(zip(starts, window.strides, strict=True))
    return axes, (begin, []) if side == "source" else ([], begin)


def _bounds(emitter: Emitter, offset: int | SSAValue, start: Size, size: Size, bound: Size) -> Sequence[Size]:
    """The part of `size` elements at `offset`, which is `start`, that lies in `bound` elements."""
    if not isinstance(size, int) or not isinstance(bound, int):
        # Of sizes that only a run knows, the same one fits.
        return (0, size) if offset == 0 and size == bound else _clipped(emitter, start, size, bound)
    reach = AffineIndex.of(offset).bounds
    may_begin_before = reach is None or reach[0] < 0
    may_end_after = reach is None or reach[1] + size > bound
    if not may_begin_before and not may_end_after:
        return 0, size
    if isinstance(start, int):
        low, high = max(0, -start), min(size, bound - start)
        return (low, high) if low < high else (0, 0)
    return emitter.clipped(start, size, bound, may_begin_before=may_begin_before, may_end_after=may_end_after)


def _clipped(emitter: Emitter, start: Size, size: Size, bound: Size) -> Sequence[Size]:
    return emitter.clipped(start, size, bound, may_begin_before=start != 0, may_end_after=True)


def _fill_outside(emitter: Emitter, axes: Sequence[Axis], dest: View, padding: Expr) -> None:
    """Fill the destination with what is read outside, if anything lies outside."""
    whole = [Axis(axis.size, 0, axis.size, (axis.strides[1], axis.strides[1])) for axis in axes]

    def fill(part: Sequence[Axis]) -> None:
        _loops(
            emitter,
            _merged(emitter, part),
            lambda terms: emitter.store(dest.ctype, emitter.element(dest, terms[1]), padding),
        )

    def fill_around() -> None:
        inside = [replace(axis, strides=every.strides) for axis, every in zip(axes, whole, strict=True)]
        for number, axis in enumerate(axes):
            for low, high in ((0, axis.low), (axis.high, axis.size)):
                if low != high:
                    part = replace(whole[number], low=low, high=high)
                    fill([*inside[:number], part, *whole[number + 1 :]])

    ranges = [(axis.low, axis.high) for axis in axes if axis.count is None]
    if any(axis.count == 0 for axis in axes):
        with emitter.block():
            fill(whole)
    elif ranges:
        emitter.branch(emitter.any_empty(ranges), lambda: fill(whole), fill_around)
    elif not all(axis.is_whole for axis in axes):
        with emitter.block():
            fill(whole) if _is_shredded(emitter, axes, whole, dest) else fill_around()


def _is_shredded(emitter: Emitter, axes: Sequence[Axis], whole: Sequence[Axis], dest: View) -> bool:
    """Whether what lies outside is many more runs than all of the destination is vectors, one after the other."""
    merged, lanes = _merged(emitter, whole), emitter.lanes_of(dest.ctype)
    if not lanes or len(merged) != 1 or not isinstance(merged[0].size, int):
        return False
    runs, around = 0, 1
    for axis in axes:
        runs += around * ((axis.low != 0) + (axis.high != axis.size))
        around *= axis.count or 0
    return 3 * merged[0].size <= 2 * runs * lanes


def _count_bytes(emitter: Emitter, op: WindowedTransfer, axes: Sequence[Axis], source: View, dest: View) -> None:
    if source.scope is None and dest.scope is None and isinstance(op, CopyOp):
        return
    counters = [name for name, view in (("bytes_in", source), ("bytes_out", dest)) if view.scope is None]
    known, _ = static_product([source.ctype.size, *(axis.count for axis in axes if axis.count is not None)])
    amount: Size = 0
    if known:
        computed = [emitter.extent(axis.low, axis.high) for axis in axes if axis.count is None]
        amount = emitter.product([*computed, known])
    for counter in counters or ["bytes_on_chip"]:
        emitter.count(counter, amount)


def _merged(emitter: Emitter, axes: Sequence[Axis]) -> list[Axis]:
    """The dims without those of size 1, and with neighbours merged that both sides walk as one."""
    times, merged = emitter.times, list[Axis]()
    for axis in axes:
        if axis.size == 1 and axis.is_whole:
            continue
        last = merged[-1] if merged else None
        if (
            last is not None
            and axis.is_whole
            and axis.size != 0
            and all(outer == times(inner, axis.size) for outer, inner in zip(last.strides, axis.strides, strict=True))
        ):
            low, high = times(last.low, axis.size), times(last.high, axis.size)
            merged[-1] = Axis(times(last.size, axis.size), low, high, axis.strides)
        else:
            merged.append(axis)
    return merged


def _move(emitter: Emitter, axes: Sequence[Axis], offsets: tuple[Terms, Terms], source: View, dest: View) -> None:
    if any(axis.count == 0 for axis in axes):
        return
    merged, ctype = _merged(emitter, axes), source.ctype
    is_in_registers = REGISTERS in (source.scope, dest.scope)

    def places(terms: tuple[Terms, Terms]) -> tuple[Terms, Terms]:
        return [*offsets[0], *terms[0]], [*offsets[1], *terms[1]]

    def element(terms: tuple[Terms, Terms]) -> None:
        start, to = places(terms)
        emitter.copy_element(ctype, emitter.element(dest, to), emitter.element(source, start))

    if not merged or merged[-1].strides != (1, 1):
        _loops(emitter, merged, element, is_in_registers=is_in_registers)
        return
    run = merged[-1]

    def vector(terms: tuple[Terms, Terms]) -> None:
        start, to = places(terms)
        emitter.copy_lanes(dest, to, source, start)

    def row(terms: tuple[Terms, Terms]) -> None:
        start, to = (emitter.sum_of([*each, (run.low, 1)]) for each in places(terms))
        emitter.copy_run(dest, to, source, start, run.low, run.high)

    lanes = emitter.lanes_of(ctype) if is_in_registers else 0
    if lanes and all(axis.count is not None for axis in merged) and run.is_whole and int(run.size) % lanes == 0:
        _loops(emitter, merged, vector, is_in_registers=True, lanes=lanes)
    else:
        _loops(emitter, merged[:-1], row, is_in_registers=is_in_registers, is_independent=False)


def _loops(
    emitter: Emitter,
    axes: Sequence[Axis],
    point: Callable[[tuple[Terms, Terms]], None],
    *,
    is_in_registers: bool = False,
    is_independent: bool = True,
    lanes: int = 0,
) -> None:
    """
    Loops over the parts of the dims, and at every point what `point` writes, given both sides' offsets.

    With `lanes` the innermost loop goes from vector to vector of the registers.
    """

    needs_constants = is_in_registers and emitter.needs_constant_offsets

    def nest(number: int, terms: tuple[Terms, Terms]) -> None:
        if number == len(axes):
            point(terms)
            return
        axis, is_last = axes[number], number == len(axes) - 1
        emitter.loop(
            f"i{number}",
            axis.high,
            lambda counter: nest(
                number + 1,
                ([*terms[0], (counter, axis.strides[0])], [*terms[1], (counter, axis.strides[1])]),
            ),
            start=axis.low,
            step=lanes if lanes and is_last else 1,
            is_independent=is_independent and is_last and not lanes,
            is_unrolled=bool(lanes) or (needs_constants and axis.count is not None and axis.count <= MOST_UNROLLED),
        )

    nest(0, ([], []))
