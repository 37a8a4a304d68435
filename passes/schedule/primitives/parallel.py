# SPDX-License-Identifier: Apache-2.0
"""Iterations that run at once: `scf.for` as `scf.forall`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Region
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import ScopedAllocation
from penstock.dialects.schedule_parallel import ParallelizeOp
from penstock.dialects.upstream.gpu import DeviceMappingAttr
from penstock.dialects.upstream.scf import Bound, ForallOp
from penstock.passes.analysis.loop_dependences import NestMemory, name_of
from penstock.passes.analysis.loops import constant_of
from penstock.passes.schedule.loop_nests import body_of, perfect_nest, sink_pure_ops
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def parallel(
    loops: Sequence[scf.ForOp], mapping: Sequence[DeviceMappingAttr] = (), *, memory: NestMemory | None = None
) -> ForallOp:
    """
    Let the iterations of a loop, or of a perfect nest listed from the outermost loop on, run at once. `memory` is what
    the function accesses, if that is known.

    Legal where no two different iterations access the same bytes, one of them writing; sums are no exception. A buffer
    that the body makes is made by each iteration for itself; it must not have a place yet. Raises UserError, which
    names the dependence, where that is not so, where a loop carries values, and where the nest is not perfect.

    Before:
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %c10 = arith.constant 10 : index
      scf.for %i = %c0 to %c10 step %c2 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
      }
      func.return
    }
    ```
    After (`%iterations = schedule.parallel %i`):
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %c10 = arith.constant 10 : index
      scf.forall (%i) = (0) to (10) step (2) {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
      }
      func.return
    }
    ```
    """
    nest = _nest_of(loops)
    _check(nest, memory or NestMemory.around(nest[0]))
    sink_pure_ops(nest)
    outermost, innermost = nest[0], nest[-1]
    block = Block(arg_types=[loop.body.block.args[0].type for loop in nest])
    for index, loop in zip(block.args, nest, strict=True):
        counter = loop.body.block.args[0]
        index.name_hint, index.location = counter.name_hint, counter.location
        counter.replace_all_uses_with(index)
    for op in body_of(innermost):
        op.detach()
        block.add_op(op)
    forall = ForallOp(
        [_bound(loop, 0) for loop in nest],
        [_bound(loop, 1) for loop in nest],
        [_bound(loop, 2) for loop in nest],
        (),
        Region(block),
        mapping,
    )
    forall.location = outermost.location
    Builder(InsertPoint.before(outermost)).insert(forall)
    Rewriter.erase_op(outermost)
    return forall


def _nest_of(loops: Sequence[scf.ForOp]) -> tuple[scf.ForOp, ...]:
    """The loops, which are a perfect nest."""
    if not loops:
        raise UserError("one loop or more can run at once, and none is named")
    nest = perfect_nest(loops[0], loops[-1]) if len(loops) == 1 or loops[0].is_ancestor(loops[-1]) else ()
    if tuple(loops) != nest:
        names = ", ".join(map(name_of, loops))
        raise UserError(
            f"{names} are no nest of loops from the outermost on, of which none is left out",
            loc=location_of(loops[0]),
        )
    for loop in nest:
        step = constant_of(loop.step)
        if not isinstance(loop.body.block.args[0].type, IndexType) or (step is not None and step < 1):
            raise UserError(f"{name_of(loop)} does not count indices upwards", loc=location_of(loop))
    for loop in nest[1:]:
        for value in (loop.lb, loop.ub, loop.step):
            if constant_of(value) is None and any(each.is_ancestor(value.owner) for each in nest):
                raise UserError(f"the bounds of {name_of(loop)} are computed in the nest", loc=location_of(loop))
    return nest


def _check(nest: Sequence[scf.ForOp], memory: NestMemory) -> None:
    """Raise UserError where iterations depend on each other, or would share a buffer that is one's own."""
    names = ", ".join(map(name_of, nest))
    for op in nest[-1].walk():
        if isinstance(op, ScopedAllocation) and op.byte_offset is not None:
            raise UserError(
                f"iterations of {names} that run at once need a buffer each, and this one has a place",
                loc=location_of(op),
                notes=["let the iterations run at once before buffers are placed (`mem-plan`)"],
            )
    for dependence in memory.dependences(nest):
        raise UserError(
            f"iterations of {names} cannot run at once: one depends on another",
            loc=location_of(dependence.source.op),
            notes=[str(dependence)],
        )


def _bound(loop: scf.ForOp, number: int) -> Bound:
    value = (loop.lb, loop.ub, loop.step)[number]
    constant = constant_of(value)
    return value if constant is None else constant


@PRIMITIVES.register(ParallelizeOp)
def _apply(state: TransformState, op: ParallelizeOp) -> Sequence[Payload]:
    return ((parallel([state.one(loop, scf.ForOp) for loop in op.loops]),),)
