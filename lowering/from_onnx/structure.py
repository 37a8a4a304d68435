"""What the names of an ONNX graph must be like: each value is defined once."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, NodeProto

from penstock.dialects.diagnostics import UserError
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
