# SPDX-License-Identifier: Apache-2.0
"""Reductions of structured ops: the ops that combine, and which of them give the same bits in any order."""

from __future__ import annotations

from xdsl.dialects import math
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation

EXACT_COMBINERS = frozenset(
    f"arith.{name}" for name in "addi muli maxsi maxui minsi minui andi ori xori maximumf minimumf".split()
)
"""Of the ops that reductions combine with, those whose result is the same bits in any order."""
ROUNDING_COMBINERS = frozenset(("arith.addf", "arith.mulf", "math.fma"))
"""Those that round: another order is another result."""


def combiners(op: GenericOp) -> dict[int, str]:
    """For each output of a generic that every point combines with what does not depend on it: the op that combines."""
    block = op.body.block
    terminator = block.last_op
    assert terminator is not None
    found: dict[int, str] = {}
    for number, value in enumerate(terminator.operands, len(op.inputs)):
        argument, combining = block.args[number], value.owner
        if not isinstance(combining, Operation) or combining.name not in EXACT_COMBINERS | ROUNDING_COMBINERS:
            continue
        # A fused multiply-add combines a product with what it adds it to.
        if isinstance(combining, math.FmaOp) and combining.c is not argument:
            continue
        # A sum that is read on the way to its end is one of another order.
        if argument.has_one_use() and value.has_one_use() and argument in combining.operands:
            found[number] = combining.name
    return found
