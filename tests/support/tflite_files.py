# SPDX-License-Identifier: Apache-2.0
"""Files of TensorFlow Lite, written node by node with the package `tflite`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
API: Any = import_module("tflite")
FLATBUFFERS: Any = import_module("flatbuffers")
TYPES = {"float32": 0, "int32": 2, "int8": 9}
ACTIVATIONS = {"none": 0, "relu": 1, "relu6": 3}


@dataclass
class Tensor:
    """One tensor: scales and zero points where it encodes numbers."""

    shape: Sequence[int]
    dtype: str
    scales: Sequence[float] = ()
    zeros: Sequence[int] = ()
    axis: int = 0
    array: Array | None = None


@dataclass
class Node:
    operator: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: str = ""
    said: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class File:
    """A model under construction."""

    tensors: list[Tensor] = field(default_factory=list[Tensor])
    nodes: list[Node] = field(default_factory=list[Node])

    def tensor(self, shape: Sequence[int], dtype: str, *rest: Any, **said: Any) -> int:
        self.tensors.append(Tensor(shape, dtype, *rest, **said))
        return len(self.tensors) - 1

    def node(self, operator: str, inputs: Sequence[int], output: int, options: str = "", **said: Any) -> int:
        self.nodes.append(Node(operator, inputs, [output], options, said))
        return output

    def data(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The bytes of the file."""
        b: Any = FLATBUFFERS.Builder(0)

        def vector(start: Any, items: Sequence[Any], put: Any) -> Any:
            start(b, len(items))
            for item in reversed(items):
                put(item)
            return b.EndVector()

        def offsets(start: Any, items: Sequence[Any]) -> Any:
            return vector(start, items, b.PrependUOffsetTRelative)

        buffers = [b""]
        for tensor in self.tensors:
            if tensor.array is not None:
                buffers.append(np.ascontiguousarray(tensor.array).tobytes())
        made_buffers = list[Any]()
        for held in buffers:
            at = b.CreateByteVector(held) if held else None
            API.BufferStart(b)
            if at is not None:
                API.BufferAddData(b, at)
            made_buffers.append(API.BufferEnd(b))
        made_tensors, number = list[Any](), 0
        for index, tensor in enumerate(self.tensors):
            name = b.CreateString(f"tensor{index}")
            shape = vector(API.TensorStartShapeVector, tensor.shape, b.PrependInt32)
            encoded = None
            if tensor.scales:
                scales = vector(API.QuantizationParametersStartScaleVector, tensor.scales, b.PrependFloat32)
                zeros = vector(API.QuantizationParametersStartZeroPointVector, tensor.zeros, b.PrependInt64)
                API.QuantizationParametersStart(b)
                API.QuantizationParametersAddScale(b, scales)
                API.QuantizationParametersAddZeroPoint(b, zeros)
                API.QuantizationParametersAddQuantizedDimension(b, tensor.axis)
                encoded = API.QuantizationParametersEnd(b)
            number += tensor.array is not None
            API.TensorStart(b)
            API.TensorAddShape(b, shape)
            API.TensorAddType(b, TYPES[tensor.dtype])
            API.TensorAddBuffer(b, number if tensor.array is not None else 0)
            API.TensorAddName(b, name)
            if encoded is not None:
                API.TensorAddQuantization(b, encoded)
            made_tensors.append(API.TensorEnd(b))
        names = list(dict.fromkeys(node.operator for node in self.nodes))
        made_nodes = list[Any]()
        for node in self.nodes:
            options = None
            if node.options:
                getattr(API, f"{node.options}Start")(b)
                for key, value in node.said.items():
                    getattr(API, f"{node.options}Add{key}")(b, value)
                options = getattr(API, f"{node.options}End")(b)
            ins = vector(API.OperatorStartInputsVector, node.inputs, b.PrependInt32)
            outs = vector(API.OperatorStartOutputsVector, node.outputs, b.PrependInt32)
            API.OperatorStart(b)
            API.OperatorAddOpcodeIndex(b, names.index(node.operator))
            API.OperatorAddInputs(b, ins)
            API.OperatorAddOutputs(b, outs)
            if options is not None:
                API.OperatorAddBuiltinOptionsType(b, getattr(API.BuiltinOptions, node.options))
                API.OperatorAddBuiltinOptions(b, options)
            made_nodes.append(API.OperatorEnd(b))
        parts = [
            offsets(API.SubGraphStartTensorsVector, made_tensors),
            vector(API.SubGraphStartInputsVector, inputs, b.PrependInt32),
            vector(API.SubGraphStartOutputsVector, outputs, b.PrependInt32),
            offsets(API.SubGraphStartOperatorsVector, made_nodes),
        ]
        API.SubGraphStart(b)
        for add, part in zip(("Tensors", "Inputs", "Outputs", "Operators"), parts, strict=True):
            getattr(API, f"SubGraphAdd{add}")(b, part)
        graph = API.SubGraphEnd(b)
        codes = list[Any]()
        for name in names:
            code = getattr(API.BuiltinOperator, name)
            API.OperatorCodeStart(b)
            API.OperatorCodeAddDeprecatedBuiltinCode(b, min(code, 127))
            API.OperatorCodeAddBuiltinCode(b, code)
            API.OperatorCodeAddVersion(b, 5 if name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED") else 2)
            codes.append(API.OperatorCodeEnd(b))
        made_codes = offsets(API.ModelStartOperatorCodesVector, codes)
        graphs = offsets(API.ModelStartSubgraphsVector, [graph])
        held_buffers = offsets(API.ModelStartBuffersVector, made_buffers)
        API.ModelStart(b)
        API.ModelAddVersion(b, 3)
        API.ModelAddOperatorCodes(b, made_codes)
        API.ModelAddSubgraphs(b, graphs)
        API.ModelAddBuffers(b, held_buffers)
        b.Finish(API.ModelEnd(b), b"TFL3")
        return bytes(b.Output())


def network(seed: int, *, quantised: bool = True) -> tuple[bytes, Array]:
    """
    Convolution, depthwise convolution, sum, pad, pooling, join, mean, product and softmax, in 8-bit integers or in
    floats; and an input.
    """
    rng, file = np.random.default_rng(seed), File()
    channels, size = int(rng.integers(2, 6)), int(rng.integers(6, 10))

    def activations(shape: Sequence[int], scale: float = 0.05) -> int:
        if not quantised:
            return file.tensor(shape, "float32")
        return file.tensor(shape, "int8", [scale * float(rng.uniform(0.8, 1.2))], [int(rng.integers(-20, 21))])

    def weights(shape: Sequence[int], axis: int) -> tuple[int, Array]:
        count = shape[axis]
        if not quantised:
            return file.tensor(shape, "float32", array=rng.normal(0, 0.3, shape).astype(np.float32)), np.ones(count)
        scales = rng.uniform(0.005, 0.01, count)
        array = rng.integers(-127, 128, shape).astype(np.int8)
        return file.tensor(shape, "int8", scales.tolist(), [0] * count, axis, array=array), scales

    def bias(count: int, scales: Array, x: int) -> int:
        if not quantised:
            return file.tensor([count], "float32", array=rng.normal(0, 0.3, count).astype(np.float32))
        array = rng.integers(-500, 501, count).astype(np.int32)
        factors = (scales * file.tensors[x].scales[0]).tolist()
        return file.tensor([count], "int32", factors, [0] * count, 0, array=array)

    x = activations([1, size, size, channels])
    stride, act = int(rng.integers(1, 3)), int(rng.choice([0, 1, 3]))
    outputs = int(rng.integers(2, 6))
    w, scales = weights([outputs, 3, 3, channels], 0)
    places = -(-size // stride)
    y = file.node(
        "CONV_2D", [x, w, bias(outputs, scales, x)], activations([1, places, places, outputs], 0.1), "Conv2DOptions",
        Padding=0, StrideH=stride, StrideW=stride, FusedActivationFunction=act, DilationHFactor=1, DilationWFactor=1,
    )  # fmt: skip
    w, scales = weights([1, 3, 3, outputs], 3)
    z = file.node(
        "DEPTHWISE_CONV_2D", [y, w, bias(outputs, scales, y)], activations([1, places, places, outputs], 0.1),
        "DepthwiseConv2DOptions", Padding=0, StrideH=1, StrideW=1, DepthMultiplier=1, FusedActivationFunction=act,
        DilationHFactor=1, DilationWFactor=1,
    )  # fmt: skip
    s = file.node(
        "ADD", [y, z], activations([1, places, places, outputs], 0.1), "AddOptions", FusedActivationFunction=0
    )
    widths = file.tensor([4, 2], "int32", array=np.array([[0, 0], [1, 0], [0, 1], [0, 0]], np.int32))
    like = file.tensors[s]
    padded = file.tensor([1, places + 1, places + 1, outputs], like.dtype, like.scales, like.zeros)
    p = file.node("PAD", [s, widths], padded, "PadOptions")
    like, half = file.tensors[p], (places + 1) // 2
    pooled = [file.tensor([1, half, half, outputs], like.dtype, like.scales, like.zeros) for _ in range(2)]
    for name, target in zip(("MAX_POOL_2D", "AVERAGE_POOL_2D"), pooled, strict=True):
        file.node(
            name, [p], target, "Pool2DOptions", Padding=1, StrideH=2, StrideW=2, FilterHeight=2, FilterWidth=2,
            FusedActivationFunction=0,
        )  # fmt: skip
    joined = file.tensor([1, half, half, 2 * outputs], like.dtype, like.scales, like.zeros)
    j = file.node("CONCATENATION", pooled, joined, "ConcatenationOptions", Axis=3, FusedActivationFunction=0)
    axes = file.tensor([2], "int32", array=np.array([1, 2], np.int32))
    m = file.node("MEAN", [j, axes], activations([1, 2 * outputs], 0.05), "ReducerOptions", KeepDims=False)
    w, scales = weights([5, 2 * outputs], 0)
    f = file.node(
        "FULLY_CONNECTED", [m, w, bias(5, scales, m)], activations([1, 5], 0.05), "FullyConnectedOptions",
        FusedActivationFunction=0,
    )  # fmt: skip
    shares = file.tensor([1, 5], "int8", [1 / 256], [-128]) if quantised else file.tensor([1, 5], "float32")
    out = file.node("SOFTMAX", [f], shares, "SoftmaxOptions", Beta=1.0)
    shape = file.tensors[x].shape
    given = rng.integers(-128, 128, shape).astype(np.int8) if quantised else rng.normal(0, 1, shape).astype(np.float32)
    return file.data([x], [y, z, s, j, m, f, out]), given
