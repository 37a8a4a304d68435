# SPDX-License-Identifier: Apache-2.0
"""Bodies of structured ops that add a product to their output: what makes a contraction, however it is spelled."""

from __future__ import annotations

from xdsl.dialects import arith, math
from xdsl.ir import Block, SSAValue


def added_product(block: Block) -> tuple[SSAValue, SSAValue] | None:
    """
    The factors a and b of a body with one output that yields `output + a * b`, in two ops or in one that rounds once,
    `math.fma a, b, output`; None for another body.
    """
    terminator = block.last_op
    if terminator is None or len(terminator.operands) != 1 or not block.args:
        return None
    output, total = block.args[-1], terminator.operands[0].owner
    match total:
        case math.FmaOp() if total.c is output:
            return total.a, total.b
        case arith.AddfOp() | arith.AddiOp() if output in total.operands:
            term = total.rhs if total.lhs is output else total.lhs
            return (term.owner.lhs, term.owner.rhs) if isinstance(term.owner, arith.MulfOp | arith.MuliOp) else None
        case _:
            return None
