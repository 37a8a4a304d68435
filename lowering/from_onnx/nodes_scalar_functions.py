"""Importers of trigonometric functions and of operators on bits."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.node import Importer, Node
from penstock.lowering.from_onnx.nodes_elementwise import binary, unary


def bitwise_not(node: Node) -> SSAValue:
    """All bits against those of -1, which are all set."""
    x = node.value(0)
    dtype = numpy_dtype(tensor_of(x).element_type)
    ones = np.invert(np.zeros((), dtype))
    return node.emit(graph.BitwiseXorOp(x, node.constant(ones, "ones")))


def bit_shift(node: Node) -> SSAValue:
    direction = node.string("direction", "")
    require(direction in ("LEFT", "RIGHT"), f'direction is LEFT or RIGHT, not "{direction}"')
    op = graph.ShiftLeftOp if direction == "LEFT" else graph.ShiftRightOp
    return node.emit(op(node.value(0), node.value(1)))


TABLE: dict[str, Importer] = {
    "Acos": unary(graph.AcosOp),
    "Acosh": unary(graph.AcoshOp),
    "Asin": unary(graph.AsinOp),
    "Asinh": unary(graph.AsinhOp),
    "Atan": unary(graph.AtanOp),
    "Atanh": unary(graph.AtanhOp),
    "BitShift": bit_shift,
    "BitwiseAnd": binary(graph.BitwiseAndOp),
    "BitwiseNot": bitwise_not,
    "BitwiseOr": binary(graph.BitwiseOrOp),
    "BitwiseXor": binary(graph.BitwiseXorOp),
    "Cos": unary(graph.CosOp),
    "Cosh": unary(graph.CoshOp),
    "Sin": unary(graph.SinOp),
    "Sinh": unary(graph.SinhOp),
    "Tan": unary(graph.TanOp),
}
