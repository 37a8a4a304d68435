# SPDX-License-Identifier: Apache-2.0
"""The structure of an ONNX graph: what its names must be like, and the order in which its nodes are imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush

from onnx import GraphProto, NodeProto

from penstock.dialects.diagnostics import UserError, warn_of
from penstock.lowering.from_onnx.node import called, node_name


def check_structure(graph: GraphProto, place: str) -> None:
    """
    Raise UserError, located at `place`, unless every input, initializer and value of a graph, and of those inside it,
    has a name of its own, every node an operator, and the graph has outputs.
    """
    if not graph.output:
        raise UserError(f'the graph "{graph.name}" has no outputs', loc=place)
    _check_tensors(graph, place)
    _check_nodes(graph, place)
    _check_values(graph, place)
    for node in graph.node:
        for inner in inner_graphs(node):
            check_structure(inner, place)


def inner_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check_tensors(graph: GraphProto, place: str) -> None:
    for kind, names in (
        ("input", [value.name for value in graph.input]),
        ("initializer", [tensor.name for tensor in graph.initializer]),
        ("sparse initializer", [tensor.values.name for tensor in graph.sparse_initializer]),
    ):
        seen: set[str] = set()
        for index, name in enumerate(names):
            if not name:
                raise UserError(f"{kind} {index} has no name", loc=place)
            if name in seen:
                raise UserError(f'the {kind} "{name}" is there twice', loc=place)
            seen.add(name)


def _check_nodes(graph: GraphProto, place: str) -> None:
    for index, node in enumerate(graph.node):
        if not node.op_type:
            raise UserError(f'node "{node_name(node)}": it has no operator', loc=place, notes=[f"it is node {index}"])


def _check_values(graph: GraphProto, place: str) -> None:
    makers = {value.name: "an input" for value in graph.input}
    makers |= {tensor.name: "an initializer" for tensor in graph.initializer}
    for node in graph.node:
        for name in node.output:
            if not name:
                continue
            if name in makers:
                raise UserError(
                    f'{called(node)}: it defines "{name}", which is {makers[name]} already',
                    loc=place,
                    notes=["every value of a graph is defined once"],
                )
            makers[name] = f'the result of node "{node_name(node)}"'


MAX_SHOWN_NODES = 8
"""Nodes of a cycle that a message names."""


def nodes_of(graph: GraphProto, place: str) -> list[NodeProto]:
    """
    The nodes of a graph, but not those inside them, in an order of their data: where they are in one, their own.

    Issues an InputWarning, located at `place`, for nodes that had to be moved or renamed. Raises UserError for a cycle.
    """
    return _sorted(_renamed(list(graph.node), place), place)


def names_read(proto: NodeProto) -> list[str]:
    """The names that a node and the graphs inside it read of the graph around it."""
    names = list(proto.input)
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs):
            # A graph inside a node may give its own values names that the one around it has too, as exporters do.
            own = {each.name for each in (*graph.input, *graph.initializer)}
            own.update(output for node in graph.node for output in node.output)
            inside = [value.name for value in graph.output]
            inside += [name for node in graph.node for name in names_read(node)]
            names.extend(name for name in inside if name not in own)
    return names


def _renamed(nodes: Sequence[NodeProto], place: str) -> list[NodeProto]:
    """The nodes, with a number after the name of each that an earlier one has; those in the model stay as they are."""
    taken = {node.name for node in nodes if node.name}
    first: dict[str, NodeProto] = {}
    messages: list[str] = []
    found: list[NodeProto] = []
    for node in nodes:
        if node.name and first.setdefault(node.name, node) is not node:
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.name = _free_name(node.name, taken)
            messages.append(
                f'two nodes are called "{node.name}": a {first[node.name].op_type} and a {node.op_type};'
                f' the second one is called "{copy.name}" here'
            )
            node = copy
        found.append(node)
    warn_of(messages, place)
    return found


def _free_name(name: str, taken: set[str]) -> str:
    number = 2
    while (free := f"{name}_{number}") in taken:
        number += 1
    taken.add(free)
    return free


def _sorted(nodes: Sequence[NodeProto], place: str) -> list[NodeProto]:
    """The nodes in an order of their data; of those that may come next, the first in the model."""
    makers = {output: index for index, node in enumerate(nodes) for output in node.output if output}
    before = [{makers[name] for name in names_read(node) if name in makers} for node in nodes]
    if all(index > max(needed, default=-1) for index, needed in enumerate(before)):
        return list(nodes)
    sorter = TopologicalSorter(dict(enumerate(before)))
    try:
        sorter.prepare()
    except CycleError as error:
        raise _cycle(nodes, error.args[1][:-1], makers, place) from None
    ready, order = list(sorter.get_ready()), list[int]()
    heapify(ready)
    while ready:
        order.append(index := heappop(ready))
        sorter.done(index)
        for each in sorter.get_ready():
            heappush(ready, each)
    late = [(index, late) for index, needed in enumerate(before) if (late := max(needed, default=-1)) > index]
    warn_of(
        [
            f"{called(nodes[reader])} stands before {called(nodes[maker])}, whose result it reads;"
            " they are taken in the order of their data"
            for reader, maker in late
        ],
        place,
    )
    return [nodes[index] for index in order]


def _cycle(nodes: Sequence[NodeProto], cycle: Sequence[int], makers: Mapping[str, int], place: str) -> UserError:
    """The fault of nodes each of which reads what the one before it makes, from the first of them in the model."""
    start = cycle.index(min(cycle))
    cycle = [*cycle[start:], *cycle[:start]]
    reader = nodes[cycle[0]]
    name = next(name for name in names_read(reader) if makers.get(name) == cycle[-1])
    words = [f'"{node_name(nodes[index])}"' for index in cycle]
    shown = words if len(words) <= MAX_SHOWN_NODES else [*words[:MAX_SHOWN_NODES], "..."]
    note = "it is its own result: a graph has no cycles"
    if len(cycle) > 1:
        note = f"the graph has a cycle: {' -> '.join([*shown, words[0]])}"
    return UserError(
        f'{called(reader)}: it reads "{name}", which no input, initializer or earlier node defines',
        loc=place,
        notes=[note],
    )
