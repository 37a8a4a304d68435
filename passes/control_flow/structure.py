# SPDX-License-Identifier: Apache-2.0
"""
From a graph of blocks to a tree of choices and loops, without copying a block.

A choice owns the blocks that only one of its successors reaches; control meets again in those that several reach. A
cycle is a loop; what enters it, or leaves it, in several places says where in a variable. So any graph has a tree,
reducible or not. See Bahmann, Reissmann, Jahre and Meyer, "Perfect Reconstructability of Control Flow from Demand
Dependence Graphs", ACM TACO 11(4), 2015.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from xdsl.dialects import cf
from xdsl.dialects.builtin import IndexType, MemRefType, UnknownLoc, i1
from xdsl.ir import Block, Operation, Region, SSAValue

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.upstream.cf import cases_of, handed_to_successors
from penstock.passes.control_flow.tree import Assign, Choice, Control, Loop, Node, Ops, Steps, Variable

MOST_DEPTH = 90
"""How deep ops with regions may be nested: texts of Python and C, which these become, have no more levels."""


@dataclass(frozen=True)
class _Cycle:
    """A loop around what is being structured."""

    blocks: AbstractSet[Block]
    entries: Collection[Block]
    repeats: Control
    """Whether there is another iteration."""


def terminator_of(block: Block) -> Operation:
    """The terminator of a block of a graph of blocks."""
    assert block.last_op is not None
    return block.last_op


class Structurer:
    """
    The tree of one region, whose blocks are all reachable, one of which, the last, leaves it.

    Raises UserError, located, for a cycle that is never left and for terminators of no dialect that is known.
    """

    def __init__(self, region: Region):
        self.numbers = {block: number for number, block in enumerate(region.blocks)}
        self._label = Control(IndexType(), "next")
        self.controls = [self._label]
        """The variables that say where control goes."""
        self._edges = {block: handed_to_successors(terminator_of(block)) for block in self.numbers}
        self._cycles: list[_Cycle] = []
        self._depth = 0

    def tree(self) -> Steps:
        """The tree, without the terminator of the region."""
        first, *others = self.numbers
        steps, _ = self._walk(set(others), {first}, [first])
        return steps

    def _walk(self, blocks: set[Block], heads: set[Block], goals: Iterable[Block]) -> tuple[Steps, set[Block]]:
        """
        What is done from `goals`, one of which comes next, until control leaves `blocks` and `heads`, and where to.

        `heads` are entered once, and are in no cycle here. Both sets are used up.
        """
        self._depth += 1
        nodes: list[Node] = []
        goals = set(goals)
        while inside := self._in_order(goal for goal in goals if goal in blocks or goal in heads):
            reached = {goal: self._reached(goal, blocks) for goal in inside}
            first = next(
                goal for goal in inside
                if all(goal not in reached[other] or other in reached[goal] for other in inside)
            )  # fmt: skip
            cycle = self._cycle(first, reached[first]) if first in blocks else set[Block]()
            group = [goal for goal in inside if goal is first or goal in cycle]
            others = goals.difference(group)
            if others:
                own = reached[first].difference(*(reached[other] for other in others if other in reached))
                inner, goals = self._walk(own & blocks, heads.intersection(group), group)
                blocks -= own
                heads -= set(group)
                numbers = [self.numbers[block] for block in group]
                nodes.append(Choice(self._label, [numbers], [inner, Steps([])], UnknownLoc()))
                goals |= others
            elif cycle:
                blocks -= cycle
                loop, goals = self._loop(cycle, group)
                nodes += loop
            else:
                blocks.discard(first)
                heads.discard(first)
                *ops, _ = first.ops
                nodes.append(Ops(ops))
                branch, goals = self._branch(first, blocks)
                nodes += branch
        self._depth -= 1
        return Steps(nodes), goals

    def _branch(self, block: Block, blocks: set[Block]) -> tuple[list[Node], set[Block]]:
        """The end of a block, with what only one of its successors reaches; and where control goes then."""
        edges, terminator = self._edges[block], terminator_of(block)
        if not edges:
            return [], set()
        if len(edges) == 1:
            return [self._taken(*edges[0])], {edges[0][0]}
        if self._depth > MOST_DEPTH:
            raise UserError(
                f"more than {MOST_DEPTH} branches are nested here", loc=location_of(terminator), status=UNSUPPORTED
            )
        flag, cases, edges = _ways(terminator, edges)
        reached = [self._reached(target, blocks) if target in blocks else set[Block]() for target, _ in edges]
        arms: list[Steps] = []
        goals: set[Block] = set()
        for number, (target, values) in enumerate(edges):
            own = reached[number].difference(*reached[:number], *reached[number + 1 :])
            blocks -= own
            inner, leaving = self._walk(own, set(), [target])
            arms.append(Steps([self._taken(target, values), *inner.nodes]))
            goals |= leaving
        return [Choice(flag, cases, arms, terminator.location)], goals

    def _loop(self, blocks: set[Block], entries: Sequence[Block]) -> tuple[list[Node], set[Block]]:
        repeats = Control(i1, "repeats")
        self.controls.append(repeats)
        self._cycles.append(_Cycle(frozenset(blocks), entries, repeats))
        before, leaving = self._walk(blocks.difference(entries), set(entries), entries)
        self._cycles.pop()
        place = terminator_of(entries[0])
        leaving -= set(entries)
        if not leaving:
            raise UserError("this loop is never left", loc=location_of(place), status=UNSUPPORTED)
        carried: list[Variable] = [argument for entry in entries for argument in entry.args]
        if len(entries) > 1:
            carried.append(self._label)
        loop = Loop(carried, before, repeats, True, Steps([]), place.location)
        return _with_exit_in_the_middle(loop, repeats) or [loop], leaving

    def _taken(self, target: Block, values: Sequence[SSAValue]) -> Assign:
        """What going to a block assigns."""
        assigned: dict[Variable, Variable | int] = dict(zip(target.args, values, strict=True))
        assigned[self._label] = self.numbers[target]
        for cycle in reversed(self._cycles):
            if target in cycle.blocks and target not in cycle.entries:
                break
            assigned[cycle.repeats] = int(target in cycle.entries)
            if target in cycle.entries:
                break
        return Assign(assigned)

    def _in_order(self, blocks: Iterable[Block]) -> list[Block]:
        return sorted(blocks, key=self.numbers.__getitem__)

    def _reached(self, start: Block, blocks: AbstractSet[Block]) -> set[Block]:
        """A block, and the `blocks` that control may reach from it without leaving them."""
        found, pending = {start}, [start]
        while pending:
            for target, _ in self._edges[pending.pop()]:
                if target in blocks and target not in found:
                    found.add(target)
                    pending.append(target)
        return found

    def _cycle(self, block: Block, reached: AbstractSet[Block]) -> set[Block]:
        """The blocks among those that are reached from `block` that reach it in turn; none if it is in no cycle."""
        sources: dict[Block, list[Block]] = {each: [] for each in reached}
        for each in reached:
            for target, _ in self._edges[each]:
                if target in reached:
                    sources[target].append(each)
        found, pending = set[Block](), [block]
        while pending:
            for source in sources[pending.pop()]:
                if source not in found:
                    found.add(source)
                    pending.append(source)
        return found


Edges = list[tuple[Block, Sequence[SSAValue]]]


def _ways(terminator: Operation, edges: Edges) -> tuple[SSAValue, list[list[int]], Edges]:
    """What chooses among the successors of a terminator, on which values each but the last, and these in that order."""
    match terminator:
        case cf.ConditionalBranchOp():
            return terminator.cond, [[1]], edges
        case cf.SwitchOp():
            default, *others = edges
            ways = dict(reversed(list(zip(cases_of(terminator), others, strict=True))))  # the first of equal cases
            cases = sorted(ways)
            if terminator.flag.type == i1 and cases == [0, 1]:
                return terminator.flag, [[1]], [ways[1], ways[0]]
            return terminator.flag, [[case] for case in cases], [*(ways[case] for case in cases), default]
        case _:
            raise UserError(
                f"where {terminator.name} goes is not known", loc=location_of(terminator), status=UNSUPPORTED
            )


def _with_exit_in_the_middle(loop: Loop, repeats: Control) -> list[Node] | None:
    """
    The loop whose last choice is to go on or to leave, as one that is left there, and what is done when it is.

    None where control leaves, or comes back, in other ways too, and where what is done on going on reads a view that is
    made before.
    """
    *nodes, last = loop.before.nodes
    if not isinstance(last, Choice) or last.flag.type != i1 or last.cases != [[1]]:
        return None
    outcomes = [_outcome(arm, repeats) for arm in last.arms]
    if sorted(outcomes, key=str) != [0, 1]:
        return None
    going, leaving = last.arms[outcomes.index(1)], last.arms[outcomes.index(0)]
    if any(not isinstance(node, Assign) for node in leaving.nodes):
        return None
    before = Steps(nodes)
    if any(isinstance(value.type, MemRefType) for value in going.uses & before.may):
        return None  # which would hand a view from one region to the other: C has none that branches yield
    return [Loop(loop.carried, before, last.flag, outcomes[0] == 1, going, loop.location), *leaving.nodes]


def _outcome(steps: Steps, repeats: Control) -> int | None:
    """Whether a loop has another iteration after `steps`; None where that is not the same on all ways."""
    for node in reversed(steps.nodes):
        if repeats not in node.may:
            continue
        if isinstance(node, Assign):
            value = node.values[repeats]
            return value if isinstance(value, int) else None
        if not isinstance(node, Choice):
            return None
        found = {_outcome(arm, repeats) for arm in node.arms}
        return found.pop() if len(found) == 1 else None
    return None
