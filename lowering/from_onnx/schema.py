"""What ONNX says about an operator: whether a set has it, how its nodes must look, and the function that defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, TypeProto, checker, helper, shape_inference
from onnx.defs import OpSchema
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import Tensor
from penstock.dialects.graph.sizes import Dim, UnknownSize, is_known
from penstock.lowering.from_onnx.node import DOMAINS, Unsupported, node_name


def schema_of(proto: NodeProto, opset: int) -> OpSchema:
    """The schema of a node's operator; raises Unsupported if operator set `opset` has none."""
    if proto.domain not in DOMAINS or not onnx.defs.has(proto.op_type):
        raise Unsupported("")
    try:
        return onnx.defs.get_schema(proto.op_type, opset)
    except onnx.defs.SchemaError:
        raise Unsupported(f"not in operator set {opset}") from None


STUMBLES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What Python raises where code takes for granted what a faulty node does not have."""


def check_node(proto: NodeProto, opset: int) -> None:
    """
    Raise VerifyException if the number of inputs or outputs or the attributes of a node are wrong.

    Raises Unsupported if the operator set does not have its operator.
    """
    _check_attributes(proto, schema_of(proto, opset))
    if proto.op_type == "Constant" or any(attribute.HasField("g") for attribute in proto.attribute):
        # The check would copy the tensor, whose reading is check enough; and inner graphs read outer names.
        return
    context: Any = cast(Any, checker).C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {"": opset}
    try:
        checker.check_node(proto, context)
    except checker.ValidationError as error:
        raise VerifyException(str(error).splitlines()[0]) from None
    except UnicodeDecodeError:
        raise VerifyException("an attribute is not UTF-8 text") from None


def _check_attributes(proto: NodeProto, schema: OpSchema) -> None:
    """Raise VerifyException for an attribute that the operator does not have, and for one that is there twice."""
    seen: set[str] = set()
    for attribute in proto.attribute:
        if attribute.name not in schema.attributes:
            error = VerifyException(f'{proto.op_type} has no attribute "{attribute.name}"')
            known = ", ".join(schema.attributes) or "none"
            error.add_note(did_you_mean(attribute.name, schema.attributes) or f"its attributes: {known}")
            raise error
        if attribute.name in seen:
            raise VerifyException(f'its attribute "{attribute.name}" is there twice')
        seen.add(attribute.name)


def refuse_faulty(proto: NodeProto, opset: int, types: Sequence[Tensor | None]) -> None:
    """
    Raise VerifyException if a node, whose inputs have `types`, is not what ONNX allows: an element type that the
    operator does not take, or shapes and attributes that its own inference of shapes refuses.
    """
    schema = schema_of(proto, opset)
    given = {name: type_proto(each) for name, each in zip(proto.input, types, strict=False) if each is not None}
    formal: Sequence[Any] = schema.inputs
    for index, name in enumerate(proto.input):
        if name in given and formal:
            element = given[name].tensor_type.elem_type
            word = f"tensor({TensorProto.DataType.Name(element).lower()})"
            if word not in formal[min(index, len(formal) - 1)].types:
                raise VerifyException(f"{proto.op_type} takes no {word} as input {index}")
    try:
        shape_inference.infer_node_outputs(schema, proto, given)
    except shape_inference.InferenceError as error:
        raise VerifyException(str(error).strip().splitlines()[0]) from None


def type_proto(tensor: Tensor) -> TypeProto:
    """A type as ONNX writes it; sizes that are not known have their names."""
    element = helper.np_dtype_to_tensor_dtype(numpy_dtype(tensor.element_type))
    sizes = [size if is_known(size) else str(size) for size in tensor.get_shape()]
    return helper.make_tensor_type_proto(element, sizes)


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
    nodes = [_bound(node, given, proto, index) for index, node in enumerate(function.node)]
    for node in nodes:
        if any(name in function.output for name in node.output):
            node.name = node_name(proto)
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


def _bound(node: NodeProto, given: Mapping[str, AttributeProto], owner: NodeProto, index: int) -> NodeProto:
    """A node of a body with the attributes that refer to those of the function filled in."""
    bound = NodeProto()
    bound.CopyFrom(node)
    bound.name = f"{node_name(owner)}.{index}.{node.op_type}"
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
