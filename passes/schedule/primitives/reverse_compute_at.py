# SPDX-License-Identifier: Apache-2.0
"""Computing what reads the result of a loop in the loop."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import scf, tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_tensor import ReverseComputeAtOp
from penstock.passes.analysis.loops import nest_around
from penstock.passes.schedule.primitives.compute_at import CarryingNest, box_of, carrying_nest, erase_with_slices
from penstock.passes.schedule.primitives.tile import dims_of
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState
from penstock.passes.schedule.tile_nest import DimRange, insert_slice, operand_part, ranges_of_map, slice_of, tile_of


@PRIMITIVES.register(ReverseComputeAtOp)
def reverse_compute_at(state: TransformState, op: ReverseComputeAtOp) -> Sequence[Payload]:
    """
    Compute an op that reads the result of a nest of loops in the nest, for the box that an iteration makes.

    The loop is the innermost one of the nest, in which the box is inserted into the result. Legal where every iteration
    makes a box of its own, only this op reads the result of the nest, once, and it reads each element of a box for
    elements of its own result that no other box is needed for. Raises UserError elsewhere.

    Before:
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @f(%x: tensor<8xi32>) -> tensor<8xi32> {
      %e = tensor.empty() : tensor<8xi32>
      %0 = arith.constant 0 : index
      %1 = arith.constant 8 : index
      %2 = arith.constant 4 : index
      %y = scf.for %i = %0 to %1 step %2 iter_args(%acc = %e) -> (tensor<8xi32>) {
        %x_1 = tensor.extract_slice %x[%i] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %e_1 = tensor.extract_slice %acc[%i] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %s = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
            ins(%x_1 : tensor<4xi32>) outs(%e_1 : tensor<4xi32>) {
        ^bb0(%a: i32, %out: i32):
          %m = arith.muli %a, %a : i32
          linalg.yield %m : i32
        } -> tensor<4xi32>
        %3 = tensor.insert_slice %s into %acc[%i] [4] [1] : tensor<4xi32> into tensor<8xi32>
        scf.yield %3 : tensor<8xi32>
      }
      %e_2 = tensor.empty() : tensor<8xi32>
      %z = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
          ins(%y : tensor<8xi32>) outs(%e_2 : tensor<8xi32>) {
      ^bb0(%a: i32, %out: i32):
        %d = arith.addi %a, %a : i32
        linalg.yield %d : i32
      } -> tensor<8xi32>
      func.return %z : tensor<8xi32>
    }
    ```
    After (`%tile = schedule.reverse_compute_at %z at %i`):
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @f(%x: tensor<8xi32>) -> tensor<8xi32> {
      %0 = arith.constant 0 : index
      %1 = arith.constant 8 : index
      %2 = arith.constant 4 : index
      %e = tensor.empty() : tensor<8xi32>
      %z = scf.for %i = %0 to %1 step %2 iter_args(%acc = %e) -> (tensor<8xi32>) {
        %x_1 = tensor.extract_slice %x[%i] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %e_1 = tensor.empty() : tensor<4xi32>
        %s = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
            ins(%x_1 : tensor<4xi32>) outs(%e_1 : tensor<4xi32>) {
        ^bb0(%a: i32, %out: i32):
          %m = arith.muli %a, %a : i32
          linalg.yield %m : i32
        } -> tensor<4xi32>
        %acc_1 = tensor.extract_slice %acc[%i] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %3 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
            ins(%s : tensor<4xi32>) outs(%acc_1 : tensor<4xi32>) {
        ^bb0(%a: i32, %out: i32):
          %d = arith.addi %a, %a : i32
          linalg.yield %d : i32
        } -> tensor<4xi32>
        %4 = tensor.insert_slice %3 into %acc[%i] [4] [1] : tensor<4xi32> into tensor<8xi32>
        scf.yield %4 : tensor<8xi32>
      }
      func.return %z : tensor<8xi32>
    }
    ```
    """
    consumer, loop = state.one(op.consumer, GenericOp), state.one(op.loop, scf.ForOp)
    number, nest = _read_nest(consumer, loop)
    box = _box_for(consumer, number, nest)
    return ((_sink(consumer, number, nest, box),),)


def _read_nest(consumer: GenericOp, loop: scf.ForOp) -> tuple[int, CarryingNest]:
    """Which operand of the consumer is the result of the nest whose innermost loop is given, and the nest."""
    nest_loops = (*nest_around(loop), loop)
    results: dict[SSAValue, tuple[scf.ForOp, int]] = {
        result: (each, number) for each in nest_loops for number, result in enumerate(each.results)
    }
    numbers = [number for number, value in enumerate(consumer.operands) if value in results]
    if len(numbers) != 1:
        raise UserError("the op does not read the result of the loops around this one, once", loc=location_of(consumer))
    (number,) = numbers
    value = consumer.operands[number]
    outer, carried = results[value]
    nest = carrying_nest(outer, 3 + carried)
    if nest is None or nest.loops[-1] is not loop:
        raise UserError(
            "the loop is not the innermost one of a nest in which every iteration inserts a box of its own",
            loc=location_of(consumer),
            notes=["what a reduction goes on with is not finished before its loop ends"],
        )
    if not value.has_one_use() or any(len(each.results) > 1 for each in nest.loops):
        raise UserError("the result of the loops is read elsewhere, or is not the only one", loc=location_of(consumer))
    if consumer.parent is not nest.outer.parent:
        raise UserError("the op and the loops are in different blocks", loc=location_of(consumer))
    is_new = isinstance(nest.outer.operands[nest.index].owner, tensor.EmptyOp)
    if not is_new or not all(_is_overwritten(each) for each in nest.slices):
        raise UserError(
            "the loops go on with a tensor that is there already",
            loc=location_of(consumer),
            notes=["schedule.compute_at lets the loop compute its part of what fills that tensor"],
        )
    return number, nest


def _is_overwritten(piece: tensor.ExtractSliceOp) -> bool:
    """Whether no element of a slice is read: it is what ops write their results over."""
    return all(
        isinstance(use.operation, GenericOp)
        and use.index >= len(use.operation.inputs)
        and not use.operation.body.block.args[use.index].uses
        for use in piece.result.uses
    )


def _box_for(consumer: GenericOp, number: int, nest: CarryingNest) -> list[DimRange]:
    """The box of the consumer's domain that a box of what it reads is for; raises UserError where there is none."""
    dims = dims_of(consumer)
    box = [DimRange(0, dim.extent) for dim in dims]
    read = list(consumer.indexing_maps)[number].data.results
    positions = [expr.position for expr in read if isinstance(expr, AffineDimExpr)]
    if len(positions) != len(read) or len({*positions}) != len(positions):
        raise UserError(
            "the op reads the result of the loops at several elements for one of its own",
            loc=location_of(consumer),
            notes=["it needs boxes that other iterations make"],
        )
    for dim, (offset, size) in zip(positions, box_of(nest.insertion), strict=True):
        if not dims[dim].parallel and size != dims[dim].extent:
            raise UserError(
                f"dim {dim} of the op is a reduction over boxes of several iterations",
                loc=location_of(consumer),
                notes=["it needs the result of the loops whole before"],
            )
        box[dim] = DimRange(offset, size)
    return box


def _sink(consumer: GenericOp, number: int, nest: CarryingNest, box: Sequence[DimRange]) -> GenericOp:
    """Compute the consumer's box before it is inserted, and let the loops carry the consumer's result."""
    type = consumer.results[0].type
    assert isa(type, TensorType)
    outer, dest = nest.outer, consumer.outputs[0]
    outer.detach()
    Rewriter.insert_op(outer, InsertPoint.before(consumer))
    old_start = outer.operands[nest.index].owner
    # What the op only writes over, each box of it may write over: it is not read, defined or not.
    is_overwritten = not consumer.body.block.args[len(consumer.inputs)].uses
    if not is_overwritten:
        dest = Builder(InsertPoint.before(outer)).insert(tensor.EmptyOp([], type)).tensor
    outer.operands[nest.index] = dest
    for piece in nest.slices:
        own = tensor.EmptyOp([], piece.result.type)
        own.tensor.name_hint = piece.result.name_hint
        Rewriter.replace_op(piece, own)
    for loop in nest.loops:
        Rewriter.replace_value_with_new_type(loop.body.block.args[1], type)
        Rewriter.replace_value_with_new_type(loop.results[0], type)
    last = nest.loops[-1].body.block.args[1]
    builder = Builder(InsertPoint.before(nest.insertion))
    spans = ranges_of_map(builder, list(consumer.indexing_maps)[len(consumer.inputs)].data, box)
    operands = [
        nest.insertion.source
        if n == number
        else slice_of(builder, last, spans)
        if n == len(consumer.inputs) and is_overwritten
        else operand_part(builder, consumer, n, box)
        for n in range(len(consumer.operands))
    ]
    tile = tile_of(builder, consumer, box, operands)
    value = insert_slice(builder, tile.results[0], last, spans)
    nest.insertion.results[0].replace_all_uses_with(value)
    Rewriter.erase_op(nest.insertion)
    outer.results[0].name_hint = consumer.results[0].name_hint
    consumer.results[0].replace_all_uses_with(outer.results[0])
    erase_with_slices(consumer)
    if isinstance(old_start, tensor.EmptyOp) and not old_start.tensor.uses:
        Rewriter.erase_op(old_start)
    return tile
