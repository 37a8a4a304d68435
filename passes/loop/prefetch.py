# SPDX-License-Identifier: Apache-2.0
"""`prefetch`: ask the caches of the host for the rows of the next tile while those of this one are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import affine, arith, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, IntegerAttr, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.machine import ints_of
from penstock.dialects.mem import PrefetchOp, element_bytes, memref_of, scope_of, span_in_bytes
from penstock.passes.analysis.kernels import host_functions, processor_of
from penstock.passes.analysis.loops import constant_of
from penstock.passes.analysis.strides import contiguous_strides
from penstock.passes.planning.register_blocks import LINE

LEAST_BYTES = 8 * LINE
"""A tile below this is loaded before a prefetch of it would help."""
VIEWS = (memref.ExpandShapeOp, memref.CollapseShapeOp, memref.SubviewOp, memref.CastOp)


@dataclass(frozen=True)
class _Rows:
    """A tile of a loop: adjacent rows of a memref from outside of it, from the row `dim` is at."""

    view: memref.SubviewOp
    dim: int
    last_reader: GenericOp

    @property
    def size_bytes(self) -> int:
        return span_in_bytes(memref_of(self.view.result))


@dataclass(frozen=True)
class PrefetchPass(ModulePass):
    """
    Ask for the rows that the next iteration reads, where a loop on the host reads each of its rows several times.

    Such a loop, of a softmax or a normalization, finds its rows in the first cache but for the first time, when it
    waits for memory: while it computes it loads nothing, and what prefetchers of a CPU foresee ends with the row, or
    the page. Here the last op that reads a tile comes after a `mem.prefetch` of the next tile, the last one of its own.

    Required: the loop level, and a machine that is the host itself and whose file says what its registers and caches
    hold; else nothing happens. Loops are innermost, their tiles whole adjacent rows that lie off chip and are read by
    at least two ops, and all of those of a loop take at most a quarter of the first cache. Values stay what they are.

    Before:
    ```mlir
    func.func @center(%x: memref<64x256xf32>, %m: memref<1xf32>, %y: memref<64x256xf32>) {
      %0 = arith.constant 0 : index
      %1 = arith.constant 64 : index
      %2 = arith.constant 1 : index
      scf.for %i = %0 to %1 step %2 {
        %row = memref.subview %x[%i, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        %out = memref.subview %y[%i, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
          iterator_types = ["parallel", "reduction"]
        } ins(%row : memref<1x256xf32, strided<[256, 1], offset: ?>>) outs(%m : memref<1xf32>) {
        ^bb0(%a: f32, %b: f32):
          %s = arith.maximumf %a, %b : f32
          linalg.yield %s : f32
        }
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
          iterator_types = ["parallel", "parallel"]
        } ins(%row, %m : memref<1x256xf32, strided<[256, 1], offset: ?>>, memref<1xf32>)
          outs(%out : memref<1x256xf32, strided<[256, 1], offset: ?>>) {
        ^bb0(%a: f32, %b: f32, %c: f32):
          %s = arith.subf %a, %b : f32
          linalg.yield %s : f32
        }
      }
      func.return
    }
    ```
    After (`prefetch` on `host-avx512`):
    ```mlir
    func.func @center(%x: memref<64x256xf32>, %m: memref<1xf32>, %y: memref<64x256xf32>) {
      %0 = arith.constant 0 : index
      %1 = arith.constant 64 : index
      %2 = arith.constant 1 : index
      scf.for %i = %0 to %1 step %2 {
        %row = memref.subview %x[%i, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        %out = memref.subview %y[%i, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
          iterator_types = ["parallel", "reduction"]
        } ins(%row : memref<1x256xf32, strided<[256, 1], offset: ?>>) outs(%m : memref<1xf32>) {
        ^bb0(%a: f32, %b: f32):
          %s = arith.maximumf %a, %b : f32
          linalg.yield %s : f32
        }
        %3 = arith.addi %i, %2 : index
        %4 = arith.constant 63 : index
        %5 = arith.minsi %3, %4 : index
        %6 = memref.subview %x[%5, 0] [1, 256] [1, 1]
          : memref<64x256xf32> to memref<1x256xf32, strided<[256, 1], offset: ?>>
        mem.prefetch %6 step 16 : memref<1x256xf32, strided<[256, 1], offset: ?>>
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
          iterator_types = ["parallel", "parallel"]
        } ins(%row, %m : memref<1x256xf32, strided<[256, 1], offset: ?>>, memref<1xf32>)
          outs(%out : memref<1x256xf32, strided<[256, 1], offset: ?>>) {
        ^bb0(%a_1: f32, %b_1: f32, %c: f32):
          %s_1 = arith.subf %a_1, %b_1 : f32
          linalg.yield %s_1 : f32
        }
      }
      func.return
    }
    ```
    """

    name = "prefetch"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if (target := processor_of(op)) is None:
            return
        processor = target.processor()
        assert processor is not None
        most = ints_of(processor.caches)[0] // 4
        for function in host_functions(op):
            for loop in [each for each in function.walk() if isinstance(each, scf.ForOp)]:
                if any(isinstance(inner, scf.ForOp) for inner in loop.body.block.ops):
                    continue
                found = list(_rows_of(loop))
                if sum(rows.size_bytes for rows in found) <= most:
                    for rows in found:
                        _prefetch(loop, rows)


def _rows_of(loop: scf.ForOp) -> Iterator[_Rows]:
    for view in loop.body.block.ops:
        if not isinstance(view, memref.SubviewOp) or loop.is_ancestor(_owner(view.source)):
            continue
        readers, is_written = _uses(view.result)
        dim = _cut_dim(view, loop)
        if dim is None or is_written or len(readers) < 2 or any(each.parent is not loop.body.block for each in readers):
            continue
        last = next(op for op in reversed(loop.body.block.ops) if op in readers)
        assert isinstance(last, GenericOp)
        rows = _Rows(view, dim, last)
        if rows.size_bytes >= LEAST_BYTES:
            yield rows


def _owner(value: SSAValue) -> Operation:
    """What defines a value; of an argument the op of its block."""
    owner = value.owner
    found = owner if isinstance(owner, Operation) else owner.parent_op()
    assert found is not None
    return found


def _cut_dim(view: memref.SubviewOp, loop: scf.ForOp) -> int | None:
    """The dim along which a view is whole adjacent rows of a static memref off chip, which move with the loop."""
    source = memref_of(view.source)
    shape, sizes = source.get_shape(), view.static_sizes.get_values()
    if scope_of(source) is not None or DYNAMIC_INDEX in (*shape, *sizes) or len(view.offsets) != 1:
        return None
    if source.get_strides() != contiguous_strides(shape) or len(memref_of(view.result).get_shape()) != len(shape):
        return None
    offsets = view.static_offsets.get_values()
    dim = offsets.index(DYNAMIC_INDEX)
    rest = zip(offsets[dim + 1 :], sizes[dim + 1 :], shape[dim + 1 :], strict=True)
    if any(size != 1 for size in sizes[:dim]) or any(offset or size != extent for offset, size, extent in rest):
        return None
    if any(step != 1 for step in view.static_strides.get_values()) or sizes[dim] != constant_of(loop.step):
        return None
    place = view.offsets[0]
    is_clamped = isinstance(place.owner, arith.MinSIOp | affine.MinOp)
    moving = place.owner.operands if is_clamped and isinstance(place.owner, Operation) else [place]
    return dim if loop.body.block.args[0] in moving else None


def _uses(value: SSAValue) -> tuple[set[Operation], bool]:
    """The generics that read a view of memory, and whether anything else uses it, which may write it."""
    readers: set[Operation] = set()
    is_written = False
    for use in value.uses:
        user = use.operation
        if isinstance(user, VIEWS):
            inner, writes = _uses(user.results[0])
            readers, is_written = readers | inner, is_written or writes
        elif isinstance(user, GenericOp) and use.index < len(user.inputs):
            readers.add(user)
        else:
            is_written = True
    return readers, is_written


def _prefetch(loop: scf.ForOp, rows: _Rows) -> None:
    view, dim = rows.view, rows.dim
    type = memref_of(view.source)
    end = type.get_shape()[dim] - view.static_sizes.get_values()[dim]
    following = arith.AddiOp(loop.body.block.args[0], loop.step)
    last = arith.ConstantOp(IntegerAttr(end, IndexType()))
    place = arith.MinSIOp(following.result, last.result)
    offsets = view.static_offsets.get_values()
    next_view = memref.SubviewOp(
        view.source,
        [place.result],
        [],
        [],
        offsets,
        view.static_sizes.get_values(),
        view.static_strides.get_values(),
        memref_of(view.result),
    )
    prefetch = PrefetchOp(next_view.result, LINE // element_bytes(type))
    made = [following, last, place, next_view, prefetch]
    for op in made:
        op.location = view.location
    Rewriter.insert_op(made, InsertPoint.before(rows.last_reader))
