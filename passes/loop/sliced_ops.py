# SPDX-License-Identifier: Apache-2.0
"""Structured ops and copies as loops over slices of what they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.affine_maps import linear_form
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import CopyOp
from penstock.passes.analysis.loop_dependences import NestMemory
from penstock.passes.analysis.memory.liveness import function_around
from penstock.passes.analysis.memory.storage import slice_of
from penstock.passes.index_builder import Index, add, for_loop, scale
from penstock.passes.schedule.tile_nest import DimRange, tile_of


@dataclass(frozen=True)
class SlicedOp:
    """A `linalg.generic` or a `mem.copy`, and a dim of its domain along which slices of it write different elements."""

    op: GenericOp | CopyOp
    dim: int
    extent: int

    def insert(self, builder: Builder, offset: Index, size: int) -> None:
        """Insert the op for `size` indices of the dim from `offset` on."""
        if isinstance(self.op, CopyOp):
            self._insert_copy(self.op, builder, offset, size)
        else:
            self._insert_generic(self.op, builder, offset, size)

    def _insert_copy(self, op: CopyOp, builder: Builder, offset: Index, size: int) -> None:
        offsets: list[Index] = [offset if dim == self.dim else 0 for dim in range(len(op.box))]
        sizes = [size if dim == self.dim else whole for dim, whole in enumerate(op.box)]
        dest, source = slice_of(builder, op.dest, offsets, sizes), op.source
        window = op.mixed_source_offsets()
        if op.window_side == "source":
            window = [add(builder, at, move) for at, move in zip(window, offsets, strict=True)]
            made = CopyOp(source, dest, source_offsets=window, padding=op.padding)
        else:
            made = CopyOp(slice_of(builder, source, offsets, sizes), dest, padding=op.padding)
        made.location = op.location
        made.attributes.update(op.attributes)
        builder.insert(made)

    def _insert_generic(self, op: GenericOp, builder: Builder, offset: Index, size: int) -> None:
        extents = op.get_static_loop_ranges()
        box = [DimRange(offset, size) if dim == self.dim else DimRange(0, whole) for dim, whole in enumerate(extents)]
        operands = list(op.operands)
        for number, (value, index_map) in enumerate(zip(op.operands, op.indexing_maps, strict=True)):
            if not isa(value.type, MemRefType):
                continue
            offsets: list[Index] = [0] * len(index_map.data.results)
            sizes = list(value.type.get_shape())
            for place, (constant, row) in enumerate(_rows(index_map.data, len(extents))):
                if row[self.dim]:
                    offsets[place] = scale(builder, offset, row[self.dim])
                    reach = sum(each * (span.size - 1) for each, span in zip(row, box, strict=True))
                    sizes[place] = constant + reach + 1
            operands[number] = slice_of(builder, value, offsets, sizes)
        tile_of(builder, op, box, operands)


def _rows(index_map: AffineMap, dims: int) -> list[tuple[int, tuple[int, ...]]]:
    forms = [linear_form(expr, dims) for expr in index_map.results]
    return [(0, (0,) * dims) if form is None else form for form in forms]


def dims_of_slices(op: Operation) -> list[SlicedOp]:
    """The dims along which an op has slices that write different elements, in the order of what it writes."""
    if isinstance(op, CopyOp):
        if op.window_side == "dest":
            return []
        return [SlicedOp(op, dim, extent) for dim, extent in enumerate(op.box)]
    if not isinstance(op, GenericOp) or not op.outputs or op.results:
        return []
    maps = [each.data for each in op.indexing_maps]
    extents, outputs = op.get_static_loop_ranges(), maps[len(op.inputs) :]
    return [
        SlicedOp(op, expr.position, extents[expr.position])
        for expr in outputs[0].results
        if isinstance(expr, AffineDimExpr)
        and list(op.iterator_types)[expr.position].data == IteratorType.PARALLEL
        and all(expr in each.results for each in outputs)
        and all(_is_sliceable(each, expr.position) for each in maps)
    ]


def _is_sliceable(index_map: AffineMap, dim: int) -> bool:
    """Whether indices grow with a dim, or do not depend on it."""
    forms = [(expr, linear_form(expr, index_map.num_dims)) for expr in index_map.results]
    return all(
        dim not in expr.used_dims() if form is None else not form[1][dim] or min(form[0], *form[1]) >= 0
        for expr, form in forms
    )


def loop_over_slices(ops: Sequence[SlicedOp], size: int, calls: Sequence[func.CallOp]) -> scf.ForOp | None:
    """
    One loop, in the place of some ops of one extent, over their slices of `size` indices each, and what is left over
    after it; the loop is returned. None, with nothing changed, if slices of one depend on other slices of another.

    What is between the ops only computes; `calls` are those of their function.
    """
    builder = Builder(InsertPoint.before(ops[-1].op))
    extent = ops[0].extent
    loop = _loop(builder, ops, extent, 1)
    try:
        depends = NestMemory(function_around(loop), calls).dependences([loop])
    except UserError:
        depends = True
    if depends or size != 1:
        Rewriter.erase_op(loop)
    if depends:
        return None
    if size != 1:
        loop = _loop(builder, ops, extent - extent % size, size)
    if extent % size:
        for each in ops:
            each.insert(builder, extent - extent % size, extent % size)
    for each in ops:
        Rewriter.erase_op(each.op)
    return loop


def _loop(builder: Builder, ops: Sequence[SlicedOp], end: int, size: int) -> scf.ForOp:
    loop, inside = for_loop(builder, (0, end, size), like=ops[-1].op)
    for each in ops:
        each.insert(inside, loop.body.block.args[0], size)
    inside.insert(scf.YieldOp())
    return loop
