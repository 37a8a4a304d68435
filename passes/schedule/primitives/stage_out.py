# SPDX-License-Identifier: Apache-2.0
"""Writing an operand in a scope."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import memref
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import CopyOp, ScopedAllocation
from penstock.dialects.schedule_memory import StageOutOp
from penstock.passes.analysis.memory.storage import overwrites, reads_and_writes, storage_of, uses_through
from penstock.passes.schedule.primitives.multi_buffer import rings_after
from penstock.passes.schedule.staging import (
    after_definition,
    has_known_storage,
    insert_buffer,
    insert_copy,
    place_of,
    require_machine,
    require_operand,
    require_path,
    require_room,
    writers_of,
)
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(StageOutOp)
def stage_out(state: TransformState, op: StageOutOp) -> Sequence[Payload]:
    """
    Write an operand in a scope; see `schedule.stage_out`. Where none of the ops that use the buffer writes, there
    is no copy that empties it.

    Raises UserError for a scope that the machine lacks, that no engines lead to and from, or that is too small, and
    for an operand that the kernel only reads.

    Before:
    ```mlir
    #id = affine_map<(i, j) -> (i, j)>
    func.func private @k(%x: memref<16x16xf32, "spad">, %y: memref<16x16xf32>) attributes {device = @gemmini_fp32} {
      linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : memref<16x16xf32, "spad">) outs(%y : memref<16x16xf32>) {
      ^bb0(%a: f32, %s: f32):
        %r = arith.addf %s, %a : f32
        linalg.yield %r : f32
      }
      func.return
    }
    ```
    After (`%copy = schedule.stage_out %generic[1] in "acc"` on `gemmini-fp32`):
    ```mlir
    #id = affine_map<(i, j) -> (i, j)>
    func.func private @k(%x: memref<16x16xf32, "spad">, %y: memref<16x16xf32>) attributes {device = @gemmini_fp32} {
      %y_1 = mem.buffer : memref<16x16xf32, "acc">
      mem.copy %y to %y_1 : memref<16x16xf32> to memref<16x16xf32, "acc">
      linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : memref<16x16xf32, "spad">) outs(%y_1 : memref<16x16xf32, "acc">) {
      ^bb0(%a: f32, %s: f32):
        %r = arith.addf %s, %a : f32
        linalg.yield %r : f32
      }
      mem.copy %y_1 to %y : memref<16x16xf32, "acc"> to memref<16x16xf32>
      func.return
    }
    ```
    """
    writer = state.one(op.writer, GenericOp)
    number, scope = op.operand_number.value.data, op.scope.data
    target = require_machine(state)
    operand = require_operand(writer, number)
    start = place_of(operand)
    if scope == start:
        raise UserError(f'operand {number} is in "{scope}" already', loc=location_of(writer))
    if not writers_of(operand):
        raise UserError(
            f"operand {number} is only read in this kernel",
            loc=location_of(writer),
            notes=["schedule.stage_in is for it"],
        )
    users, block = _users(writer, operand, scope, is_known=has_known_storage(operand, state.aliased))
    spots = sorted({_ancestor_in(user, block) for user in users}, key=block.get_operation_index)
    needs_contents = not (overwrites(spots[0], operand) or _is_new(operand, users, block))
    is_written = any(reads_and_writes(use)[1] for use in operand.uses if use.operation in users)
    type = require_room(operand, target, op)
    if is_written:
        require_path(target, scope, start, writer)
    if needs_contents:
        require_path(target, start, scope, writer)
    with rings_after(state, op) as made:
        before = Builder(InsertPoint.before(spots[0]))
        buffer = insert_buffer(before, type, operand, writer)
        if needs_contents:
            insert_copy(before, operand, buffer, writer)
        for user in users:
            for position, value in enumerate(user.operands):
                if value is operand:
                    user.operands[position] = buffer
        # What other views have written meanwhile stays, where none of the users writes.
        drains = [insert_copy(Builder(InsertPoint.after(spots[-1])), buffer, operand, writer)] if is_written else []
        made.append(buffer)
    return (tuple(drains),)


def _users(writer: GenericOp, operand: SSAValue, scope: str, *, is_known: bool) -> tuple[list[Operation], Block]:
    """
    The ops that are to use a buffer in a scope instead of an operand, whose views may be known, and the block around
    all of them.
    """
    users = list(dict.fromkeys(use.operation for use in operand.uses))
    is_only_view = all(use.operation.operands[use.index] is operand for use in uses_through(storage_of(operand)))
    if is_known and is_only_view and all(_may_use(user, operand, scope) for user in users):
        return users, after_definition(operand).block
    # Other views reach the same bytes, or a copy would not leave the scope: the buffer is there during this one op.
    assert writer.parent is not None
    return [writer], writer.parent


def _is_new(operand: SSAValue, users: list[Operation], block: Block) -> bool:
    """Whether `block` allocates the operand's bytes, and no op but the users could have written them."""
    storage = storage_of(operand)
    is_made_here = isinstance(storage.owner, ScopedAllocation | memref.AllocOp) and storage.owner.parent is block
    return is_made_here and {*users} == {use.operation for use in uses_through(storage)}


def _may_use(user: Operation, operand: SSAValue, scope: str) -> bool:
    """Whether an op could use a buffer in a scope instead of an operand."""
    if isinstance(user, CopyOp):
        return place_of(user.dest if user.source is operand else user.source) != scope
    return isinstance(user, GenericOp)


def _ancestor_in(op: Operation, block: Block) -> Operation:
    found = block.find_ancestor_op_in_block(op)
    assert found is not None
    return found
