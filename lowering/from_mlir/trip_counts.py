# SPDX-License-Identifier: Apache-2.0
"""The iterations of a loop whose condition depends on nothing but what is known before it, such as a counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.graph import GraphOp
from penstock.dialects.weights import Array, WeightStore
from penstock.runtime.interpreter.graph import evaluate_op

MOST_COUNTED = 16384
"""Iterations of a loop that are counted; of a longer one the condition is computed when the program runs."""


class KnownValues(Protocol):
    """What is known of values outside of a loop."""

    store: WeightStore

    def array_of(self, value: SSAValue) -> Array | None:
        """The value of a constant, if it is small; None of anything else."""
        ...


class _Slice:
    """The ops of a block on which one value depends."""

    def __init__(self, block: Block, result: SSAValue):
        self.block, self.result = block, result
        self.ops: list[Operation] = []
        self.outside: set[SSAValue] = set()
        """The arguments of the block, and what is outside, that it depends on."""
        wanted = {result}
        for op in reversed(list(block.ops)):
            if wanted.intersection(op.results):
                wanted.difference_update(op.results)
                wanted.update(op.operands)
                self.ops.insert(0, op)
        self.outside = wanted

    def value(self, given: dict[SSAValue, Array], store: WeightStore) -> Array | None:
        """The value, where it is computed by ops with one result."""
        found = dict(given)
        for op in self.ops:
            if not isinstance(op, GraphOp):
                return None
            (found[op.result],) = evaluate_op(op, [found[operand] for operand in op.operands], store)
        return found[self.result]


Body = tuple[Block, Sequence[SSAValue], Sequence[SSAValue]]
"""The body of a loop, its arguments for what is carried, or what stands for these, and what it gives."""


@dataclass
class _State:
    """What of a loop's state some values depend on, all of it known: how it begins and goes on."""

    known: dict[SSAValue, Array]
    """Of what is outside."""
    steps: dict[int, _Slice]
    now: dict[int, Array]

    @staticmethod
    def of(
        code: KnownValues, parts: Sequence[tuple[_Slice, Sequence[SSAValue]]], body: Body, inits: Sequence[SSAValue]
    ) -> _State | None:
        """That of these parts, each with its arguments; None where some of it is not known."""
        state, pending = _State({}, {}, {}), list(parts)
        while pending:
            part, arguments = pending.pop()
            for value in part.outside:
                if value in arguments:
                    number = arguments.index(value)
                    if number not in state.steps:
                        state.steps[number] = _Slice(body[0], body[2][number])
                        pending.append((state.steps[number], body[1]))
                elif (array := code.array_of(value)) is None:
                    return None
                else:
                    state.known[value] = array
        for number in state.steps:
            if (array := code.array_of(inits[number])) is None:
                return None
            state.now[number] = array
        return state

    def given(self, arguments: Sequence[SSAValue]) -> dict[SSAValue, Array]:
        """What is known before an iteration."""
        return self.known | {arguments[number]: array for number, array in self.now.items()}

    def advance(self, code: KnownValues, body: Body) -> bool:
        """Go on to the next iteration; False where that is not known."""
        given = self.given(body[1])
        for number, part in self.steps.items():
            if (array := part.value(given, code.store)) is None:
                return False
            self.now[number] = array
        return True


def trip_count(
    code: KnownValues,
    condition: tuple[Block, Sequence[SSAValue], SSAValue],
    body: Body,
    inits: Sequence[SSAValue],
) -> int | None:
    """
    How often the body is computed: both are blocks, their arguments for what is carried, and what they give.

    None where that depends on what only a run knows, and for more than `MOST_COUNTED`.
    """
    test = _Slice(condition[0], condition[2])
    if (state := _State.of(code, [(test, condition[1])], body, inits)) is None:
        return None
    for count in range(MOST_COUNTED + 1):
        goes_on = test.value(state.given(condition[1]), code.store)
        if goes_on is None:
            return None
        if not goes_on:
            return count
        if not state.advance(code, body):
            return None
    return None


def values_in(
    code: KnownValues, value: SSAValue, body: Body, inits: Sequence[SSAValue], trips: int
) -> list[Array] | None:
    """What a value of the body is in each iteration; None where only a run knows."""
    part = _Slice(body[0], value)
    if (state := _State.of(code, [(part, body[1])], body, inits)) is None:
        return None
    found: list[Array] = []
    for _ in range(trips):
        array = part.value(state.given(body[1]), code.store)
        if array is None or not state.advance(code, body):
            return None
        found.append(array)
    return found
