"""What ONNX says about an operator: whether its operator set has it, and how its nodes must look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import onnx
from onnx import NodeProto, TensorProto, TypeProto, checker, helper, shape_inference
from onnx.defs import OpSchema
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import Tensor
from penstock.dialects.graph.sizes import is_known
from penstock.lowering.from_onnx.node import DOMAINS, Unsupported


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
