# SPDX-License-Identifier: Apache-2.0
"""
Interference graphs of the memories of a module: which buffers are alive at once, as JSON or for Graphviz.

As JSON a graph is complete. A picture for Graphviz has at most `MOST_NODES` nodes. Where there would be more, or too
many edges to follow, buffers that interfere with the same others, and either all or none with each other, are one node;
of what is left beyond that, the smallest are one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.dialects.diagnostics import location_of
from penstock.passes.analysis.memory.memory_problems import ARENA, MemoryProblem, offset_of
from penstock.passes.planning.conflicts import Conflicts
from penstock.passes.planning.problem import Problem

MOST_NODES = 60
"""Of one picture."""

_MOST_EDGES = 60
"""Of a picture in which each buffer is a node."""

_MOST_NAMES = 4
"""Of the buffers of one node."""


def interfering(problem: Problem) -> tuple[tuple[int, int], ...]:
    """The pairs of buffers that are alive at once, by their numbers, the lower first, ascending."""
    spans = Conflicts(problem).spans
    return tuple(sorted({(number, other) for number, own in enumerate(spans) for other, _, _ in own if number < other}))


def to_json(memories: Sequence[MemoryProblem]) -> str:
    """The graphs as JSON, one node and one list of edges a line."""
    lines: list[str] = []
    for number, memory in enumerate(memories):
        end = "," if number + 1 < len(memories) else ""
        nodes = [
            json.dumps(
                {
                    "name": buffer.id,
                    "type": str(op.results[0].type),
                    "bytes": buffer.size,
                    "offset": offset_of(op),
                    "place": location_of(op),
                    "alive": buffer.intervals,
                }
            )
            for buffer in memory.problem.buffers
            for op in (memory.ops[buffer.id],)
        ]
        lines += [
            f'  {{"function": {json.dumps(memory.function)}, "scope": {json.dumps(memory.scope or ARENA)},',
            '   "buffers": [',
            *(f"     {node}{',' if last < len(nodes) else ''}" for last, node in enumerate(nodes, start=1)),
            "   ],",
            f'   "edges": {json.dumps(interfering(memory.problem))}}}{end}',
        ]
    return "\n".join(['{"graphs": [', *lines, "]}", ""])


@dataclass(frozen=True)
class FoldedNode:
    """Buffers that are drawn as one, by their numbers."""

    members: tuple[int, ...]
    how: str = ""
    """Whether they are alive at once, of several."""


def folded(problem: Problem) -> tuple[list[FoldedNode], list[tuple[int, int]]]:
    """The nodes of a picture, in the order of their first buffers, and the edges between them."""
    neighbours: dict[int, set[int]] = {number: set() for number in range(len(problem.buffers))}
    for one, other in interfering(problem):
        neighbours[one].add(other)
        neighbours[other].add(one)
    nodes: list[FoldedNode] = []
    for how, with_self in (("all alive at once", True), ("one after the other", False)):
        twins: dict[frozenset[int], list[int]] = {}
        taken = {member for node in nodes for member in node.members}
        for number, others in neighbours.items():
            if number not in taken:
                twins.setdefault(frozenset(others | {number}) if with_self else frozenset(others), []).append(number)
        nodes += [FoldedNode(tuple(each), how) for each in twins.values() if len(each) > 1]
    taken = {member for node in nodes for member in node.members}
    nodes += [FoldedNode((number,)) for number in neighbours if number not in taken]
    if len(nodes) > MOST_NODES:
        nodes.sort(key=lambda node: (-_bytes(problem, node), node.members))
        rest = sorted(member for node in nodes[MOST_NODES - 1 :] for member in node.members)
        nodes = [*nodes[: MOST_NODES - 1], FoldedNode(tuple(rest), "the smallest")]
    nodes.sort(key=lambda node: node.members)
    of = {member: number for number, node in enumerate(nodes) for member in node.members}
    edges = {(of[one], of[other]) for one in neighbours for other in neighbours[one] if of[one] < of[other]}
    return nodes, sorted(edges)


def _bytes(problem: Problem, node: FoldedNode) -> int:
    return sum(problem.buffers[member].size for member in node.members)


def to_dot(memories: Sequence[MemoryProblem]) -> str:
    """The graphs for Graphviz, one after the other: `dot -Tsvg -O` makes a picture of each."""
    return "\n".join(_dot(memory) for memory in memories)


def _dot(memory: MemoryProblem) -> str:
    scope, problem = memory.scope or ARENA, memory.problem
    title = f"@{memory.function} {scope}" if memory.function else scope
    nodes, edges = [FoldedNode((number,)) for number in range(len(problem.buffers))], list(interfering(problem))
    if len(nodes) > MOST_NODES or len(edges) > _MOST_EDGES:
        nodes, edges = folded(problem)
    count = f"{len(problem.buffers)} buffers" + (
        f" in {len(nodes)} node{'s' * (len(nodes) != 1)}" if len(nodes) < len(problem.buffers) else ""
    )
    lines = [f"graph {_quoted(title)} {{", f"  label={_quoted(f'{title}: {count}')};", "  node [shape=box];"]
    for number, node in enumerate(nodes):
        lines.append(f"  n{number} [label={_quoted(*_label(memory, node))}];")
    lines += [f"  n{left} -- n{right};" for left, right in edges]
    return "\n".join([*lines, "}", ""])


def _label(memory: MemoryProblem, node: FoldedNode) -> list[str]:
    buffers = [memory.problem.buffers[member] for member in node.members]
    if len(buffers) == 1:
        return [buffers[0].id, f"{buffers[0].size} bytes", location_of(memory.ops[buffers[0].id])]
    names = [buffer.id for buffer in buffers[:_MOST_NAMES]]
    more = [f"and {len(buffers) - _MOST_NAMES} more"] if len(buffers) > _MOST_NAMES else []
    return [f"{len(buffers)} buffers, {node.how}", f"{_bytes(memory.problem, node)} bytes", ", ".join(names), *more]


def _quoted(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
