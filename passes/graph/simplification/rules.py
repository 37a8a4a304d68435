"""Rewriting by rules: what a rule is, and the pattern that applies the rules of an op's class to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.graph import ConstantOp, ConvOp, GraphOp, tensor_of
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.values import constant_of, derived
from penstock.runtime.interpreter.graph import evaluate_op


@dataclass
class Nodes:
    """The ops that a rule makes out of `op`, each at the place of `op` in the source."""

    op: Operation
    store: WeightStore
    ops: list[GraphOp] = field(default_factory=list[GraphOp])

    def add(self, op: GraphOp, part: str = "") -> SSAValue:
        """Append an op; one on the way to the result has a `part` of its own."""
        op.location = derived(self.op.location, part) if part else self.op.location
        if part:
            op.result.name_hint = part
        elif not isinstance(op, ConvOp):
            # The value is the same one: what passes noted about it, such as its layout, still holds.
            op.attributes = self.op.attributes.copy()
        self.ops.append(op)
        return op.result

    def constant(self, array: Array, part: str) -> SSAValue:
        """Append a constant."""
        return self.add(constant_of(array, part, self.store, self.op.location), part)


Rule: TypeAlias = Callable[[Any, Nodes], SSAValue | None]
"""Takes an op, and gives the value that its result is equal to, made of existing ones and `Nodes`; None: not here."""

Rules: TypeAlias = Mapping[type[Operation], Sequence[Rule]]


def joined(*tables: Rules) -> dict[type[Operation], list[Rule]]:
    """The rules of several tables, in their order."""
    found: dict[type[Operation], list[Rule]] = {}
    for table in tables:
        for op_class, rules in table.items():
            found.setdefault(op_class, []).extend(rules)
    return found


@dataclass
class ApplyRules(RewritePattern):
    """
    Replaces a graph op by the value of the first of its rules that has one.

    A rule only sees ops of the class that it is listed for, so that the time does not depend on how many there are.
    """

    rules: Rules
    store: WeightStore

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        for rule in self.rules.get(type(op), ()):
            nodes = Nodes(op, self.store)
            value = rule(op, nodes)
            if value is None:
                discard(nodes.ops)
                continue
            assert value.type == op.results[0].type, f"{op.name}: a rule gives {value.type}"
            rewriter.insert(nodes.ops)
            rewriter.replace(op, [], [value])
            return


def number_of(value: SSAValue) -> np.generic | None:
    """The number that every element of a constant in the text is, in its element type."""
    owner = value.owner
    if not isinstance(owner, ConstantOp) or owner.weight is not None:
        return None
    (array,) = evaluate_op(owner, [], WeightStore())
    if not array.size or array.tobytes() != array.ravel()[:1].tobytes() * array.size:
        return None
    return array.ravel()[0]


_FEW = 64


def is_short_constant(value: SSAValue) -> bool:
    """Whether a value is computed from constants in a few ops: asked of any value, this takes no time that grows."""
    seen: set[SSAValue] = set()
    pending = [value]
    while pending and len(seen) <= _FEW:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if not isinstance(current.owner, GraphOp):
            return False
        pending.extend(current.owner.operands)
    return not pending


def has_type_of(value: SSAValue, op: GraphOp) -> bool:
    """Whether a value could be the result of `op`."""
    return value.type == op.result.type


def with_operands(op: GraphOp, operands: Sequence[SSAValue]) -> GraphOp:
    """`op` on other operands, with the result type that follows from them; raises VerifyException if none does."""
    new = type(op).create(operands=operands, result_types=[op.result.type], properties=op.properties.copy())
    try:
        inferred = new.infer_type()
    except VerifyException:
        discard([new])
        raise
    if inferred == op.result.type:
        return new
    discard([new])
    return type(op).create(operands=operands, result_types=[inferred], properties=op.properties.copy())


def keeps_type(op: GraphOp, operands: Sequence[SSAValue]) -> GraphOp | None:
    """`op` on other operands, if its result has the type that it had."""
    try:
        new = with_operands(op, operands)
    except VerifyException:
        return None
    if has_type_of(new.result, op):
        return new
    discard([new])
    return None


def discard(ops: Sequence[Operation]) -> None:
    """Ops that were made and are not wanted: they no longer use anything."""
    for op in reversed(ops):
        op.erase()


def is_integral(value: SSAValue) -> bool:
    """Whether a value has integer elements, whose sums and products wrap and are the same in any order."""
    return str(tensor_of(value).element_type).lstrip("us").startswith("i")
