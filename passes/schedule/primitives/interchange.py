# SPDX-License-Identifier: Apache-2.0
"""Interchanging the dims of a structured op."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, IntegerAttr, MemRefType, i64
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir.affine import AffineDimExpr

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.transform import sizes_of
from penstock.dialects.upstream.transform_loops import InterchangeOp
from penstock.passes.analysis.memory.storage import storage_of
from penstock.passes.analysis.reductions import EXACT_COMBINERS, combiners
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def interchange(generic: GenericOp, order: Sequence[int]) -> None:
    """
    Give the dims of a structured op another order: dim `order[n]` becomes dim n, as upstream's `interchange` does.

    Legal where every element of an output is computed from the same elements in the same order: parallel dims may go
    anywhere, reductions stay in order among themselves unless the op that combines gives the same bits in any order.
    Raises UserError where that is not so, or not seen.

    Before:
    ```mlir
    func.func @k(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<4x6xf32>) -> tensor<4x6xf32> {
      %r = linalg.generic {
        indexing_maps = [
          affine_map<(m, n, k) -> (m, k)>,
          affine_map<(m, n, k) -> (k, n)>,
          affine_map<(m, n, k) -> (m, n)>
        ],
        iterator_types = ["parallel", "parallel", "reduction"]
      } ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<4x6xf32>) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      } -> tensor<4x6xf32>
      func.return %r : tensor<4x6xf32>
    }
    ```
    After (`%t = transform.structured.interchange %r iterator_interchange = [2, 0, 1]
            : (!transform.any_op) -> !transform.any_op`):
    ```mlir
    func.func @k(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<4x6xf32>) -> tensor<4x6xf32> {
      %r = linalg.generic {
        indexing_maps = [
          affine_map<(k, m, n) -> (m, k)>,
          affine_map<(k, m, n) -> (k, n)>,
          affine_map<(k, m, n) -> (m, n)>
        ],
        iterator_types = ["reduction", "parallel", "parallel"]
      } ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<4x6xf32>) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      } -> tensor<4x6xf32>
      func.return %r : tensor<4x6xf32>
    }
    ```
    """
    kinds = [kind.data for kind in generic.iterator_types]
    if sorted(order) != list(range(len(kinds))):
        raise UserError(f"{list(order)} is no order of the {len(kinds)} dims of this op", loc=location_of(generic))
    reductions = [dim for dim in order if kinds[dim] != IteratorType.PARALLEL]
    exact = combiners(generic)
    if reductions != sorted(reductions) and not all(
        exact.get(number) in EXACT_COMBINERS for number in range(len(generic.inputs), len(generic.operands))
    ):
        raise UserError(
            f"dims {reductions} are reductions: in this order the sums would be rounded otherwise",
            loc=location_of(generic),
            notes=["reductions keep the order that they have among themselves"],
        )
    parallel = {dim for dim, kind in enumerate(kinds) if kind == IteratorType.PARALLEL}
    for map_attr in list(generic.indexing_maps)[len(generic.inputs) :]:
        dims = [expr.position for expr in map_attr.data.results if isinstance(expr, AffineDimExpr)]
        if set(dims) != parallel or len(dims) != len(parallel):
            raise UserError(
                "an output is not accessed once at each point of the parallel dims", loc=location_of(generic)
            )
    outputs_apart(generic)
    place = {dim: AffineDimExpr(order.index(dim)) for dim in order}
    maps = [
        AffineMapAttr(
            map_attr.data.replace_dims_and_symbols([place[dim] for dim in range(len(order))], [], len(order), 0)
        )
        for map_attr in generic.indexing_maps
    ]
    generic.properties["indexing_maps"] = ArrayAttr(maps)
    generic.properties["iterator_types"] = ArrayAttr([list(generic.iterator_types)[dim] for dim in order])
    for op in generic.body.block.ops:
        if isinstance(op, IndexOp):
            op.properties["dim"] = IntegerAttr(order.index(op.dim.value.data), i64)


def outputs_apart(generic: GenericOp) -> None:
    """Raise UserError for an op on memrefs of which an output may overlap another operand, unless they are the same."""
    accesses = list(zip(generic.operands, generic.indexing_maps, strict=True))
    for number, (value, map_attr) in enumerate(accesses[len(generic.inputs) :], len(generic.inputs)):
        others = accesses[:number] + accesses[number + 1 :]
        if isinstance(value.type, MemRefType) and any(
            storage_of(other) is storage_of(value) and (other, its_map) != (value, map_attr)
            for other, its_map in others
        ):
            raise UserError("an output may overlap another operand", loc=location_of(generic))


@PRIMITIVES.register(InterchangeOp)
def apply_interchange(state: TransformState, op: InterchangeOp) -> Sequence[Payload]:
    """See https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredinterchange."""
    generic = state.one(op.target, GenericOp)
    interchange(generic, sizes_of(op.iterator_interchange))
    state.consume(op.target, op)
    return ((generic,),)
