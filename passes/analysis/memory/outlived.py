"""
Buffers that are made anew while what they were before is in use.

A buffer that a round of a loop makes may be handed to the next round under another name. If that name, or a view of
it, is used after the next round has made its own, two instances of one op are alive at once, and no plan gives one op
two places. Where names are used later is liveness as well, of names.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from penstock.passes.analysis.memory.aliases import Aliases, Allocation, bits
from penstock.passes.analysis.memory.dataflow import Transfer, solve_backward
from penstock.passes.analysis.memory.graph import CONTROL, FlowGraph


def _used_by(op: Operation) -> Iterator[SSAValue]:
    """What a node uses, with what is inside it."""
    yield from op.operands
    if not isinstance(op, CONTROL):
        for region in op.regions:
            for inner in region.walk():
                yield from inner.operands


def outlived(graph: FlowGraph, aliases: Aliases) -> int:
    """The roots of which an earlier instance may be used where the next has been made."""
    made = {op: 1 << aliases.number[op.results[0]] for op in graph.nodes() if isinstance(op, Allocation)}
    names = [name for name in aliases.handed if aliases.of(name) & sum(made.values())]
    if not names:
        return 0
    number = {name: index for index, name in enumerate(names)}

    def mask(values: Iterator[SSAValue]) -> int:
        found = 0
        for value in values:
            found |= 1 << number[value] if value in number else 0
        return found

    transfers = {op: Transfer(mask(iter(op.results)), mask(_used_by(op))) for op in graph.nodes()}
    named_at_start = [0] * len(graph.blocks)
    for edge in graph.edges():
        named_at_start[edge.target.number] |= mask(name for _, name in edge.handed)
    after = solve_backward(graph, transfers, 0, named_at_start)
    found = 0
    for op, root in made.items():
        if root & aliases.of_all(names[index] for index in bits(after[op])):
            found |= root
    return found
