# SPDX-License-Identifier: Apache-2.0
"""Distributing the ops of a loop over two loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_loops import DistributeOp
from penstock.passes.analysis.loop_dependences import NestMemory, name_of
from penstock.passes.schedule.loop_nests import body_of, builder_in, carries_nothing, iterations_of, new_loop
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


class DistributedLoops(NamedTuple):
    """What a loop has become."""

    first: scf.ForOp
    """The loop over what stands before the cut."""
    second: scf.ForOp
    """The loop over the rest."""


def distribute(loop: scf.ForOp, op: Operation) -> DistributedLoops:
    """
    Make two loops of one: the first executes what is before `op` in its body, the second the rest.

    Legal where nothing in the first part depends on the second part of an earlier iteration, and where the second part
    uses nothing of the first but what pure ops compute, which both do then. Raises UserError, which names the
    dependence, where it is not.

    Before:
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>, %z: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c10 = arith.constant 10 : index
      scf.for %i = %c0 to %c10 step %c1 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
        %w = memref.load %y[%i] : memref<10xf32>
        memref.store %w, %z[%i] : memref<10xf32>
      }
      func.return
    }
    ```
    After (`%first, %second = schedule.distribute %i before %w`):
    ```mlir
    func.func @k(%x: memref<10xf32>, %y: memref<10xf32>, %z: memref<10xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c10 = arith.constant 10 : index
      scf.for %i = %c0 to %c10 step %c1 {
        %v = memref.load %x[%i] : memref<10xf32>
        memref.store %v, %y[%i] : memref<10xf32>
      }
      scf.for %i_1 = %c0 to %c10 step %c1 {
        %w = memref.load %y[%i_1] : memref<10xf32>
        memref.store %w, %z[%i_1] : memref<10xf32>
      }
      func.return
    }
    ```
    """
    carries_nothing(loop)
    body = body_of(loop)
    if op not in body or op is body[0]:
        raise UserError(
            f"{op.name} is not in the body of {name_of(loop)} with something before it", loc=location_of(op)
        )
    second = body[body.index(op) :]
    first = body[: len(body) - len(second)]
    memory = NestMemory.around(loop)
    shared = _shared(memory, loop, first, second)
    for dependence in memory.dependences([loop]):
        if _part_of(dependence.source.op, loop) in second and _part_of(dependence.sink.op, loop) in first:
            raise UserError(
                f"{name_of(loop)} cannot be distributed: a dependence would be reversed",
                loc=location_of(op),
                notes=[str(dependence)],
            )
    iterations = iterations_of(loop)
    builder = Builder(InsertPoint.before(loop))
    loops = [new_loop(builder, iterations, loop) for _ in range(2)]
    counters = [each.body.block.args[0] for each in loops]
    within = builder_in(loops[1])
    copies: dict[SSAValue, SSAValue] = {loop.body.block.args[0]: counters[1]}
    for each in shared:
        within.insert(each.clone(copies))
    for each in second:
        each.detach()
        within.insert(each)
        for inner in each.walk():
            inner.operands = [copies.get(value, value) for value in inner.operands]
    loop.body.block.args[0].replace_all_uses_with(counters[0])
    for each in first:
        each.detach()
        builder_in(loops[0]).insert(each)
    for each in loops:
        builder_in(each).insert(scf.YieldOp())
    Rewriter.erase_op(loop)
    return DistributedLoops(loops[0], loops[1])


def _part_of(op: Operation, loop: scf.ForOp) -> Operation:
    """The op of the body of a loop that `op` is, or is in."""
    while op.parent_op() is not loop:
        parent = op.parent_op()
        assert parent is not None
        op = parent
    return op


def _shared(
    memory: NestMemory, loop: scf.ForOp, first: Sequence[Operation], second: Sequence[Operation]
) -> list[Operation]:
    """The ops of the first part whose results the second one needs, which are pure; raises UserError for another."""
    needed: dict[Operation, None] = {}
    waiting = [inner for each in second for inner in each.walk()]
    while waiting:
        user = waiting.pop()
        for value in user.operands:
            owner = value.owner
            if not isinstance(owner, Operation) or owner not in first or owner in needed:
                continue
            if not memory.only_computes(owner):
                raise UserError(
                    f"{name_of(loop)} cannot be distributed: {user.name} uses what {owner.name} yields in the same "
                    "iteration",
                    loc=location_of(user),
                    notes=[f"{owner.name} is at {location_of(owner)}, and is not pure"],
                )
            needed[owner] = None
            waiting.extend(owner.walk())
    return [op for op in first if op in needed]


@PRIMITIVES.register(DistributeOp)
def apply_distribute(state: TransformState, op: DistributeOp) -> Sequence[Payload]:
    """`schedule.distribute`."""
    loops = distribute(state.one(op.loop, scf.ForOp), state.one(op.op))
    return (loops.first,), (loops.second,)
