# SPDX-License-Identifier: Apache-2.0
"""
Building a tile nest: the op at the end of a kernel is computed a box at a time, and what it needs with it.

This is tile-and-fuse as in MLIR: the box of the root op's domain becomes a slice of its result; a slice of an operand
that another `linalg.generic` produces is replaced by that producer, computed for the slice only; what comes from
outside is sliced. The reductions of the anchor become loops inside, which carry the accumulator. Sizes are static,
offsets dynamic. A parallel tile that does not divide is shifted inwards at the end, `min(iv, N - T)`, and computes some
elements twice. One that is longer than its dim is computed whole on padded operands, and its valid part is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import gt

from xdsl.builder import Builder
from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, TensorType, i64
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.dialects.utils import split_dynamic_index_list
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.passes.analysis.access import linear_form
from penstock.passes.index_builder import Index, add, for_loop, materialize, scale
from penstock.passes.schedule.zero_pads import extend

_SOURCES = tensor.EmptyOp | tensor.ExtractSliceOp
"""What is erased where only an op that is tiled used it."""


@dataclass(frozen=True)
class DimRange:
    """A range of one dim: where it begins, its static size, and how far its elements are from each other."""

    offset: Index
    size: int
    stride: int = 1


# slices


def slice_of(builder: Builder, source: SSAValue, spans: Sequence[DimRange]) -> SSAValue:
    """`source` at `spans`; the source itself if that is all of it."""
    type = source.type
    assert isa(type, TensorType)
    sizes = [span.size for span in spans]
    if sizes == list(type.get_shape()) and all(span.offset == 0 for span in spans):
        return source
    result = TensorType(type.element_type, sizes)
    strides = [span.stride for span in spans]
    op = tensor.ExtractSliceOp(source, [span.offset for span in spans], sizes, strides, result)
    op.result.name_hint = source.name_hint
    return builder.insert(op).result


def insert_slice(builder: Builder, source: SSAValue, dest: SSAValue, spans: Sequence[DimRange]) -> SSAValue:
    """`dest` with `source` at `spans`; the source itself if that is all of it."""
    if source.type == dest.type and all(span.offset == 0 for span in spans):
        return source
    static, dynamic = split_dynamic_index_list([span.offset for span in spans], DYNAMIC_INDEX)
    op = tensor.InsertSliceOp.build(
        operands=[source, dest, dynamic, [], []],
        properties={
            "static_offsets": DenseArrayBase.from_list(i64, static),
            "static_sizes": DenseArrayBase.from_list(i64, [span.size for span in spans]),
            "static_strides": DenseArrayBase.from_list(i64, [span.stride for span in spans]),
        },
        result_types=[dest.type],
    )
    return builder.insert(op).result


def ranges_of_map(builder: Builder, index_map: AffineMap, box: Sequence[DimRange]) -> list[DimRange]:
    """The slice of an operand that a box of the domain touches; halos included."""
    constants, rows = linear_form(index_map)
    spans: list[DimRange] = []
    for constant, row in zip(constants, rows, strict=True):
        offset: Index = constant
        size = 1
        for span, coefficient in zip(box, row, strict=True):
            if coefficient:
                offset = add(builder, offset, scale(builder, span.offset, coefficient))
                size += coefficient * (span.size - 1)
        spans.append(DimRange(offset, size))
    return spans


def part_of(builder: Builder, value: SSAValue, spans: Sequence[DimRange]) -> SSAValue:
    """`value` at `spans`: a slice; of a tensor that is empty, another one."""
    if not isinstance(value.owner, tensor.EmptyOp):
        return slice_of(builder, value, spans)
    assert isa(value.type, TensorType)
    empty = builder.insert(tensor.EmptyOp([], TensorType(value.type.element_type, [span.size for span in spans])))
    empty.tensor.name_hint = value.name_hint
    return empty.tensor


def operand_part(builder: Builder, op: GenericOp, number: int, box: Sequence[DimRange]) -> SSAValue:
    """What `box` touches of an operand of `op`; a scalar is taken as it is."""
    value = op.operands[number]
    if not isinstance(value.type, TensorType):
        return value
    return part_of(builder, value, ranges_of_map(builder, list(op.indexing_maps)[number].data, box))


def tile_of(builder: Builder, op: GenericOp, box: Sequence[DimRange], operands: Sequence[SSAValue]) -> GenericOp:
    """`op` for a box of its domain, on what that touches of its operands."""
    count = len(op.inputs)
    inputs, outputs = operands[:count], operands[count:]
    types = [output.type for output in outputs if isa(output.type, TensorType)]
    tiled = GenericOp(
        inputs, outputs, op.body.clone(), op.indexing_maps, op.iterator_types, types, op.doc, op.library_call
    )
    tiled.location = op.location
    for index in [each for each in tiled.body.walk() if isinstance(each, IndexOp)]:
        _shift(builder, index, box[index.dim.value.data].offset)
    return builder.insert(tiled)


def _shift(builder: Builder, index: IndexOp, offset: Index) -> None:
    """Let a body that asks for its index see that of the whole domain."""
    if offset == 0:
        return
    whole = arith.AddiOp(index.result, materialize(builder, offset))
    Rewriter.insert_op(whole, InsertPoint.after(index))
    index.result.replace_uses_with_if(whole.result, lambda use: use.operation is not whole)


def result_dims(generic: GenericOp) -> list[int]:
    """For each dim of the result of `generic`, the dim of its domain. The output map is a projected permutation."""
    output_map = list(generic.indexing_maps)[len(generic.inputs)].data
    return [expr.position for expr in output_map.results if isinstance(expr, AffineDimExpr)]


def with_producers(root: GenericOp, among: Collection[Operation] | None = None) -> list[GenericOp]:
    """An op, and the generics of its block that it is computed from, the op last."""
    found: dict[GenericOp, None] = {}

    def visit(op: GenericOp) -> None:
        for operand in op.operands:
            owner = operand.owner
            if isinstance(owner, GenericOp) and owner not in found and owner.parent is root.parent:
                if among is None or owner in among:
                    visit(owner)
        found[op] = None

    visit(root)
    return list(found)


# the nest


@dataclass
class TileNest:
    """Builds the nest for `root`, whose producers among `members` are computed inside the tile."""

    root: GenericOp
    anchor: GenericOp
    members: frozenset[Operation]
    tile: Sequence[int]
    """The size of the tile in each dim of the anchor. One may exceed its dim, which is then no loop."""
    order: Sequence[int]
    """The dims of the anchor that become loops: parallel ones, outermost first, then reductions."""
    streamed: frozenset[Operation] = frozenset()
    """The members that a DMA engine performs on the way off chip: they see no padding."""
    destination: SSAValue | None = None
    """The empty tensor that the root's output starts from: a tile of it is a tile of what the loops carry."""
    _first: GenericOp | None = None
    """The one member that reads the destination; None if that is empty."""
    loops: dict[int, scf.ForOp] = field(default_factory=dict[int, scf.ForOp])
    """The loop of each dim of the anchor that is cut."""
    tiled: dict[Operation, GenericOp] = field(default_factory=dict[Operation, GenericOp])
    """What each member became; one that is computed for several boxes, the last."""
    _tiles: dict[Operation, list[tuple[tuple[DimRange, ...], SSAValue]]] = field(
        default_factory=dict[Operation, list[tuple[tuple[DimRange, ...], SSAValue]]]
    )
    """The boxes of each member that are computed, and the values."""
    _extended: dict[tuple[Operation, int], SSAValue] = field(default_factory=dict[tuple[Operation, int], SSAValue])
    """Operands from outside that are padded, for dims that run past their end."""

    def rewrite(self) -> None:
        """Build the nest before the root, and erase the ops that it replaces."""
        block = self.root.parent
        assert block is not None
        self.root.results[0].replace_all_uses_with(self._build(Builder(InsertPoint.before(self.root))))
        for op in reversed(list(block.ops)):
            if (op in self.members or isinstance(op, _SOURCES)) and not op.results[0].uses:
                Rewriter.erase_op(op)

    def _build(self, builder: Builder) -> SSAValue:
        """Insert the nest and return the value that replaces the root's result."""
        anchor_dims, root_dims = result_dims(self.anchor), result_dims(self.root)
        to_root = dict(zip(anchor_dims, root_dims, strict=True))
        extents = self.anchor.get_static_loop_ranges()
        parallel = [dim for dim in self.order if dim in to_root]
        self._extend_operands(builder)
        result = self._carrier(builder)
        loops: list[scf.ForOp] = []
        offsets: dict[int, Index] = {}
        inner = builder
        for dim in parallel:
            size, extent = self.tile[dim], extents[dim]
            loop, iv, inner = _loop(inner, extent, size, [result])
            self.loops[dim] = loop
            offsets[to_root[dim]] = _clamp(inner, iv, extent, size)
            result = loop.body.block.args[1]
            loops.append(loop)
        ranges = self.root.get_static_loop_ranges()
        to_anchor = {root: anchor for anchor, root in to_root.items()}
        box = [
            DimRange(offsets.get(dim, 0), min(self.tile[to_anchor[dim]], size) if dim in to_anchor else size)
            for dim, size in enumerate(ranges)
        ]
        spans = [box[dim] for dim in root_dims]
        value = _trimmed(inner, self._tile(inner, self.root, box, result), spans)
        value = insert_slice(inner, value, result, spans)
        for loop in reversed(loops):
            Builder(InsertPoint.at_end(loop.body.block)).insert(scf.YieldOp(value))
            value = loop.results[0]
        return value

    def _excess(self, op: GenericOp) -> dict[int, int]:
        """How far the tiles of `op` run past the ends of its dims."""
        extents, anchor_dims = self.anchor.get_static_loop_ranges(), result_dims(self.anchor)
        past: dict[int, int] = {}
        if op not in self.streamed and any(map(gt, self.tile, extents)):
            for dim, own in zip(anchor_dims, result_dims(op), strict=True):
                past[own] = max(0, self.tile[dim] - extents[dim])
        if op is self.anchor:
            reductions = [dim for dim in range(len(extents)) if dim not in anchor_dims]
            past.update((dim, -extents[dim] % self.tile[dim]) for dim in reductions)
        return {dim: count for dim, count in past.items() if count}

    def _extend_operands(self, builder: Builder) -> None:
        """Give what comes from outside the elements that tiles read past its ends."""
        for op in self.root.parent.ops if self.root.parent is not None else ():
            if not isinstance(op, GenericOp) or op not in self.members or not (more := self._excess(op)):
                continue
            for number, value in enumerate(op.operands):
                if isa(value.type, TensorType) and not isinstance(value.owner, tensor.EmptyOp | GenericOp):
                    self._extended[(op, number)] = extend(builder, op, number, more)

    def _carrier(self, builder: Builder) -> SSAValue:
        """
        The tensor that the loops carry. One that the root reads is sliced instead: tiles may overlap.

        Where what the output starts from is a part of what a loop around carries, or was computed for it alone, tiles
        that do not overlap are put back to where they were taken from, so that nothing needs to be copied.
        """
        last = self.root
        is_chain = True
        while (value := last.outputs[0]).owner in self.members:
            assert isinstance(value.owner, GenericOp)
            last = value.owner
            is_chain = is_chain and last.results[0].has_one_use()
        if isinstance(value.owner, tensor.EmptyOp):
            self.destination = value
            return value
        if is_chain and self._divides() and _may_be_overwritten(value):
            self.destination, self._first = value, last
            return value
        return builder.insert(tensor.EmptyOp([], value.type)).results[0]

    def _divides(self) -> bool:
        """Whether no tile runs past an end, or overlaps another."""
        extents = self.anchor.get_static_loop_ranges()
        return all(extent % size == 0 for extent, size in zip(extents, self.tile, strict=True))

    def _tile(self, builder: Builder, op: GenericOp, box: Sequence[DimRange], result: SSAValue) -> SSAValue:
        """The part of the result of `op` that `box` computes, and what is beyond the end of padded dims."""
        at = tuple(box)
        for known, value in self._tiles.get(op, ()):
            if known == at and _is_visible(value, builder):
                return value
        excess = self._excess(op)
        anchor_reductions = set(range(op.get_num_loops())) - set(result_dims(op))
        box = [
            DimRange(span.offset, span.size + excess.get(dim, 0)) if dim not in anchor_reductions else span
            for dim, span in enumerate(box)
        ]
        initial = self._operand(builder, op, len(op.inputs), box, result)
        loops: list[int] = []
        if op is self.anchor:
            loops = [dim for dim in self.order if dim in anchor_reductions]
            whole = [dim for dim in anchor_reductions if dim not in loops]
            box = [DimRange(0, self.tile[dim]) if dim in whole else span for dim, span in enumerate(box)]
        value = self._reduce(builder, op, list(box), loops, initial, result)
        self._tiles.setdefault(op, []).append((at, value))
        return value

    def _reduce(
        self,
        builder: Builder,
        op: GenericOp,
        box: list[DimRange],
        loops: Sequence[int],
        initial: SSAValue,
        result: SSAValue,
    ) -> SSAValue:
        """`op` over `box`, with a loop for each dim of `loops`, which carries the accumulator."""
        if not loops:
            inputs = [self._operand(builder, op, number, box, result) for number in range(len(op.inputs))]
            self.tiled[op] = tile_of(builder, op, box, [*inputs, initial])
            return self.tiled[op].results[0]
        dim, *rest = loops
        loop, iv, inner = _loop(builder, op.get_static_loop_ranges()[dim], self.tile[dim], [initial])
        self.loops[dim] = loop
        box = [DimRange(iv, self.tile[dim]) if number == dim else span for number, span in enumerate(box)]
        value = self._reduce(inner, op, box, rest, loop.body.block.args[1], result)
        Builder(InsertPoint.at_end(loop.body.block)).insert(scf.YieldOp(value))
        return loop.results[0]

    def _operand(
        self, builder: Builder, op: GenericOp, number: int, box: Sequence[DimRange], result: SSAValue
    ) -> SSAValue:
        """The slice of an operand that `box` touches: computed here if a member produces it."""
        value = self._extended.get((op, number), op.operands[number])
        if not isa(value.type, TensorType):
            return value
        spans = ranges_of_map(builder, list(op.indexing_maps)[number].data, box)
        producer = value.owner
        if isinstance(producer, GenericOp) and producer in self.members:
            dims = result_dims(producer)
            ranges = producer.get_static_loop_ranges()
            inner = [DimRange(0, extent) for extent in ranges]
            for dim, span in zip(dims, spans, strict=True):
                inner[dim] = DimRange(span.offset, min(span.size, ranges[dim]))
            return _trimmed(builder, self._tile(builder, producer, inner, result), spans)
        is_first = self._first is None or (op is self._first and number == len(op.inputs))
        if value is self.destination and is_first and not self._excess(op):
            return slice_of(builder, result, spans)
        return part_of(builder, value, spans)


def _may_be_overwritten(value: SSAValue) -> bool:
    """Whether a value is a part of what a loop carries, or computed here and used once."""
    if isinstance(value.owner, GenericOp | scf.ForOp):
        return value.has_one_use()
    while isinstance(value.owner, tensor.ExtractSliceOp):
        value = value.owner.source
    return isinstance(value.owner, Block) and isinstance(value.owner.parent_op(), scf.ForOp)


def _is_visible(value: SSAValue, builder: Builder) -> bool:
    """Whether a value that was computed earlier may be used where `builder` inserts."""
    block = builder.insertion_point.block
    own = value.owner if isinstance(value.owner, Block) else value.owner.parent
    return own is block or (own is not None and own.is_ancestor(block))


def _trimmed(builder: Builder, tile: SSAValue, spans: Sequence[DimRange]) -> SSAValue:
    """The beginning of a tile, as long as `spans`: without what was computed beyond the ends."""
    return slice_of(builder, tile, [DimRange(0, span.size) for span in spans])


def _loop(builder: Builder, extent: int, step: int, carried: Sequence[SSAValue]) -> tuple[scf.ForOp, SSAValue, Builder]:
    loop, inside = for_loop(builder, (0, extent, step), carried)
    return loop, loop.body.block.args[0], inside


def _clamp(builder: Builder, iv: SSAValue, extent: int, size: int) -> SSAValue:
    """The offset of a tile that is shifted inwards where it would be out of bounds."""
    if extent % size == 0:
        return iv
    return builder.insert(arith.MinSIOp(iv, materialize(builder, extent - size))).result
