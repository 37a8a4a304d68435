"""Importers of operators that make tensors of one number."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.node import Importer, Node


def constant_of_shape(node: Node) -> SSAValue:
    """One number, repeated: where the shape has sizes that are not known yet, else it is evaluated before."""
    given = node.tensor("value")
    number = np.zeros(1, np.float32) if given is None else given
    require(number.size == 1, f"its value has {number.size} elements, not one")
    shape = node.sizes_of(0, "shape")
    return node.emit(graph.ExpandOp(node.constant(number.reshape(()), "value"), shape))


TABLE: dict[str, Importer] = {"ConstantOfShape": constant_of_shape}
