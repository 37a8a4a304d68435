# SPDX-License-Identifier: Apache-2.0
"""
Gathers and scatters: loops over the indices, each of which names a slice that is copied or changed.

A loop nest over the indices carries the result. Inside, an index is read, counted from the front, and is the
offset of a slice; a generic copies that slice, or combines it with an update. The slice stays inside its tensor as
long as the index does: the interpreter and compiled programs check that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.index_builder import Index, materialize
from penstock.passes.scalar_body import Body
from penstock.passes.schedule.tile_nest import DimRange
from penstock.passes.shapes import element_of, loops, shape_of, signless

Indices: TypeAlias = list[Index]

Slice: TypeAlias = Sequence[Index | None]
"""Of each dim of a tensor the index, None for all of it."""

COMBINE: dict[str, Callable[[Body, SSAValue, SSAValue], SSAValue]] = {
    "none": lambda body, old, new: new,
    "add": Body.add,
    "mul": Body.mul,
    "max": Body.max,
    "min": Body.min,
}
"""What a scatter makes of an element and the update at its index."""


def _nest(
    kernel: KernelBuilder,
    extents: Sequence[int],
    initial: SSAValue,
    step: Callable[[Indices, SSAValue], SSAValue],
    at: Sequence[Index] = (),
) -> SSAValue:
    """`step` at every point of `extents`, in order, which carries a value; the value after the last."""
    if len(at) == len(extents):
        return step(list(at), initial)
    return kernel.loop(
        extents[len(at)],
        1,
        [initial],
        lambda index, carried: [_nest(kernel, extents, carried[0], step, [*at, index])],
    )[0]


def _reader(kernel: KernelBuilder, indices: SSAValue) -> Callable[[Sequence[Index], int], Index]:
    """What reads the index that a graph value holds somewhere, counted from the front of a dimension of some size."""
    held, unsigned = kernel.value(indices), is_unsigned(element_of(indices))

    def read(at: Sequence[Index], size: int) -> Index:
        builder = kernel.builder()
        values = [materialize(builder, each) for each in at]
        number: SSAValue = builder.insert(tensor.ExtractOp(held, values, element_of(held))).result
        if unsigned and number.type != IntegerType(64):
            number = builder.insert(arith.ExtUIOp(number, IntegerType(64))).result
        found = builder.insert(arith.IndexCastOp(number, IndexType())).result
        if unsigned:
            return found
        negative = builder.insert(arith.CmpiOp(found, materialize(builder, 0), "slt")).result
        from_end = builder.insert(arith.AddiOp(found, materialize(builder, size))).result
        return builder.insert(arith.SelectOp(negative, from_end, found)).result

    return read


def _spans(value: SSAValue, at: Slice) -> list[DimRange]:
    return [
        DimRange(0, size) if index is None else DimRange(index, 1)
        for size, index in zip(shape_of(value), at, strict=True)
    ]


def _dims(at: Slice) -> list[AffineExpr]:
    every = iter(loops(len(at)))
    return [next(every) if index is None else AffineExpr.constant(0) for index in at]


def _lowered(
    kernel: KernelBuilder,
    op: graph.GatherOp | graph.GatherElementsOp | graph.GatherNdOp | graph.ScatterElementsOp | graph.ScatterNdOp,
    extents: Sequence[int],
    indexed: Callable[[Indices], Slice],
    plain: Callable[[Indices], Slice],
) -> SSAValue:
    """
    For each point of `extents` a gather copies the slice `indexed` of `x` to the slice `plain` of the result; a scatter
    combines the slice `plain` of the updates with the slice `indexed` of the result.
    """
    element, shape = signless(element_of(op.result)), shape_of(op.result)
    if isinstance(op, graph.ScatterElementsOp | graph.ScatterNdOp):
        combine, source = COMBINE[op.reduction.data], kernel.value(op.updates)
        wide = accumulator_of(element) if op.reduction.data in ("add", "mul") else element
        start, dims = kernel.empty(shape, wide), loops(len(shape))
        copy = kernel.generic([(kernel.value(op.x), dims)], (start, dims), 0, lambda body, xs: body.widen(xs[0], wide))
        read, write, start = plain, indexed, copy
    else:
        combine, source = COMBINE["none"], kernel.value(op.x)
        read, write, start = indexed, plain, kernel.empty(shape, element)

    def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        return combine(body, elements[1], body.widen(elements[0], elements[1].type))

    def step(at: Indices, carried: SSAValue) -> SSAValue:
        there, here = read(at), write(at)
        part = kernel.slice(source, _spans(source, there))
        old = kernel.slice(carried, _spans(carried, here))
        new = kernel.generic(
            [(part, _dims(there))], (old, _dims(here)), 0, compute, unsigned=is_unsigned(element_of(op.x))
        )
        return kernel.insert(new, carried, _spans(carried, here))

    return kernel.rounded(op.result, _nest(kernel, extents, start, step))


@lowers(graph.GatherOp)
def gather(kernel: KernelBuilder, op: graph.GatherOp) -> SSAValue:
    """For each index, the part of `x` there."""
    axis, shape, read = op.axis.value.data, shape_of(op.x), _reader(kernel, op.indices)
    before, after = [None] * axis, [None] * (len(shape) - axis - 1)
    return _lowered(
        kernel,
        op,
        shape_of(op.indices),
        lambda at: [*before, read(at, shape[axis]), *after],
        lambda at: [*before, *at, *after],
    )


@lowers(graph.GatherElementsOp, graph.ScatterElementsOp)
def by_elements(kernel: KernelBuilder, op: graph.GatherElementsOp | graph.ScatterElementsOp) -> SSAValue:
    """For each index, the element there."""
    axis, read = op.axis.value.data, _reader(kernel, op.indices)
    size = shape_of(op.x)[axis]

    def indexed(at: Indices) -> Slice:
        return [*at[:axis], read(at, size), *at[axis + 1 :]]

    return _lowered(kernel, op, shape_of(op.indices), indexed, lambda at: at)


@lowers(graph.GatherNdOp, graph.ScatterNdOp)
def by_rows(kernel: KernelBuilder, op: graph.GatherNdOp | graph.ScatterNdOp) -> SSAValue:
    """For each row of indices, the part there."""
    batch = op.batch_dims.value.data if isinstance(op, graph.GatherNdOp) else 0
    (*rows, width), read = shape_of(op.indices), _reader(kernel, op.indices)
    sizes = shape_of(op.x)[batch : batch + width]
    rest = [None] * (len(shape_of(op.x)) - batch - width)

    def indexed(at: Indices) -> Slice:
        row = [read([*at, column], size) for column, size in enumerate(sizes)]
        return [*at[:batch], *row, *rest]

    return _lowered(kernel, op, rows, indexed, lambda at: [*at, *rest])


@lowers(graph.TopKOp)
def top_k(kernel: KernelBuilder, op: graph.TopKOp) -> SSAValue:
    """
    The rank of every element, which is the number of those before it, and for each rank the element that has it.

    No sort: n^2 comparisons in loops without a branch, and n * k to turn ranks into indices.
    """
    x, axis, k = kernel.value(op.x), op.axis.value.data, op.k.value.data
    shape, wide = shape_of(x), IntegerType(64)
    unsigned, largest = is_unsigned(element_of(op.x)), bool(op.largest)
    *outer, other = loops(len(shape) + 1)
    against = [*outer[:axis], other, *outer[axis + 1 :]]

    def count(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        mine, theirs, total = elements
        first, second = (theirs, mine) if largest else (mine, theirs)
        # An element is above another if it is greater, or the only NaN of the two.
        above = body.compare("gt", first, second)
        equal = body.compare("eq", mine, theirs)
        if not isinstance(mine.type, IntegerType):
            first_nan, second_nan = body.compare("ne", first, first), body.compare("ne", second, second)
            both = body.emit(arith.AndIOp(first_nan, second_nan))
            only_first = body.emit(arith.XOrIOp(first_nan, both))
            above = body.emit(arith.OrIOp(above, only_first))
            equal = body.emit(arith.OrIOp(equal, both))
        earlier = body.emit(arith.CmpiOp(body.index(len(shape)), body.index(axis), "ult"))
        before = body.emit(arith.OrIOp(above, body.emit(arith.AndIOp(equal, earlier))))
        return body.emit(arith.AddiOp(total, body.emit(arith.ExtUIOp(before, wide))))

    ranks = kernel.generic(
        [(x, outer), (x, against)], (kernel.fill(shape, wide, 0), outer), 1, count, unsigned=unsigned
    )

    def place(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        rank, found = elements
        wanted = body.emit(arith.IndexCastOp(body.index(axis), wide))
        here = body.emit(arith.IndexCastOp(body.index(len(shape)), wide))
        return body.where(body.compare("eq", rank, wanted), here, found)

    chosen = kernel.fill((*shape[:axis], k, *shape[axis + 1 :]), wide, 0)
    return kernel.generic([(ranks, against)], (chosen, outer), 1, place)
