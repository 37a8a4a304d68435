"""What commands are put together from: loops of pieces, and slices of buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.builder import Builder
from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import IndexType, MemRefType
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from penstock.passes.index_builder import Index, materialize, scale


def slice_of(builder: Builder, source: SSAValue, offsets: Sequence[Index], sizes: Sequence[int]) -> SSAValue:
    """The part of a memref of these sizes that begins at `offsets`."""
    type = source.type
    assert isa(type, MemRefType)
    if list(type.get_shape()) == list(sizes) and all(offset == 0 for offset in offsets):
        return source
    ones = [1] * len(sizes)
    result = memref.SubviewOp.infer_result_type(type, offsets, sizes, ones)
    return builder.insert(memref.SubviewOp.get(source, offsets, sizes, ones, result)).result


def in_pieces(builder: Builder, extent: int, size: int, issue: Callable[[Builder, Index, int], None]) -> None:
    """A loop over pieces of `size`, and the rest after it; `issue` gets the start of a piece, and its size."""
    trips, rest = divmod(extent, size)
    lower, upper, step = (materialize(builder, value) for value in (0, trips, 1))
    block = Block(arg_types=[IndexType()])
    inner = Builder(InsertPoint.at_end(block))
    issue(inner, scale(inner, block.args[0], size), size)
    inner.insert(scf.YieldOp())
    builder.insert(scf.ForOp(lower, upper, step, [], Region(block)))
    if rest:
        issue(builder, trips * size, rest)
