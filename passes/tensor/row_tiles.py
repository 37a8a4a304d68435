# SPDX-License-Identifier: Apache-2.0
"""
The tiles of a kernel of the host that reduces rows, such as softmax or a normalization.

Such a kernel sweeps each row several times: what one sweep leaves is in the first cache for the next one where all of
them are done for a few rows before those for the others. A reduction along neighbouring elements becomes one of whole
vectors, as many as the processor has under way at once, whose elements are combined at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp, YieldOp
from xdsl.ir import Operation, SSAValue, Use
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.machine import ProcessorOp, TargetOp, ints_of
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.kernels import has_reduction
from penstock.passes.analysis.work import domain_of, vector_unit
from penstock.passes.planning.register_blocks import SHORTEST_VECTOR, room_of
from penstock.passes.schedule.inlining import loops_of_elements
from penstock.passes.schedule.primitives.rfactor import is_splittable
from penstock.passes.schedule.primitives.tile import led_to
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.tile_nest import result_dims

_CHEAP = (arith.AddfOp, arith.MulfOp, arith.NegfOp, arith.SubfOp)
"""What is computed anew for each of several readers."""

Cuts = dict[Operation, dict[int, int]]
"""For each op the dims of its domain of which a tile has a part, and the dims of the last op that they follow."""


def tile_rows(root: GenericOp, target: TargetOp, schedule: Schedule) -> None:
    """
    Compute all that leads to `root` for a few rows at a time, and split the reductions in them into vectors.

    Nothing happens to a kernel that reduces nothing.
    """
    members = led_to(root)
    if not any(map(has_reduction, members)) or (processor := target.processor()) is None:
        return
    while (producer := next(filter(_is_cheap, members[:-1]), None)) is not None:
        merged = schedule.state.payload(schedule.inline(schedule.handles([producer])[0]))
        root = next((op for op in merged if isinstance(op, GenericOp) and not _readers(op)), root)
        members = led_to(root)
    handles = schedule.handles(members)
    sizes = _sizes(root, members, processor)
    cut = [dim for dim, size in sizes.items() if size < root.get_static_loop_ranges()[dim]]
    if cut:
        given = [sizes[dim] if dim in cut else 0 for dim in range(root.get_num_loops())]
        edges = edges_of(root.get_static_loop_ranges(), given)
        tile = schedule.tile(handles[-1], given, fusing=handles[:-1], edges=edges)
        handles = [*tile.handles[1 : len(members)], tile.handles[0]]
    for handle in handles:
        _split(schedule, handle, target)


def _readers(op: GenericOp) -> list[GenericOp]:
    """The structured ops that read the result of an op."""
    return [use.operation for use in op.results[0].uses if isinstance(use.operation, GenericOp)]


def _is_cheap(op: GenericOp) -> bool:
    """
    Whether to compute an op where it is read takes less than a sweep over its rows, which writes and reads them again.

    It has at most a sum and a product, of what its readers would read of it otherwise. A sum of products of what is
    read as it is stays one of products: those are summed in an order of their own.
    """
    computed = [each for each in op.body.block.ops if not isinstance(each, arith.ConstantOp | YieldOp)]
    uses, points = list(op.results[0].uses), prod(op.get_static_loop_ranges())
    if loops_of_elements(op) is None or len(computed) > 2 or not all(isinstance(each, _CHEAP) for each in computed):
        return False
    if len(uses) != len(_readers(op)) or any(use.index >= len(_inputs_of(use)) for use in uses):
        return False
    count = op.get_num_loops()
    rows = sum(len(map_attr.data.used_dims()) == count for map_attr in list(op.indexing_maps)[: len(op.inputs)])
    is_product = len(computed) == 1 and isinstance(computed[0], arith.MulfOp)
    return rows == 1 and not any(
        prod(reader.get_static_loop_ranges()) > points or (is_product and has_reduction(reader))
        for reader in _readers(op)
    )


def _inputs_of(use: Use) -> Sequence[SSAValue]:
    return use.operation.inputs if isinstance(use.operation, GenericOp) else ()


def _sizes(root: GenericOp, members: Sequence[GenericOp], processor: ProcessorOp) -> dict[int, int]:
    """How many of each dim of the last op that counts rows a tile has."""
    rows, cuts = _rows(root, members)
    if not rows:
        return {}
    extents = root.get_static_loop_ranges()
    cache = room_of(ints_of(processor.caches)[0])
    shared, each = _bytes(members, cuts)
    inner, lanes = max(rows), 1
    if inner == result_dims(root)[-1]:
        # The rows lie across the lines of the cache: whole ones are read.
        assert isa(root.results[0].type, TensorType)
        lanes = min(extents[inner], 2 * processor.vector_bytes // element_bytes(root.results[0].type))
    most = max(1, (cache - shared) // max(each, 1) // lanes) * lanes
    return {**dict.fromkeys(sorted(rows), 1), inner: dividing(extents[inner], most, lanes)}


def edges_of(extents: Sequence[int], sizes: Sequence[int]) -> list[str] | None:
    """How the tiles of each dim end, 0 being a dim that is not cut; None where all of them divide."""
    pairs = list(zip(extents, sizes, strict=True))
    if not any(size and extent % size for extent, size in pairs):
        return None
    return ["overlap" if size and extent % size else "divides" if size else "whole" for extent, size in pairs]


def dividing(extent: int, most: int, multiple: int) -> int:
    """The largest size up to `most` that divides, if it is not much smaller; sizes are multiples but for the whole."""
    if extent <= most:
        return extent
    fitting = [size for size in range(most, most // 2, -multiple) if extent % size == 0]
    return fitting[0] if fitting else most


def _rows(root: GenericOp, members: Sequence[GenericOp]) -> tuple[set[int], Cuts]:
    """The dims of the last op that cut every op into parts of which each is computed once."""
    extents = root.get_static_loop_ranges()
    rows = {dim for dim in result_dims(root) if extents[dim] > 1}
    while True:
        cuts, conflicts = _cuts(root, members, rows)
        if not conflicts:
            return rows, cuts
        rows -= conflicts


def _cuts(root: GenericOp, members: Sequence[GenericOp], rows: set[int]) -> tuple[Cuts, set[int]]:
    """What a tile cuts of every op, and those of the rows for which something would be computed in several tiles."""
    cuts: Cuts = {root: {dim: dim for dim in rows}}
    conflicts: set[int] = set()
    for op in reversed(members):
        for value, map_attr in zip(op.operands, op.indexing_maps, strict=True):
            owner = value.owner
            if not isinstance(owner, GenericOp) or owner not in members:
                continue
            found: dict[int, int] = {}
            for dim, expr in zip(result_dims(owner), map_attr.data.results, strict=True):
                if isinstance(expr, AffineDimExpr) and expr.position in cuts[op]:
                    found[dim] = cuts[op][expr.position]
                elif not isinstance(expr, AffineDimExpr):
                    conflicts |= {cuts[op][each] for each in expr.used_dims() if each in cuts[op]}
            before = cuts.setdefault(owner, found)
            conflicts |= rows - {*found.values()} | {row for _, row in before.items() ^ found.items()}
    return cuts, conflicts


def _bytes(members: Sequence[GenericOp], cuts: Cuts) -> tuple[int, int]:
    """The bytes that all tiles touch, and those that each row takes beside them."""
    touched: dict[SSAValue, tuple[bool, int]] = {}
    for op in members:
        extents = op.get_static_loop_ranges()
        for value, map_attr in zip((*op.inputs, *op.results), op.indexing_maps, strict=True):
            if isa(value.type, TensorType):
                is_cut = any(expr.used_dims() & cuts[op].keys() for expr in map_attr.data.results)
                elements = _elements(map_attr.data, value.type.get_shape(), extents, cuts[op])
                touched[value] = is_cut, elements * element_bytes(value.type)
    sums = [sum(size for is_cut, size in touched.values() if is_cut == kind) for kind in (False, True)]
    return sums[0], sums[1]


def _elements(index_map: AffineMap, shape: Sequence[int], extents: Sequence[int], cut: Mapping[int, int]) -> int:
    """The elements of an operand that one row reads."""
    return prod(
        1 if isinstance(expr, AffineDimExpr) and expr.position in cut else size
        for expr, size in zip(index_map.results, shape, strict=True)
    )


# reductions in vectors


def _split(schedule: Schedule, handle: SSAValue, target: TargetOp) -> None:
    """Let a reduction along neighbouring elements combine vectors."""
    op = schedule.op(handle)
    assert isinstance(op, GenericOp)
    if (dim := _dim_in_lanes(op)) is not None:
        split_into_vectors(schedule, handle, dim, *_vectors(op, target))


def split_into_vectors(schedule: Schedule, handle: SSAValue, dim: int, lanes: int, most: int) -> None:
    """Let a reduction combine up to so many vectors side by side, then those, and then one by halves."""
    op = schedule.op(handle)
    assert isinstance(op, GenericOp)
    extent, width = op.get_static_loop_ranges()[dim], lanes * most
    while width > lanes and extent < 2 * width:
        width //= 2
    assert isa(op.results[0].type, TensorType)
    least = SHORTEST_VECTOR // element_bytes(op.results[0].type)
    while lanes > 1 and width >= least and extent >= 2 * width and is_splittable(op, dim):
        handle = schedule.rfactor(handle, dim, width, strided=True).whole
        op = schedule.op(handle)
        assert isinstance(op, GenericOp)
        dim, extent, width = op.get_num_loops() - 1, width, lanes if width > lanes else width // 2


def _dim_in_lanes(op: GenericOp) -> int | None:
    """The one reduction of an op, where neighbouring points read neighbouring elements, and nothing else is lanes."""
    reductions = [dim for dim, kind in enumerate(op.iterator_types) if kind.data == IteratorType.REDUCTION]
    if len(reductions) != 1 or len(op.results) != 1:
        return None
    (dim,) = reductions
    if (domain := domain_of(op)) is None:
        return None
    along = [strides[dim] for strides in domain.strides[: domain.inputs]]
    if 1 not in along or any(stride not in (0, 1) for stride in along):
        return None
    return dim


def _vectors(op: GenericOp, target: TargetOp) -> tuple[int, int]:
    """The elements of a vector of the result's type, and the most vectors that are combined side by side."""
    unit = vector_unit(target, op.results[0].type)
    if unit is None:
        return 1, 1
    # A processor that takes several cycles for one product has one in flight, however few registers it has.
    count = max(1, min(int(unit.latency * unit.fmas), unit.registers // 4))
    return unit.lanes, 1 << (count.bit_length() - 1)
