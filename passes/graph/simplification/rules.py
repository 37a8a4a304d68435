# SPDX-License-Identifier: Apache-2.0
"""Rewriting by rules: what a rule is, and the pattern that applies the rules of an op's class to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
)
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.values import NodeBuilder, is_constant, rebuilt

Rule: TypeAlias = Callable[[Any, NodeBuilder], SSAValue | None]
"""Takes an op, and gives the value that its result is equal to, made of existing ones and new nodes; None: not here."""

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
            nodes = NodeBuilder(op.location, self.store, op.attributes)
            value = rule(op, nodes)
            if value is None:
                discard(nodes.ops)
                continue
            assert value.type == op.results[0].type, f"{op.name}: a rule gives {value.type}"
            rewriter.insert(nodes.ops)
            rewriter.replace(op, [], [value])
            return


def identity(op: GraphOp, nodes: NodeBuilder) -> SSAValue | None:
    """The rule of ops that may be the identity."""
    return op.operands[0] if op.is_identity() else None


def apply_rules(rules: Rules, store: WeightStore, block: Block) -> None:
    """Apply rules to the ops of a block until none applies."""
    assert block.parent is not None
    PatternRewriteWalker(GreedyRewritePatternApplier([ApplyRules(rules, store)])).rewrite_region(block.parent)


def is_short_constant(value: SSAValue) -> bool:
    """Whether a value is computed from constants in at most 64 ops: asked of any value, this takes bounded time."""
    return is_constant(value, 64)


def has_type_of(value: SSAValue, op: GraphOp) -> bool:
    """Whether a value could be the result of `op`."""
    return value.type == op.result.type


def with_operands(op: GraphOp, operands: Sequence[SSAValue]) -> GraphOp | None:
    """`op` on other operands, if the type of its result stays what it is; else None."""
    new = rebuilt(op, operands)
    try:
        inferred = new.infer_type()
    except VerifyException:
        inferred = None
    if inferred == op.result.type:
        return new
    discard([new])
    return None


def discard(ops: Sequence[Operation]) -> None:
    """Erase ops that were made and are not needed."""
    for op in reversed(ops):
        op.erase()


def is_integral(value: SSAValue) -> bool:
    """Whether a value has integer elements, whose sums and products wrap and are the same in any order."""
    return isinstance(tensor_of(value).element_type, IntegerType)
