# SPDX-License-Identifier: Apache-2.0
"""Iterations that run at once, on processors of a kind."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import ArrayAttr

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_parallel import BindOp
from penstock.dialects.upstream.gpu import DeviceMappingAttr
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.schedule.primitives.parallel import parallel
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def bind(loops: Sequence[scf.ForOp | ForallOp], mapping: Sequence[DeviceMappingAttr]) -> ForallOp:
    """
    Map the iterations of loops, or of one `scf.forall`, to processors: threads can share scopes, blocks cannot.

    Loops become a `scf.forall` as by `parallel`, and under its conditions. Raises UserError as it does, and for a
    mapping that has not one dim of the same kind of processor for each loop.

    Before:
    ```mlir
    func.func @k(%x: memref<8x4xf32>) {
      %z = arith.constant 0.0 : f32
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %c8 = arith.constant 8 : index
      scf.for %i = %c0 to %c8 step %c1 {
        scf.for %j = %c0 to %c4 step %c1 {
          memref.store %z, %x[%i, %j] : memref<8x4xf32>
        }
      }
      func.return
    }
    ```
    After (`%threads = schedule.bind %i, %j to [#gpu.thread<y>, #gpu.thread<x>]`):
    ```mlir
    func.func @k(%x: memref<8x4xf32>) {
      %z = arith.constant 0.000000e+00 : f32
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %c8 = arith.constant 8 : index
      scf.forall (%i, %j) in (8, 4) {
        memref.store %z, %x[%i, %j] : memref<8x4xf32>
      } {mapping = [#gpu.thread<y>, #gpu.thread<x>]}
      func.return
    }
    ```
    """
    first = loops[0] if loops else None
    if isinstance(first, ForallOp) and len(loops) == 1:
        require_mapping(mapping, len(first.indices), first)
        first.mapping = ArrayAttr(mapping)
        return first
    nest = [loop for loop in loops if isinstance(loop, scf.ForOp)]
    if len(nest) < len(loops):
        raise UserError("loops are mapped together, or one scf.forall alone", loc=location_of(loops[0]))
    require_mapping(mapping, len(nest), first)
    return parallel(nest, mapping)


def require_mapping(mapping: Sequence[DeviceMappingAttr], rank: int, loop: scf.ForOp | ForallOp | None) -> None:
    """Raise UserError for a mapping that has not one dim of the same kind of processor for each of `rank` loops."""
    where = None if loop is None else location_of(loop)
    listed = ", ".join(map(str, mapping))
    if len(mapping) != rank:
        raise UserError(f"{rank} loops cannot be mapped to {len(mapping)} dims, {listed}", loc=where)
    if len({type(each) for each in mapping}) > 1 or len(set(mapping)) < rank:
        raise UserError(f"loops are mapped to different dims of one kind of processor, not to {listed}", loc=where)


@PRIMITIVES.register(BindOp)
def _apply(state: TransformState, op: BindOp) -> Sequence[Payload]:
    loops = [state.one(loop) for loop in op.loops]
    for loop in loops:
        if not isinstance(loop, scf.ForOp | ForallOp):
            raise UserError(f"the handle stands for {loop.name}, where scf.for or scf.forall is meant")
    return ((bind([loop for loop in loops if isinstance(loop, scf.ForOp | ForallOp)], list(op.mapping)),),)
