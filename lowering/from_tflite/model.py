# SPDX-License-Identifier: Apache-2.0
"""What a file of TensorFlow Lite says of tensors and operators, and the ONNX model that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import NodeProto

Array = NDArray[Any]

# By the numbers of TensorType: FLOAT32, FLOAT16, INT32, UINT8, INT64, -, BOOL, INT16, -, INT8, FLOAT64.
_DTYPES: dict[int, Any] = {
    0: np.float32, 1: np.float16, 2: np.int32, 3: np.uint8, 4: np.int64, 6: np.bool_, 7: np.int16, 9: np.int8,
    10: np.float64,
}  # fmt: skip
_ACTIVATIONS = {1: ("Relu",), 2: ("Clip", -1.0, 1.0), 3: ("Clip", 0.0, 6.0), 4: ("Tanh",)}
"""By the number of ActivationFunctionType."""


class Unsupported(Exception):
    """An operator cannot be taken; the message says what about it."""


@dataclass
class TfliteModel:
    """The ONNX model under construction."""

    tflite: Any
    """The package."""
    graph: Any
    """The graph of the file."""
    codes: Sequence[str]
    """The names of its operators."""
    nodes: list[NodeProto] = field(default_factory=list["NodeProto"])
    initializers: dict[str, Array] = field(default_factory=dict[str, Array])
    count: int = 0

    # What the file says of tensors.

    def name(self, index: int) -> str:
        return f"t{index}"

    def shape(self, index: int) -> list[int]:
        tensor = self.graph.Tensors(index)
        return [] if tensor.ShapeLength() == 0 else [int(each) for each in tensor.ShapeAsNumpy()]

    def dtype(self, index: int) -> Any:
        number = self.graph.Tensors(index).Type()
        if number not in _DTYPES:
            raise Unsupported(f"on the type {number} of tensors")
        return np.dtype(_DTYPES[number])

    def array(self, index: int) -> Array | None:
        """The value of a constant."""
        return self.initializers.get(self.name(index))

    def known(self, index: int, what: str) -> Array:
        if (found := self.array(index)) is None:
            raise Unsupported(f"with {what} that is known only when the program runs")
        return found

    def quantisation(self, index: int) -> tuple[Array, Array, int] | None:
        """Scales, zero points and axis."""
        found = self.graph.Tensors(index).Quantization()
        if found is None or found.ScaleLength() == 0 or self.dtype(index).kind not in "iu":
            return None
        scales = np.asarray(found.ScaleAsNumpy(), np.float32)
        zeros = np.asarray(found.ZeroPointAsNumpy()) if found.ZeroPointLength() else np.zeros(len(scales))
        return scales, zeros.astype(self.dtype(index)), found.QuantizedDimension()

    # Nodes.

    def fresh(self) -> str:
        self.count += 1
        return f"made{self.count}"

    def constant(self, array: Array) -> str:
        name = self.fresh()
        self.initializers[name] = np.asarray(array)
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        output = output or self.fresh()
        self.nodes.append(helper.make_node(operator, list(inputs), [output], f"{output}_{operator}", **attributes))
        return output

    def _parameters(self, index: int) -> tuple[list[str], dict[str, Any]]:
        quantisation = self.quantisation(index)
        assert quantisation is not None
        scales, zeros, axis = quantisation
        one = len(scales) == 1
        parts = [self.constant(each[0] if one else each) for each in (scales, zeros)]
        return parts, {} if one else {"axis": axis}

    def real(self, index: int) -> str:
        """The numbers that a tensor encodes."""
        if self.quantisation(index) is None:
            return self.name(index)
        parts, attributes = self._parameters(index)
        return self.add("DequantizeLinear", self.name(index), *parts, **attributes)

    def store(self, value: str, index: int) -> None:
        """Let a tensor encode numbers."""
        if self.quantisation(index) is None:
            self.add("Identity", value, output=self.name(index))
            return
        parts, attributes = self._parameters(index)
        self.add("QuantizeLinear", value, *parts, output=self.name(index), **attributes)

    def same(self, *indices: int) -> bool:
        """Whether tensors encode numbers alike, so that what only moves them may move what is stored."""
        found = [self.quantisation(index) for index in indices]
        first = found[0]
        if first is None:
            return all(each is None for each in found)
        return all(each is not None and all(map(np.array_equal, each[:2], first[:2])) for each in found)

    def activated(self, value: str, number: int) -> str:
        if number == 0:
            return value
        if number not in _ACTIVATIONS:
            raise Unsupported(f"with the activation {number}")
        operator, *ends = _ACTIVATIONS[number]
        return self.add(operator, value, *(self.constant(np.array(each, np.float32)) for each in ends))


@dataclass
class TfliteOp:
    """One operator of the file."""

    model: TfliteModel
    op: Any
    inputs: list[int]
    outputs: list[int]

    def options(self, name: str) -> Any:
        """Its options of a type."""
        made = getattr(self.model.tflite, name)()
        if (table := self.op.BuiltinOptions()) is not None:
            made.Init(table.Bytes, table.Pos)
        return made

    def has(self, place: int) -> bool:
        return place < len(self.inputs) and self.inputs[place] >= 0

    def real(self, place: int = 0) -> str:
        return self.model.real(self.inputs[place])

    def shape(self, place: int = 0) -> list[int]:
        return self.model.shape(self.inputs[place])

    def known(self, place: int, what: str) -> Array:
        return self.model.known(self.inputs[place], what)

    def store(self, value: str) -> None:
        self.model.store(value, self.outputs[0])

    def move(self, operator: str, *parts: str, places: Sequence[int] = (0,), **attributes: Any) -> None:
        """An operator that only moves elements: of what is stored, where that encodes alike."""
        indices = [self.inputs[place] for place in places]
        if self.model.same(*indices, self.outputs[0]):
            names = (self.model.name(index) for index in indices)
            self.model.add(operator, *names, *parts, output=self.model.name(self.outputs[0]), **attributes)
        else:
            names = [self.model.real(index) for index in indices]
            self.store(self.model.add(operator, *names, *parts, **attributes))

    def sizes(self, numbers: Sequence[int] | Array) -> str:
        return self.model.constant(np.array([int(each) for each in numbers], np.int64))

    def word(self) -> str:
        """The name of the operator."""
        index: int = self.op.OpcodeIndex()
        return self.model.codes[index]
