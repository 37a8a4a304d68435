"""
Building a tile nest: the op at the end of a kernel is computed a box at a time, and what it needs with it.

This is tile-and-fuse as in MLIR: the box of the root op's domain becomes a slice of its result; a slice of an
operand that another `linalg.generic` produces is replaced by that producer, computed for the slice only; what
comes from outside is sliced. The reductions of the anchor become loops inside, which carry the accumulator.
Every size is static; only offsets are dynamic. A parallel tile that does not divide is shifted inwards at the
end, `min(iv, N - T)`, so that it computes some elements twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, TensorType, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import split_dynamic_index_list
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from penstock.passes.access import linear_form
from penstock.passes.indices import Index, add, materialize, scale
from penstock.passes.tensor.zero_pads import pad_with_zeros


@dataclass(frozen=True)
class Span:
    """A range of one dim: where it begins, and its static size."""

    offset: Index
    size: int


@dataclass(frozen=True)
class OpPlan:
    """
    How one op is tiled: a size for each of its dims, and the dims that become loops, outermost first, parallel
    ones before reductions.
    """

    tile: tuple[int, ...]
    order: tuple[int, ...]


# slices


def slice_of(builder: Builder, source: SSAValue, spans: Sequence[Span]) -> SSAValue:
    """`source` at `spans`; the source itself if that is all of it."""
    type = source.type
    assert isa(type, TensorType)
    sizes = [span.size for span in spans]
    if sizes == list(type.get_shape()) and all(span.offset == 0 for span in spans):
        return source
    result = TensorType(type.element_type, sizes)
    op = tensor.ExtractSliceOp(source, [span.offset for span in spans], sizes, [1] * len(sizes), result)
    op.result.name_hint = source.name_hint
    return builder.insert(op).result


def insert_slice(builder: Builder, source: SSAValue, dest: SSAValue, spans: Sequence[Span]) -> SSAValue:
    """`dest` with `source` at `spans`; the source itself if that is all of it."""
    if source.type == dest.type and all(span.offset == 0 for span in spans):
        return source
    static, dynamic = split_dynamic_index_list([span.offset for span in spans], DYNAMIC_INDEX)
    op = tensor.InsertSliceOp.build(
        operands=[source, dest, dynamic, [], []],
        properties={
            "static_offsets": DenseArrayBase.from_list(i64, static),
            "static_sizes": DenseArrayBase.from_list(i64, [span.size for span in spans]),
            "static_strides": DenseArrayBase.from_list(i64, [1] * len(spans)),
        },
        result_types=[dest.type],
    )
    return builder.insert(op).result


def spans_of_map(builder: Builder, index_map: AffineMap, box: Sequence[Span]) -> list[Span]:
    """The slice of an operand that a box of the domain touches; halos included."""
    constants, rows = linear_form(index_map)
    spans: list[Span] = []
    for constant, row in zip(constants, rows, strict=True):
        offset: Index = constant
        size = 1
        for span, coefficient in zip(box, row, strict=True):
            if coefficient:
                offset = add(builder, offset, scale(builder, span.offset, coefficient))
                size += coefficient * (span.size - 1)
        spans.append(Span(offset, size))
    return spans


def result_dims(generic: GenericOp) -> list[int]:
    """For each dim of the result of `generic`, the dim of its domain. The output map is a projected permutation."""
    output_map = list(generic.indexing_maps)[len(generic.inputs)].data
    return [expr.position for expr in output_map.results if isinstance(expr, AffineDimExpr)]


# the nest


@dataclass
class TileNest:
    """Builds the nest for `root`, whose producers among `members` are computed inside the tile."""

    root: GenericOp
    anchor: GenericOp
    members: frozenset[Operation]
    plan: OpPlan
    """Of the anchor, in its dims."""
    destination: SSAValue | None = None
    """The empty tensor that the root's output starts from: a tile of it is a tile of what the loops carry."""
    _tiles: dict[Operation, SSAValue] = field(default_factory=dict[Operation, SSAValue])
    _padded: dict[int, SSAValue] = field(default_factory=dict[int, SSAValue])
    """The inputs of the anchor that are padded, for a reduction whose tiles run past its end."""

    def build(self, builder: Builder) -> SSAValue:
        """Insert the nest and return the value that replaces the root's result."""
        anchor_dims, root_dims = result_dims(self.anchor), result_dims(self.root)
        to_root = dict(zip(anchor_dims, root_dims, strict=True))
        extents = self.anchor.get_static_loop_ranges()
        parallel = [dim for dim in self.plan.order if dim in to_root]
        self._pad_reductions(builder, extents)
        result = self._carrier(builder)
        loops: list[scf.ForOp] = []
        offsets: dict[int, Index] = {}
        inner = builder
        for dim in parallel:
            size, extent = self.plan.tile[dim], extents[dim]
            loop, iv, inner = _loop(inner, extent, size, [result])
            offsets[to_root[dim]] = _clamp(inner, iv, extent, size)
            result = loop.body.block.args[1]
            loops.append(loop)
        ranges = self.root.get_static_loop_ranges()
        to_anchor = {root: anchor for anchor, root in to_root.items()}
        box = [
            Span(offsets.get(dim, 0), self.plan.tile[to_anchor[dim]] if dim in to_anchor else ranges[dim])
            for dim in range(len(ranges))
        ]
        value = self._tile(inner, self.root, box, result)
        spans = [box[dim] for dim in root_dims]
        value = insert_slice(inner, value, result, spans)
        for loop in reversed(loops):
            Builder(InsertPoint.at_end(loop.body.block)).insert(scf.YieldOp(value))
            value = loop.results[0]
        return value

    def _carrier(self, builder: Builder) -> SSAValue:
        """The tensor that the loops carry. One that the root reads is sliced instead: tiles may overlap."""
        value = self.root.outputs[0]
        while value.owner in self.members:
            assert isinstance(value.owner, GenericOp)
            value = value.owner.outputs[0]
        if isinstance(value.owner, tensor.EmptyOp):
            self.destination = value
            return value
        return builder.insert(tensor.EmptyOp([], value.type)).results[0]

    def _pad_reductions(self, builder: Builder, extents: Sequence[int]) -> None:
        """Give the operands of the anchor the zeros that the last tiles of its reductions read."""
        past = {d: -extents[d] % self.plan.tile[d] for d in self.plan.order if d not in result_dims(self.anchor)}
        for number, map_attr in enumerate(list(self.anchor.indexing_maps)[: len(self.anchor.inputs)]):
            more = {d: zeros for d, zeros in past.items() if zeros and d in map_attr.data.used_dims()}
            if more:
                self._padded[number] = pad_with_zeros(builder, self.anchor, number, more)

    def _tile(self, builder: Builder, op: GenericOp, box: Sequence[Span], result: SSAValue) -> SSAValue:
        """The part of the result of `op` that `box` computes."""
        if (known := self._tiles.get(op)) is not None:
            return known
        maps = [map_attr.data for map_attr in op.indexing_maps]
        output_map = maps[len(op.inputs)]
        initial = self._operand(builder, op.outputs[0], output_map, box, result)
        loops = [dim for dim in self.plan.order if dim not in result_dims(op)] if op is self.anchor else []
        value = self._reduce(builder, op, list(box), loops, initial, result)
        self._tiles[op] = value
        return value

    def _reduce(
        self,
        builder: Builder,
        op: GenericOp,
        box: list[Span],
        loops: Sequence[int],
        initial: SSAValue,
        result: SSAValue,
    ) -> SSAValue:
        """`op` over `box`, with a loop for each dim of `loops`, which carries the accumulator."""
        if not loops:
            values = [self._padded.get(n, v) if op is self.anchor else v for n, v in enumerate(op.inputs)]
            inputs = [
                self._operand(builder, value, map_attr.data, box, result)
                for value, map_attr in zip(values, op.indexing_maps, strict=False)
            ]
            tiled = GenericOp(
                inputs, [initial], op.body.clone(), op.indexing_maps, op.iterator_types, [initial.type], op.doc
            )
            tiled.location = op.location
            return builder.insert(tiled).results[0]
        dim, *rest = loops
        loop, iv, inner = _loop(builder, op.get_static_loop_ranges()[dim], self.plan.tile[dim], [initial])
        box = [Span(iv, self.plan.tile[dim]) if number == dim else span for number, span in enumerate(box)]
        value = self._reduce(inner, op, box, rest, loop.body.block.args[1], result)
        Builder(InsertPoint.at_end(loop.body.block)).insert(scf.YieldOp(value))
        return loop.results[0]

    def _operand(
        self, builder: Builder, value: SSAValue, index_map: AffineMap, box: Sequence[Span], result: SSAValue
    ) -> SSAValue:
        """The slice of an operand: computed here if a member produces it."""
        if not isa(value.type, TensorType):
            return value
        spans = spans_of_map(builder, index_map, box)
        producer = value.owner
        if isinstance(producer, GenericOp) and producer in self.members:
            dims = result_dims(producer)
            ranges = producer.get_static_loop_ranges()
            inner = [Span(0, extent) for extent in ranges]
            for dim, span in zip(dims, spans, strict=True):
                inner[dim] = span
            return self._tile(builder, producer, inner, result)
        if value is self.destination:
            return slice_of(builder, result, spans)
        if isinstance(producer, tensor.EmptyOp):
            shape = [span.size for span in spans]
            empty = builder.insert(tensor.EmptyOp([], TensorType(value.type.element_type, shape)))
            empty.tensor.name_hint = value.name_hint
            return empty.tensor
        return slice_of(builder, value, spans)


def _loop(builder: Builder, extent: int, step: int, carried: Sequence[SSAValue]) -> tuple[scf.ForOp, SSAValue, Builder]:
    lower, upper, by = (materialize(builder, value) for value in (0, extent, step))
    types: list[Attribute] = [IndexType(), *(value.type for value in carried)]
    loop = scf.ForOp(lower, upper, by, carried, Region(Block(arg_types=types)))
    builder.insert(loop)
    return loop, loop.body.block.args[0], Builder(InsertPoint.at_end(loop.body.block))


def _clamp(builder: Builder, iv: SSAValue, extent: int, size: int) -> SSAValue:
    """The offset of a tile that is shifted inwards where it would hang over the end."""
    if extent % size == 0:
        return iv
    return builder.insert(arith.MinSIOp(iv, materialize(builder, extent - size))).result


def replace_by_nest(kernel: func.FuncOp, nest: TileNest, erase: Callable[[Operation], None]) -> None:
    """Build `nest` at the end of `kernel`, and erase the ops that it replaces."""
    terminator = kernel.body.block.last_op
    assert terminator is not None
    value = nest.build(Builder(InsertPoint.before(terminator)))
    nest.root.results[0].replace_all_uses_with(value)
    for op in reversed(list(kernel.body.block.ops)):
        unused = isinstance(op, tensor.EmptyOp) and not op.results[0].uses
        if op in nest.members or unused:
            erase(op)
