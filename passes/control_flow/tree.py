# SPDX-License-Identifier: Apache-2.0
"""
Structured control flow as a tree, on its way from blocks to ops with regions.

The nodes say which variables they assign. A variable is the argument of a block, the result of an op, or a `Control`,
which is made to say where control goes. Sets of variables are upward exposed uses (`uses`: read before they are
assigned), those that are assigned on some way (`may`), and on all ways (`must`).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Attribute, Operation, SSAValue


@dataclass(frozen=True, eq=False)
class Control:
    """A variable of the lifting's own: which block comes next, or whether a loop has another iteration."""

    type: Attribute
    name_hint: str


Variable = SSAValue | Control


@dataclass(eq=False)
class Node:
    """A part of a function with one way in and one way out."""

    uses: AbstractSet[Variable] = field(init=False)
    may: AbstractSet[Variable] = field(init=False)
    must: AbstractSet[Variable] = field(init=False)

    def live_before(self, live: AbstractSet[Variable]) -> set[Variable]:
        """What is alive before it where `live` is alive after it."""
        return {*self.uses, *(live - self.must)}


@dataclass(eq=False)
class Ops(Node):
    """Ops one after the other."""

    ops: Sequence[Operation]

    def __post_init__(self) -> None:
        self.may = self.must = {result for op in self.ops for result in op.results}
        self.uses = {operand for op in self.ops for inner in op.walk() for operand in inner.operands} - self.must


@dataclass(eq=False)
class Assign(Node):
    """Variables that take values, all at once."""

    values: dict[Variable, Variable | int]

    def __post_init__(self) -> None:
        self.may = self.must = set(self.values)
        self.uses = {value for value in self.values.values() if not isinstance(value, int)}


@dataclass(eq=False)
class Steps(Node):
    """Nodes one after the other."""

    nodes: Sequence[Node]

    def __post_init__(self) -> None:
        self.may = {each for node in self.nodes for each in node.may}
        self.must = {each for node in self.nodes for each in node.must}
        self.uses = set[Variable]()
        for node in reversed(self.nodes):
            self.uses = node.live_before(self.uses)


@dataclass(eq=False)
class Choice(Node):
    """One of several arms, by the value of `flag`."""

    flag: Variable
    cases: list[list[int]]
    """The values on which each arm but the last is taken. The last is taken on all others."""
    arms: Sequence[Steps]
    location: LocationAttr

    def __post_init__(self) -> None:
        self.may = {each for arm in self.arms for each in arm.may}
        self.must = set[Variable].intersection(*(set(arm.must) for arm in self.arms))
        self.uses = {each for arm in self.arms for each in arm.uses} | {self.flag}


@dataclass(eq=False)
class Loop(Node):
    """`before` is done, and then, as long as `flag` is `goes_on`, `after` and `before` again."""

    carried: Sequence[Variable]
    """
    What is assigned in one iteration and read in the next. Nothing else is: a loop is entered again where it was
    entered first, and from there on, what dominates a use is computed anew.
    """
    before: Steps
    flag: Variable
    goes_on: bool
    after: Steps
    location: LocationAttr

    def __post_init__(self) -> None:
        self.may = {*self.before.may, *self.after.may}
        self.must = self.before.must
        self.uses = self.before.live_before({self.flag, *self.after.uses})
