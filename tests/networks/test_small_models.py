# SPDX-License-Identifier: Apache-2.0
"""
Small ONNX models, one for each shape of trouble, compiled for gemmini-fp32: the commands on the interpreter, in a
pseudo-random legal order, and as C, against onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from sampling import every_other

from penstock.passes.analysis.kernels import partition, share_on_machine
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]
TOLERANCE = 1e-5
"""Of the largest value: f32 in another order of summation."""


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


@dataclass(frozen=True)
class Model:
    nodes: Sequence[NodeProto]
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array] = field(default_factory=dict[str, Array])
    outputs: Sequence[str] = ("y",)
    share: float = 1.0
    """The share of the multiply-accumulates that the machine is to do."""


def conv(output: str = "y", weight: str = "w", x: str = "x", **attributes: Any) -> NodeProto:
    return node("Conv", f"{x} {weight}", output, **attributes)


MODELS = {
    "a batch of products": Model([node("MatMul", "a b", "y")], {"a": noise(2, 3, 9, 17), "b": noise(2, 3, 17, 5)}),
    "a product with one matrix": Model([node("MatMul", "a b", "y")], {"a": noise(2, 3, 9, 17), "b": noise(17, 5)}),
    "a product with a vector stays on the host": Model(
        [node("MatMul", "a b", "y")], {"a": noise(9, 17), "b": noise(17)}, share=0.0
    ),
    "a reduction whose length is prime": Model(
        [node("MatMul", "a b", "y")], {"a": noise(3, 4001), "b": noise(4001, 70)}
    ),
    "attention": Model(
        [
            node("Transpose", "k", "t", perm=[0, 1, 3, 2]),
            node("MatMul", "q t", "s"),
            node("Softmax", "s", "p", axis=-1),
            node("MatMul", "p v", "y"),
        ],
        {name: noise(1, 2, 8, 16) + shift for shift, name in enumerate("qkv")},
    ),
    "a gemm with everything": Model(
        [node("Gemm", "a b c", "y", transA=1, transB=1, alpha=0.5, beta=2.0)],
        {"a": noise(17, 9), "b": noise(5, 17), "c": noise(5)},
    ),
    "a convolution in one dim": Model([conv(pads=[2, 1], strides=[2])], {"x": noise(2, 3, 20)}, {"w": noise(5, 3, 4)}),
    "a convolution in three dims": Model(
        [conv(pads=[1] * 6)], {"x": noise(1, 3, 5, 6, 7)}, {"w": noise(5, 3, 3, 3, 3)}
    ),
    "groups": Model(
        [node("Conv", "x w b", "c", group=2, pads=[1] * 4), node("Relu", "c", "y")],
        {"x": noise(1, 8, 9, 9)},
        {"w": noise(12, 4, 3, 3), "b": noise(12)},
    ),
    "a group a channel": Model(
        [node("Conv", "x w b", "c", group=8, pads=[1] * 4, strides=[2, 2]), node("Clip", "c low high", "y")],
        {"x": noise(1, 8, 9, 9)},
        {"w": noise(8, 1, 3, 3), "b": noise(8), "low": np.float32(0), "high": np.float32(6)},  # pyright: ignore
    ),
    "dilations and unequal pads": Model(
        [conv(dilations=[2, 1], pads=[0, 1, 2, 3], strides=[1, 2])],
        {"x": noise(1, 4, 12, 11)},
        {"w": noise(6, 4, 3, 3)},
    ),
    "a batch with a residual": Model(
        [conv("c", pads=[1] * 4), node("Add", "c r", "s"), node("Relu", "s", "y")],
        {"x": noise(3, 4, 7, 7), "r": noise(3, 8, 7, 7)},
        {"w": noise(8, 4, 3, 3)},
    ),
    "a residual of two convolutions": Model(
        [conv("c"), conv("d", "v"), node("Add", "c d", "s"), node("Relu", "s", "y")],
        {"x": noise(1, 4, 7, 7)},
        {"w": noise(8, 4, 1, 1), "v": noise(8, 4, 1, 1) + 1},
    ),
    "padding what was just computed": Model(
        [conv("c", pads=[1] * 4), conv("y", "v", "c", pads=[1] * 4)],
        {"x": noise(1, 4, 7, 7)},
        {"w": noise(8, 4, 3, 3), "v": noise(4, 8, 3, 3)},
    ),
    "a group cut by a host operator": Model(
        [conv("c"), node("Sigmoid", "c", "s"), node("Mul", "c s", "y")],
        {"x": noise(1, 4, 7, 7)},
        {"w": noise(8, 4, 3, 3)},
    ),
    "convolutions into one concatenation": Model(
        [conv("c"), conv("d", "v"), node("Concat", "c d", "e", axis=1), node("Relu", "e", "y")],
        {"x": noise(1, 4, 7, 7)},
        {"w": noise(8, 4, 1, 1), "v": noise(3, 4, 1, 1)},
    ),
    "an intermediate that is also an output": Model(
        [conv("c"), node("Relu", "c", "y")], {"x": noise(1, 4, 7, 7)}, {"w": noise(8, 4, 1, 1)}, outputs=("c", "y")
    ),
}


@pytest.mark.parametrize("name", every_other(MODELS))
def test_it_computes_what_onnxruntime_does(name: str) -> None:
    model = MODELS[name]
    graph = helper.make_graph(
        model.nodes,
        "graph",
        [helper.make_tensor_value_info(key, TensorProto.FLOAT, array.shape) for key, array in model.inputs.items()],
        [helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in model.outputs],
        [numpy_helper.from_array(array, key) for key, array in model.weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected: list[Array] = session.run(None, dict(model.inputs))
    program = import_program(proto, {}, name=name)
    compile_module(program.module, program.ctx, "gemmini-fp32", "accel")
    assert share_on_machine(partition(program.module)) == model.share
    arrays = list(model.inputs.values())
    for outputs in (
        run_module(program.module, arrays, program.ctx.weights, seed=3),
        Engine(program.module, program.ctx, backend="native", verify=False)(*arrays),
    ):
        for ours, theirs in zip(outputs, expected, strict=True):
            assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()
