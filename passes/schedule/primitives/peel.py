# SPDX-License-Identifier: Apache-2.0
"""Peeling the last, partial iteration of a loop, or its first one."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.transform_loops import LoopPeelOp
from penstock.passes.analysis.loop_dependences import name_of
from penstock.passes.analysis.loops import constant_of
from penstock.passes.schedule.loop_nests import builder_in, clone_body, iterations_of, new_loop
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def peel(loop: scf.ForOp, *, front: bool = False) -> tuple[scf.ForOp, scf.ForOp | None]:
    """
    Make a loop of its own of the last iteration, if the step does not divide the range, or of the first one (`front`).

    The order of the iterations is what it was: every peeling is legal. Returns the loop over the other iterations, and
    the one that was peeled, if there is one. Raises UserError for bounds that are not constant, and for a loop without
    iterations.

    Before:
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c4 = arith.constant 4 : index
      %c10 = arith.constant 10 : index
      scf.for %i = %c0 to %c10 step %c4 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
      }
      func.return
    }
    ```
    After (`%for = transform.cast %i : !transform.any_op to !transform.op<"scf.for">
            %main, %rest = transform.loop.peel %for
            : (!transform.op<"scf.for">) -> (!transform.any_op, !transform.any_op)`):
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c4 = arith.constant 4 : index
      %c10 = arith.constant 10 : index
      %0 = arith.constant 8 : index
      scf.for %i = %c0 to %0 step %c4 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
      }
      %1 = arith.constant 8 : index
      scf.for %i_1 = %1 to %c10 step %c4 {
        %v_1 = memref.load %x[%i_1] : memref<10xf32>
        memref.store %v_1, %y[%i_1] : memref<10xf32>
      }
      func.return
    }
    ```
    """
    whole = iterations_of(loop)
    end = constant_of(loop.ub)
    assert end is not None
    if not whole.trips:
        raise UserError(f"{name_of(loop)} has no iterations", loc=location_of(loop))
    if not front and whole.end == end:
        return loop, None
    builder = Builder(InsertPoint.before(loop))
    first = whole.first(1 if front else whole.trips - 1)
    parts: list[scf.ForOp] = []
    values = list(loop.iter_args)
    for iterations in (first, whole.after(first.trips)):
        part = new_loop(builder, iterations, loop, values)
        within = builder_in(part)
        within.insert(scf.YieldOp(*clone_body(within, loop, part.body.block.args[0], part.body.block.args[1:])))
        values = list(part.results)
        parts.append(part)
    for result, value in zip(loop.results, values, strict=True):
        result.replace_all_uses_with(value)
    Rewriter.erase_op(loop)
    return (parts[1], parts[0]) if front else (parts[0], parts[1])


@PRIMITIVES.register(LoopPeelOp)
def apply_peel(state: TransformState, op: LoopPeelOp) -> Sequence[Payload]:
    """See https://mlir.llvm.org/docs/Dialects/Transform/#transformlooppeel."""
    loop = state.one(op.target, scf.ForOp)
    front = op.peel_front is not None and bool(op.peel_front.value.data)
    must = op.fail_if_already_divisible is not None and bool(op.fail_if_already_divisible.value.data)
    if must and not front and iterations_of(loop).end == constant_of(loop.ub):
        raise UserError(
            f"the step of {name_of(loop)} divides its range: nothing is to be peeled", loc=location_of(loop)
        )
    main, peeled = peel(loop, front=front)
    return (main,), () if peeled is None else (peeled,)
