# SPDX-License-Identifier: Apache-2.0
"""The groups of a block: its ops as nodes for `fusion_groups`, and our rules for what only moves elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.graph import (
    CastOp,
    ConcatOp,
    ConstantOp,
    FusedOp,
    GraphOp,
    HasPatternKind,
    PadOp,
    PatternKind,
    pattern_kind,
    tensor_of,
)
from penstock.dialects.mem import element_bytes
from penstock.passes.graph.fusion.groups import MAX_OPS, FusionNode, Group, Kind, Stop, Use, Veto, fusion_groups
from penstock.passes.graph.values import is_view

NOT_GROUPED = (ConcatOp, ConstantOp, FusedOp)
"""Ops that are no kernel alone, beside views: constants, a concatenation (its producers write into it), and groups."""

_KINDS = {kind: Kind[kind.name] for kind in PatternKind}


def is_graph_op(op: Operation) -> bool:
    """Whether `op` is an operator with one result, of this dialect or of a plug-in."""
    known = isinstance(op, GraphOp | FusedOp) or op.get_trait(HasPatternKind) is not None
    return known and not isinstance(op, ConstantOp) and len(op.results) == 1


def is_groupable(op: Operation) -> bool:
    """Whether `op` computes something, and is to be in a group."""
    return is_graph_op(op) and not isinstance(op, NOT_GROUPED) and not is_view(op)


def in_post_order(block: Block) -> list[Operation]:
    """
    The operators of a block, each after those that it reads, the largest result before its siblings.

    Where two contractions meet, as at a residual addition, the one whose result is larger then takes the addition:
    that of the other goes from kernel to kernel. Of equal ones it is the one that is computed last: the operands of the
    other would have to live until then.
    """
    position = {op: index for index, op in enumerate(block.ops)}
    order: list[Operation] = []
    seen: set[Operation] = set()
    pending = [(op, False) for op in position]
    while pending:
        op, read = pending.pop()
        if read:
            order.append(op)
        elif op not in seen and is_graph_op(op):
            seen.add(op)
            pending.append((op, True))
            owners = {operand.owner for operand in op.operands}
            producers = [
                owner for owner in owners if isinstance(owner, Operation) and owner in position and is_graph_op(owner)
            ]
            pending += [
                (each, False) for each in sorted(producers, key=lambda each: (_bytes_between(each), position[each]))
            ]
    return order


def _bytes_between(op: Operation) -> int:
    """
    What the result of an op takes between kernels, of which the one that reads it widens it: see `_narrow_results`.
    Sizes that are not known count as 1.
    """
    type = tensor_of(op.operands[0] if _widens(op) else op.results[0])
    return prod(size for size in type.get_shape() if size != DYNAMIC_INDEX) * element_bytes(type)


def splat(value: SSAValue) -> ConstantOp | None:
    """The constant that `value` is if it is one number, in the text: groups repeat it inside."""
    owner = value.owner
    if not isinstance(owner, ConstantOp) or owner.weight is not None:
        return None
    dense = owner.dense
    # A constant without elements is no number.
    return owner if len(dense) == 1 or (len(dense) > 1 and dense.is_splat()) else None


def kind_at(op: Operation, operand: SSAValue) -> Kind:
    """
    The kind of `op` as seen from an operand: one that has the shape of the result is not repeated.

    What is padded is not computed in the same kernel: a tile of the pad would be a window of a tile, with borders.
    """
    if isinstance(op, PadOp):
        return Kind.OPAQUE
    kind = _KINDS[pattern_kind(op)]
    same = kind == Kind.BROADCAST and tensor_of(operand).get_shape() == tensor_of(op.results[0]).get_shape()
    return Kind.ELEMENTWISE if same else kind


@dataclass
class FusionGraph:
    """The nodes of a block, a tuple before each concatenation that is not opaque; and which op each one is."""

    nodes: list[FusionNode] = field(default_factory=list[FusionNode])
    ops: list[Operation] = field(default_factory=list[Operation])
    """Of each node; of a tuple the concatenation."""

    @staticmethod
    def of(block: Block, opaque: AbstractSet[Operation]) -> FusionGraph:
        """The graph of a block; concatenations in `opaque` are not fused."""
        graph = FusionGraph()
        kinds: list[Kind] = []
        number: dict[Operation, int] = {}
        for op in in_post_order(block):
            if isinstance(op, ConcatOp) and op not in opaque:
                kinds.append(Kind.TUPLE)
                graph.ops.append(op)
            number[op] = len(graph.ops)
            graph.ops.append(op)
            kinds.append(Kind.OPAQUE if op in opaque or isinstance(op, FusedOp) else _KINDS[pattern_kind(op)])
        for index, (op, kind) in enumerate(zip(graph.ops, kinds, strict=True)):
            graph.nodes.append(graph._node(op, kind, index, number, opaque))
        return graph

    def _node(
        self, op: Operation, kind: Kind, index: int, number: Mapping[Operation, int], opaque: AbstractSet[Operation]
    ) -> FusionNode:
        reads = tuple(operand for operand in op.operands if operand.owner not in number and splat(operand) is None)
        if kind == Kind.TUPLE:
            return FusionNode(kind, (Use(number[op], Kind.INJECTIVE),), reads=reads)
        uses: dict[Use, None] = {}
        escapes = False
        for use in op.results[0].uses:
            user = use.operation
            if user not in number:
                escapes = True
            elif isinstance(user, ConcatOp) and user not in opaque:
                uses[Use(number[user] - 1, Kind.INJECTIVE)] = None
            else:
                seen = Kind.OPAQUE if user in opaque else kind_at(user, op.results[0])
                uses[Use(number[user], seen)] = None
        through_tuple = isinstance(op, ConcatOp) and op not in opaque
        ordered = tuple(sorted(uses, key=lambda each: each.consumer))
        return FusionNode(kind, ordered, escapes, () if through_tuple else reads)


@dataclass(frozen=True)
class PlannedGroup:
    """Ops of a block that become one kernel, in the order of the block."""

    members: tuple[Operation, ...]
    root: Operation
    """The one that computes the result."""
    end: Operation
    """The op at which it stopped growing: the root, or a view of its result, which stays outside."""
    stop: Stop
    """Why it is not larger."""


def planned_groups(
    block: Block,
    make_veto: Callable[[FusionGraph], Veto | None],
    *,
    max_ops: int = MAX_OPS,
    max_arguments: int | None = None,
    fits: Callable[[Sequence[Operation]], bool] | None = None,
) -> tuple[FusionGraph, list[PlannedGroup]]:
    """
    The groups of a block that are kernels, in the order in which they are computed, and the graph they are found in.

    Views at the start and at the end of a group leave it. A concatenation of anything that is not computed in its
    group is opaque: outside, each producer writes its part into the whole, and inside the parts would be copied.
    """
    position = {op: index for index, op in enumerate(block.ops)}
    opaque: set[Operation] = set()
    while True:
        graph = FusionGraph.of(block, opaque)
        groups = fusion_groups(
            graph.nodes,
            max_ops=max_ops,
            max_arguments=max_arguments,
            veto=make_veto(graph),
            fits=None if fits is None else partial(_fit, graph, fits),
        )
        found = [(group, _without_views(group, graph, position)) for group in groups]
        outside = [op for _, members in found for op in members if _is_copied(op, members)]
        if not outside:
            break
        opaque.update(outside)
    planned = [
        PlannedGroup(tuple(members), members[-1], graph.ops[group.members[-1]], group.stop)
        for group, members in found
        if any(is_groupable(op) for op in members)
    ]
    planned = _narrow_results(planned, position)
    return graph, sorted(planned, key=lambda group: position[group.root])


def _fit(graph: FusionGraph, fits: Callable[[Sequence[Operation]], bool], members: Sequence[int]) -> bool:
    return fits([graph.ops[member] for member in members])


def _narrow_results(planned: Sequence[PlannedGroup], position: Mapping[Operation, int]) -> list[PlannedGroup]:
    """
    The groups where one that ends by widening integers for a single other group leaves that to it: what goes from
    kernel to kernel then is what it was before, a quarter of the bytes for a shortcut of 8 bits that is added in 32.
    """
    home = {op: number for number, group in enumerate(planned) for op in group.members}
    members = [list(group.members) for group in planned]
    roots = [group.root for group in planned]
    for number, last in enumerate(list(roots)):
        readers = {home.get(use.operation) for use in last.results[0].uses}
        if not _widens(last) or len(readers) != 1 or (reader := readers.pop()) is None or reader == number:
            continue
        before = last.operands[0].owner
        if len(members[number]) > 1 and (not isinstance(before, Operation) or is_view(before)):
            continue
        members[number].remove(last)
        members[reader] = sorted([*members[reader], last], key=lambda op: position[op])
        if members[number]:
            assert isinstance(before, Operation)
            roots[number] = before
    return [
        PlannedGroup(tuple(_anchored(ops)), root, group.end, group.stop)
        for ops, root, group in zip(members, roots, planned, strict=True)
        if ops
    ]


def _anchored(members: Sequence[Operation]) -> list[Operation]:
    """
    The ops of a group, what follows its contraction right after it: what else that needs comes before. The order in
    which the graph was written then makes no other kernel.
    """
    anchor = next((op for op in members if _KINDS[pattern_kind(op)] == Kind.COMPLEX_OUT_FUSABLE), None)
    after = {anchor}
    for op in members:
        if any(operand.owner in after for operand in op.operands):
            after.add(op)
    return sorted(members, key=lambda op: op in after)


def _widens(op: Operation) -> bool:
    """Whether an op casts integers to wider ones."""
    if not isinstance(op, CastOp):
        return False
    before, after = tensor_of(op.x).element_type, tensor_of(op.result).element_type
    return isa(before, IntegerType) and isa(after, IntegerType) and 1 < before.bitwidth < after.bitwidth


def _without_views(group: Group, graph: FusionGraph, position: Mapping[Operation, int]) -> list[Operation]:
    """The ops of a group but for the views of what comes from outside and those that its result is seen through."""
    kept: dict[Operation, None] = {}
    for op in dict.fromkeys(graph.ops[index] for index in group.members):
        if not is_view(op) or op.operands[0].owner in kept:
            kept[op] = None
    root = graph.ops[group.members[-1]]
    while root in kept and is_view(root):
        del kept[root]
        root = root.operands[0].owner
        assert isinstance(root, Operation)
    return sorted(kept, key=lambda op: position[op])


def _is_copied(op: Operation, members: Sequence[Operation]) -> bool:
    """Whether `op` concatenates in a kernel what is not computed there."""
    together = len(members) > 1 and isinstance(op, ConcatOp)
    return together and not all(operand.owner in members for operand in op.operands)
