"""
Transfers, `mem.copy` and `accel.dma`, as loops around `memcpy`; DMA runs when it is issued.

A box whose window may be out of bounds is clipped at run time, one pair of bounds a dim. Where `else` says what is
read outside, the destination is filled first if anything lies outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from xdsl.dialects import memref
from xdsl.ir import SSAValue

from penstock.dialects.accel import DmaOp
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import CopyOp
from penstock.dialects.window import WindowedTransfer
from penstock.lowering.to_c.emitter import CView, FunctionEmitter, Values, refuse
from penstock.lowering.to_c.text import Expr, Size, for_loop, sum_of, times
from penstock.lowering.to_c.vectors import VectorType, vector_type
from penstock.passes.analysis.index import AffineIndex


@dataclass(frozen=True)
class Axis:
    """One dim of a box: the part `low` to below `high` of it is moved."""

    size: int
    low: Size
    high: Size
    strides: tuple[Size, Size]
    """In the source and in the destination, in elements."""

    @property
    def is_whole(self) -> bool:
        return self.low == 0 and self.high == self.size

    @property
    def is_static(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def count(self) -> Size:
        """How many are moved; may be negative where the bounds are not static."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return max(0, self.high - self.low)
        return self.high if self.low == 0 else f"({self.high} - {self.low})"


def emit_transfer(emitter: FunctionEmitter, op: WindowedTransfer) -> None:
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
        _fill_outside(emitter, axes, dest, emitter.scalar(op.padding))
    _count_bytes(emitter, op, axes, source, dest)
    if not any(axis.count == 0 for axis in axes):
        _move(emitter, axes, offsets, source, dest)


def emit_memref_copy(emitter: FunctionEmitter, op: memref.CopyOp) -> None:
    """A copy of a whole memref."""
    source, dest = emitter.view(op.source), emitter.view(op.destination)
    emitter.describe(op, "memref.copy")
    axes: list[Axis] = []
    for size, *strides in zip(source.shape, source.strides, dest.strides, strict=True):
        if not isinstance(size, int):
            raise refuse(op, "memref.copy of a memref of unknown shape cannot be lowered to C")
        axes.append(Axis(size, 0, size, (strides[0], strides[1])))
    if not any(axis.count == 0 for axis in axes):
        _move(emitter, axes, ([], []), source, dest)


def describe_transfer(emitter: Values, op: WindowedTransfer, source: CView, dest: CView) -> None:
    """A comment that says what is moved."""
    ends = f"{source.scope or 'off chip'} to {dest.scope or 'off chip'}"
    box = " x ".join(map(str, op.box)) or "one element"
    engine = f" on {op.engine.data}" if isinstance(op, DmaOp) else ""
    emitter.describe(op, f"{op.name}{engine}, {ends}: {box}")


Terms = list[tuple[Size, Size]]


def _axes(
    emitter: FunctionEmitter, op: WindowedTransfer, source: CView, dest: CView, may_be_out_of_bounds: bool
) -> tuple[list[Axis], tuple[Terms, Terms]]:
    """The dims of the box, and where it begins in the source and in the destination."""
    side = op.window_side
    at = op.mixed_source_offsets() if side == "source" else op.mixed_dest_offsets()
    window = source if side == "source" else dest
    may_clip = may_be_out_of_bounds or side == "dest"
    axes: list[Axis] = []
    starts: list[Size] = []
    for dim, (offset, size, bound) in enumerate(zip(at, op.box, window.shape, strict=True)):
        strides = (source.strides[dim], dest.strides[dim])
        start = _named(emitter, offset)
        starts.append(start)
        if may_clip and isinstance(bound, int) and not is_in_bounds(offset, size, bound):
            axes.append(Axis(size, *_bounds(emitter, start, size, bound, AffineIndex.of(offset).bounds), strides))
        else:
            axes.append(Axis(size, 0, size, strides))
    begin: Terms = list(zip(starts, window.strides, strict=True))
    return axes, (begin, []) if side == "source" else ([], begin)


def _named(emitter: FunctionEmitter, offset: int | SSAValue) -> Size:
    """An offset that is known, or the name of a variable that holds it."""
    size = emitter.size(offset)
    if isinstance(size, int) or size.isidentifier():
        return size
    name = emitter.names.fresh("at")
    emitter.writer.line(f"const int64_t {name} = {size};")
    return name


def is_in_bounds(offset: int | SSAValue, size: int, bound: int) -> bool:
    reach = AffineIndex.of(offset).bounds
    return reach is not None and reach[0] >= 0 and reach[1] + size <= bound


def _bounds(
    emitter: FunctionEmitter, start: Size, size: int, bound: int, reach: tuple[int, int] | None
) -> tuple[Size, Size]:
    """The part of `size` elements at `start`, which is within `reach`, that lies in `bound` elements."""
    if isinstance(start, int):
        low, high = max(0, -start), min(size, bound - start)
        return (low, high) if low < high else (0, 0)
    low, high = emitter.names.fresh("lo"), emitter.names.fresh("hi")
    line = emitter.writer.line
    if reach is not None and reach[0] >= 0:
        low = 0
    else:
        line(f"const int64_t {low} = {start} < 0 ? -{start} : 0;")
    if reach is not None and reach[1] + size <= bound:
        high = size
    else:
        line(f"const int64_t {high} = {bound} - {start} < {size} ? {bound} - {start} : {size};")
    return low, high


def _fill_outside(emitter: FunctionEmitter, axes: Sequence[Axis], dest: CView, padding: Expr) -> None:
    """Fill the destination with what is read outside, if anything lies outside."""
    if all(axis.is_whole for axis in axes):
        return
    outside = [f"{axis.low} >= {axis.high}" for axis in axes if not axis.is_static]
    whole = [Axis(axis.size, 0, axis.size, (axis.strides[1], axis.strides[1])) for axis in axes]
    is_empty = any(axis.is_static and axis.count == 0 for axis in axes)
    if is_empty or outside:
        with emitter.writer.block("" if is_empty else f"if ({' || '.join(outside)})"):
            _fill(emitter, whole, dest, padding)
    if is_empty:
        return
    inside = [Axis(axis.size, axis.low, axis.high, part.strides) for axis, part in zip(axes, whole, strict=True)]
    with emitter.writer.block("else" if outside else ""):
        for number, axis in enumerate(axes):
            for low, high in ((0, axis.low), (axis.high, axis.size)):
                if low != high:
                    part = Axis(axis.size, low, high, whole[number].strides)
                    _fill(emitter, [*inside[:number], part, *whole[number + 1 :]], dest, padding)


def _fill(emitter: FunctionEmitter, axes: Sequence[Axis], dest: CView, padding: Expr) -> None:
    """Fill a part of the destination."""
    _loops(emitter, merged_axes(axes), lambda terms: emitter.store(dest.ctype, dest.element(terms[1]), padding))


def _count_bytes(
    emitter: FunctionEmitter, op: WindowedTransfer, axes: Sequence[Axis], source: CView, dest: CView
) -> None:
    if source.scope is None and dest.scope is None and isinstance(op, CopyOp):
        return
    counters = [name for name, view in (("bytes_in", source), ("bytes_out", dest)) if view.scope is None]
    known, factors = source.ctype.size, list[str]()
    for axis in axes:
        count = axis.count
        if isinstance(count, int):
            known *= count
        else:
            factors.append(f"({axis.high} > {axis.low} ? {axis.high} - {axis.low} : 0)")
    amount: Size = known if not factors or known == 0 else " * ".join([*factors, str(known)])
    for counter in counters or ["bytes_on_chip"]:
        emitter.count(counter, amount)


def merged_axes(axes: Sequence[Axis], times: Callable[[Size, Size], Size] = times) -> list[Axis]:
    """The dims without those of size 1, and with neighbours merged that both sides walk as one."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1 and axis.is_whole:
            continue
        last = merged[-1] if merged else None
        if (
            last is not None
            and axis.is_whole
            and axis.size > 0
            and all(outer == times(inner, axis.size) for outer, inner in zip(last.strides, axis.strides, strict=True))
        ):
            low, high = times(last.low, axis.size), times(last.high, axis.size)
            merged[-1] = Axis(last.size * axis.size, low, high, axis.strides)
        else:
            merged.append(axis)
    return merged


def _move(
    emitter: FunctionEmitter, axes: Sequence[Axis], offsets: tuple[Terms, Terms], source: CView, dest: CView
) -> None:
    merged = merged_axes(axes)
    writer = emitter.writer

    def element(terms: tuple[Terms, Terms]) -> None:
        left = dest.element([*offsets[1], *terms[1]])
        writer.line(f"{left} = {source.element([*offsets[0], *terms[0]])};")

    if not merged or merged[-1].strides != (1, 1):
        _loops(emitter, merged, element)
        return
    run = merged[-1]
    is_static = all(axis.is_static for axis in merged) and run.is_whole
    if is_static and REGISTERS in (source.scope, dest.scope):
        if (vector := vector_type(emitter.program.target, source.ctype, run.size)) is not None:
            _move_vectors(emitter, merged, offsets, source, dest, vector)
            return

    def rows(terms: tuple[Terms, Terms]) -> None:
        first = (run.low, 1)
        to = sum_of([*offsets[1], *terms[1], first])
        start = sum_of([*offsets[0], *terms[0], first])
        count = run.count
        length = str(count * dest.ctype.size) if isinstance(count, int) else f"(size_t){count} * {dest.ctype.size}"
        guard = "" if isinstance(count, int) else f"if ({run.high} > {run.low}) "
        writer.line(f"{guard}memcpy({_address(dest, to)}, {_address(source, start)}, {length});")

    _loops(emitter, merged[:-1], rows, is_element=False)


def _move_vectors(
    emitter: FunctionEmitter,
    axes: Sequence[Axis],
    offsets: tuple[Terms, Terms],
    source: CView,
    dest: CView,
    vector: VectorType,
) -> None:
    """Copy between memory and local variables, which are vectors."""
    writer = emitter.writer
    emitter.program.helpers.add(vector.helper)
    with ExitStack() as stack:
        for number, axis in enumerate(axes):
            writer.line("PENSTOCK_UNROLL")
            step = vector.lanes if axis is axes[-1] else 1
            stack.enter_context(writer.block(for_loop(f"i{number}", axis.size, step=step)))
        left, right = (
            view.element([*offsets[side], *((f"i{number}", axis.strides[side]) for number, axis in enumerate(axes))])
            for side, view in ((1, dest), (0, source))
        )
        writer.line(f"{vector.at(left)} = {vector.load(right)};")


def _address(view: CView, offset: str) -> str:
    return view.pointer if offset == "0" else f"{view.pointer} + {offset}"


def _loops(
    emitter: FunctionEmitter,
    axes: Sequence[Axis],
    point: Callable[[tuple[Terms, Terms]], None],
    *,
    is_element: bool = True,
) -> None:
    """Loops over the parts of the dims, and at every point what `point` writes, given both sides' offsets."""
    headers = [for_loop(f"i{number}", axis.high, start=axis.low) for number, axis in enumerate(axes)]
    terms: tuple[Terms, Terms] = ([], [])
    for number, axis in enumerate(axes):
        for side in (0, 1):
            terms[side].append((f"i{number}", axis.strides[side]))
    writer = emitter.writer
    with writer.loops(headers[:-1] if is_element else headers):
        if is_element and headers:
            writer.line("PENSTOCK_INDEPENDENT")
            with writer.block(headers[-1]):
                point(terms)
        else:
            point(terms)
