# SPDX-License-Identifier: Apache-2.0
"""Tiling an op so that its tiles are computed at once."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import split_dynamic_index_list
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream.gpu import DeviceMappingAttr
from penstock.dialects.upstream.scf import ForallOp, InParallelOp
from penstock.dialects.upstream.tensor import ParallelInsertSliceOp
from penstock.dialects.upstream.transform_structured import TileUsingForallOp
from penstock.passes.index_builder import scale
from penstock.passes.planning.tile_problem import TileDim
from penstock.passes.schedule.primitives.bind import require_mapping
from penstock.passes.schedule.primitives.tile import checked_sizes, dims_of, given_sizes, require_room
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState
from penstock.passes.schedule.tile_nest import DimRange, operand_part, ranges_of_map, result_dims, slice_of, tile_of


@PRIMITIVES.register(TileUsingForallOp)
def tile_using_forall(state: TransformState, op: TileUsingForallOp) -> Sequence[Payload]:
    """
    Tile parallel dims of an op in `scf.forall`, as upstream does; sizes have to divide.

    With `num_threads` a dim has so many tiles. Raises UserError for a reduction, whose tiles would add to the same
    elements, for sizes that do not divide, and for a mapping that has not one dim for each that is tiled.
    See https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredtile_using_forall

    Before:
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @f(%x: tensor<8xi32>, %y: tensor<8xi32>) -> tensor<8xi32> {
      %z = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
          ins(%x : tensor<8xi32>) outs(%y : tensor<8xi32>) {
      ^bb0(%a: i32, %out: i32):
        %s = arith.addi %a, %out : i32
        linalg.yield %s : i32
      } -> tensor<8xi32>
      func.return %z : tensor<8xi32>
    }
    ```
    After (`%tile, %iterations = transform.structured.tile_using_forall %z tile_sizes [4]
        (mapping = [#gpu.thread<x>]) : (!transform.any_op) -> (!transform.any_op, !transform.any_op)`):
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @f(%x: tensor<8xi32>, %y: tensor<8xi32>) -> tensor<8xi32> {
      %z = scf.forall (%0) in (2) shared_outs(%y_1 = %y) -> (tensor<8xi32>) {
        %1 = arith.constant 4 : index
        %2 = arith.muli %0, %1 : index
        %x_1 = tensor.extract_slice %x[%2] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %y_2 = tensor.extract_slice %y_1[%2] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %3 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
            ins(%x_1 : tensor<4xi32>) outs(%y_2 : tensor<4xi32>) {
        ^bb0(%a: i32, %out: i32):
          %s = arith.addi %a, %out : i32
          linalg.yield %s : i32
        } -> tensor<4xi32>
        scf.forall.in_parallel {
          tensor.parallel_insert_slice %3 into %y_1[%2] [4] [1] : tensor<4xi32> into tensor<8xi32>
        }
      } {mapping = [#gpu.thread<x>]}
      func.return %z : tensor<8xi32>
    }
    ```
    """
    target = state.one(op.target, GenericOp)
    dims = dims_of(target)
    counts = _sizes(state, op.static_num_threads, op.num_threads, op.packed_num_threads)
    given = _sizes(state, op.static_tile_sizes, op.tile_sizes, op.packed_tile_sizes)
    if counts and given:
        raise UserError("tiles have a size, or are as many as num_threads: one of the two is given")
    if counts:
        given = _size_of_each(dims, counts)
    if len(given) > len(dims):
        raise UserError(f"{len(given)} sizes for an op of {len(dims)} dims")
    given += [0] * (len(dims) - len(given))
    for number, (size, dim) in enumerate(zip(given, dims, strict=True)):
        if size and not dim.parallel:
            raise UserError(
                f"dim {number} is a reduction, and tiles that are computed at once would add to the same elements",
                notes=["transform.structured.split_reduction makes partial results of it, side by side"],
            )
        if size and number not in result_dims(target):
            raise UserError(f"dim {number} does not index the result: tiles that are computed at once would overlap")
    sizes, _ = checked_sizes(target, dims, given, [""] * len(dims))
    order = [number for number, size in enumerate(given) if size]
    if not order:
        raise UserError("all sizes are 0: no dim is tiled")
    mapping = list(op.mapping) if op.mapping is not None else []
    if mapping:
        require_mapping(mapping, len(order), None)
    require_room(state, target, target, [target], sizes, order, {})
    tile, forall = _tiled(target, dims, sizes, order, mapping)
    return [(tile,), (forall,)]


def _sizes(
    state: TransformState, static: Attribute | None, dynamic: Sequence[SSAValue], packed: SSAValue | None
) -> list[int]:
    """Sizes, or numbers of threads, as they are given; a parameter for all of them has one number."""
    if packed is not None:
        static, dynamic = DenseArrayBase.from_list(i64, [DYNAMIC_INDEX]), [packed]
    return given_sizes(state, static, dynamic)


def _size_of_each(dims: Sequence[TileDim], counts: Sequence[int]) -> list[int]:
    """The sizes that make so many tiles; raises UserError for a number that does not divide."""
    for number, (dim, count) in enumerate(zip(dims, counts, strict=False)):
        if count and dim.extent % count:
            near = max(divisor for divisor in range(1, count + 1) if dim.extent % divisor == 0)
            raise UserError(
                f"dim {number} of {dim.extent} has no {count} tiles of one size",
                notes=[f"{near} threads would have"],
            )
    return [dim.extent // count if count else 0 for dim, count in zip(dims, counts, strict=False)] + [0] * (
        len(counts) - len(dims)
    )


def _tiled(
    target: GenericOp,
    dims: Sequence[TileDim],
    sizes: Sequence[int],
    order: Sequence[int],
    mapping: Sequence[DeviceMappingAttr],
) -> tuple[GenericOp, ForallOp]:
    """Put the loop over the dims of `order` in the place of the op; returns what computes a tile, and the loop."""
    output = len(target.inputs)
    shared = target.operands[output]
    block = Block(arg_types=[*[IndexType()] * len(order), shared.type])
    *indices, carried = block.args
    carried.name_hint = shared.name_hint
    builder = Builder(InsertPoint.at_end(block))
    box = [DimRange(0, dim.extent) for dim in dims]
    for number, index in zip(order, indices, strict=True):
        box[number] = DimRange(scale(builder, index, sizes[number]), sizes[number])
    spans = ranges_of_map(builder, list(target.indexing_maps)[output].data, box)
    inputs = [operand_part(builder, target, number, box) for number in range(output)]
    tile = tile_of(builder, target, box, [*inputs, slice_of(builder, carried, spans)])
    static, dynamic = split_dynamic_index_list([span.offset for span in spans], DYNAMIC_INDEX)
    insertion = ParallelInsertSliceOp.build(
        operands=[tile.results[0], carried, dynamic, [], []],
        properties={
            "static_offsets": DenseArrayBase.from_list(i64, static),
            "static_sizes": DenseArrayBase.from_list(i64, [span.size for span in spans]),
            "static_strides": DenseArrayBase.from_list(i64, [1] * len(spans)),
        },
    )
    builder.insert(InParallelOp([insertion]))
    counts = [dims[number].extent // sizes[number] for number in order]
    forall = ForallOp([0] * len(order), counts, [1] * len(order), [shared], Region(block), mapping)
    forall.location = insertion.location = target.location
    Rewriter.replace_op(target, forall)
    return tile, forall
