# SPDX-License-Identifier: Apache-2.0
"""Redundant tokens against a graph of all events: what is left out changes no order, what remains does."""

from __future__ import annotations

from random import Random

import pytest
from loop_nests import Nest, kernel_of
from mutants import keeps_order
from redundancy import redundant_operands
from xdsl.dialects import func

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.schedule.ordering.tokens import set_dependencies


def without(kernel: func.FuncOp, position: int, operands: set[int]) -> func.FuncOp:
    """A copy of a kernel whose command at a position comes after those dependencies no more."""
    copy = kernel.clone()
    op = list(copy.walk())[position]
    assert isinstance(op, DmaOp | ExecOp)
    set_dependencies(op, [value for number, value in enumerate(op.dependencies) if number not in operands])
    return copy


@pytest.mark.parametrize("seed", range(30))
def test_a_token_is_redundant_if_the_order_is_the_same_without_it(seed: int) -> None:
    random = Random(seed)
    kernel, target = kernel_of(Nest(random, trips=(1, 2, 3)).text(), outstanding=random.choice((1, 4)))
    try:
        whole = trace(kernel, target, limit=90)
    except UserError:
        return
    found = redundant_operands(kernel, target)
    positions = {op: number for number, op in enumerate(kernel.walk())}
    gone: dict[int, set[int]] = {}
    for op, operand in found:
        gone.setdefault(positions[op], set()).add(operand)
    least = kernel
    for position, operands in gone.items():
        least = without(least, position, operands)
    assert keeps_order(whole, trace(least, target))
    left = 0
    for position, op in enumerate(least.walk()):
        if isinstance(op, DmaOp | ExecOp):
            for operand in range(len(op.dependencies)):
                left += 1
                assert not keeps_order(whole, trace(without(least, position, {operand}), target)), (position, operand)
    tokens = sum(len(op.dependencies) for op in kernel.walk() if isinstance(op, DmaOp | ExecOp))
    assert left == tokens - len(found)
