"""
Interference graphs: which buffers of a scope may not share bytes, because they are alive at once.

One graph a planning problem: the scopes of each function, and those and the arena of the whole program where calls
are involved (see `memory_problems`). As text they are the same for the same module, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.dialects.diagnostics import location_of
from penstock.passes.analysis.memory.memory_problems import ARENA, MemoryProblem, offset_of, storage
from penstock.passes.planning.problem import Interval, Problem


@dataclass(frozen=True)
class InterferenceNode:
    """A buffer."""

    name: str
    """Unique in its graph."""
    type: str
    size: int
    """Bytes: in a scope whole granules, for a ring all slots."""
    place: str
    """Where it is made: the line of the source, if that is known."""
    offset: int | None
    """Bytes from the start of the scope; None before it is planned."""
    alive: tuple[Interval, ...]
    """Steps of the function, or of the whole program."""


@dataclass(frozen=True)
class InterferenceGraph:
    """The buffers of one scope, and which of them are alive at once."""

    function: str
    """Empty for the whole program."""
    scope: str
    """The name of a scope, or "arena"."""
    nodes: tuple[InterferenceNode, ...]
    """As they stand in the text."""
    edges: tuple[tuple[int, int], ...]
    """Pairs of numbers of `nodes`, the lower first, ascending."""

    @property
    def title(self) -> str:
        """Which memory of whom."""
        return f"@{self.function} {self.scope}" if self.function else self.scope


def interfering(problem: Problem) -> tuple[tuple[int, int], ...]:
    """The pairs of buffers that are alive at once, by their numbers, the lower first, ascending."""
    starts = sorted(
        (lower, upper, number) for number, buffer in enumerate(problem.buffers) for lower, upper in buffer.intervals
    )
    edges: set[tuple[int, int]] = set()
    alive: list[tuple[int, int]] = []
    for lower, upper, number in starts:
        alive = [(end, other) for end, other in alive if end > lower]
        edges.update((min(number, other), max(number, other)) for _, other in alive)
        alive.append((upper, number))
    return tuple(sorted(edges))


def interference_graph(memory: MemoryProblem) -> InterferenceGraph:
    """The graph of one planning problem."""
    nodes: list[InterferenceNode] = []
    for buffer in memory.problem.buffers:
        op = memory.ops[buffer.id]
        nodes.append(
            InterferenceNode(
                buffer.id, str(storage(op).type), buffer.size, location_of(op), offset_of(op), buffer.intervals
            )
        )
    return InterferenceGraph(memory.function, memory.scope or ARENA, tuple(nodes), interfering(memory.problem))


def to_json(graphs: Sequence[InterferenceGraph]) -> str:
    """Graphs as JSON, one node and one list of edges a line."""
    lines: list[str] = []
    for number, graph in enumerate(graphs):
        end = "," if number + 1 < len(graphs) else ""
        nodes = [
            json.dumps(
                {
                    "name": node.name,
                    "type": node.type,
                    "bytes": node.size,
                    "offset": node.offset,
                    "place": node.place,
                    "alive": node.alive,
                }
            )
            for node in graph.nodes
        ]
        lines += [
            f'  {{"function": {json.dumps(graph.function)}, "scope": {json.dumps(graph.scope)},',
            '   "buffers": [',
            *(f"     {node}{',' if last < len(nodes) else ''}" for last, node in enumerate(nodes, start=1)),
            "   ],",
            f'   "edges": {json.dumps(graph.edges)}}}{end}',
        ]
    return "\n".join(['{"graphs": [', *lines, "]}", ""])


def to_dot(graphs: Sequence[InterferenceGraph]) -> str:
    """Graphs for Graphviz, each a cluster of one."""
    lines = ["graph interference {", "  node [shape=box];"]
    for number, graph in enumerate(graphs):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(graph.title)};"]
        for index, node in enumerate(graph.nodes):
            lines.append(f"    n{number}_{index} [label={_quoted(node.name, f'{node.size} bytes', node.place)}];")
        lines += [f"    n{number}_{left} -- n{number}_{right};" for left, right in graph.edges]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _quoted(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
