"""What the names of an ONNX graph must be like: each defined once, and before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import GraphProto, NodeProto

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.lowering.from_onnx.node import node_name

LONGEST_CYCLE = 8
"""Nodes of a cycle that a message names."""


def check_structure(graph: GraphProto, place: str) -> None:
    """
    Raise UserError, located at `place`, unless every input, initializer, node and value of a graph, and of those
    inside it, has a name of its own, and the graph has outputs.
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
    seen: dict[str, NodeProto] = {}
    for index, node in enumerate(graph.node):
        if not node.op_type:
            raise UserError(f'node "{node_name(node)}": it has no operator', loc=place, notes=[f"it is node {index}"])
        if not node.name:
            continue
        before = seen.setdefault(node.name, node)
        if before is not node:
            raise UserError(
                f'two nodes are called "{node.name}": a {before.op_type} and a {node.op_type}',
                loc=place,
                notes=["a node needs no name, but one that it has is its own"],
            )


def _check_values(graph: GraphProto, place: str) -> None:
    makers = {value.name: "an input" for value in graph.input}
    makers |= {tensor.name: "an initializer" for tensor in graph.initializer}
    for node in graph.node:
        for name in node.output:
            if not name:
                continue
            if name in makers:
                raise UserError(
                    f'node "{node_name(node)}" ({node.op_type}): it defines "{name}", which is {makers[name]} already',
                    loc=place,
                    notes=["every value of a graph is defined once"],
                )
            makers[name] = f'the result of node "{node_name(node)}"'


def why_undefined(name: str, reader: NodeProto, nodes: Sequence[NodeProto], known: Sequence[str]) -> list[str]:
    """
    Why `name`, which `reader` reads, is not defined where it stands: notes for a message.

    The nodes are those of the graph of `reader`; `known` are the names that are defined there.
    """
    makers = {output: node for node in nodes for output in node.output if output}
    if (maker := makers.get(name)) is None:
        near = did_you_mean(name, known)
        return [near] if near else []
    cycle = _path(maker, reader, makers)
    if cycle is None:
        return [f'node "{node_name(maker)}" defines it, but stands after it: nodes stand in the order of their data']
    names = [f'"{node_name(node)}"' for node in cycle]
    shown = names if len(names) <= LONGEST_CYCLE else [*names[:LONGEST_CYCLE], "..."]
    if len(cycle) == 1:
        return ["it is its own result: a graph has no cycles"]
    return [f"the graph has a cycle: {' -> '.join([*shown, names[0]])}"]


def _path(maker: NodeProto, reader: NodeProto, makers: dict[str, NodeProto]) -> list[NodeProto] | None:
    """The nodes on a shortest path of data from `reader` to `maker`, both included; None if there is none."""
    # Backwards from the maker, by what each node reads.
    after: dict[int, NodeProto | None] = {id(maker): None}
    pending = [maker]
    for node in pending:
        if node is reader:
            path: list[NodeProto] = []
            step: NodeProto | None = node
            while step is not None:
                path.append(step)
                step = after[id(step)]
            return path
        for operand in node.input:
            before = makers.get(operand)
            if before is not None and id(before) not in after:
                after[id(before)] = node
                pending.append(before)
    return None
