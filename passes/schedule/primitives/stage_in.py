# SPDX-License-Identifier: Apache-2.0
"""Reading an operand in a scope."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import InsertPoint

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.dialects.schedule_memory import StageInOp
from penstock.passes.analysis.memory.storage import slice_of
from penstock.passes.index_builder import erase_unused
from penstock.passes.schedule.footprint import Footprint
from penstock.passes.schedule.primitives.multi_buffer import rings_after
from penstock.passes.schedule.staging import (
    after_definition,
    has_known_storage,
    insert_fill,
    place_of,
    read_by,
    require_machine,
    require_operand,
    require_path,
    require_room,
    split_copy,
    writers_of,
)
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(StageInOp)
def stage_in(state: TransformState, op: StageInOp) -> Sequence[Payload]:
    """
    Read an operand in a scope; see `schedule.stage_in`.

    Raises UserError for a scope that the machine lacks, that no engines lead to, or that is too small, for an operand
    that the op writes, and for a loop that writes it too or that reads no static box of it.

    Before:
    ```mlir
    #id = affine_map<(i, j) -> (i, j)>
    func.func private @k(%x: memref<64x16xf32>) attributes {device = @gemmini_fp32} {
      %c0 = arith.constant 0 : index
      %c16 = arith.constant 16 : index
      %c64 = arith.constant 64 : index
      %sum = mem.buffer : memref<16x16xf32, "acc">
      scf.for %i = %c0 to %c64 step %c16 {
        %t = memref.subview %x[%i, 0] [16, 16] [1, 1]
            : memref<64x16xf32> to memref<16x16xf32, strided<[16, 1], offset: ?>>
        linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
            ins(%t : memref<16x16xf32, strided<[16, 1], offset: ?>>) outs(%sum : memref<16x16xf32, "acc">) {
        ^bb0(%a: f32, %s: f32):
          %r = arith.addf %s, %a : f32
          linalg.yield %r : f32
        }
      }
      func.return
    }
    ```
    After (`%copy = schedule.stage_in %generic[0] in "spad"` on `gemmini-fp32`):
    ```mlir
    #id = affine_map<(i, j) -> (i, j)>
    func.func private @k(%x: memref<64x16xf32>) attributes {device = @gemmini_fp32} {
      %c0 = arith.constant 0 : index
      %c16 = arith.constant 16 : index
      %c64 = arith.constant 64 : index
      %sum = mem.buffer : memref<16x16xf32, "acc">
      scf.for %i = %c0 to %c64 step %c16 {
        %t = memref.subview %x[%i, 0] [16, 16] [1, 1]
            : memref<64x16xf32> to memref<16x16xf32, strided<[16, 1], offset: ?>>
        %t_1 = mem.buffer : memref<16x16xf32, "spad">
        mem.copy %t to %t_1 : memref<16x16xf32, strided<[16, 1], offset: ?>> to memref<16x16xf32, "spad">
        linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
            ins(%t_1 : memref<16x16xf32, "spad">) outs(%sum : memref<16x16xf32, "acc">) {
        ^bb0(%a: f32, %s: f32):
          %r = arith.addf %s, %a : f32
          linalg.yield %r : f32
        }
      }
      func.return
    }
    ```
    After (`%copy = schedule.stage_in %generic[0] in "spad" at %i` on `gemmini-fp32`):
    ```mlir
    #id = affine_map<(i, j) -> (i, j)>
    func.func private @k(%x: memref<64x16xf32>) attributes {device = @gemmini_fp32} {
      %c0 = arith.constant 0 : index
      %c16 = arith.constant 16 : index
      %c64 = arith.constant 64 : index
      %sum = mem.buffer : memref<16x16xf32, "acc">
      %t = mem.buffer : memref<64x16xf32, "spad">
      mem.copy %x to %t : memref<64x16xf32> to memref<64x16xf32, "spad">
      scf.for %i = %c0 to %c64 step %c16 {
        %t_1 = memref.subview %t[%i, 0] [16, 16] [1, 1]
            : memref<64x16xf32, "spad"> to memref<16x16xf32, strided<[16, 1], offset: ?>, "spad">
        linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
            ins(%t_1 : memref<16x16xf32, strided<[16, 1], offset: ?>, "spad">)
            outs(%sum : memref<16x16xf32, "acc">) {
        ^bb0(%a: f32, %s: f32):
          %r = arith.addf %s, %a : f32
          linalg.yield %r : f32
        }
      }
      func.return
    }
    ```
    """
    reader = state.one(op.reader)
    if not isinstance(reader, GenericOp | CopyOp):
        raise UserError(f"what reads memrefs is a linalg.generic or a mem.copy, not {reader.name}")
    number, scope = op.operand_number.value.data, op.scope.data
    target = require_machine(state)
    operand = require_operand(reader, number)
    loop = state.one(op.loop, scf.ForOp) if op.loop is not None else None
    _require_read(reader, number)
    start = place_of(operand)
    if scope in (start, place_of(reader.dest) if isinstance(reader, CopyOp) else start):
        raise UserError(f'operand {number} is in "{scope}" already, or goes there', loc=location_of(reader))
    if loop is not None and not loop.is_ancestor(reader):
        raise UserError("the loop is not around the reader", loc=location_of(reader))
    held = read_by(reader, number, loop, state.aliased)
    if isinstance(held, str):
        raise UserError(f"operand {number} cannot be copied before the loop: {held}", loc=location_of(reader))
    type = require_room(operand, target, op, held.extents)
    require_path(target, start, scope, reader)
    if isinstance(reader, CopyOp):
        require_path(target, scope, place_of(reader.dest), reader)
    with rings_after(state, op) as made:
        if isinstance(reader, CopyOp):
            fill, rest = split_copy(reader, type, held, loop)
            state.replace(reader, rest)
        else:
            fill = _stage_operand(state, reader, number, type, held, loop)
        made.append(fill.dest)
    return ((fill,),)


def _require_read(reader: GenericOp | CopyOp, number: int) -> None:
    if isinstance(reader, CopyOp) and number != 0:
        raise UserError("operand 0 of a mem.copy is what it reads", loc=location_of(reader))
    if isinstance(reader, GenericOp) and number >= len(reader.inputs):
        raise UserError(
            f"operand {number} is written here", loc=location_of(reader), notes=["schedule.stage_out is for it"]
        )


def _stage_operand(
    state: TransformState,
    reader: GenericOp,
    number: int,
    type: MemRefType[Attribute],
    held: Footprint,
    loop: scf.ForOp | None,
) -> CopyOp:
    """
    Copy what is read before the loop, of which the operand becomes a view; without one, copy all of the operand where
    it is defined, if it never changes, else before the reader.
    """
    operand = reader.operands[number]
    is_constant = loop is None and has_known_storage(operand, state.aliased) and not writers_of(operand)
    if is_constant and (known := _filled_before(reader, operand, type)) is not None:
        reader.operands[number] = known.dest
        return known
    place = after_definition(operand) if is_constant else InsertPoint.before(reader if loop is None else loop)
    fill, origins = insert_fill(Builder(place), type, held, operand, reader)
    inside = Builder(InsertPoint.before(reader))
    view = slice_of(inside, fill.dest, held.build_offsets(inside, origins), held.source.box)
    if view is not fill.dest:
        view.name_hint = operand.name_hint
    reader.operands[number] = view
    erase_unused(operand)
    return fill


def _filled_before(reader: GenericOp, operand: SSAValue, type: MemRefType[Attribute]) -> CopyOp | None:
    """The copy of all of an operand, which never changes, to a buffer of its own that is filled before the reader."""
    for use in operand.uses:
        copy = use.operation
        if not isinstance(copy, CopyOp) or copy.source is not operand or copy.window_side is not None:
            continue
        if copy.dest.type != type or not isinstance(copy.dest.owner, BufferOp) or len(writers_of(copy.dest)) > 1:
            continue
        around = copy.parent.find_ancestor_op_in_block(reader) if copy.parent is not None else None
        if around is not None and copy.is_before_in_block(around):
            return copy
    return None
