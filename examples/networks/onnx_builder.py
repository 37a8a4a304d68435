# SPDX-License-Identifier: Apache-2.0
"""
A thin builder of ONNX models: names for values, seeded weights, nodes in the order in which they are added.

Values are named after the module and the operator as PyTorch's exporter names them, `/layer.0/attention/MatMul`,
so that tools that show names have something to show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Array = NDArray[Any]
Shape = Sequence[int | str]
"""Sizes; a string is the name of a symbolic one."""


class OnnxBuilder:
    """Collects the inputs, nodes, weights and outputs of one model; weights are drawn from `seed`, in order."""

    def __init__(self, name: str, seed: int, opset: int):
        self.name = name
        self.opset = opset
        self.rng = np.random.default_rng(seed)
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._nodes: list[NodeProto] = []
        self._names: set[str] = set()
        self._initializers: list[TensorProto] = []

    # What goes in and out.

    def input(self, name: str, shape: Shape, element: int = TensorProto.FLOAT) -> str:
        """An input of the model; returns its name, as all that makes a value does."""
        self._inputs.append(helper.make_tensor_value_info(name, element, list(shape)))
        return name

    def output(self, value: str, shape: Shape, element: int = TensorProto.FLOAT) -> None:
        """Make a value an output of the model."""
        self._outputs.append(helper.make_tensor_value_info(value, element, list(shape)))

    # Constants.

    def weight(self, name: str, array: Array, element: int = TensorProto.FLOAT) -> str:
        """An initializer; what holds no integers is stored as `element`."""
        kept = array if array.dtype.kind in "iu" else array.astype(helper.tensor_dtype_to_np_dtype(element))
        self._initializers.append(numpy_helper.from_array(kept, name))
        return name

    def constant(self, array: Array | float | Sequence[int], scope: str = "") -> str:
        """A Constant node, as exporters write numbers of the program: floats as float32, the rest as int64."""
        given = np.asarray(array)
        kept = given.astype(np.float32) if given.dtype.kind == "f" else given.astype(np.int64)
        return self.node("Constant", [], scope, value=numpy_helper.from_array(kept))

    def normal(self, shape: Sequence[int], deviation: float) -> Array:
        """Normal numbers around 0."""
        return self.rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(deviation)

    def he_normal(self, shape: Sequence[int], fan_in: int) -> Array:
        """Normal numbers of variance 2 / fan_in: He et al., "Delving Deep into Rectifiers", 2015."""
        return self.normal(shape, math.sqrt(2.0 / fan_in))

    def near(self, shape: int | Sequence[int], center: float, spread: float) -> Array:
        """Uniform numbers in [center - spread, center + spread]."""
        return self.rng.uniform(center - spread, center + spread, shape).astype(np.float32)

    # Nodes.

    def node(self, operator: str, inputs: Sequence[str], scope: str = "", **attributes: Any) -> str:
        """A node with one output, named after `scope` and the operator."""
        return self.nodes(operator, inputs, 1, scope, **attributes)[0]

    def nodes(self, operator: str, inputs: Sequence[str], count: int, scope: str = "", **attributes: Any) -> list[str]:
        """A node with `count` outputs."""
        name = self._fresh(f"{scope}/{operator}")
        outputs = [f"{name}_output_{index}" for index in range(count)]
        self._nodes.append(helper.make_node(operator, list(inputs), outputs, name=name, **attributes))
        return outputs

    def _fresh(self, name: str) -> str:
        unique, number = name, 0
        while unique in self._names:
            number += 1
            unique = f"{name}_{number}"
        self._names.add(unique)
        return unique

    # The whole.

    def finish(self) -> ModelProto:
        """The model, checked; raises onnx's ValidationError if it is none."""
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._initializers)
        model = helper.make_model(
            graph,
            producer_name="penstock-examples",
            # 8 is the oldest version that knows no operator set newer than 15; 10 knows them all up to 23.
            ir_version=8 if self.opset <= 15 else 10,
            opset_imports=[helper.make_opsetid("", self.opset)],
        )
        onnx.checker.check_model(model, full_check=True)
        return model
