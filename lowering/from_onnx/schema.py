"""What ONNX says about an operator: whether its operator set has it, and how its nodes must look."""

from __future__ import annotations

from typing import Any, cast

import onnx
from onnx import NodeProto, checker
from onnx.defs import OpSchema
from xdsl.utils.exceptions import VerifyException

from penstock.lowering.from_onnx.node import Unsupported

DOMAINS = ("", "ai.onnx")
"""The two names of ONNX's own operators."""


def schema_of(proto: NodeProto, opset: int) -> OpSchema:
    """The schema of a node's operator; raises Unsupported if operator set `opset` has none."""
    if proto.domain not in DOMAINS or not onnx.defs.has(proto.op_type):
        raise Unsupported("")
    try:
        return onnx.defs.get_schema(proto.op_type, opset)
    except onnx.defs.SchemaError:
        raise Unsupported(f"not in operator set {opset}") from None


def check_node(proto: NodeProto, opset: int) -> None:
    """
    Raise VerifyException if the number of inputs or outputs or the attributes of a node are wrong.

    Raises Unsupported if the operator set does not have its operator.
    """
    schema_of(proto, opset)
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
