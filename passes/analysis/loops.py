"""The range of an index value, from the bounds of the loops around it."""

from __future__ import annotations

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, SSAValue


def constant_of(value: SSAValue) -> int | None:
    """The integer that `value` is, if an `arith.constant` defines it."""
    if isinstance(value.owner, arith.ConstantOp) and isinstance(value.owner.value, IntegerAttr):
        return value.owner.value.value.data
    return None


def trip_count(loop: scf.ForOp) -> int | None:
    """How often the body runs, if the bounds are constants."""
    lower, upper, step = (constant_of(value) for value in (loop.lb, loop.ub, loop.step))
    if lower is None or upper is None or not step:
        return None
    return max(0, -(-(upper - lower) // step))


def index_range(value: int | SSAValue) -> tuple[int, int] | None:
    """The least and the largest value that an index takes; None where that is not known."""
    if isinstance(value, int):
        return value, value
    if (constant := constant_of(value)) is not None:
        return constant, constant
    owner = value.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        if not isinstance(loop, scf.ForOp) or value is not owner.args[0]:
            return None
        lower, step, trips = constant_of(loop.lb), constant_of(loop.step), trip_count(loop)
        if lower is None or step is None or not trips:
            return None
        return lower, lower + (trips - 1) * step
    ranges = [index_range(operand) for operand in owner.operands]
    if len(ranges) != 2 or ranges[0] is None or ranges[1] is None:
        return None
    (a, b), (c, d) = ranges[0], ranges[1]
    match owner:
        case arith.AddiOp():
            return a + c, b + d
        case arith.SubiOp():
            return a - d, b - c
        case arith.MuliOp():
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        case arith.MinSIOp():
            return min(a, c), min(b, d)
        case arith.MaxSIOp():
            return max(a, c), max(b, d)
        case _:
            return None
