# SPDX-License-Identifier: Apache-2.0
"""A structured op as loops around scalars."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import IndexType, MemRefType
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.affine_maps import linear_form
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.transform_loops import ConvertToLoopsOp
from penstock.passes.index_builder import Index, add, materialize, scale
from penstock.passes.schedule.loop_nests import builder_in
from penstock.passes.schedule.primitives.interchange import outputs_apart
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def convert_to_loops(generic: GenericOp) -> tuple[scf.ForOp, ...]:
    """
    Make of a structured op on memrefs a loop for each dim, the first one outermost, around loads, its body and stores.

    Each element is computed as the op says, reductions in the order of the dims. Returns the loops, outermost first.
    Raises UserError for tensors, dynamic extents, indices that are not linear, an output that may overlap another
    operand, and an op that an intrinsic computes.

    Before:
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<4xf32>) {
      linalg.generic {
        indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m)>],
        iterator_types = ["parallel", "reduction"]
      } ins(%x : memref<4x6xf32>) outs(%y : memref<4xf32>) {
      ^bb0(%a: f32, %s: f32):
        %t = arith.addf %s, %a : f32
        linalg.yield %t : f32
      }
      func.return
    }
    ```
    After (`%loops = transform.structured.convert_to_loops %generic : (!transform.any_op) -> !transform.any_op`):
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<4xf32>) {
      %0 = arith.constant 0 : index
      %1 = arith.constant 1 : index
      %2 = arith.constant 4 : index
      %3 = arith.constant 6 : index
      scf.for %d0 = %0 to %2 step %1 {
        scf.for %d1 = %0 to %3 step %1 {
          %a = memref.load %x[%d0, %d1] : memref<4x6xf32>
          %s = memref.load %y[%d0] : memref<4xf32>
          %t = arith.addf %s, %a : f32
          memref.store %t, %y[%d0] : memref<4xf32>
        }
      }
      func.return
    }
    ```
    """
    if generic.results or not all(isinstance(value.type, MemRefType) for value in generic.outputs):
        raise UserError("this op computes tensors: it has loops after tensor-to-loop", loc=location_of(generic))
    if generic.library_call is not None:
        raise UserError(f"@{generic.library_call.data} computes this op as a whole", loc=location_of(generic))
    extents = generic.get_static_loop_ranges()
    maps = [attribute.data for attribute in generic.indexing_maps]
    if any(extent < 0 for extent in extents) or any(
        linear_form(expr, len(extents)) is None for index_map in maps for expr in index_map.results
    ):
        raise UserError("extents that are not known, or indices that are not linear", loc=location_of(generic))
    outputs_apart(generic)
    builder = Builder(InsertPoint.before(generic))
    numbers = {number: materialize(builder, number) for number in sorted({0, 1, *extents})} if extents else {}
    loops: list[scf.ForOp] = []
    for number, extent in enumerate(extents):
        loop = scf.ForOp(numbers[0], numbers[extent], numbers[1], (), Region(Block(arg_types=[IndexType()])))
        loop.body.block.args[0].name_hint = f"d{number}"
        loop.location = generic.location
        builder.insert(loop)
        loops.append(loop)
        builder = builder_in(loop)
    _body(builder, generic, maps, [loop.body.block.args[0] for loop in loops])
    for loop in loops:
        builder_in(loop).insert(scf.YieldOp())
    Rewriter.erase_op(generic)
    return tuple(loops)


def _body(builder: Builder, generic: GenericOp, maps: Sequence[AffineMap], counters: Sequence[SSAValue]) -> None:
    """The op at one point of its domain."""
    block = generic.body.block
    places = [_indices(builder, index_map, counters) for index_map in maps]
    values: dict[SSAValue, SSAValue] = {}
    for operand, argument, place in zip(generic.operands, block.args, places, strict=True):
        if not isinstance(operand.type, MemRefType):
            values[argument] = operand
        elif argument.uses:
            values[argument] = builder.insert(memref.LoadOp.get(operand, place)).res
            values[argument].name_hint = argument.name_hint
    for op in block.ops:
        if isinstance(op, IndexOp):
            values[op.result] = counters[op.dim.value.data]
        elif op is not block.last_op:
            builder.insert(op.clone(values))
    terminator = block.last_op
    assert terminator is not None
    first = len(generic.inputs)
    for value, output, place in zip(terminator.operands, generic.outputs, places[first:], strict=True):
        builder.insert(memref.StoreOp.get(values.get(value, value), output, place))


def _indices(builder: Builder, index_map: AffineMap, counters: Sequence[SSAValue]) -> list[SSAValue]:
    """What a linear map makes of the counters."""
    found: list[SSAValue] = []
    for expr in index_map.results:
        form = linear_form(expr, len(counters))
        assert form is not None
        total: Index = 0
        for counter, factor in zip(counters, form[1], strict=True):
            if factor:
                total = add(builder, total, scale(builder, counter, factor))
        found.append(materialize(builder, add(builder, total, form[0])))
    return found


@PRIMITIVES.register(ConvertToLoopsOp)
def apply_convert_to_loops(state: TransformState, op: ConvertToLoopsOp) -> Sequence[Payload]:
    """See https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredconvert_to_loops."""
    return (convert_to_loops(state.one(op.target, GenericOp)),)
