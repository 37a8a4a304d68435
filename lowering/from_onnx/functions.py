"""Operators that ONNX itself defines by a function on simpler operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto

from penstock.dialects.graph import Tensor
from penstock.dialects.graph.sizes import Dim, UnknownSize
from penstock.lowering.from_onnx.node import DOMAINS, Unsupported
from penstock.lowering.from_onnx.schema import schema_of, type_proto


@dataclass(frozen=True)
class Body:
    """The nodes that a node stands for, the names of its inputs and outputs in them, and their opset."""

    nodes: Sequence[NodeProto]
    inputs: Sequence[str]
    outputs: Sequence[str]
    opset: int


def body_of(proto: NodeProto, opset: int, types: Sequence[Tensor | None]) -> Body:
    """
    The body of the function that defines the operator of `proto`, whose inputs have `types`.

    Raises Unsupported if ONNX defines it otherwise, or not at all.
    """
    schema = schema_of(proto, opset)
    function = _function(cast(_Schema, cast(Any, schema)), proto, opset, types)
    given = {attribute.name: attribute for attribute in proto.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type != AttributeProto.UNDEFINED:
            given[name] = attribute.default_value
    version = next((entry.version for entry in function.opset_import if entry.domain in DOMAINS), opset)
    nodes = [_bound(node, given, proto.name, index) for index, node in enumerate(function.node)]
    return Body(nodes, list(function.input), list(function.output), version)


def has_body(proto: NodeProto, opset: int) -> bool:
    """Whether ONNX defines the operator of `proto` by a function; raises Unsupported if it has no such operator."""
    schema = cast(_Schema, cast(Any, schema_of(proto, opset)))
    return schema.has_function or schema.has_context_dependent_function


class _Schema(Protocol):
    """The part of onnx's OpSchema that its type stubs leave out."""

    has_function: bool
    has_context_dependent_function: bool
    function_opset_versions: Sequence[int]
    context_dependent_function_opset_versions: Sequence[int]

    def get_function_with_opset_version(self, version: int) -> bytes: ...

    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, input_types: Sequence[bytes]
    ) -> bytes: ...


def _function(schema: _Schema, proto: NodeProto, opset: int, types: Sequence[Tensor | None]) -> FunctionProto:
    """The definition for the newest operator set that is not after `opset`, else for the oldest."""

    def chosen(versions: Sequence[int]) -> int:
        return max((each for each in versions if each <= opset), default=min(versions))

    data = b""
    if schema.has_function:
        version = chosen(schema.function_opset_versions)
        data = schema.get_function_with_opset_version(version)
    elif schema.has_context_dependent_function:
        version = chosen(schema.context_dependent_function_opset_versions)
        data = schema.get_context_dependent_function_with_opset_version(
            version, proto.SerializeToString(), [_type_text(each) for each in types]
        )
    if not data:
        for size in (size for each in types if each is not None for size in each.get_shape()):
            if isinstance(size, Dim):
                raise UnknownSize(size, "may decide what the operator stands for")
        raise Unsupported("")
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _type_text(tensor: Tensor | None) -> bytes:
    return (onnx.TypeProto() if tensor is None else type_proto(tensor)).SerializeToString()


def _bound(node: NodeProto, given: Mapping[str, AttributeProto], owner: str, index: int) -> NodeProto:
    """A node of a body with the attributes that refer to those of the function filled in."""
    bound = NodeProto()
    bound.CopyFrom(node)
    if owner:
        bound.name = f"{owner}.{index}.{node.op_type}"
    del bound.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            bound.attribute.append(attribute)
        elif (value := given.get(attribute.ref_attr_name)) is not None:
            copy = AttributeProto()
            copy.CopyFrom(value)
            copy.name = attribute.name
            bound.attribute.append(copy)
    return bound
