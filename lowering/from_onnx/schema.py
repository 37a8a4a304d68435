# SPDX-License-Identifier: Apache-2.0
"""What ONNX says about an operator: whether a set has it, how its nodes must look, and the function that defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, TypeProto, checker, helper, shape_inference
from onnx.defs import OpSchema
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import Tensor
from penstock.dialects.graph.sizes import Dim, UnknownSize, is_known
from penstock.lowering.from_onnx.forms import FORMS
from penstock.lowering.from_onnx.node import DOMAINS, Unsupported, node_name, operator_of

CLASSICAL = "ai.onnx.ml"
"""ONNX's domain of classical machine learning."""

_ADOPTED = {"LayerNormalization": 17}
"""Operators that runtimes also take in operator sets older than the one that brought them, and what they mean there."""


def schema_of(proto: NodeProto, opset: int) -> OpSchema:
    """The schema of a node's operator; raises Unsupported if operator set `opset` of its domain has none."""
    domain = "" if proto.domain in DOMAINS else proto.domain
    if domain not in ("", CLASSICAL) or not onnx.defs.has(proto.op_type, domain):
        raise Unsupported("")
    try:
        return onnx.defs.get_schema(proto.op_type, max(opset, 0 if domain else _ADOPTED.get(proto.op_type, 0)), domain)
    except onnx.defs.SchemaError:
        raise Unsupported(f"not in operator set {opset}{f' of {domain}' if domain else ''}") from None


STUMBLES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What Python raises where code takes for granted what a faulty node does not have."""


def check_node(proto: NodeProto, opset: int) -> None:
    """
    Raise VerifyException if the number of inputs or outputs or the attributes of a node are wrong.

    Raises Unsupported if the operator set does not have its operator.
    """
    if (form := FORMS.get(operator_of(proto))) is not None:
        form.check(proto)
        return
    schema = schema_of(proto, opset)
    _check_attributes(proto, schema)
    if proto.op_type == "Constant" or any(attribute.HasField("g") for attribute in proto.attribute):
        # The check would copy the tensor, whose reading is check enough; and inner graphs read outer names.
        return
    context: Any = cast(Any, checker).C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {schema.domain: max(opset, schema.since_version)}
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


def refuse_faulty(proto: NodeProto, opset: int, types: Sequence[Tensor | None]) -> Mapping[str, TypeProto]:
    """
    Raise VerifyException if a node, whose inputs have `types`, is not what ONNX allows: an element type that the
    operator does not take, or shapes and attributes that its own inference of shapes refuses; else the types that
    this gives its outputs, by their names; none where it takes a sequence.
    """
    if operator_of(proto) in FORMS:
        words = ", ".join("none" if each is None else str(each) for each in types)
        raise VerifyException(f"{operator_of(proto)} does not take operands of these types together: {words}")
    schema = schema_of(proto, opset)
    given = {name: type_proto(each) for name, each in zip(proto.input, types, strict=False) if each is not None}
    formal: Sequence[Any] = schema.inputs
    for index, name in enumerate(proto.input):
        if name in given and formal:
            element = given[name].tensor_type.elem_type
            word = f"tensor({TensorProto.DataType.Name(element).lower()})"
            if word not in formal[min(index, len(formal) - 1)].types:
                raise VerifyException(f"{proto.op_type} takes no {word} as input {index}")
    if any(name and name not in given for name in proto.input):
        return {}  # of sequences there are no types here
    try:
        return shape_inference.infer_node_outputs(schema, proto, given)
    except (shape_inference.InferenceError, checker.ValidationError) as error:
        raise VerifyException(str(error).strip().splitlines()[0]) from None


def type_proto(tensor: Tensor) -> TypeProto:
    """A type as ONNX writes it; sizes that are not known have their names."""
    element = helper.np_dtype_to_tensor_dtype(numpy_dtype(tensor.element_type))
    sizes = [size if is_known(size) else str(size) for size in tensor.get_shape()]
    return helper.make_tensor_type_proto(element, sizes)


def has_function(proto: NodeProto, opset: int) -> bool:
    """Whether ONNX defines the operator of `proto` by a function; raises Unsupported if it has no such operator."""
    schema: Any = schema_of(proto, opset)  # the type stubs leave these out
    return schema.has_function or schema.has_context_dependent_function


def function_of(proto: NodeProto, opset: int, types: Sequence[Tensor | None]) -> FunctionProto:
    """
    The function that defines the operator of `proto`, whose inputs have `types`, for the newest operator set that is
    not after `opset`, else for the oldest. Its nodes have the attributes of `proto`, and names made of its name.

    Raises Unsupported if ONNX defines it otherwise, or not at all.
    """
    schema: Any = schema_of(proto, opset)

    def chosen(versions: Sequence[int]) -> int:
        return max((each for each in versions if each <= opset), default=min(versions))

    data = b""
    if schema.has_function:
        data = schema.get_function_with_opset_version(chosen(schema.function_opset_versions))
    elif schema.has_context_dependent_function:
        texts = [(TypeProto() if each is None else type_proto(each)).SerializeToString() for each in types]
        version = chosen(schema.context_dependent_function_opset_versions)
        data = schema.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), texts)
    if not data:
        for size in (size for each in types if each is not None for size in each.get_shape()):
            if isinstance(size, Dim):
                raise UnknownSize(size, "may decide what the operator computes")
        raise Unsupported("")
    function = FunctionProto.FromString(data)
    defaults = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.type}
    given = defaults | {attribute.name: attribute for attribute in proto.attribute}
    for index, node in enumerate(function.node):
        is_result = any(name in function.output for name in node.output)
        node.name = node_name(proto) if is_result else f"{node_name(proto)}.{index}.{node.op_type}"
        _bind_attributes(node, given)
    return function


def _bind_attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> None:
    """Give the attributes of a node that refer to those of the function their values."""
    for index, attribute in reversed(list(enumerate(node.attribute))):
        name, source = attribute.name, given.get(attribute.ref_attr_name)
        if source is not None:
            attribute.CopyFrom(source)
            attribute.name = name
        elif attribute.ref_attr_name:
            del node.attribute[index]
