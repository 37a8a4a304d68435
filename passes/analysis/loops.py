# SPDX-License-Identifier: Apache-2.0
"""Loops: constants, trip counts, and the loops around an op."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from xdsl.dialects import func, gpu, scf
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.scf import THREADS, ForallOp, forall_around


def constant_of(value: SSAValue) -> int | None:
    """The integer that `value` is, if an `arith.constant` defines it."""
    if isinstance(value.owner, ConstantOp) and isinstance(value.owner.value, IntegerAttr):
        return value.owner.value.value.data
    return None


def count_between(lower: SSAValue, upper: SSAValue, step: SSAValue) -> int | None:
    """How many numbers there are from `lower` to below `upper` in steps, if these are constants."""
    first, end, by = constant_of(lower), constant_of(upper), constant_of(step)
    return None if first is None or end is None or not by else max(0, -(-(end - first) // by))


def trip_count(loop: scf.ForOp) -> int | None:
    """How often the body runs, if the bounds are constants."""
    return count_between(loop.lb, loop.ub, loop.step)


def forall_iterations(loop: ForallOp) -> list[tuple[int, int, int]] | None:
    """The first index, the step and the number of iterations in each dim, if the bounds of all are constants."""
    found: list[tuple[int, int, int]] = []
    for bounds in zip(loop.lower_bounds, loop.upper_bounds, loop.steps, strict=True):
        lower, upper, step = (each if isinstance(each, int) else constant_of(each) for each in bounds)
        if lower is None or upper is None or not step:
            return None
        found.append((lower, step, max(0, -(-(upper - lower) // step))))
    return found


def iteration_count(loop: ForallOp) -> int | None:
    """How many iterations run at once, if the bounds of all dims are constants."""
    found = forall_iterations(loop)
    return None if found is None else prod(count for _, _, count in found)


def threads_of(loop: ForallOp) -> int:
    """How many threads run the iterations of a loop: one, unless it says more."""
    threads = loop.attributes.get(THREADS)
    return threads.value.data if isinstance(threads, IntegerAttr) else 1


def obstacle_to_threads(loop: ForallOp) -> str | None:
    """Why no threads run the iterations of a loop; None where they can."""
    if forall_iterations(loop) is None:
        return "its bounds are no constants"
    if loop.outputs:
        return "its iterations share tensors"
    if forall_around(loop) is not None:
        return "it is inside another one"
    inner = next((op for op in loop.walk() if isinstance(op, func.CallOp | gpu.BarrierOp)), None)
    return None if inner is None else f"{inner.name} is in it"


def uses_threads(loop: ForallOp) -> bool:
    """Whether iterations of a loop run in several threads: the loop says so, and nothing is in the way."""
    return threads_of(loop) > 1 and obstacle_to_threads(loop) is None


def iterations(loops: Iterable[scf.ForOp]) -> int | None:
    """How often the body of a nest runs, if the bounds of all its loops are constants."""
    trips = [trip_count(loop) for loop in loops]
    return None if None in trips else prod(trip for trip in trips if trip is not None)


def loops_around(op: Operation) -> tuple[scf.ForOp, ...]:
    """
    All loops around `op`, outermost first, whatever other ops there are in between.

    Raises UserError for `scf.forall`, whose iterations nothing counts that asks this.
    """
    loops: list[scf.ForOp] = []
    parent = op.parent_op()
    while parent is not None:
        if isinstance(parent, scf.ForOp):
            loops.append(parent)
        if isinstance(parent, ForallOp):
            raise UserError(
                f"the iterations of scf.forall around {op.name} are not looked at one after the other here",
                loc=location_of(parent),
                notes=["run `forall-to-for` before"],
            )
        parent = parent.parent_op()
    return tuple(reversed(loops))


def nest_around(op: Operation) -> tuple[scf.ForOp, ...]:
    """The loops around `op` up to the first op that is no loop, outermost first."""
    loops: list[scf.ForOp] = []
    while isinstance(parent := op.parent_op(), scf.ForOp):
        loops.append(parent)
        op = parent
    return tuple(reversed(loops))


def is_inside(value: SSAValue, op: Operation) -> bool:
    """Whether `value` is defined within `op`."""
    return op.is_ancestor(value.owner) and value.owner is not op
