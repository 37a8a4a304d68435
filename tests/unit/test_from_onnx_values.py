# SPDX-License-Identifier: Apache-2.0
"""Imported models compute what ONNX's reference evaluator does, at every operator set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from penstock.dialects import graph
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx import import_model
from penstock.runtime.interpreter.graph import run_graph

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
NEWEST = onnx.defs.onnx_opset_version()

Shape = Sequence[int | str]


def make_model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    *,
    opset: int = NEWEST,
    weights: Mapping[str, Array] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> ModelProto:
    """A model of a few nodes; inputs are floats unless `kinds` says otherwise."""
    kinds = kinds or {}
    graph_proto = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, kinds.get(name, FLOAT), list(shape)) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def main_of(module: ModuleOp) -> FuncOp:
    (function,) = module.ops
    assert isinstance(function, FuncOp)
    return function


def ops_of(module: ModuleOp) -> list[Operation]:
    """The ops of @main that compute something."""
    return [op for op in main_of(module).body.block.ops if not isinstance(op, graph.ConstantOp)][:-1]


def names_of(module: ModuleOp) -> list[str]:
    return [op.name.removeprefix("graph.") for op in ops_of(module)]


def draw(model: ModelProto) -> list[Array]:
    """Inputs for a model, the same each time."""
    random = np.random.default_rng(0)
    constants = {tensor.name for tensor in model.graph.initializer}
    arrays: list[Array] = []
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        arrays.append(np.asarray(random.uniform(-3, 3, shape)).astype(dtype))
    return arrays


def witness(model: ModelProto, inputs: Mapping[str, Array], runtime: bool) -> list[Array]:
    """What ONNX's reference evaluator computes, or onnxruntime."""
    if runtime:
        session: Any = cast(Any, onnxruntime).InferenceSession(model.SerializeToString())
        return session.run(None, dict(inputs))
    evaluator: Any = ReferenceEvaluator(model)
    return evaluator.run(None, dict(inputs))


def check_against_onnx(model: ModelProto, runtime: bool = False) -> ModuleOp:
    """Import a model, and compare its results, shapes and types with those of a witness."""
    module, weights = import_model(model, allow_nan=True)
    inputs = draw(model)
    names = [argument.name for argument in model.graph.input]
    expected = witness(model, dict(zip(names, inputs, strict=True)), runtime)
    results = run_graph(module, inputs, weights)
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
    return module


def node(op_type: str, inputs: str, outputs: str = "y", **attributes: object) -> NodeProto:
    """A node; `-` in `inputs` is an input that is left out."""
    words = ["" if word == "-" else word for word in inputs.split()]
    return helper.make_node(op_type, words, outputs.split(), **cast(Any, attributes))


X: Mapping[str, Shape] = {"x": [2, 3, 4]}
IMAGE: Mapping[str, Shape] = {"x": [2, 4, 7, 8]}


def array(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def scalar(number: float) -> Array:
    return np.array(number, np.float32)


def indices(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


# Every case runs through the importer, the interpreter and ONNX's reference evaluator.
CASES: dict[str, ModelProto] = {
    "relu": make_model([node("Relu", "x")], X, ["y"]),
    "sum of three": make_model([node("Sum", "x x x")], X, ["y"]),
    "max of one": make_model([node("Max", "x")], X, ["y"]),
    "mean": make_model([node("Mean", "x w")], X, ["y"], weights={"w": array(1, 2, 3, 4)}),
    "clip by attributes": make_model([node("Clip", "x", min=-0.5)], X, ["y"], opset=7),
    "clip by inputs": make_model([node("Clip", "x - hi")], X, ["y"], weights={"hi": scalar(0.5)}),
    "clip by values": make_model([node("Clip", "x lo")], {"x": [2, 3], "lo": []}, ["y"]),
    "greater or equal": make_model([node("GreaterOrEqual", "x w")], X, ["y"], weights={"w": scalar(np.nan)}),
    "xor": make_model([node("Xor", "x x")], X, ["y"], kinds={"x": BOOL}),
    "power of another type": make_model([node("Pow", "x w")], X, ["y"], weights={"w": indices(2, 0, 1, 3)}),
    "modulo": make_model([node("Mod", "x w")], X, ["y"], kinds={"x": INT64}, weights={"w": indices(2, -2, 3, -5)}),
    "cast": make_model([node("Cast", "x", to=INT64)], X, ["y"]),
    "where": make_model([node("Less", "x w", "m"), node("Where", "m x w")], X, ["y"], weights={"w": array(0)}),
    "softmax of old": make_model([node("Softmax", "x")], X, ["y"], opset=11),
    "softmax of old on the last axis": make_model([node("Softmax", "x", axis=-1)], X, ["y"], opset=7),
    "softmax": make_model([node("Softmax", "x", axis=1)], X, ["y"]),
    "log softmax of old": make_model([node("LogSoftmax", "x", axis=0)], X, ["y"], opset=7),
    "gemm": make_model(
        [node("Gemm", "x w b", transA=1, alpha=0.5, beta=2.0)],
        {"x": [3, 2]},
        ["y"],
        weights={"w": np.ones((3, 5), np.float32), "b": array(1)},
    ),
    "gelu": make_model([node("Gelu", "x", approximate="tanh")], X, ["y"]),
    "conv with auto_pad": make_model(
        [node("Conv", "x w", auto_pad="SAME_UPPER", strides=[2, 3])],
        IMAGE,
        ["y"],
        weights={"w": np.ones((6, 4, 3, 3), np.float32)},
    ),
    "conv in groups": make_model(
        [node("Conv", "x w b", group=2, pads=[1, 0, 2, 1], dilations=[2, 1])],
        IMAGE,
        ["y"],
        weights={"w": np.ones((6, 2, 3, 3), np.float32), "b": array(*range(6))},
    ),
    "conv with SAME_LOWER": make_model(
        [node("Conv", "x w", auto_pad="SAME_LOWER")], IMAGE, ["y"], weights={"w": np.ones((1, 4, 2, 2), np.float32)}
    ),
    "max pool by ceiling": make_model(
        [node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], IMAGE, ["y"]
    ),
    "average pool with padding": make_model(
        [node("AveragePool", "x", kernel_shape=[3, 2], pads=[1, 1, 1, 0], count_include_pad=1)], IMAGE, ["y"], opset=7
    ),
    "batch normalization": make_model(
        [node("BatchNormalization", "x a b c d", epsilon=0.01)],
        IMAGE,
        ["y"],
        weights={"a": array(1, 2, 3, 4), "b": array(0, 1, 0, 1), "c": array(0, 0, 1, 1), "d": array(1, 2, 3, 4)},
    ),
    "layer normalization": make_model(
        [node("LayerNormalization", "x s b", axis=1)],
        X,
        ["y"],
        weights={"s": np.full((3, 4), 2, np.float32), "b": array(1, 2, 3, 4)},
    ),
    "group normalization, by its function": make_model(
        [node("GroupNormalization", "x s b", num_groups=2)],
        IMAGE,
        ["y"],
        weights={"s": array(1, 2, 3, 4), "b": array(1, 2, 3, 4)},
    ),
    "lrn": make_model([node("LRN", "x", size=3, alpha=0.1)], IMAGE, ["y"], opset=13),
    "reduce by attribute": make_model([node("ReduceMean", "x", axes=[-1], keepdims=0)], X, ["y"], opset=13),
    "reduce by input": make_model([node("ReduceMax", "x a")], X, ["y"], weights={"a": indices(0, -1)}),
    "reduce booleans": make_model(
        [node("Greater", "x z", "b"), node("ReduceMax", "b a", "any"), node("ReduceMin", "b a", "all", keepdims=0)],
        X, ["any", "all"],
        weights={"a": indices(1), "z": np.array(0, np.float32)},
    ),
    "reduce no booleans": make_model(
        [node("Greater", "x z", "b"), node("ReduceMax", "b a", "any"), node("ReduceMin", "b a", "all", keepdims=0)],
        {"x": [2, 0, 3]}, ["any", "all"],
        weights={"a": indices(1), "z": np.array(0, np.float32)},
    ),
    "reduce sum of old": make_model([node("ReduceSum", "x", axes=[1])], X, ["y"], opset=11),
    "reduce nothing": make_model([node("ReduceSum", "x", noop_with_empty_axes=1)], X, ["y"]),
    "reduce l2": make_model([node("ReduceL2", "x a", keepdims=0)], X, ["y"], weights={"a": indices(1)}),
    "reduce log sum exp": make_model([node("ReduceLogSumExp", "x a", keepdims=0)], X, ["y"], weights={"a": indices(1)}),
    "reshape": make_model([node("Reshape", "x s")], X, ["y"], weights={"s": indices(0, -1)}),
    "flatten": make_model([node("Flatten", "x", axis=-1)], X, ["y"]),
    "squeeze of old": make_model([node("Squeeze", "x", axes=[0])], {"x": [1, 3, 1]}, ["y"], opset=11),
    "squeeze all": make_model([node("Squeeze", "x")], {"x": [1, 3, 1]}, ["y"]),
    "unsqueeze of old": make_model([node("Unsqueeze", "x", axes=[0, 2])], {"x": [3, 4]}, ["y"], opset=11),
    "unsqueeze": make_model([node("Unsqueeze", "x a")], {"x": [3, 4]}, ["y"], weights={"a": indices(-1, 0)}),
    "transpose": make_model([node("Transpose", "x")], X, ["y"]),
    "concat": make_model([node("Concat", "x x w", axis=-1)], X, ["y"], weights={"w": np.ones((2, 3, 1), np.float32)}),
    "split in equal parts": make_model([node("Split", "x", "y z", axis=2, num_outputs=2)], X, ["y", "z"]),
    "split of old": make_model([node("Split", "x", "y z", axis=1, split=[1, 2])], X, ["z", "y"], opset=11),
    "split by input": make_model([node("Split", "x s", "y z")], X, ["y", "z"], weights={"s": indices(0, 2)}),
    "slice of old": make_model([node("Slice", "x", starts=[0, -2], ends=[9, -1], axes=[0, 2])], X, ["y"], opset=9),
    "slice backwards": make_model(
        [node("Slice", "x b e a s")],
        X,
        ["y"],
        weights={"b": indices(-1, 2), "e": indices(-(2**63), 0), "a": indices(2, 1), "s": indices(-2, -1)},
    ),
    "empty slice": make_model([node("Slice", "x b e")], X, ["y"], weights={"b": indices(1), "e": indices(1)}),
    "pad by attribute": make_model([node("Pad", "x", pads=[0, 1, 0, 0, 0, 2], value=2.5)], X, ["y"], opset=9),
    "pad and crop": make_model([node("Pad", "x p")], X, ["y"], opset=13, weights={"p": indices(0, -1, 2, 1, 0, -1)}),
    "pad along axes": make_model(
        [node("Pad", "x p v a")], X, ["y"], weights={"p": indices(1, 2), "v": scalar(7), "a": indices(-1)}
    ),
    "pad by reflection": make_model(
        [node("Pad", "x p", mode="reflect")], X, ["y"],
        weights={"p": indices(0, 2, 1, 0, 1, 3)},
    ),
    "pad by the edge": make_model(
        [node("Pad", "x p", mode="edge")], X, ["y"],
        weights={"p": indices(0, 2, 1, 1, 1, 3)},
    ),
    "expand": make_model([node("Expand", "x s")], {"x": [3, 1]}, ["y"], weights={"s": indices(2, 1, 4)}),
    "tile": make_model([node("Tile", "x s")], X, ["y"], weights={"s": indices(2, 1, 3)}),
    "gather one": make_model([node("Gather", "x i", axis=1)], X, ["y"], weights={"i": np.array(-1, np.int64)}),
    "gather some": make_model(
        [node("Gather", "x i", axis=2)], X, ["y"],
        weights={"i": indices(0, 2, 1, 3).reshape(2, 2)},
    ),
    "depth to space": make_model([node("DepthToSpace", "x", blocksize=2, mode="CRD")], IMAGE, ["y"]),
    "space to depth": make_model([node("SpaceToDepth", "x", blocksize=2)], {"x": [1, 2, 4, 6]}, ["y"]),
    "triangle": make_model([node("Trilu", "x k", upper=0)], X, ["y"], weights={"k": np.array(1, np.int64)}),
    "dropout": make_model([node("Dropout", "x", "y m")], X, ["y", "m"]),
    "prelu": make_model([node("PRelu", "x w")], X, ["y"], weights={"w": array(1, 2, 3, 4)}),
    "softsign, hard swish, mish": make_model(
        [node("Softsign", "x", "a"), node("HardSwish", "a", "b"), node("Mish", "b")], X, ["y"]
    ),
    "constant output": make_model(
        [node("Identity", "w"), node("Relu", "x", "z")], X, ["z", "y"],
        weights={"w": array(1, 2)},
    ),
}  # fmt: skip


# The reference evaluator gives old softmax the new meaning, takes the batch for the channels in LRN, and crops nothing.
BY_RUNTIME = {"softmax of old", "log softmax of old", "lrn", "pad and crop"}


@pytest.mark.parametrize("name", CASES)
def test_imported_model_computes_what_onnx_does(name: str) -> None:
    check_against_onnx(CASES[name], runtime=name in BY_RUNTIME)


def test_shape_arithmetic_is_evaluated_and_leaves_no_op() -> None:
    # The usual way to write "flatten all but the batch": Shape, Gather, Unsqueeze, Concat, Reshape.
    model = make_model(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape zero", "batch", axis=0),
            node("Unsqueeze", "batch axes", "batch1"),
            node("Concat", "batch1 rest", "target", axis=0),
            node("Reshape", "x target"),
        ],
        X,
        ["y"],
        weights={"zero": np.array(0, np.int64), "axes": indices(0), "rest": indices(-1)},
    )
    module = check_against_onnx(model)
    assert names_of(module) == ["reshape"]
    assert not list(main_of(module).body.block.ops)[:-2], "the integers that fed the shape are gone"


@pytest.mark.parametrize("opset", [7, 9, 13, NEWEST])
def test_a_small_network_imports_at_every_operator_set(opset: int) -> None:
    flatten = node("Flatten", "c", "d")
    model = make_model(
        [
            node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
            node("Relu", "a", "b"),
            node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2]),
            flatten,
            node("Gemm", "d v bias", "y", transB=1),
        ],
        {"x": [2, 3, 8, 8]},
        ["y"],
        opset=opset,
        weights={
            "w": np.ones((4, 3, 3, 3), np.float32),
            "v": np.ones((5, 64), np.float32),
            "bias": np.arange(5, dtype=np.float32),
        },
    )
    module = check_against_onnx(model)
    assert names_of(module) == ["conv", "relu", "max_pool", "reshape", "gemm"]
