# SPDX-License-Identifier: Apache-2.0
"""`compute-in-results`: what only leads to a tile of a result is computed where that will lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.mem import memref_of, scope_of
from penstock.passes.analysis.kernels import calls_by_callee, host_functions, processor_of
from penstock.passes.analysis.loops import constant_of
from penstock.passes.analysis.memory.dataflow import Flows
from penstock.passes.analysis.strides import contiguous_strides
from penstock.passes.views import reshape_view

RESHAPES = (memref.ExpandShapeOp, memref.CollapseShapeOp)


@dataclass(frozen=True)
class ComputeInResultsPass(ModulePass):
    """
    Let a buffer of a tile be the tile of the result that the last op to read it writes, element by element.

    A softmax leaves the exponentials of a row in a buffer, sums them, and writes their shares of the sum as a row of
    its result. If they are written to that row at once, the first cache holds one row less, and waits for the lines of
    the result while there is much to compute, and not all at once at the end.

    Required: the loop level, no plan yet, and a machine that is the host itself and whose file says what its registers
    and caches hold; else nothing happens. The buffer is made in the innermost of some loops and read and written by
    structured ops there, also in other shapes. The last of them has no reduction, and reads the buffer where it writes
    the tile: dense, no tile shares an element with another one, and nothing else in the function uses the memory that
    it is cut out of, which no call gives it a second time. Guaranteed: the same results bit for bit.

    Before:
    ```mlir
    func.func @shares(%x: memref<64x256xf32>, %s: memref<1xf32>, %y: memref<64x256xf32>) {
      %0 = arith.constant 0 : index
      %1 = arith.constant 64 : index
      %2 = arith.constant 1 : index
      scf.for %i = %0 to %1 step %2 {
        %row = memref.subview %x[%i, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        %out = memref.subview %y[%i, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        %e = memref.alloc() : memref<1x256xf32>
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
          iterator_types = ["parallel", "parallel"]
        } ins(%row : memref<1x256xf32, strided<[256, 1], offset: ?>>) outs(%e : memref<1x256xf32>) {
        ^bb0(%a: f32, %b: f32):
          %r = math.exp %a : f32
          linalg.yield %r : f32
        }
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
          iterator_types = ["parallel", "reduction"]
        } ins(%e : memref<1x256xf32>) outs(%s : memref<1xf32>) {
        ^bb0(%a: f32, %b: f32):
          %r = arith.addf %a, %b : f32
          linalg.yield %r : f32
        }
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
          iterator_types = ["parallel", "parallel"]
        } ins(%e, %s : memref<1x256xf32>, memref<1xf32>)
          outs(%out : memref<1x256xf32, strided<[256, 1], offset: ?>>) {
        ^bb0(%a: f32, %b: f32, %c: f32):
          %r = arith.divf %a, %b : f32
          linalg.yield %r : f32
        }
      }
      func.return
    }
    ```
    After (`compute-in-results` on `host-avx512`):
    ```mlir
    func.func @shares(%x: memref<64x256xf32>, %s: memref<1xf32>, %y: memref<64x256xf32>) {
      %0 = arith.constant 0 : index
      %1 = arith.constant 64 : index
      %2 = arith.constant 1 : index
      scf.for %i = %0 to %1 step %2 {
        %row = memref.subview %x[%i, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        %out = memref.subview %y[%i, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
          iterator_types = ["parallel", "parallel"]
        } ins(%row : memref<1x256xf32, strided<[256, 1], offset: ?>>)
          outs(%out : memref<1x256xf32, strided<[256, 1], offset: ?>>) {
        ^bb0(%a: f32, %b: f32):
          %r = math.exp %a : f32
          linalg.yield %r : f32
        }
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
          iterator_types = ["parallel", "reduction"]
        } ins(%out : memref<1x256xf32, strided<[256, 1], offset: ?>>) outs(%s : memref<1xf32>) {
        ^bb0(%a_1: f32, %b_1: f32):
          %r_1 = arith.addf %a_1, %b_1 : f32
          linalg.yield %r_1 : f32
        }
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
          iterator_types = ["parallel", "parallel"]
        } ins(%out, %s : memref<1x256xf32, strided<[256, 1], offset: ?>>, memref<1xf32>)
          outs(%out : memref<1x256xf32, strided<[256, 1], offset: ?>>) {
        ^bb0(%a_2: f32, %b_2: f32, %c: f32):
          %r_2 = arith.divf %a_2, %b_2 : f32
          linalg.yield %r_2 : f32
        }
      }
      func.return
    }
    ```
    """

    name = "compute-in-results"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if processor_of(op) is None:
            return
        flows, calls = Flows(op), calls_by_callee(op)
        for function in host_functions(op):
            handed = calls.get(function.sym_name.data, ())
            found = [
                (buffer, tile)
                for buffer in [each for each in function.walk() if isinstance(each, memref.AllocOp)]
                if (tile := _tile_for(buffer)) is not None
                and all(_is_apart(call, tile.source, flows) for call in handed)
            ]
            for buffer, tile in found:
                _replace(buffer, tile)


def _tile_for(buffer: memref.AllocOp) -> memref.SubviewOp | None:
    """The tile of a result that a buffer may be; None if there is none."""
    type, block = memref_of(buffer.memref), buffer.parent
    users = list(_users(buffer.memref))
    if block is None or buffer.operands or scope_of(type) is not None or DYNAMIC_INDEX in type.get_shape():
        return None
    if not users or any(not isinstance(op, GenericOp) or op.parent is not block for op in users):
        return None
    last = max(users, key=block.get_operation_index)
    if not isinstance(last, GenericOp) or not _is_in_place(last, buffer.memref):
        return None
    tile = last.outputs[0].owner
    if not isinstance(tile, memref.SubviewOp) or tile.parent is not block or not tile.is_before_in_block(buffer):
        return None
    other = memref_of(tile.result)
    if (other.get_shape(), other.element_type) != (type.get_shape(), type.element_type) or not _is_dense(tile):
        return None
    # Only the name of the memory itself tells, by its uses, that nothing else in the function accesses it.
    source = tile.source.owner
    is_root = isinstance(source, memref.AllocOp) or (
        isinstance(source, Block) and isinstance(source.parent_op(), func.FuncOp)
    )
    return tile if is_root and tile.result.has_one_use() and tile.source.has_one_use() and _is_own(tile) else None


def _users(value: SSAValue) -> Iterator[Operation]:
    """The ops that use a buffer, or that in another shape."""
    for use in value.uses:
        if isinstance(use.operation, RESHAPES):
            yield from _users(use.operation.results[0])
        else:
            yield use.operation


def _is_in_place(op: GenericOp, buffer: SSAValue) -> bool:
    """Whether an op has read each element of a buffer when it writes the one in its place of what it writes."""
    maps = [attr.data for attr in op.indexing_maps]
    read = [number for number, value in enumerate(op.inputs) if value is buffer]
    return (
        len(op.outputs) == 1
        and bool(read)
        and all(kind.data == IteratorType.PARALLEL for kind in op.iterator_types)
        and all(maps[number] == maps[-1] for number in read)
        and maps[-1] == AffineMap.identity(op.get_num_loops())
        and list(_users(buffer)).count(op) == len(read)
        and not op.body.block.args[-1].uses
    )


def _is_dense(tile: memref.SubviewOp) -> bool:
    type = memref_of(tile.result)
    pairs = zip(type.get_strides() or (), contiguous_strides(type.get_shape()), type.get_shape(), strict=True)
    return type.get_strides() is not None and all(own == dense or size == 1 for own, dense, size in pairs)


def _is_own(tile: memref.SubviewOp) -> bool:
    """Whether no two iterations of the loops around a tile have an element of it in common."""
    if any(step != 1 for step in tile.static_strides.get_values()):
        return False
    moving = iter(tile.offsets)
    pairs = zip(tile.static_offsets.get_values(), tile.static_sizes.get_values(), strict=True)
    cut = [(next(moving), size) for offset, size in pairs if offset == DYNAMIC_INDEX]
    around: list[scf.ForOp] = []
    parent = tile.parent_op()
    while isinstance(parent, scf.ForOp):
        around.append(parent)
        parent = parent.parent_op()
    steps: dict[SSAValue, int | None] = {loop.body.block.args[0]: constant_of(loop.step) for loop in around}
    return (
        isinstance(parent, func.FuncOp)
        and {value for value, _ in cut} == {*steps}
        and all((step := steps.get(value)) is not None and size <= step for value, size in cut)
    )


def _is_apart(call: func.CallOp, source: SSAValue, flows: Flows) -> bool:
    """Whether a call gives memory that a function has as an argument, if it is one, by no other argument."""
    if not isinstance(source, BlockArgument):
        return True
    caller: Block | None = call.parent
    while caller is not None and not isinstance(function := caller.parent_op(), func.FuncOp):
        caller = None if function is None else function.parent
    if caller is None:
        return False
    function = caller.parent_op()
    assert isinstance(function, func.FuncOp)
    aliases = flows.of(function).aliases
    others = [value for number, value in enumerate(call.operands) if number != source.index]
    return not aliases.of(call.operands[source.index]) & aliases.of_all(others)


def _replace(buffer: memref.AllocOp, tile: memref.SubviewOp) -> None:
    for use in list(buffer.memref.uses):
        if isinstance(use.operation, RESHAPES):
            _reshape(use.operation, tile.result)
    buffer.memref.replace_all_uses_with(tile.result)
    Rewriter.erase_op(buffer)


def _reshape(view: memref.ExpandShapeOp | memref.CollapseShapeOp, source: SSAValue) -> None:
    """Let a view in another shape, and those of it, be of another memref."""
    made = reshape_view(Builder(InsertPoint.before(view)), source, memref_of(view.results[0]).get_shape())
    for use in list(view.results[0].uses):
        if isinstance(use.operation, RESHAPES):
            _reshape(use.operation, made)
    view.results[0].replace_all_uses_with(made)
    Rewriter.erase_op(view)
