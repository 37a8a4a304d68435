"""
Gathers and scatters: loops over the indices, each of which names a slice that is copied or changed.

A loop nest over the indices carries the result. Inside, an index is read, counted from the front, and is the
offset of a slice; a generic copies that slice, or combines it with an update. The slice stays inside its tensor as
long as the index does: the interpreter and compiled programs check that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.builder import Builder
from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import AffineMapAttr, IndexType, IntegerAttr, IntegerType
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.rewriter import InsertPoint

from penstock.dialects import graph
from penstock.dialects.element_types import accumulator_of
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.graph_to_tensor.accumulation import rounded
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.lowering.graph_to_tensor.shapes import element_of, loops, shape_of, signless
from penstock.lowering.scalar_body import Body, Compute
from penstock.passes.tensor.tile_nest import DimRange, insert_slice, slice_of

Place: TypeAlias = int | SSAValue
"""An index into one dimension."""

Step: TypeAlias = Callable[["_Nest", Sequence[Place], SSAValue], SSAValue]
"""From the indices of all loops and the value carried to the value after this iteration."""

COMBINE: dict[str, Callable[[Body, SSAValue, SSAValue], SSAValue]] = {
    "none": lambda body, old, new: new,
    "add": Body.add,
    "mul": Body.mul,
    "max": Body.max,
    "min": Body.min,
}
"""What a scatter makes of an element and the update at its place."""


class _Nest:
    """Where the ops of a loop nest go, from the kernel's block to the innermost loop."""

    def __init__(self, kernel: KernelBuilder):
        self._kernel = kernel
        self._builder = Builder(InsertPoint.at_end(kernel.block), operation_insertion_handler=[self._locate])
        self._constants: dict[int, SSAValue] = {}
        self._outermost: scf.ForOp | None = None

    def _locate(self, op: Operation) -> None:
        op.location = self._kernel.location

    def constant(self, value: int) -> SSAValue:
        """A number, made before the loops."""
        if value not in self._constants:
            before = self._builder if self._outermost is None else Builder(InsertPoint.before(self._outermost))
            made = arith.ConstantOp(IntegerAttr(value, IndexType()))
            made.location = self._kernel.location
            self._constants[value] = before.insert(made).result
        return self._constants[value]

    def run(self, extents: Sequence[int], initial: SSAValue, step: Step) -> SSAValue:
        """`step` at every point of `extents`, in order; the value after the last."""
        self._builder.insertion_point = InsertPoint.at_end(self._kernel.block)
        return self._loops(list(extents), [], initial, step)

    def _loops(self, extents: list[int], places: list[Place], carried: SSAValue, step: Step) -> SSAValue:
        if not extents:
            return step(self, places, carried)
        extent, *inner = extents
        if extent == 1:
            return self._loops(inner, [*places, 0], carried, step)
        block = Block(arg_types=[IndexType(), carried.type])
        bounds = (self.constant(0), self.constant(extent), self.constant(1))
        loop = self._builder.insert(scf.ForOp(*bounds, [carried], Region(block)))
        self._outermost = self._outermost or loop
        outer, self._builder.insertion_point = self._builder.insertion_point, InsertPoint.at_end(block)
        result = self._loops(inner, [*places, block.args[0]], block.args[1], step)
        self._builder.insert(scf.YieldOp(result))
        self._builder.insertion_point = outer
        return loop.results[0]

    def index(self, indices: SSAValue, at: Sequence[Place], size: int, unsigned: bool) -> SSAValue:
        """The index that `indices` holds at `at`, counted from the front of a dimension of `size`."""
        values = [self.constant(place) if isinstance(place, int) else place for place in at]
        read = self._builder.insert(tensor.ExtractOp(indices, values, element_of(indices))).result
        if unsigned:
            if read.type != IntegerType(64):
                read = self._builder.insert(arith.ExtUIOp(read, IntegerType(64))).result
            return self._builder.insert(arith.IndexCastOp(read, IndexType())).result
        found = self._builder.insert(arith.IndexCastOp(read, IndexType())).result
        negative = self._builder.insert(arith.CmpiOp(found, self.constant(0), "slt")).result
        from_end = self._builder.insert(arith.AddiOp(found, self.constant(size))).result
        return self._builder.insert(arith.SelectOp(negative, from_end, found)).result

    def slice(self, source: SSAValue, at: Sequence[Place], sizes: Sequence[int]) -> SSAValue:
        """A part of a tensor."""
        return slice_of(self._builder, source, _spans(at, sizes))

    def insert(self, part: SSAValue, dest: SSAValue, at: Sequence[Place]) -> SSAValue:
        """`dest` with a part replaced."""
        return insert_slice(self._builder, part, dest, _spans(at, shape_of(part)))

    def pointwise(
        self,
        source: SSAValue,
        kept: Sequence[int],
        dest: SSAValue,
        dest_kept: Sequence[int],
        compute: Compute,
        unsigned: bool,
    ) -> SSAValue:
        """A generic over the dims `kept` of `source` and `dest_kept` of `dest`; all others have one element."""
        count = len(kept)
        block = Block(arg_types=[element_of(source), element_of(dest)])
        body = Body(block, self._kernel.location, unsigned)
        body.end(compute(body, block.args))
        maps = [
            AffineMapAttr(AffineMap(count, 0, tuple(_dims(len(shape_of(value)), dims))))
            for value, dims in ((source, kept), (dest, dest_kept))
        ]
        kinds = [IteratorTypeAttr.parallel()] * count
        generic = GenericOp([source], [dest], Region(block), maps, kinds, [dest.type])
        return self._builder.insert(generic).results[0]


def _spans(at: Sequence[Place], sizes: Sequence[int]) -> list[DimRange]:
    return [DimRange(place, size) for place, size in zip(at, sizes, strict=True)]


def _dims(rank: int, kept: Sequence[int]) -> list[AffineExpr]:
    places = dict(zip(kept, loops(len(kept)), strict=True))
    return [places.get(dim, AffineExpr.constant(0)) for dim in range(rank)]


def _copy(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
    return elements[0]


def _empty(kernel: KernelBuilder, op: graph.GraphOp) -> SSAValue:
    return kernel.empty(shape_of(op.result), signless(element_of(op.result)))


@lowers(graph.GatherOp)
def gather(kernel: KernelBuilder, op: graph.GatherOp) -> SSAValue:
    """For each index, the part of `x` there."""
    x, indices, axis = kernel.value(op.x), kernel.value(op.indices), op.axis.value.data
    shape, count, unsigned = shape_of(x), len(shape_of(indices)), is_unsigned(element_of(op.indices))
    before, after = [0] * axis, [0] * (len(shape) - axis - 1)
    part = (*shape[:axis], 1, *shape[axis + 1 :])
    target = (*shape[:axis], *[1] * count, *shape[axis + 1 :])
    kept = [dim for dim in range(len(shape)) if dim != axis]
    target_kept = [*range(axis), *range(axis + count, len(target))]

    def step(nest: _Nest, places: Sequence[Place], carried: SSAValue) -> SSAValue:
        index = nest.index(indices, places, shape[axis], unsigned)
        source = nest.slice(x, [*before, index, *after], part)
        at = [*before, *places, *after]
        copied = nest.pointwise(source, kept, nest.slice(carried, at, target), target_kept, _copy, False)
        return nest.insert(copied, carried, at)

    return _Nest(kernel).run(shape_of(indices), _empty(kernel, op), step)


@lowers(graph.GatherElementsOp)
def gather_elements(kernel: KernelBuilder, op: graph.GatherElementsOp) -> SSAValue:
    """For each index, the element of `x` there."""
    x, indices, axis = kernel.value(op.x), kernel.value(op.indices), op.axis.value.data
    size, unsigned = shape_of(x)[axis], is_unsigned(element_of(op.indices))
    ones = [1] * len(shape_of(x))

    def step(nest: _Nest, places: Sequence[Place], carried: SSAValue) -> SSAValue:
        index = nest.index(indices, places, size, unsigned)
        source = nest.slice(x, [*places[:axis], index, *places[axis + 1 :]], ones)
        copied = nest.pointwise(source, [], nest.slice(carried, places, ones), [], _copy, False)
        return nest.insert(copied, carried, places)

    return _Nest(kernel).run(shape_of(indices), _empty(kernel, op), step)


@lowers(graph.GatherNdOp)
def gather_nd(kernel: KernelBuilder, op: graph.GatherNdOp) -> SSAValue:
    """For each row of indices, the part of `x` there."""
    x, indices, batch = kernel.value(op.x), kernel.value(op.indices), op.batch_dims.value.data
    shape, unsigned = shape_of(x), is_unsigned(element_of(op.indices))
    *rows, width = shape_of(indices)
    rest = shape[batch + width :]
    zeros = [0] * len(rest)
    kept = list(range(batch + width, len(shape)))
    target_kept = list(range(len(rows), len(rows) + len(rest)))

    def step(nest: _Nest, places: Sequence[Place], carried: SSAValue) -> SSAValue:
        row = [nest.index(indices, [*places, column], shape[batch + column], unsigned) for column in range(width)]
        source = nest.slice(x, [*places[:batch], *row, *zeros], [*[1] * (batch + width), *rest])
        at = [*places, *zeros]
        old = nest.slice(carried, at, [*[1] * len(rows), *rest])
        return nest.insert(nest.pointwise(source, kept, old, target_kept, _copy, False), carried, at)

    return _Nest(kernel).run(rows, _empty(kernel, op), step)


def _start(kernel: KernelBuilder, op: graph.ScatterElementsOp | graph.ScatterNdOp) -> SSAValue:
    """A copy of `x`, to change; one to which is added, or which is multiplied, in the type that sums are in."""
    x, dims, element = kernel.value(op.x), loops(len(shape_of(op.x))), signless(element_of(op.result))
    wide = accumulator_of(element) if op.reduction.data in ("add", "mul") else element
    copy = kernel.empty(shape_of(op.result), wide)
    return kernel.generic([(x, dims)], (copy, dims), 0, lambda body, elements: body.widen(elements[0], wide))


def _changed(op: graph.ScatterElementsOp | graph.ScatterNdOp) -> Compute:
    combine = COMBINE[op.reduction.data]
    return lambda body, elements: combine(body, elements[1], body.widen(elements[0], elements[1].type))


@lowers(graph.ScatterElementsOp)
def scatter_elements(kernel: KernelBuilder, op: graph.ScatterElementsOp) -> SSAValue:
    """For each update, the element of the result at its index."""
    indices, updates, axis = kernel.value(op.indices), kernel.value(op.updates), op.axis.value.data
    size, unsigned = shape_of(op.x)[axis], is_unsigned(element_of(op.indices))
    ones, compute = [1] * len(shape_of(op.x)), _changed(op)
    numbers_unsigned = is_unsigned(element_of(op.x))

    def step(nest: _Nest, places: Sequence[Place], carried: SSAValue) -> SSAValue:
        at = [*places[:axis], nest.index(indices, places, size, unsigned), *places[axis + 1 :]]
        update = nest.slice(updates, places, ones)
        changed = nest.pointwise(update, [], nest.slice(carried, at, ones), [], compute, numbers_unsigned)
        return nest.insert(changed, carried, at)

    return rounded(kernel, op.result, _Nest(kernel).run(shape_of(indices), _start(kernel, op), step))


@lowers(graph.ScatterNdOp)
def scatter_nd(kernel: KernelBuilder, op: graph.ScatterNdOp) -> SSAValue:
    """For each row of indices, the part of the result there."""
    indices, updates = kernel.value(op.indices), kernel.value(op.updates)
    shape, unsigned, compute = shape_of(op.x), is_unsigned(element_of(op.indices)), _changed(op)
    *rows, width = shape_of(indices)
    rest = shape[width:]
    zeros = [0] * len(rest)
    kept, target_kept = list(range(len(rows), len(rows) + len(rest))), list(range(width, len(shape)))
    numbers_unsigned = is_unsigned(element_of(op.x))

    def step(nest: _Nest, places: Sequence[Place], carried: SSAValue) -> SSAValue:
        row = [nest.index(indices, [*places, column], shape[column], unsigned) for column in range(width)]
        update = nest.slice(updates, [*places, *zeros], [*[1] * len(rows), *rest])
        at = [*row, *zeros]
        old = nest.slice(carried, at, [*[1] * width, *rest])
        return nest.insert(nest.pointwise(update, kept, old, target_kept, compute, numbers_unsigned), carried, at)

    return rounded(kernel, op.result, _Nest(kernel).run(rows, _start(kernel, op), step))


@lowers(graph.TopKOp)
def top_k(kernel: KernelBuilder, op: graph.TopKOp) -> SSAValue:
    """
    The rank of every element, which is the number of those before it, and for each rank the element that has it.

    No sort: n^2 comparisons in loops without a branch, and n * k to turn ranks into places.
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
