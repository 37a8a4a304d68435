# SPDX-License-Identifier: Apache-2.0
"""
Branches: at tensor level there are none, and the text says what becomes of `if`.

A condition of sizes and constants is decided when the kernel is compiled. One of the variable of a loop splits the
range of the loop, so that it is decided in each part. Any other one masks: what was there before keeps its value where
the condition does not hold, `t = select(condition, value, t)`, and both branches are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from typing import cast

from xdsl.dialects.builtin import AnyFloat, i1

from penstock.lowering.from_kernel.copies import loaded
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import Value, number_of
from penstock.lowering.from_kernel.symbols import NOTHING_STORED, LoopVariable, Symbols, Tensor
from penstock.lowering.from_kernel.syntax import (
    Access,
    Assignment,
    Binding,
    Block,
    Call,
    CallStatement,
    Expression,
    If,
    Name,
    Node,
    Number,
    Unary,
    rewritten,
    walk,
)

MOST_PARTS = 8
"""That the range of a loop is split into; where a condition changes more often, it masks."""
_MOST_VALUES = 1 << 16
"""Of the variables of a condition, which are looked at one by one."""


class Branches:
    """Lowers the branches of one kernel; `run` lowers the statements in them."""

    def __init__(self, symbols: Symbols, run: Callable[[Block], None]):
        self._symbols = symbols
        self._run = run
        self._masks = 0

    def run(self, statement: If) -> None:
        """Lower a branch. Raises Fault."""
        truths = self._truths(statement.condition)
        if truths is None or len(truths) > 1:
            self._mask(statement)
            return
        block = statement.then if truths.pop() else statement.otherwise
        if block is not None:
            self._run(block)

    def parts(self, name: str, values: range, body: Block) -> Iterator[range]:
        """The values of the variable of a loop, in parts in which the conditions of its body are decided."""
        decided = self._decided()
        starts = {0}
        for each in walk(body):
            if isinstance(each, If) and name in _names(each.condition) and len(values) <= _MOST_VALUES:
                truths = [number_of(each.condition, decided | {name: value}) for value in values]
                changes = {at for at in range(1, len(values)) if truths[at] != truths[at - 1]}
                if None not in truths and len(starts | changes) <= MOST_PARTS:
                    starts |= changes
        for first, last in pairwise([*sorted(starts), len(values)]):
            yield values[first:last]

    # conditions

    def _decided(self) -> dict[str, Value]:
        """The numbers there are, with the loop variables that have one value."""
        single = {each.name: each.first for each in self._symbols.variables() if each.first == each.last}
        return self._symbols.numbers | single

    def _truths(self, condition: Expression) -> set[bool] | None:
        """Whether a condition holds, for all values of the loop variables in it; None if it reads elements."""
        found = (self._symbols.find(name) for name in _names(condition))
        variables = [each for each in found if isinstance(each, LoopVariable)]
        if prod(len(each.values) for each in variables) > _MOST_VALUES:
            return None
        truths: set[bool] = set()
        for point in product(*(each.values for each in variables)):
            numbers = dict(zip((each.name for each in variables), point, strict=True))
            truth = number_of(condition, self._symbols.numbers | numbers)
            if truth is None:
                return None
            if not isinstance(truth, bool):
                raise Fault(f"a condition must hold or not hold, and this is {truth}", condition)
            truths.add(truth)
        return truths

    # masks

    def _mask(self, statement: If) -> None:
        """Lower both blocks, which change what was there before only where the condition holds, or does not."""
        self._symbols.enter()
        self._masks += 1
        mask = Name(f"if.{self._masks}", at=statement.condition.at)
        self._run(_block(Assignment(mask, "=", statement.condition, at=statement.condition.at)))
        found = self._symbols.tensor(mask.name, mask)
        if found.rank or found.element != i1:
            raise Fault("a condition must hold or not hold", statement.condition)
        self._masked(statement.then, mask)
        if statement.otherwise is not None:
            self._masked(statement.otherwise, Unary("not", mask, at=mask.at))
        self._symbols.leave()

    def _masked(self, block: Block, condition: Expression) -> None:
        self._symbols.enter()
        self._run(cast(Block, rewritten(block, lambda node: self._kept(node, condition))))
        self._symbols.leave()

    def _kept(self, node: Node, condition: Expression) -> Node | None:
        """A statement that changes what was there before only where a condition holds; None for another node."""
        match node:
            case CallStatement(call=Call(function="store", arguments=(Access() | Name() as target, value))):
                assert isinstance(value, Expression)
                return self._kept(Assignment(target, "=", value, at=node.at), condition)
            case Assignment():
                name = node.target.name if isinstance(node.target, Name) else node.target.tensor
                if not isinstance(tensor := self._symbols.find(name), Tensor):
                    return None
                if tensor.value is None or tensor.missing == NOTHING_STORED:
                    notes = ["the condition is not known when the kernel is compiled: give it a value first"]
                    raise Fault(f'"{name}" holds nothing before it is stored in a branch', node.target, notes)
                # What adds nothing: 0 would make 0 of -0.
                zero = Unary("-", Number("0.0"), at=node.at) if isinstance(tensor.element, AnyFloat) else Number("0")
                otherwise = zero if node.operator == "+=" else as_read(node.target)
                if isinstance(otherwise, Access):
                    # A last tile passes the end of the tensor; what is computed there is not stored.
                    otherwise = replace(otherwise, otherwise=Number("0", at=node.at))
                # A copy that may not be made is a choice of elements.
                chosen = loaded(node.value) or node.value
                value = Call("select", (condition, chosen, otherwise), at=node.value.at)
                return replace(node, value=value)
            case _:
                return None


def as_read(target: Name | Access) -> Name | Access:
    """What is assigned to, as an expression: what it holds."""
    if isinstance(target, Name):
        return target
    indices = (Name(each.name, at=each.at) if isinstance(each, Binding) else each for each in target.indices)
    return Access(target.tensor, tuple(indices), at=target.at)


def _names(node: Node) -> list[str]:
    return list(dict.fromkeys(each.name for each in walk(node) if isinstance(each, Name)))


def _block(*statements: Assignment) -> Block:
    return Block(statements, at=statements[0].at)
