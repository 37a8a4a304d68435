# SPDX-License-Identifier: Apache-2.0
"""Splitting a reduction into partial results, which another reduction combines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from xdsl.builder import Builder
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import (
    AffineMapAttr,
    AnyFloat,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    TensorType,
    i64,
)
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp, IndexOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_tensor import RfactorOp
from penstock.dialects.upstream.transform import SplitReductionOp
from penstock.passes.analysis.reductions import combiners
from penstock.passes.analysis.strides import reassociation_attribute
from penstock.passes.generics import structured
from penstock.passes.schedule.primitives.tile import dims_of
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState
from penstock.passes.schedule.tile_nest import DimRange, insert_slice, slice_of
from penstock.passes.shapes import loops


@PRIMITIVES.register(RfactorOp)
def rfactor(state: TransformState, op: RfactorOp) -> Sequence[Payload]:
    """
    Split a reduction into `factor` partial ones, side by side, and a reduction of their results.

    The partial results are a tensor whose last dim, of size `factor`, is new. Each sums neighbouring points, or, with
    `strided`, every factor-th one: a vector of points is then added to a vector of sums, and what is left over at the
    end of the dim to the first of them. A sum or a product of floats is rounded otherwise than before, and a partial
    product may overflow, or vanish, where the whole one does not; all other combiners give the same bits. Raises
    UserError for a dim that is no reduction, for a factor that is larger than the dim or, without `strided`, does not
    divide it, for a body that does not combine one result with what is computed without it, and where the dim indexes
    an operand together with others. The factoring of reductions is Suriana et al., "Parallel associative reductions in
    Halide", CGO 2017.

    Before:
    ```mlir
    func.func private @f(%x: tensor<4x12xi32>, %y: tensor<4xi32>) -> tensor<4xi32> {
      %z = linalg.generic {
        indexing_maps = [affine_map<(i, k) -> (i, k)>, affine_map<(i, k) -> (i)>],
        iterator_types = ["parallel", "reduction"]
      } ins(%x : tensor<4x12xi32>) outs(%y : tensor<4xi32>) {
      ^bb0(%a: i32, %out: i32):
        %s = arith.addi %out, %a : i32
        linalg.yield %s : i32
      } -> tensor<4xi32>
      func.return %z : tensor<4xi32>
    }
    ```
    After (`%fill, %partial, %whole = schedule.rfactor %z dim 1 factor 3`):
    ```mlir
    func.func private @f(%x: tensor<4x12xi32>, %y: tensor<4xi32>) -> tensor<4xi32> {
      %x_1 = tensor.expand_shape %x [[0], [1, 2]] output_shape [4, 3, 4] : tensor<4x12xi32> into tensor<4x3x4xi32>
      %y_1 = tensor.empty() : tensor<4x3xi32>
      %0 = linalg.generic {
        indexing_maps = [affine_map<(i, s) -> (i, s)>], iterator_types = ["parallel", "parallel"]
      } outs(%y_1 : tensor<4x3xi32>) {
      ^bb0(%1: i32):
        %2 = arith.constant 0 : i32
        linalg.yield %2 : i32
      } -> tensor<4x3xi32>
      %3 = linalg.generic {
        indexing_maps = [affine_map<(i, s, k) -> (i, s, k)>, affine_map<(i, s, k) -> (i, s)>],
        iterator_types = ["parallel", "parallel", "reduction"]
      } ins(%x_1 : tensor<4x3x4xi32>) outs(%0 : tensor<4x3xi32>) {
      ^bb0(%a: i32, %out: i32):
        %s = arith.addi %out, %a : i32
        linalg.yield %s : i32
      } -> tensor<4x3xi32>
      %z = linalg.generic {
        indexing_maps = [affine_map<(i, s) -> (i, s)>, affine_map<(i, s) -> (i)>],
        iterator_types = ["parallel", "reduction"]
      } ins(%3 : tensor<4x3xi32>) outs(%y : tensor<4xi32>) {
      ^bb0(%4: i32, %5: i32):
        %6 = arith.addi %4, %5 : i32
        linalg.yield %6 : i32
      } -> tensor<4xi32>
      func.return %z : tensor<4xi32>
    }
    ```

    Before:
    ```mlir
    func.func private @f(%x: tensor<11xi32>, %y: tensor<i32>) -> tensor<i32> {
      %z = linalg.generic {
        indexing_maps = [affine_map<(k) -> (k)>, affine_map<(k) -> ()>], iterator_types = ["reduction"]
      } ins(%x : tensor<11xi32>) outs(%y : tensor<i32>) {
      ^bb0(%a: i32, %out: i32):
        %s = arith.addi %out, %a : i32
        linalg.yield %s : i32
      } -> tensor<i32>
      func.return %z : tensor<i32>
    }
    ```
    After (`%fill, %partial, %whole = schedule.rfactor %z dim 0 factor 4 strided`):
    ```mlir
    func.func private @f(%x: tensor<11xi32>, %y: tensor<i32>) -> tensor<i32> {
      %x_1 = tensor.extract_slice %x[0] [8] [1] : tensor<11xi32> to tensor<8xi32>
      %x_2 = tensor.expand_shape %x_1 [[0, 1]] output_shape [2, 4] : tensor<8xi32> into tensor<2x4xi32>
      %y_1 = tensor.empty() : tensor<4xi32>
      %0 = linalg.generic {
        indexing_maps = [affine_map<(s) -> (s)>], iterator_types = ["parallel"]
      } outs(%y_1 : tensor<4xi32>) {
      ^bb0(%1: i32):
        %2 = arith.constant 0 : i32
        linalg.yield %2 : i32
      } -> tensor<4xi32>
      %3 = linalg.generic {
        indexing_maps = [affine_map<(k, s) -> (k, s)>, affine_map<(k, s) -> (s)>],
        iterator_types = ["reduction", "parallel"]
      } ins(%x_2 : tensor<2x4xi32>) outs(%0 : tensor<4xi32>) {
      ^bb0(%a: i32, %out: i32):
        %s = arith.addi %out, %a : i32
        linalg.yield %s : i32
      } -> tensor<4xi32>
      %4 = tensor.extract_slice %3[0] [3] [1] : tensor<4xi32> to tensor<3xi32>
      %x_3 = tensor.extract_slice %x[8] [3] [1] : tensor<11xi32> to tensor<3xi32>
      %5 = linalg.generic {
        indexing_maps = [affine_map<(s) -> (s)>, affine_map<(s) -> (s)>], iterator_types = ["parallel"]
      } ins(%x_3 : tensor<3xi32>) outs(%4 : tensor<3xi32>) {
      ^bb0(%a_1: i32, %out_1: i32):
        %s_1 = arith.addi %out_1, %a_1 : i32
        linalg.yield %s_1 : i32
      } -> tensor<3xi32>
      %6 = tensor.insert_slice %5 into %3[0] [3] [1] : tensor<3xi32> into tensor<4xi32>
      %z = linalg.generic {
        indexing_maps = [affine_map<(s) -> (s)>, affine_map<(s) -> ()>], iterator_types = ["reduction"]
      } ins(%6 : tensor<4xi32>) outs(%y : tensor<i32>) {
      ^bb0(%7: i32, %8: i32):
        %9 = arith.addi %7, %8 : i32
        linalg.yield %9 : i32
      } -> tensor<i32>
      func.return %z : tensor<i32>
    }
    ```
    """
    target = state.one(op.target, GenericOp)
    strided = op.strided is not None
    place = _checked(target, op.dim.value.data, op.factor.value.data, divides=not strided)
    split = _Split(target, place, len(_output(target).results), strided=strided)
    _, fill, partial, whole = split.rewrite()
    return (fill,), (partial, *split.left_over), (whole,)


@PRIMITIVES.register(SplitReductionOp)
def split_reduction(state: TransformState, op: SplitReductionOp) -> Sequence[Payload]:
    """
    Split the reduction of an op into partial ones; returns the empty tensor, its fill, and the two reductions.

    See https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredsplit_reduction
    """
    target = state.one(op.target, GenericOp)
    if op.use_scaling_algorithm is not None or op.use_alloc is not None:
        raise UserError("a reduction is split on tensors by reshaping its operands, not by scaling or in buffers")
    dims = [number for number, dim in enumerate(dims_of(target)) if not dim.parallel]
    if len(dims) != 1:
        raise UserError(
            f"the op has {len(dims)} reductions, and one is split",
            loc=location_of(target),
            notes=["schedule.rfactor says which"] if dims else [],
        )
    factor = op.split_factor.value.data if op.split_factor is not None else 0
    position = op.insert_split_dimension.value.data if op.insert_split_dimension is not None else 0
    place = _checked(target, dims[0], factor)
    if not 0 <= position <= len(_output(target).results):
        raise UserError(f"the partial results have no dim {position}")
    return [(each,) for each in _Split(target, place, position, strided=op.inner_parallel is not None).rewrite()]


def _output(target: GenericOp) -> AffineMap:
    return list(target.indexing_maps)[len(target.inputs)].data


@dataclass(frozen=True)
class _Splittable:
    """A reduction that can be split."""

    dim: int
    factor: int
    combiner: type[Operation]
    neutral: Attribute


def _checked(target: GenericOp, dim: int, factor: int, *, divides: bool = True) -> _Splittable:
    """What is split; raises UserError for what cannot be."""
    dims = dims_of(target)
    if not 0 <= dim < len(dims) or dims[dim].parallel:
        listed = [number for number, each in enumerate(dims) if not each.parallel]
        raise UserError(
            f"dim {dim} is no reduction", loc=location_of(target), notes=[f"{listed} are"] if listed else []
        )
    extent = dims[dim].extent
    if not divides and not 1 <= factor <= extent:
        raise UserError(f"{factor} partial results of dim {dim} of {extent}", notes=[f"from 1 to {extent} can be"])
    if divides and (factor < 1 or extent % factor):
        divisors = [number for number in range(1, extent + 1) if extent % number == 0]
        raise UserError(f"{factor} does not divide dim {dim} of {extent}", notes=[f"{divisors} do"])
    if combiners(target).get(len(target.inputs)) is None:
        raise UserError(
            "the body does not combine its result with what is computed without it",
            loc=location_of(target),
            notes=["it ends in an op that is associative and commutative, of which the old result is one operand"],
        )
    last = target.body.block.last_op
    assert last is not None
    combining = last.operands[0].owner
    assert isinstance(combining, Operation)
    for number, (value, map_attr) in enumerate(zip(target.inputs, target.indexing_maps, strict=False)):
        mixed = [expr for expr in map_attr.data.results if dim in expr.used_dims()]
        if len(mixed) > 1 or any(not isinstance(expr, AffineDimExpr) for expr in mixed):
            raise UserError(f"dim {dim} indexes operand {number} together with other dims", loc=location_of(target))
        if mixed and not isa(value.type, TensorType):
            raise UserError(f"operand {number} is no tensor", loc=location_of(target))
    if any(isinstance(op, IndexOp) for op in target.body.walk()):
        raise UserError("the body asks for its index, which the split changes", loc=location_of(target))
    neutral = neutral_of(combining.name, combining.results[0].type)
    if neutral is None:
        raise UserError(f"{combining.name} has no neutral element here", loc=location_of(target))
    return _Splittable(dim, factor, type(combining), neutral)


def is_splittable(target: GenericOp, dim: int) -> bool:
    """
    Whether a reduction can be split into strided partial ones, with what it computes but for the rounding of sums.

    Products of floats are not: those of large and of small factors in turn are finite, and partial ones infinite.
    """
    try:
        return _checked(target, dim, 1, divides=False).combiner is not arith.MulfOp
    except UserError:
        return False


def neutral_of(combiner: str, type: Attribute) -> FloatAttr | IntegerAttr | None:
    """The element that changes nothing when it is combined."""
    name = combiner.removeprefix("arith.")
    if isinstance(type, AnyFloat):
        numbers = {"addf": -0.0, "mulf": 1.0, "maximumf": -inf, "minimumf": inf}
        return FloatAttr(numbers[name], type) if name in numbers else None
    if not isa(type, IntegerType):
        return None
    least, most = -(1 << (type.width.data - 1)), (1 << (type.width.data - 1)) - 1
    of_integers = {"addi": 0, "ori": 0, "xori": 0, "maxui": 0, "muli": 1, "andi": -1, "minui": -1}
    of_integers |= {"maxsi": least, "minsi": most}
    return IntegerAttr(of_integers[name], type) if name in of_integers else None


@dataclass(frozen=True)
class _Split:
    """The rewrite of one reduction; where its points are `strided`, a partial result takes every factor-th of them."""

    target: GenericOp
    reduction: _Splittable
    position: int
    """Which dim of the partial results is the new one."""
    strided: bool
    left_over: list[GenericOp] = field(default_factory=list[GenericOp])
    """What combines the points that the factor leaves over with the first partial results."""

    @property
    def extent(self) -> int:
        """Of the reduction."""
        return self.target.get_static_loop_ranges()[self.reduction.dim]

    @property
    def split_dim(self) -> int:
        """The new dim of the domain of the partial reductions."""
        return self.reduction.dim + int(self.strided)

    def rewrite(self) -> tuple[Operation, Operation, Operation, Operation]:
        """Returns the empty tensor, what fills it, the partial reductions, and the one that combines them."""
        target, builder = self.target, Builder(InsertPoint.before(self.target))
        inputs = [self._expanded(builder, number) for number in range(len(target.inputs))]
        type = target.results[0].type
        assert isa(type, TensorType)
        shape = list(type.get_shape())
        shape.insert(self.position, self.reduction.factor)
        empty = builder.insert(tensor.EmptyOp([], TensorType(type.element_type, shape)))
        neutral = arith.ConstantOp(self.reduction.neutral)  # pyright: ignore[reportArgumentType]
        output = empty.tensor, loops(len(shape))
        fill = builder.insert(structured([], output, lambda body, _: body.emit(neutral), target.location))
        empty.tensor.name_hint = target.outputs[0].name_hint
        maps = [self._moved(map_attr.data, inner=True) for map_attr in list(target.indexing_maps)[: len(inputs)]]
        partial_map = list(self._moved(_output(target), inner=False).results)
        partial_map.insert(self.position, AffineExpr.dimension(self.split_dim))
        kinds = list(target.iterator_types)
        kinds.insert(self.split_dim, IteratorTypeAttr.parallel())
        count = len(kinds)
        partial = GenericOp(
            inputs,
            [fill.results[0]],
            target.body.clone(),
            [*map(AffineMapAttr, maps), AffineMapAttr(AffineMap(count, 0, tuple(partial_map)))],
            kinds,
            [empty.tensor.type],
            target.doc,
        )
        partial.location = target.location
        builder.insert(partial)
        whole = builder.insert(self._combine(self._with_rest(builder, partial.results[0], shape), len(shape)))
        whole.results[0].name_hint = target.results[0].name_hint
        Rewriter.replace_op(target, [], whole.results)
        return empty, fill, partial, whole

    def _with_rest(self, builder: Builder, partial: SSAValue, shape: Sequence[int]) -> SSAValue:
        """The partial results with the points at the end that the factor leaves over."""
        target, dim = self.target, self.reduction.dim
        rest = self.extent % self.reduction.factor
        if not rest:
            return partial
        kinds = list(target.iterator_types)
        kinds[dim] = IteratorTypeAttr.parallel()
        results = list(_output(target).results)
        results.insert(self.position, AffineExpr.dimension(dim))
        output_map = AffineMapAttr(AffineMap(len(kinds), 0, tuple(results)))
        maps = [*list(target.indexing_maps)[: len(target.inputs)], output_map]
        first = [DimRange(0, rest if place == self.position else size) for place, size in enumerate(shape)]
        output = slice_of(builder, partial, first)
        inputs = [self._part(builder, number, self.extent - rest, rest) for number in range(len(target.inputs))]
        op = GenericOp(inputs, [output], target.body.clone(), maps, kinds, [output.type], target.doc)
        op.location = target.location
        self.left_over.append(builder.insert(op))
        return insert_slice(builder, op.results[0], partial, first)

    def _part(self, builder: Builder, number: int, start: int, size: int) -> SSAValue:
        """An input at a range of the reduction."""
        value, index_map = self.target.inputs[number], list(self.target.indexing_maps)[number].data
        if not isa(value.type, TensorType):
            return value
        spans = [
            DimRange(start, size) if self.reduction.dim in expr.used_dims() else DimRange(0, extent)
            for expr, extent in zip(index_map.results, value.type.get_shape(), strict=True)
        ]
        return slice_of(builder, value, spans)

    def _moved(self, old: AffineMap, *, inner: bool) -> AffineMap:
        """A map of the domain with the new dim; an operand that the reduction indexes has the new dim, too."""
        count, dim = old.num_dims + 1, self.reduction.dim
        reduced = dim + int(not self.strided)
        new = [AffineExpr.dimension(n if n < dim else reduced if n == dim else n + 1) for n in range(old.num_dims)]
        results: list[AffineExpr] = []
        for expr in old.results:
            moved = expr.replace_dims_and_symbols(new, [])
            pair = [moved, AffineExpr.dimension(self.split_dim)]
            is_reduced = inner and isinstance(expr, AffineDimExpr) and expr.position == dim
            results += (pair if self.strided else pair[::-1]) if is_reduced else [moved]
        return AffineMap(count, 0, tuple(results))

    def _expanded(self, builder: Builder, number: int) -> SSAValue:
        """An input with the dim that the reduction indexes split in two."""
        value, old = self.target.inputs[number], list(self.target.indexing_maps)[number].data
        at = [place for place, expr in enumerate(old.results) if self.reduction.dim in expr.used_dims()]
        if not at:
            return value
        value = self._part(builder, number, 0, self.extent - self.extent % self.reduction.factor)
        type = value.type
        assert isa(type, TensorType)
        shape, (place,), factor = list(type.get_shape()), at, self.reduction.factor
        pair = [shape[place] // factor, factor]
        shape[place : place + 1] = pair if self.strided else pair[::-1]
        groups = [[n + int(n > place)] if n != place else [n, n + 1] for n in range(len(shape) - 1)]
        expand = tensor.ExpandShapeOp.build(
            operands=[value, []],
            result_types=[TensorType(type.element_type, shape)],
            properties={
                "reassociation": reassociation_attribute(groups),
                "static_output_shape": DenseArrayBase.from_list(i64, shape),
            },
        )
        expand.location = self.target.location
        expand.result.name_hint = value.name_hint
        return builder.insert(expand).result

    def _combine(self, partial: SSAValue, count: int) -> GenericOp:
        """The reduction of the partial results into what the whole one started from."""
        dest = self.target.outputs[0]
        type = dest.type
        assert isa(type, TensorType)
        block = Block(arg_types=[type.element_type] * 2)
        combined = self.reduction.combiner.create(operands=block.args, result_types=[type.element_type])
        last = self.target.body.block.last_op
        assert last is not None
        assert isinstance(last.operands[0].owner, Operation)
        combined.properties |= last.operands[0].owner.properties
        block.add_ops([combined, YieldOp(combined.results[0])])
        kinds = [IteratorTypeAttr(IteratorType.PARALLEL)] * count
        kinds[self.position] = IteratorTypeAttr.reduction()
        kept = tuple(AffineExpr.dimension(number) for number in range(count) if number != self.position)
        maps = [AffineMapAttr(AffineMap.identity(count)), AffineMapAttr(AffineMap(count, 0, kept))]
        whole = GenericOp([partial], [dest], Region(block), maps, kinds, [type])
        whole.location = self.target.location
        return whole
