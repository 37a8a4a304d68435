# SPDX-License-Identifier: Apache-2.0
"""
Which operators become one kernel: TVM's six pattern kinds and its post-dominator algorithm, on plain data.

A graph is a list of nodes in a topological order. Three phases visit them in that order; each visit asks whether
the node, with all that lies on any path from it to its immediate post-dominator, merges with the group of that
post-dominator. So a diamond merges as a whole or not at all, and every group has one result, that of its last node.

See Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 3, and the
graph partitioner that TVM ships. There the paper's rule that a reduction takes its injective inputs has become
narrower: it takes elementwise and broadcasting ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from xdsl.utils.disjoint_set import IntDisjointSet

MAX_OPS = 256
"""Nodes in one group, as in TVM."""


class Kind(IntEnum):
    """How an operator may be fused; the larger the harder."""

    ELEMENTWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCTION = 3
    COMPLEX_OUT_FUSABLE = 4
    TUPLE = 7
    """What a concatenation reads, as one node before it."""
    OPAQUE = 8


@dataclass(frozen=True)
class Use:
    """A node that reads the result of another one, and how: what kind it is seen from that operand."""

    consumer: int
    kind: Kind


@dataclass(frozen=True)
class FusionNode:
    """One operator."""

    kind: Kind
    uses: tuple[Use, ...] = ()
    """By nodes; each comes later in the list."""
    escapes: bool = False
    """Whether something that is no node reads the result as well, or the function returns it."""
    reads: tuple[Hashable, ...] = ()
    """What it reads that no node computes: weights, and arguments of the function."""


class Rule(Enum):
    """Why a group did not merge with that of its last node's immediate post-dominator."""

    ESCAPES = "its result is read outside"
    UNUSED = "nothing reads its result"
    OPAQUE = "it is opaque"
    NO_JOIN = "no operator joins the paths from it"
    REDUCTION = "nothing follows a reduction"
    EDGE = "it is not read element by element, or in any way that its kind allows"
    ANCHORS = "both have a contraction, a pool or a reduction"
    PATH = "an operator between them takes no part"
    TUPLE = "what is concatenated does not go on element by element"
    TOO_MANY_OPS = "it would have too many operators"
    TOO_MANY_ARGUMENTS = "it would have too many arguments"
    VETO = "the strategy refuses it"


@dataclass(frozen=True)
class Stop:
    """Where and why a group stopped growing."""

    rule: Rule
    toward: int | None = None
    """The node with whose group it would have merged."""
    blocker: int | None = None
    """The node to which the rule applies, where that is another one."""
    words: str = ""
    """What a strategy says of it."""


@dataclass(frozen=True)
class Group:
    """Nodes that become one kernel, in order; the last one computes its result."""

    members: tuple[int, ...]
    stop: Stop


Veto = Callable[[Sequence[int], Sequence[Sequence[int]]], str | None]
"""Asked before each merge, with the nodes of the new group and of those it is made of: why not, or None."""


@dataclass(frozen=True)
class _Dominator:
    """A node of the post-dominator tree."""

    parent: int | None
    depth: int
    kind: Kind
    """The largest kind of an edge on the ways to the parent."""


def post_dominators(nodes: Sequence[FusionNode]) -> list[_Dominator]:
    """The immediate post-dominator of each node: the lowest common ancestor, in their tree, of all its consumers."""
    tree: list[_Dominator] = [_Dominator(None, 1, Kind.OPAQUE)] * len(nodes)
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        if node.escapes or not node.uses:
            continue
        parent: int | None = node.uses[0].consumer
        kind = node.uses[0].kind
        for use in node.uses[1:]:
            parent, kind = _common_ancestor(tree, parent, use.consumer, max(kind, use.kind))
        depth = 1 if parent is None else tree[parent].depth + 1
        tree[index] = _Dominator(parent, depth, kind)
    return tree


def _common_ancestor(tree: Sequence[_Dominator], left: int | None, right: int, kind: Kind) -> tuple[int | None, Kind]:
    other: int | None = right
    while left != other:
        if left is None or other is None:
            return None, kind
        at, to = tree[left].depth, tree[other].depth
        if at >= to:
            kind, left = max(kind, tree[left].kind), tree[left].parent
        if to >= at:
            kind, other = max(kind, tree[other].kind), tree[other].parent
    return left, kind


class _Partition:
    """The groups as disjoint sets; the root of a group is its last node."""

    def __init__(self, nodes: Sequence[FusionNode], max_ops: int, max_arguments: int | None, veto: Veto | None):
        self.nodes = nodes
        self.stops = [Stop(Rule.UNUSED) for _ in nodes]
        self._tree = post_dominators(nodes)
        self._max_ops = max_ops
        self._max_arguments = max_arguments
        self._veto = veto
        self._groups = IntDisjointSet(size=len(nodes))
        self._kind = [node.kind for node in nodes]
        """Of a root: that of its anchor if it has one."""
        self.members = [[index] for index in range(len(nodes))]
        self._reads: list[set[Hashable]] = [set(node.reads) for node in nodes]
        for index, node in enumerate(nodes):
            for use in node.uses:
                self._reads[use.consumer].add(("node", index))

    def root(self, index: int) -> int:
        """The last node of the group of a node."""
        return self._groups[index]

    def run_phase(self, phase: int) -> None:
        for index in range(len(self.nodes)):
            stop = self._visit(index, phase)
            if stop is not None:
                self.stops[index] = stop

    def _visit(self, index: int, phase: int) -> Stop | None:
        """Merge a node with its post-dominator, or say why not; None if it is not its turn."""
        kind, dominator = self._kind[index], self._tree[index]
        sink = dominator.parent
        if kind == Kind.OPAQUE:
            return Stop(Rule.OPAQUE)
        if sink is None:
            return self._without_sink(index)
        if self.root(index) == self.root(sink):
            return None
        if phase == 2:
            return self._into_tuple(index, sink)
        if self._kind[sink] == Kind.TUPLE:
            return Stop(Rule.TUPLE, sink)
        if kind == Kind.COMPLEX_OUT_FUSABLE:
            if phase != 0:
                return None
            if dominator.kind != Kind.ELEMENTWISE:
                return Stop(Rule.EDGE, sink, self._reader(index, sink, (Kind.ELEMENTWISE,)))
            return self._merge(index, sink, Kind.BROADCAST, (Kind.ELEMENTWISE, Kind.BROADCAST))
        if kind <= Kind.BROADCAST:
            if dominator.kind > Kind.INJECTIVE and dominator.kind != Kind.REDUCTION:
                edges = (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INJECTIVE, Kind.REDUCTION)
                return Stop(Rule.EDGE, sink, self._reader(index, sink, edges))
            sinks = (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INJECTIVE, Kind.REDUCTION, Kind.COMPLEX_OUT_FUSABLE)
            return self._merge(index, sink, Kind.INJECTIVE, sinks)
        if kind in (Kind.INJECTIVE, Kind.TUPLE):
            # Later, so that contractions have finished.
            return self._merge_injective(index, sink) if phase == 1 else None
        return Stop(Rule.REDUCTION, sink)

    def _without_sink(self, index: int) -> Stop:
        node = self.nodes[index]
        if node.escapes:
            return Stop(Rule.ESCAPES)
        return Stop(Rule.NO_JOIN if node.uses else Rule.UNUSED)

    def _into_tuple(self, index: int, sink: int) -> Stop | None:
        """Phase 2: injective nodes join a tuple that has merged with injective consumers."""
        if self._kind[index] > Kind.INJECTIVE or self._kind[sink] != Kind.TUPLE:
            return None
        if self._kind[self.root(sink)] > Kind.INJECTIVE:
            return Stop(Rule.TUPLE, sink)
        return self._merge_injective(index, sink)

    def _merge_injective(self, index: int, sink: int) -> Stop | None:
        return self._merge(index, sink, Kind.INJECTIVE, (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INJECTIVE))

    def join(self, fits: Callable[[Sequence[int]], bool]) -> None:
        """Merge whole groups with that of their last node's post-dominator where what comes of it fits."""
        for index in range(len(self.nodes)):
            sink = self._tree[index].parent
            if self.root(index) != index or sink is None or self.root(sink) == index:
                continue
            merged = sorted(
                each for root in dict.fromkeys(map(self.root, self._path(index, sink))) for each in self.members[root]
            )
            if fits(merged):
                every = tuple(Kind)
                self.stops[index] = self._merge(index, sink, max(every), every) or self.stops[index]

    def _merge(self, index: int, sink: int, between: Kind, sinks: tuple[Kind, ...]) -> Stop | None:
        """Merge all on the paths from a node to `sink` if their groups are of these kinds, and no limit is reached."""
        path: list[int] = []
        for each in self._path(index, sink):
            found = self._kind[self.root(each)]
            if (found not in sinks) if each == sink else (found > between and each != index):
                anchors = min(found, self._kind[index]) > Kind.INJECTIVE
                return Stop(Rule.ANCHORS if anchors else Rule.PATH, sink, each)
            path.append(each)
        target = self.root(sink)
        roots = [root for root in dict.fromkeys(map(self.root, path)) if root != target]
        parts = [self.members[root] for root in (*roots, target)]
        merged = sorted(each for part in parts for each in part)
        if len(merged) > self._max_ops:
            return Stop(Rule.TOO_MANY_OPS, sink)
        if self._max_arguments is not None and self._count_arguments(merged) > self._max_arguments:
            return Stop(Rule.TOO_MANY_ARGUMENTS, sink)
        if self._veto is not None and (words := self._veto(merged, parts)) is not None:
            return Stop(Rule.VETO, sink, words=words)
        for root in roots:
            self._groups.union_left(target, root)
            if self._kind[root] == Kind.COMPLEX_OUT_FUSABLE:
                self._kind[target] = self._kind[root]
        self.members[target] = merged
        return None

    def _reader(self, index: int, sink: int, kinds: tuple[Kind, ...]) -> int:
        """The first node on the paths to `sink` that reads one on them otherwise than by `kinds`."""
        uses = (use for each in self._path(index, sink) if each != sink for use in self.nodes[each].uses)
        return next(use.consumer for use in uses if use.kind not in kinds)

    def _path(self, index: int, sink: int) -> Iterator[int]:
        """The nodes on all paths from a node to its post-dominator, both among them, in order of discovery."""
        seen = {index}
        pending = [index]
        while pending:
            current = pending.pop()
            yield current
            if current == sink:
                continue
            for use in reversed(self.nodes[current].uses):
                if use.consumer not in seen:
                    seen.add(use.consumer)
                    pending.append(use.consumer)

    def _count_arguments(self, members: Sequence[int]) -> int:
        """How many values a group reads that it does not compute."""
        inside: set[Hashable] = {("node", each) for each in members}
        return len({value for each in members for value in self._reads[each]} - inside)


def fusion_groups(
    nodes: Sequence[FusionNode],
    *,
    max_ops: int = MAX_OPS,
    max_arguments: int | None = None,
    veto: Veto | None = None,
    fits: Callable[[Sequence[int]], bool] | None = None,
) -> list[Group]:
    """
    The groups of a graph whose nodes are in a topological order, in the order of their last nodes.

    `max_ops` and `max_arguments` limit a group; `veto` may refuse a merge that the rules allow. Groups of which one is
    made that `fits` are merged at the end, whatever their kinds. The order of the nodes decides where two contractions
    compete for what follows both: the earlier one takes it.
    """
    partition = _Partition(nodes, max_ops, max_arguments, veto)
    for phase in range(3):
        partition.run_phase(phase)
    if fits is not None:
        partition.join(fits)
    roots = sorted({partition.root(index) for index in range(len(nodes))})
    return [Group(tuple(partition.members[root]), partition.stops[root]) for root in roots]
