# SPDX-License-Identifier: Apache-2.0
"""What xDSL 0.74 does not say of the cf dialect: which values terminators hand to which successors, on which cases."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import cf
from xdsl.dialects.builtin import DenseIntElementsAttr, IntegerType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.hints import isa


def handed_to_successors(terminator: Operation) -> list[tuple[Block, Sequence[SSAValue]]]:
    """
    The successors of a terminator, and what it hands to each.

    Of an unknown terminator anything may go anywhere, which is said by handing every operand to every argument.
    """
    match terminator:
        case cf.BranchOp():
            return [(terminator.successor, terminator.arguments)]
        case cf.ConditionalBranchOp():
            return [
                (terminator.then_block, terminator.then_arguments),
                (terminator.else_block, terminator.else_arguments),
            ]
        case cf.SwitchOp():
            found: list[tuple[Block, Sequence[SSAValue]]] = [(terminator.default_block, terminator.default_operands)]
            first = 0
            for successor, count in zip(
                terminator.case_blocks, terminator.case_operand_segments.get_values(), strict=True
            ):
                found.append((successor, terminator.case_operands[first : first + count]))
                first += count
            return found
        case _:
            successors, operands = terminator.successors, terminator.operands
            everywhere: list[tuple[Block, Sequence[SSAValue]]] = [(successor, ()) for successor in successors]
            everywhere += [(successor, [value] * len(successor.args)) for successor in successors for value in operands]
            return everywhere


TOO_MANY_TRIPS = "a run asks for more than {} iterations"
"""What is wrong where a `cf.assert` does not hold that stands for the bound of a loop."""


def is_bound_of_a_loop(op: cf.AssertOp) -> bool:
    """Whether an assertion stands for the bound of a loop, and is none that the program itself makes."""
    first, last = TOO_MANY_TRIPS.split("{}")
    return op.msg.data.startswith(first) and op.msg.data.endswith(last)


def cases_of(switch: cf.SwitchOp) -> list[int]:
    """The values of the flag that choose each successor but the first, which is the default; signed, but for i1."""
    if switch.case_values is None:
        return []
    assert isa(switch.case_values, DenseIntElementsAttr)
    type = switch.flag.type
    width = type.width.data if isa(type, IntegerType) else 64
    bias = 0 if width == 1 else 1 << (width - 1)
    return [(int(value) + bias) % (1 << width) - bias for value in switch.case_values.get_values()]
