# SPDX-License-Identifier: Apache-2.0
"""Computing what a loop reads of a producer in the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_tensor import ComputeAtOp
from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.upstream.tensor import Insertion, ParallelInsertSliceOp
from penstock.dialects.upstream.transform import FuseIntoContainingOp
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.loops import constant_of, forall_iterations, trip_count
from penstock.passes.index_builder import add, erase_unused
from penstock.passes.schedule.primitives.tile import dims_of
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState
from penstock.passes.schedule.tile_nest import DimRange, operand_part, result_dims, tile_of


@PRIMITIVES.register(ComputeAtOp)
def compute_at(state: TransformState, op: ComputeAtOp) -> Sequence[Payload]:
    """
    Compute the parts of a producer's result that a loop reads in the loop, where they are read.

    The producer goes if nothing else reads it. What several iterations read is computed in each of them. Where the loop
    carries the result, and each iteration replaces a box of it that no other one reads, that box is computed there.
    Raises UserError where the producer is in the loop already, and where the loop reads nothing of its result.

    Before:
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @f(%x: tensor<8xi32>) -> tensor<8xi32> {
      %e = tensor.empty() : tensor<8xi32>
      %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
          ins(%x : tensor<8xi32>) outs(%e : tensor<8xi32>) {
      ^bb0(%a: i32, %out: i32):
        %s = arith.addi %a, %a : i32
        linalg.yield %s : i32
      } -> tensor<8xi32>
      %e_1 = tensor.empty() : tensor<8xi32>
      %0 = arith.constant 0 : index
      %1 = arith.constant 8 : index
      %2 = arith.constant 4 : index
      %z = scf.for %i = %0 to %1 step %2 iter_args(%acc = %e_1) -> (tensor<8xi32>) {
        %5 = tensor.extract_slice %acc[%i] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %y_1 = tensor.extract_slice %y[%i] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %6 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
            ins(%y_1 : tensor<4xi32>) outs(%5 : tensor<4xi32>) {
        ^bb0(%a: i32, %out: i32):
          %m = arith.muli %a, %a : i32
          linalg.yield %m : i32
        } -> tensor<4xi32>
        %7 = tensor.insert_slice %6 into %acc[%i] [4] [1] : tensor<4xi32> into tensor<8xi32>
        scf.yield %7 : tensor<8xi32>
      }
      func.return %z : tensor<8xi32>
    }
    ```
    After (`%tile = schedule.compute_at %y at %i`):
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @f(%x: tensor<8xi32>) -> tensor<8xi32> {
      %e = tensor.empty() : tensor<8xi32>
      %0 = arith.constant 0 : index
      %1 = arith.constant 8 : index
      %2 = arith.constant 4 : index
      %z = scf.for %i = %0 to %1 step %2 iter_args(%acc = %e) -> (tensor<8xi32>) {
        %5 = tensor.extract_slice %acc[%i] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %x_1 = tensor.extract_slice %x[%i] [4] [1] : tensor<8xi32> to tensor<4xi32>
        %e_1 = tensor.empty() : tensor<4xi32>
        %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
            ins(%x_1 : tensor<4xi32>) outs(%e_1 : tensor<4xi32>) {
        ^bb0(%a: i32, %out: i32):
          %s = arith.addi %a, %a : i32
          linalg.yield %s : i32
        } -> tensor<4xi32>
        %6 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
            ins(%y : tensor<4xi32>) outs(%5 : tensor<4xi32>) {
        ^bb0(%a: i32, %out: i32):
          %m = arith.muli %a, %a : i32
          linalg.yield %m : i32
        } -> tensor<4xi32>
        %7 = tensor.insert_slice %6 into %acc[%i] [4] [1] : tensor<4xi32> into tensor<8xi32>
        scf.yield %7 : tensor<8xi32>
      }
      func.return %z : tensor<8xi32>
    }
    ```
    """
    tiles, _ = _fuse_into(state, op.producer, op.loop)
    return (tiles,)


@PRIMITIVES.register(FuseIntoContainingOp)
def fuse_into_containing_op(state: TransformState, op: FuseIntoContainingOp) -> Sequence[Payload]:
    """
    Compute the parts of a producer's result that a loop reads in the loop; returns the parts and the loop.

    See https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredfuse_into_containing_op
    """
    tiles, loop = _fuse_into(state, op.producer_op, op.containing_op)
    return (tiles, (loop,))


def _fuse_into(state: TransformState, producer_handle: SSAValue, loop_handle: SSAValue) -> tuple[Payload, Operation]:
    producer, loop = state.one(producer_handle, GenericOp), state.one(loop_handle)
    if not isinstance(loop, scf.ForOp | ForallOp):
        raise UserError(f"the handle stands for {loop.name}, and a producer is computed in a loop")
    dims_of(producer)
    if loop.is_ancestor(producer):
        raise UserError("the producer is computed in this loop already", loc=location_of(producer))
    reads = list(_reads(producer.results[0], None, loop))
    nests = [carrying_nest(use.operation, use.index) for use in producer.results[0].uses]
    carried = [nest for nest in nests if nest is not None and any(loop.is_ancestor(each) for each in nest.slices)]
    if not reads and not carried:
        again = any(isinstance(use.operation, scf.ForOp) for use in producer.results[0].uses)
        raise UserError(
            "the loop reads nothing of what this op computes",
            loc=location_of(producer),
            notes=["it is what a loop starts from, and every iteration goes on with what the one before has made"]
            * again,
        )
    reads += [_Read(each, 0, (each,)) for nest in carried for each in nest.slices]
    found = [_replace(producer, read) for read in reads]
    for nest in carried:
        start = tensor.EmptyOp([], producer.results[0].type)
        Rewriter.insert_op(start, InsertPoint.before(nest.outer))
        nest.outer.operands[nest.index] = start.tensor
    erase_with_slices(producer)
    return tuple(found), loop


@dataclass(frozen=True)
class _Read:
    """A use of a producer's result in a loop."""

    op: Operation
    index: int
    slices: tuple[tensor.ExtractSliceOp, ...]
    """The slices of the result that lead to the part that is read, the first first; none: all of it is."""


def _reads(value: SSAValue, through: tuple[tensor.ExtractSliceOp, ...] | None, loop: Operation) -> Iterator[_Read]:
    """The uses of a value, and of slices of it, in a loop, in program order."""
    slices = through or ()
    order = {op: number for number, op in enumerate(loop.walk())}
    outside: list[tensor.ExtractSliceOp] = []
    inside: list[tuple[Operation, int]] = []
    for use in value.uses:
        user = use.operation
        if user in order and user is not loop:
            inside.append((user, use.index))
        elif isinstance(user, tensor.ExtractSliceOp) and _is_box(user):
            outside.append(user)
    for user, index in sorted(inside, key=lambda use: (order[use[0]], use[1])):
        if isinstance(user, tensor.ExtractSliceOp) and _is_box(user):
            yield _Read(user, index, (*slices, user))
        else:
            yield _Read(user, index, slices)
    for user in outside:
        yield from _reads(user.result, (*slices, user), loop)


@dataclass(frozen=True)
class CarryingNest:
    """Loops that carry a tensor, of which each iteration replaces a box that no other one reads."""

    outer: scf.ForOp | ForallOp
    """The outermost one."""
    index: int
    """Of the operand of `outer` that is what the tensor is at first."""
    slices: tuple[tensor.ExtractSliceOp, ...]
    """Where the boxes are read."""
    loops: tuple[scf.ForOp, ...]
    """From `outer` to the innermost one; none where that is `scf.forall`."""
    insertion: Insertion
    """What replaces the box."""


def carrying_nest(op: Operation, index: int) -> CarryingNest | None:
    """The nest of loops that carries operand `index` of an op, if it replaces all of it, box by box, each once."""
    if isinstance(op, ForallOp):
        return _sharing_forall(op, index)
    if not isinstance(op, scf.ForOp) or index < 3:
        return None
    loops, number = [op], index - 3
    while True:
        argument = loops[-1].body.block.args[1 + number]
        last = loops[-1].body.block.last_op
        assert last is not None
        value, uses = last.operands[number], list(argument.uses)
        inner = uses[0].operation if len(uses) == 1 else None
        if not isinstance(inner, scf.ForOp):
            break
        number = uses[0].index - 3
        if number < 0 or value is not inner.results[number]:
            return None
        loops.append(inner)
    insertion = value.owner
    if not isinstance(insertion, tensor.InsertSliceOp) or insertion.dest is not argument:
        return None
    counters: dict[SSAValue, _Counted] = {
        loop.body.block.args[0]: (constant_of(loop.lb), constant_of(loop.step), trip_count(loop)) for loop in loops
    }
    slices = _boxes(uses, insertion, counters)
    return None if slices is None else CarryingNest(op, index, slices, tuple(loops), insertion)


def _sharing_forall(op: ForallOp, index: int) -> CarryingNest | None:
    """`scf.forall` as such a nest: its iterations insert into a tensor that they share."""
    if index < op.first_output:
        return None
    uses = list(op.shared[index - op.first_output].uses)
    insertions = [use.operation for use in uses if isinstance(use.operation, ParallelInsertSliceOp)]
    iterations = forall_iterations(op)
    if len(insertions) != 1 or iterations is None:
        return None
    counters: dict[SSAValue, _Counted] = dict(zip(op.indices, iterations, strict=True))
    slices = _boxes(uses, insertions[0], counters)
    return None if slices is None else CarryingNest(op, index, slices, (), insertions[0])


_Counted = tuple[int | None, int | None, int | None]
"""Of a loop: the first number, the step, and how many there are, as far as they are known."""


def _boxes(
    uses: Sequence[Use], insertion: Insertion, counters: Mapping[SSAValue, _Counted]
) -> tuple[tensor.ExtractSliceOp, ...] | None:
    """
    The slices that read a tensor where `insertion` replaces it. None where other elements are read, too, or where the
    boxes are not all of the tensor, one for each value of the counters, with nothing in common.
    """
    if set(insertion.static_strides.get_values()) - {1}:
        return None
    users = [use.operation for use in uses if use.operation is not insertion]
    slices = [user for user in users if isinstance(user, tensor.ExtractSliceOp) and _is_box(user)]
    box = box_of(insertion)
    if len(slices) != len(users) or any(box_of(each) != box for each in slices):
        return None
    left, type = dict(counters), insertion.dest.type
    assert isa(type, TensorType)
    for (at, size), extent in zip(box, type.get_shape(), strict=True):
        if isinstance(at, int):
            if (at, size) != (0, extent):
                return None
            continue
        offset = AffineIndex.of(at)
        counter = next(iter(offset.terms), None)
        if counter is None or offset != AffineIndex.symbol(counter) * offset.terms[counter]:
            return None
        first, step, count = left.pop(counter, (None, None, None))
        # What no iteration replaces would have to be there before.
        if first != 0 or step is None or count is None:
            return None
        if step * offset.terms[counter] != size or count * size != extent:
            return None
    return None if left else tuple(slices)


def box_of(op: tensor.ExtractSliceOp | Insertion) -> list[tuple[int | SSAValue, int]]:
    """Where each dim of a slice begins, and its size."""
    offsets = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
    return list(zip(offsets, op.static_sizes.get_values(), strict=True))


def _is_box(op: tensor.ExtractSliceOp) -> bool:
    """Whether a slice has steps of 1, static sizes, and all dims."""
    sizes = op.static_sizes.get_values()
    return (
        isa(op.result.type, TensorType)
        and op.result.type.get_shape() == sizes
        and DYNAMIC_INDEX not in sizes
        and set(op.static_strides.get_values()) <= {1}
    )


def _replace(producer: GenericOp, read: _Read) -> GenericOp:
    """Compute what is read where it is read, and read that; returns the op that computes it."""
    builder = Builder(InsertPoint.before(read.op))
    type = producer.results[0].type
    assert isa(type, TensorType)
    spans = [DimRange(0, size) for size in type.get_shape()]
    for each in read.slices:
        offsets = get_dynamic_index_list(each.static_offsets.get_values(), each.offsets, DYNAMIC_INDEX)
        sizes = each.static_sizes.get_values()
        spans = [
            DimRange(add(builder, span.offset, at), size) for span, at, size in zip(spans, offsets, sizes, strict=True)
        ]
    box = [DimRange(0, extent) for extent in producer.get_static_loop_ranges()]
    for dim, span in zip(result_dims(producer), spans, strict=True):
        box[dim] = span
    operands = [operand_part(builder, producer, number, box) for number in range(len(producer.operands))]
    tile = tile_of(builder, producer, box, operands)
    tile.results[0].name_hint = producer.results[0].name_hint
    if read.slices and read.op is read.slices[-1]:
        read.op.results[0].replace_all_uses_with(tile.results[0])
        Rewriter.erase_op(read.op)
    else:
        read.op.operands[read.index] = tile.results[0]
    return tile


def erase_with_slices(op: Operation) -> None:
    """Erase an op, and what only it used of tensors that are empty, if nothing reads it; its dead slices go first."""
    for result in op.results:
        for use in list(result.uses):
            if isinstance(use.operation, tensor.ExtractSliceOp):
                erase_with_slices(use.operation)
    if any(result.uses for result in op.results):
        return
    operands = list(op.operands)
    Rewriter.erase_op(op)
    for operand in operands:
        if isinstance(operand.owner, tensor.EmptyOp):
            erase_unused(operand)
