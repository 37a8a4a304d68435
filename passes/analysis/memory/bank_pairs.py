# SPDX-License-Identifier: Apache-2.0
"""Which buffers of a scope intrinsics have as operands at once: they had better lie in different banks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from math import prod

from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.scf import ForOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.accel import ExecOp
from penstock.dialects.machine import ScopeOp
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.aliases import bits
from penstock.passes.analysis.memory.liveness import Allocation, Liveness, ProgramTime, function_around
from penstock.passes.planning.problem import Pair


def bank_pairs(scope: ScopeOp, ops: Mapping[str, Allocation], time: Liveness | ProgramTime) -> tuple[Pair, ...]:
    """
    The buffers that intrinsics have as operands at once, each pair with the `conflict` of the scope for every point of
    their domains: as many cycles as the conflict could cost if each application were of one point.
    """
    ids: dict[SSAValue, str] = {op.results[0]: id for id, op in ops.items()}
    found: dict[tuple[str, str], int] = {}
    for function in dict.fromkeys(function_around(op) for op in ops.values()):
        aliases = (time.of(function) if isinstance(time, ProgramTime) else time).aliases
        for op in function.walk():
            if isinstance(op, ExecOp):
                operands, points = op.buffers, prod(op.extents.get_values())
            elif isinstance(op, GenericOp) and op.library_call is not None:
                operands, points = op.operands, prod(op.get_static_loop_ranges())
            else:
                continue
            named = [
                {id for root in bits(aliases.of(value)) if (id := ids.get(aliases.roots[root])) is not None}
                for value in operands
            ]
            cost = scope.conflict_cycles * points * _trips_around(op)
            for one, other in combinations(named, 2):
                for first, second in product(sorted(one), sorted(other)):
                    if first != second:
                        key = min(first, second), max(first, second)
                        found[key] = found.get(key, 0) + cost
    return tuple(Pair(first, second, cost) for (first, second), cost in found.items())


def _trips_around(op: Operation) -> int:
    """How often the loops around an op run it, those of an unknown number of iterations once."""
    trips, parent = 1, op.parent_op()
    while parent is not None:
        trips *= (trip_count(parent) or 1) if isinstance(parent, ForOp) else 1
        parent = parent.parent_op()
    return trips
