# SPDX-License-Identifier: Apache-2.0
"""Reordering the loops of a nest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from xdsl.builder import Builder
from xdsl.dialects import scf
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_loops import ReorderOp
from penstock.passes.analysis.loop_dependences import LoopDependence, NestMemory, name_of
from penstock.passes.analysis.loops import constant_of, is_inside
from penstock.passes.analysis.reductions import ROUNDING_COMBINERS
from penstock.passes.index_builder import materialize
from penstock.passes.schedule.loop_nests import body_of, iterations_of, perfect_nest, sink_pure_ops
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


def reorder(loops: Sequence[scf.ForOp], *, reassociate: bool = False) -> None:
    """
    Nest the loops of a perfect nest in another order: `loops` are those that change places, the outermost first.

    Loops of the nest that are not listed stay where they are, and pure ops between loops go inside. Legal where no
    dependence is reversed: the direction vectors, permuted, stay lexicographically positive. Of a reduction the order
    in which each element is added to is kept, unless its ops give the same bits in any order (as those of integers do),
    or sums of floats may be rounded otherwise (`reassociate`).

    Raises UserError, which names the dependence, where the order is not legal, where the nest is not perfect, and
    where bounds are not constant.

    Before:
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<6x4xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %c6 = arith.constant 6 : index
      scf.for %i = %c0 to %c4 step %c1 {
        scf.for %j = %c0 to %c6 step %c1 {
          %v = memref.load %x[%i, %j] : memref<4x6xf32>
          memref.store %v, %y[%j, %i] : memref<6x4xf32>
        }
      }
      func.return
    }
    ```
    After (`schedule.reorder %j, %i`):
    ```mlir
    func.func @k(%x: memref<4x6xf32>, %y: memref<6x4xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %c6 = arith.constant 6 : index
      scf.for %j = %c0 to %c6 step %c1 {
        scf.for %i = %c0 to %c4 step %c1 {
          %v = memref.load %x[%i, %j] : memref<4x6xf32>
          memref.store %v, %y[%j, %i] : memref<6x4xf32>
        }
      }
      func.return
    }
    ```
    """
    nest = _nest_of(loops)
    order = _permuted(nest, loops)
    for loop in nest:
        iterations_of(loop)
    _check(nest, order, reassociate)
    _hoist_bounds(nest)
    sink_pure_ops(nest)
    _renest(nest, order)


@PRIMITIVES.register(ReorderOp)
def apply_reorder(state: TransformState, op: ReorderOp) -> Sequence[Payload]:
    """`schedule.reorder`."""
    reorder([state.one(loop, scf.ForOp) for loop in op.loops], reassociate=op.reassociate is not None)
    return ()


def _hoist_bounds(nest: Sequence[scf.ForOp]) -> None:
    """Make the constants that are bounds anew before the nest, where they are defined within."""
    builder = Builder(InsertPoint.before(nest[0]))
    for loop in nest[1:]:
        for number, bound in enumerate((loop.lb, loop.ub, loop.step)):
            constant = constant_of(bound)
            if is_inside(bound, nest[0]) and constant is not None:
                loop.operands[number] = materialize(builder, constant)


def _renest(nest: Sequence[scf.ForOp], order: Sequence[scf.ForOp]) -> None:
    """Nest the loops in another order, around the same body."""
    block, following = nest[0].parent, nest[0].next_op
    assert block is not None
    assert following is not None
    body = body_of(nest[-1])
    for op in (*body, *nest):
        op.detach()
    block.insert_op_before(order[0], following)
    for outer, inner in pairwise(order):
        outer.body.block.insert_ops_before([inner], _end(outer))
    order[-1].body.block.insert_ops_before(body, _end(order[-1]))


def _end(loop: scf.ForOp) -> Operation:
    """The op that ends the body of a loop."""
    terminator = loop.body.block.last_op
    assert terminator is not None
    return terminator


def _nest_of(loops: Sequence[scf.ForOp]) -> tuple[scf.ForOp, ...]:
    """The nest from the outermost of some loops to the innermost of them."""
    if len(set(loops)) < 2 or len(set(loops)) != len(loops):
        raise UserError(
            "two loops or more are reordered, each listed once", loc=location_of(loops[0]) if loops else None
        )

    def depth(loop: scf.ForOp) -> int:
        count, parent = 0, loop.parent_op()
        while parent is not None:
            count, parent = count + 1, parent.parent_op()
        return count

    by_depth = sorted(loops, key=depth)
    nest = perfect_nest(by_depth[0], by_depth[-1])
    for loop in loops:
        if loop not in nest:
            raise UserError(f"{name_of(loop)} is not in the nest of {name_of(nest[-1])}", loc=location_of(loop))
    return nest


def _permuted(nest: Sequence[scf.ForOp], loops: Sequence[scf.ForOp]) -> list[scf.ForOp]:
    """The nest with the listed loops in the order of the list, in the places that they have."""
    listed = iter(loops)
    return [next(listed) if loop in loops else loop for loop in nest]


def _check(nest: Sequence[scf.ForOp], order: Sequence[scf.ForOp], reassociate: bool) -> None:
    places = [nest.index(loop) for loop in order]
    for dependence in NestMemory.around(nest[0]).dependences(nest, of_values=True):
        if not dependence.is_fixed(reassociate=reassociate):
            continue
        first = next(dependence.directions[place] for place in places if dependence.directions[place])
        if first < 0:
            raise _reversed(order, dependence)


def _reversed(order: Sequence[scf.ForOp], dependence: LoopDependence) -> UserError:
    names = ", ".join(map(name_of, order))
    notes = [str(dependence)]
    if dependence.combiner in ROUNDING_COMBINERS:
        notes.append("the sums would be rounded in another order: `reassociate` permits that")
    return UserError(f"the order {names} reverses a dependence", loc=location_of(dependence.source.op), notes=notes)
