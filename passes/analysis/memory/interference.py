"""
Interference graphs: which buffers of a scope may not share bytes, because they are alive at once.

One graph a planning problem: the scopes of each function, and those and the arena of the whole program where calls
are involved (see `memory_problems`). As text they are the same for the same module, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.dialects.diagnostics import location_of
from penstock.passes.analysis.memory.memory_problems import ARENA, MemoryProblem, offset_of
from penstock.passes.planning.problem import Problem


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


def to_dot(memories: Sequence[MemoryProblem]) -> str:
    """The graphs for Graphviz, each a cluster of one."""
    lines = ["graph interference {", "  node [shape=box];"]
    for number, memory in enumerate(memories):
        scope = memory.scope or ARENA
        title = f"@{memory.function} {scope}" if memory.function else scope
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(title)};"]
        for index, buffer in enumerate(memory.problem.buffers):
            label = _quoted(buffer.id, f"{buffer.size} bytes", location_of(memory.ops[buffer.id]))
            lines.append(f"    n{number}_{index} [label={label}];")
        lines += [f"    n{number}_{left} -- n{number}_{right};" for left, right in interfering(memory.problem)]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _quoted(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
