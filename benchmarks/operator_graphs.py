# SPDX-License-Identifier: Apache-2.0
"""
The operators of examples/operators as ONNX models: what the graph path compiles beside a kernel of the language.

A model takes and yields tensors of the shapes of the kernel, channels innermost, so that both move the same bytes.
"""

# Lambdas on names of tensors say more than typed functions would.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from benchmarks.measure import ROOT

sys.path.extend(str(ROOT / folder) for folder in ("examples/operators", "tests/support"))

from operator_cases import OperatorCase

from penstock.lowering.from_kernel.syntax import Declarator

OPSET = 20
TYPES: Mapping[str, int] = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "i8": TensorProto.INT8,
    "i64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
FLOATS: Mapping[str, Any] = {"f32": np.float32, "f16": np.float16}


class Nodes:
    """The nodes of a model as they are called for; a call gives the name of the result."""

    def __init__(self, element: str):
        self.float = FLOATS[element]
        self.type = TYPES[element]
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def number(self, value: float) -> str:
        """A constant of the model's float."""
        return self.array(np.asarray(value, self.float))

    def integers(self, *values: int) -> str:
        """A constant vector."""
        return self.array(np.asarray(values, np.int64))

    def array(self, values: Any) -> str:
        """A constant."""
        self.constants.append(numpy_helper.from_array(values, name := f"constant_{len(self.constants)}"))
        return name

    def several(self, op: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """The results of an operator."""
        names = [f"{op.lower()}_{len(self.nodes)}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op.lower()}_{len(self.nodes)}", **attributes))
        return names

    def __getattr__(self, op: str) -> Callable[..., str]:
        """The constructor of nodes of an operator."""
        if not op[0].isupper():
            raise AttributeError(op)
        return lambda *inputs, **attributes: self.several(op, *inputs, count=1, **attributes)[0]


Form = Callable[..., str | Sequence[str]]
"""From nodes and the names of the arguments to those of the results."""


def _rms_norm(g: Nodes, x: str, gain: str) -> str:
    squares = g.ReduceMean(g.Mul(x, x), g.integers(1), keepdims=1)
    return g.Mul(g.Div(x, g.Sqrt(g.Add(squares, g.number(1e-6)))), gain)


def _image(windows: Callable[..., str]) -> Form:
    """An operator on images [1, C, H, W], on one [H, W, C]."""

    def form(g: Nodes, x: str, *others: str) -> str:
        batch = g.Transpose(g.Unsqueeze(x, g.integers(0)), perm=[0, 3, 1, 2])
        return g.Squeeze(g.Transpose(windows(g, batch, *others), perm=[0, 2, 3, 1]), g.integers(0))

    return form


def _conv(g: Nodes, x: str, w: str, *bias: str, **attributes: Any) -> str:
    return g.Conv(x, g.Transpose(w, perm=[3, 2, 0, 1]), *bias, **attributes)


def _conv1d(g: Nodes, x: str, w: str) -> str:
    image = g.Transpose(g.Unsqueeze(x, g.integers(0)), perm=[0, 2, 1])
    y = g.Conv(image, g.Transpose(w, perm=[2, 1, 0]), pads=[1, 1])
    return g.Squeeze(g.Transpose(y, perm=[0, 2, 1]), g.integers(0))


def _depthwise(channels: int) -> Form:
    def form(g: Nodes, x: str, w: str, b: str) -> str:
        weight = g.Unsqueeze(g.Transpose(w, perm=[2, 0, 1]), g.integers(1))
        return g.Relu(g.Conv(x, weight, b, group=channels, pads=[1] * 4))

    return _image(form)


def _local_response(g: Nodes, x: str) -> str:
    image = g.Unsqueeze(x, g.integers(2))
    return g.Squeeze(g.LRN(image, size=5, alpha=1e-4, beta=0.75, bias=1.0), g.integers(2))


def _quantized_matmul(g: Nodes, a: str, b: str, scale: str) -> str:
    total = g.Cast(g.MatMulInteger(a, b), to=g.type)
    rounded = g.Round(g.Mul(total, scale))
    return g.Cast(g.Max(g.number(-128), g.Min(g.number(127), rounded)), to=TensorProto.INT8)


def _attention(width: int) -> Form:
    def form(g: Nodes, q: str, k: str, v: str) -> str:
        scores = g.MatMul(q, g.Transpose(k, perm=[0, 2, 1]))
        return g.MatMul(g.Softmax(g.Div(scores, g.number(math.sqrt(width))), axis=-1), v)

    return form


def _gates(g: Nodes, x: str, count: int) -> list[str]:
    return [g.Squeeze(each, g.integers(0)) for each in g.several("Split", x, count=count, axis=0, num_outputs=count)]


def _lstm_cell(g: Nodes, x: str, h: str, c: str, w: str, u: str, b: str) -> Sequence[str]:
    sums = g.Add(g.Add(g.MatMul(x, w), g.MatMul(h, u)), g.Unsqueeze(b, g.integers(1)))
    i, f, cell, o = _gates(g, sums, 4)
    new = g.Add(g.Mul(g.Sigmoid(f), c), g.Mul(g.Sigmoid(i), g.Tanh(cell)))
    return g.Mul(g.Sigmoid(o), g.Tanh(new)), new


def _gru_cell(g: Nodes, x: str, h: str, w: str, u: str) -> str:
    new, old = _gates(g, g.MatMul(x, w), 3), _gates(g, g.MatMul(h, u), 3)
    update, reset = (g.Sigmoid(g.Add(new[gate], old[gate])) for gate in (0, 1))
    state = g.Tanh(g.Add(new[2], g.Mul(reset, old[2])))
    return g.Add(g.Mul(g.Sub(g.number(1), update), state), g.Mul(update, h))


def _forms(sizes: Mapping[str, int]) -> Mapping[str, Form]:
    """By the names of kernels."""
    return {
        "negate": lambda g, x: g.Neg(x),
        "absolute": lambda g, x: g.Abs(x),
        "scale": lambda g, x, factor: g.Mul(x, factor),
        "logarithm": lambda g, x: g.Log(x),
        "exponential": lambda g, x: g.Exp(x),
        "square_root": lambda g, x: g.Sqrt(x),
        "square": lambda g, x: g.Mul(x, x),
        "inverse": lambda g, x: g.Reciprocal(x),
        "minimum": lambda g, a, b: g.Min(a, b),
        "maximum": lambda g, a, b: g.Max(a, b),
        "clip": lambda g, x, low, high: g.Max(low, g.Min(x, high)),
        "dropout": lambda g, x, kept, share: g.Where(kept, g.Div(x, share), g.number(0)),
        "relu": lambda g, x: g.Relu(x),
        "leaky_relu": lambda g, x: g.LeakyRelu(x, alpha=0.01),
        "elu": lambda g, x: g.Elu(x, alpha=1.0),
        "sigmoid": lambda g, x: g.Sigmoid(x),
        "hyperbolic_tangent": lambda g, x: g.Tanh(x),
        "gelu": lambda g, x: g.Gelu(x),
        "silu": lambda g, x: g.Mul(x, g.Sigmoid(x)),
        "softplus": lambda g, x: g.Softplus(x),
        "hard_swish": lambda g, x: g.HardSwish(x),
        "vector_sum": lambda g, x: g.ReduceSum(x, g.integers(0), keepdims=0),
        "l1_norm": lambda g, x: g.ReduceL1(x, g.integers(0), keepdims=0),
        "l2_norm": lambda g, x: g.ReduceL2(x, g.integers(0), keepdims=0),
        "top_k": lambda g, x: g.several("TopK", x, g.integers(3), count=2),
        "quantize": lambda g, x, scale: g.QuantizeLinear(x, scale, g.array(np.asarray(0, np.int8))),
        "dequantize": lambda g, x, scale: g.DequantizeLinear(x, scale),
        "add": lambda g, a, b: g.Add(a, b),
        "subtract": lambda g, a, b: g.Sub(a, b),
        "multiply": lambda g, a, b: g.Mul(a, b),
        "divide": lambda g, a, b: g.Div(a, b),
        "add_bias": lambda g, x, bias: g.Add(x, bias),
        "softmax": lambda g, x: g.Softmax(x, axis=-1),
        "softmax_half": lambda g, x: g.Softmax(x, axis=-1),
        "log_softmax": lambda g, x: g.LogSoftmax(x, axis=-1),
        "layer_norm": lambda g, x, gain, bias: g.LayerNormalization(x, gain, bias, axis=-1, epsilon=1e-5),
        "rms_norm": _rms_norm,
        "l2_normalize": lambda g, x: g.LpNormalization(x, axis=-1, p=2),
        "row_max": lambda g, x: g.ReduceMax(x, g.integers(1), keepdims=0),
        "row_mean": lambda g, x: g.ReduceMean(x, g.integers(1), keepdims=0),
        "row_product": lambda g, x: g.ReduceProd(x, g.integers(1), keepdims=0),
        "arg_max": lambda g, x: g.ArgMax(x, axis=1, keepdims=0),
        "log_sum_exp": lambda g, x: g.ReduceLogSumExp(x, g.integers(1), keepdims=0),
        "any_negative": lambda g, x: g.ReduceMax(g.Less(x, g.number(0)), g.integers(1), keepdims=0),
        "cumulative_sum": lambda g, x: g.CumSum(x, g.array(np.asarray(0, np.int64))),
        "outer": lambda g, x, y: g.Mul(g.Unsqueeze(x, g.integers(1)), y),
        "transpose": lambda g, x: g.Transpose(x, perm=[1, 0]),
        "pad": lambda g, x: g.Pad(x, g.integers(1, 1, 1, 1)),
        "matmul": lambda g, a, b: g.MatMul(a, b),
        "matmul_transposed": lambda g, a, b: g.MatMul(a, g.Transpose(b, perm=[1, 0])),
        "matmul_bias_gelu": lambda g, a, b, bias: g.Gelu(g.Add(g.MatMul(a, b), bias)),
        "matmul_half": lambda g, a, b: g.MatMul(a, b),
        "matmul_tiles": lambda g, a, b: g.MatMul(a, b),
        "quantized_matmul": _quantized_matmul,
        "batch_matmul": lambda g, a, b: g.MatMul(a, b),
        "matrix_vector": lambda g, a, x: g.MatMul(a, x),
        "batch_norm": lambda g, x, mean, variance, gain, bias: g.BatchNormalization(
            x, gain, bias, mean, variance, epsilon=1e-5
        ),
        "local_response": _local_response,
        "max_pool": _image(lambda g, x: g.MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)),
        "average_pool": _image(lambda g, x: g.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2])),
        "global_average_pool": lambda g, x: g.ReduceMean(x, g.integers(0, 1), keepdims=0),
        "conv1d": _conv1d,
        "conv2d": _image(lambda g, x, w, b: _conv(g, x, w, b, pads=[1] * 4)),
        "pointwise": lambda g, x, w: g.MatMul(x, w),
        "depthwise": _depthwise(sizes.get("C", 1)),
        "dilated": _image(lambda g, x, w: _conv(g, x, w, dilations=[2, 2])),
        "attention": _attention(sizes.get("D", 1)),
        "attention_half": _attention(sizes.get("D", 1)),
        "lstm_cell": _lstm_cell,
        "gru_cell": _gru_cell,
        "concatenate": lambda g, a, b: g.Concat(a, b, axis=0),
        "resize_nearest": lambda g, x: g.Resize(
            x,
            "",
            g.array(np.asarray([2, 2, 1], np.float32)),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    }


def graph_of(case: OperatorCase) -> ModelProto:
    """The model that computes what an operator does, at its sizes."""
    kernel = case.kernel
    element = kernel.parameters[0].element
    nodes = Nodes(element if element in FLOATS else case.element)
    results = _forms(case.sizes)[kernel.name](nodes, *(each.name for each in kernel.parameters))
    names = [results] if isinstance(results, str) else list(results)
    renamed = dict(zip(names, (each.name for each in kernel.results), strict=True))
    for node in nodes.nodes:
        for texts in (node.input, node.output):
            texts[:] = [renamed.get(name, name) for name in texts]
    inputs, outputs = (_infos(each, case.shapes(each)) for each in (kernel.parameters, kernel.results))
    graph = helper.make_graph(nodes.nodes, kernel.name, inputs, outputs, nodes.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def _infos(declared: Sequence[Declarator], shapes: Sequence[tuple[int, ...]]) -> list[ValueInfoProto]:
    return [
        helper.make_tensor_value_info(each.name, TYPES[each.element], list(shape))
        for each, shape in zip(declared, shapes, strict=True)
    ]
