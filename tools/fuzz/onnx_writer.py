# SPDX-License-Identifier: Apache-2.0
"""A random ONNX model under construction: its values, weights that serve several nodes, and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
Shape = tuple[int, ...]

LARGEST = 200
"""Elements of a value; a product of several is a little more."""
BOUND = 2000.0
"""No value is larger: sums of products of small integers stay exact."""


@dataclass(frozen=True)
class Value:
    """A tensor of floats: what it is called, its shape, whether it is exact, and a bound of its elements."""

    name: str
    shape: Shape
    exact: bool = True
    bound: float = 3.0

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Writer:
    """Writes a random model, node by node."""

    rng: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    values: list[Value] = field(default_factory=list[Value])
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    inputs: dict[str, Array] = field(default_factory=dict[str, Array])

    # Choices.

    def flip(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one_of(self, found: Sequence[Any]) -> Any:
        return found[int(self.rng.integers(len(found)))]

    def axis(self, x: Value) -> int:
        return self.integer(0, x.rank - 1)

    def pick(self, *, rank: int | None = None, exact: bool = False) -> Value | None:
        """A value, rather a late one than an early one."""
        found = [each for each in self.values if rank in (None, each.rank) and (each.exact or not exact)]
        if not found:
            return None
        return found[-1] if self.flip(0.6) else self.one_of(found)

    # Parts.

    def constant(self, array: Array) -> str:
        """An initializer; one that is there already serves again, as often as not."""
        same = [name for name, each in self.weights.items() if each.shape == array.shape and each.dtype == array.dtype]
        if array.dtype.kind == "f" and same and self.flip(0.6):
            return self.one_of(same)
        if array.dtype.kind != "f" and (found := [name for name in same if np.array_equal(self.weights[name], array)]):
            return found[0]
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.integers(-2, 3, shape).astype(np.float32))

    def numbers(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [f"v{len(self.nodes)}{'abc'[index] if outputs > 1 else ''}" for index in range(outputs)]
        name = f"n{len(self.nodes)}" if self.flip(0.9) else None
        self.nodes.append(helper.make_node(operator, list(inputs), names, name, **attributes))
        return names

    def emit(
        self, operator: str, inputs: Sequence[str], shape: Sequence[int], exact: bool, bound: float, **attributes: Any
    ) -> Value:
        (name,) = self.node(operator, *inputs, **attributes)
        value = Value(name, tuple(int(size) for size in shape), exact, bound)
        if bound > BOUND:
            (name,) = self.node("Clip", name, self.constant_number(-9), self.constant_number(9))
            value = Value(name, value.shape, exact, 9.0)
        self.values.append(value)
        return value

    def constant_number(self, number: float) -> str:
        name = f"number{number}"
        self.weights.setdefault(name, np.array(number, np.float32))
        return name

    def input(self, *shape: int) -> Value:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.rng.integers(-3, 4, shape).astype(np.float32)
        value = Value(name, shape)
        self.values.append(value)
        return value

    def model(self) -> ModelProto:
        """The model, whose outputs are the last value and some others."""
        computed = [value for value in self.values if value.name not in self.inputs]
        outputs = [computed[-1], *(value for value in computed[:-1] if self.flip(0.25))]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in self.inputs.items()],
            [helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None) for value in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
