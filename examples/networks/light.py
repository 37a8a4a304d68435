# SPDX-License-Identifier: Apache-2.0
"""
Real network architectures with seeded weights, for tests and benchmarks that may not download anything.

The `onnx` wheel ships the graphs of nine published networks ("light" models) whose weights are replaced by
`ConstantOfShape` fills of 0.02; with such weights every output is the same number, and a compiler that
permutes channels passes unnoticed. `light_model` keeps the graphs and puts seeded random weights in place:

- convolution and matrix weights are normal with variance 2 / fan_in (He et al., "Delving Deep into
  Rectifiers", 2015), so that signals neither die nor explode through rectified layers;
- batch normalisation gets, per channel, a variance near the second moment that its input is expected to
  have, a small mean, a scale near 1 and a small bias, so that it normalises as a trained one does.

The expected second moments are propagated through the graph while the weights are drawn; nothing is executed,
and the same (name, seed, input_size) always gives the same model, byte for byte.

    model = light_model("resnet50", seed=0)
    feeds = light_input(model, seed=1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper, shape_inference

Array = NDArray[Any]

LIGHT_MODELS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
"""The names that `light_model` knows."""

_RESHAPING = ("Reshape", "Unsqueeze")


def light_model(name: str, seed: int, input_size: int | None = None) -> onnx.ModelProto:
    """
    The network `name` (one of LIGHT_MODELS) with weights drawn from `seed`, as initializers.

    The input is 1x3xSxS float32 with S = `input_size`, or the 224 of the publication. For another S, a final
    average pool over the whole map becomes a global one and the first matrix gets as many columns as there
    are features. Raises ValueError for an unknown name, and onnx's InferenceError when S is too small.
    """
    if name not in LIGHT_MODELS:
        raise ValueError(f"unknown light model {name!r}; known: {', '.join(LIGHT_MODELS)}")
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(str(folder / f"light_{name}.onnx"))  # pyright: ignore[reportUnknownMemberType]
    _parameters_to_initializers(model)
    if input_size is not None:
        _resize(model, input_size)
    _check(model)
    _draw_weights(model, np.random.default_rng(seed))
    return model


def light_input(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Standard normal arrays for the inputs of `model`, by name."""
    rng = np.random.default_rng(seed)
    return {value.name: rng.standard_normal(_dims(value), dtype=np.float32) for value in model.graph.input}


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _to_be_drawn(name: str, shape: Sequence[int]) -> TensorProto:
    """A float32 initializer whose elements follow: what is copied before that weighs nothing."""
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)


def _parameters_to_initializers(model: onnx.ModelProto) -> None:
    """Replace the fills by initializers to be drawn; drop what nothing reads; keep only true inputs."""
    graph = model.graph
    entries = {entry.name: entry for entry in graph.initializer}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = numpy_helper.to_array(entries[node.input[0]])
            entries[node.output[0]] = _to_be_drawn(node.output[0], [int(extent) for extent in shape])
        else:
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    inputs = [value for value in graph.input if value.name not in entries]
    kept = [entry for name, entry in entries.items() if name in read]
    del graph.node[:], graph.input[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.initializer.extend(kept)
    model.ir_version = 8  # from 4 on, an initializer need not be an input as well


def _check(model: onnx.ModelProto) -> None:
    """
    Raise onnx's ValidationError unless `model`, whose weights are yet to be drawn, is one.

    They stand as inputs meanwhile: the checker writes the whole model out, and the weights are nearly all of it.
    """
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    del checked.graph.initializer[:]
    for entry in model.graph.initializer:
        if entry.data_type == TensorProto.FLOAT:
            checked.graph.input.append(helper.make_tensor_value_info(entry.name, entry.data_type, entry.dims))
        else:
            checked.graph.initializer.append(entry)
    onnx.checker.check_model(checked)  # pyright: ignore[reportUnknownMemberType]


def _resize(model: onnx.ModelProto, size: int) -> None:
    """Give the input the extent `size` and make the rest of the graph follow."""
    graph = model.graph
    full = shape_inference.infer_shapes(model)
    shapes = {value.name: _dims(value) for value in (*full.graph.value_info, *full.graph.input)}
    initializers = {entry.name: entry for entry in graph.initializer}
    for dim in graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    for node in graph.node:
        if node.op_type == "AveragePool":
            if shapes[node.output[0]][2:] == [1, 1]:
                node.op_type = "GlobalAveragePool"
                del node.attribute[:]
        elif node.op_type == "Reshape" and node.input[0] not in initializers:
            target = initializers[node.input[1]]
            target.CopyFrom(_resized_target(numpy_helper.to_array(target), target.name))
    first = next((at for at, node in enumerate(graph.node) if node.op_type == "Gemm"), None)
    if first is not None:
        _resize_matrix(model, first)


def _resized_target(old: Array, name: str) -> TensorProto:
    """The target shape of a reshape when the (square) map changes: flatten, split channels, join channels."""
    extents = [int(extent) for extent in old]
    match len(extents):
        case 2:
            new = [extents[0], -1]
        case 5:  # N, g, c, H, W from N, C, H, W: index 3 of the source is W, which equals H
            new = [*extents[:3], 0, -1]
        case 4:  # N, C, H, W from N, c, g, H, W
            new = [*extents[:2], -1, 0]
        case _:
            raise ValueError(f"{name}: a reshape to rank {len(extents)} is not expected here")
    return numpy_helper.from_array(np.array(new, np.int64), name)


def _resize_matrix(model: onnx.ModelProto, at: int) -> None:
    """The weight of the Gemm at node index `at` gets as many columns as its input has features."""
    gemm = model.graph.node[at]
    trunk = onnx.ModelProto()
    trunk.CopyFrom(model)
    del trunk.graph.node[at:], trunk.graph.output[:]
    trunk.graph.output.append(helper.make_tensor_value_info(gemm.input[0], TensorProto.FLOAT, ["n", "features"]))
    inferred = shape_inference.infer_shapes(trunk, strict_mode=True, data_prop=True)
    features = _dims(inferred.graph.output[0])[1]
    makers = {node.output[0]: node for node in model.graph.node}
    weight = gemm.input[1]
    entries = {entry.name: entry for entry in model.graph.initializer}
    if (maker := makers.get(weight)) is not None:  # a reshape of the weight to (classes, features)
        target = entries[maker.input[1]]
        classes = int(numpy_helper.to_array(target)[0])
        new = np.array([classes, features], np.int64)
        target.CopyFrom(numpy_helper.from_array(new, target.name))
        weight, shape = maker.input[0], (1, 1, classes, features)
    else:
        shape = (entries[weight].dims[0], features)
    entries[weight].CopyFrom(_to_be_drawn(weight, shape))


def _draw_weights(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """
    Draw every float initializer according to the node that reads it.

    `power` maps each value to the second moment that its elements are expected to have; `rectified` holds
    the values that are mostly positive, which a further Relu therefore leaves much as they are.
    """
    graph = model.graph
    entries = {entry.name: entry for entry in graph.initializer if entry.data_type == TensorProto.FLOAT}
    behind = {name: name for name in entries}  # the initializer that a reshaped parameter shows
    power: dict[str, float] = {value.name: 1.0 for value in graph.input}
    rectified: set[str] = set()

    def shape_of(name: str) -> tuple[int, ...]:
        return tuple(entries[behind[name]].dims)

    def put(name: str, array: Array) -> None:
        entry = entries[behind[name]]
        for old in ("float_data", "raw_data"):
            entry.ClearField(old)
        entry.raw_data = array.astype("<f4", copy=False).tobytes()

    def near(name: str, center: float, spread: float) -> float:
        put(name, rng.uniform(center - spread, center + spread, shape_of(name)))
        return center**2 + spread**2 / 3.0  # the second moment of the uniform distribution

    def draw_matrix(node: NodeProto, fan_in: int) -> float:
        weight = rng.standard_normal(shape_of(node.input[1]), dtype=np.float32)
        weight *= np.float32(math.sqrt(2.0 / fan_in))
        put(node.input[1], weight)
        bias = near(node.input[2], 0.0, 0.1) if len(node.input) > 2 else 0.0
        return 2.0 * power[node.input[0]] + bias

    for node in graph.node:
        if node.op_type in _RESHAPING and node.input[0] in behind:
            behind[node.output[0]] = behind[node.input[0]]
            continue
        result = power.get(node.input[0], 1.0)
        positive = any(name in rectified for name in node.input)
        match node.op_type:
            case "Conv":
                result = draw_matrix(node, math.prod(shape_of(node.input[1])[1:]))
                positive = False
            case "Gemm":
                result = draw_matrix(node, shape_of(node.input[1])[-1])
                positive = False
            case "BatchNormalization":
                positive = False
                _, scale, bias, mean, variance = node.input
                put(mean, rng.normal(0.0, 0.1 * math.sqrt(result), shape_of(mean)))
                put(variance, result * rng.uniform(0.7, 1.4, shape_of(variance)))
                result = near(scale, 1.0, 0.3) + near(bias, 0.0, 0.2)
            case "Mul":
                result *= near(node.input[1], 1.0, 0.3)
            case "Add":
                result += near(node.input[1], 0.0, 0.2)
            case "Sum":
                result = sum(power[name] for name in node.input)
            case "Concat":
                result = sum(power[name] for name in node.input) / len(node.input)
            case "Relu":
                result = result if positive else result / 2.0
                positive = True
            case _:  # pools, views, local response normalisation, softmax: near enough
                pass
        power[node.output[0]] = result
        if positive:
            rectified.add(node.output[0])
