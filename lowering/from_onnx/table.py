# SPDX-License-Identifier: Apache-2.0
"""The importer of each ONNX operator; `com.example.Op` would be the name of one from another domain."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import onnx
from xdsl.ir import SSAValue
from xdsl.irdl import OptionalDef

from penstock.dialects import graph
from penstock.dialects.graph.base import require
from penstock.dialects.plugins import load_plugins
from penstock.lowering.from_onnx.constants import FROM_CONSTANTS
from penstock.lowering.from_onnx.node import DOMAINS, IMPORTERS, Importer, OnnxNode, Unsupported, imports, op_called
from penstock.lowering.from_onnx.schema import schema_of

__all__ = ["IMPORTERS", "as_declared", "importer_of", "imports", "matched"]

for _module in pkgutil.iter_modules([str(Path(__file__).parent)]):
    if _module.name.startswith("nodes_"):
        importlib.import_module(f"{__package__}.{_module.name}")  # for its registrations

_BY_THE_IMPORT = ("Constant", *FROM_CONSTANTS)
"""Operators of ONNX that need no importer."""


def importer_of(operator: str) -> Importer | None:
    """
    The importer of an operator, which installed packages may bring where Penstock has none; None without one.

    An operator of ONNX that an op is called after needs none if all its attributes are properties of the op.
    """
    if operator not in IMPORTERS and operator not in _BY_THE_IMPORT:
        op_class = op_called(operator)
        if (
            op_class is not None
            and onnx.defs.has(operator)
            and len(matched(op_class, attributes := onnx.defs.get_schema(operator).attributes)) == len(attributes)
        ):
            return as_declared(op_class)
        load_plugins()
    return IMPORTERS.get(operator)


def as_declared(op_class: type[graph.GraphOp]) -> Importer:
    """
    The importer of an operator that is an op: its inputs are the operands, its attributes the properties of the names.

    Of a binary op of ONNX any other number of inputs than two is a chain from the left.
    """
    declared_operands = op_class.get_irdl_definition().operands
    most, least = len(declared_operands), sum(not isinstance(each, OptionalDef) for _, each in declared_operands)

    def build(node: OnnxNode) -> SSAValue:
        is_onnx, count = node.proto.domain in DOMAINS, len(node.inputs)
        if is_onnx and issubclass(op_class, graph.BinaryOp) and count != 2:
            return reduce(lambda a, b: node.emit(op_class(a, b)), node.values())
        # What ONNX says of its own operators has been checked.
        takes = f"{least}" if least == most else f"{least} to {most}"
        require(is_onnx or least <= count <= most, f"it takes {takes} operands, and has {count}")
        declared = schema_of(node.proto, node.opset).attributes if is_onnx else {}
        given = {name: each.default_value for name, each in declared.items() if each.default_value.type}
        given |= {each.name: each for each in node.proto.attribute}
        names = matched(op_class, given)
        values: dict[str, Any] = {}
        for name, attribute in given.items():
            if (found := names.get(name)) is None:
                raise Unsupported(f"the attribute {name}")
            value = onnx.helper.get_attribute_value(attribute)
            values[found] = value.decode(errors="replace") if isinstance(value, bytes) else value
        operands = [node.optional(index) for index in range(len(node.inputs))]
        return node.emit(op_class(*operands, **values))

    return build


def matched(op_class: type[graph.GraphOp], attributes: Iterable[str]) -> dict[str, str]:
    """Those attributes of an operator that properties of an op are called after, and the names of the properties."""
    names = {_word(name): name for name in op_class.get_irdl_definition().properties}
    return {name: names[_word(name)] for name in attributes if _word(name) in names}


def _word(name: str) -> str:
    """The letters of a name: ONNX writes some in camel case and some in snake case."""
    return name.replace("_", "").lower()
