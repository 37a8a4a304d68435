# SPDX-License-Identifier: Apache-2.0
"""
Random ONNX models with first dimensions that are open: chains of operators that keep one or multiply it, of which two
may be joined, and, where asked for, ones that divide it, cut it or look a line of it up, which may be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

SYMBOL = "N"
OTHER = "T"
"""The first dimension of a second input, where there is one."""


@dataclass
class _Writer:
    """A model as it grows: the value that was made last, and the sizes behind its first, which is open."""

    random: Random
    value: str = "x"
    rest: list[int] = field(default_factory=list[int])
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    weights: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    def emit(self, operator: str, inputs: str, **attributes: Any) -> None:
        made = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs.split(), [made], **attributes))
        self.value = made

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        rng = np.random.default_rng(self.random.randrange(1 << 30))
        self.weights[name] = rng.integers(-2, 3, shape).astype(np.float32)
        return name

    def numbers(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name


def _unary(w: _Writer) -> None:
    w.emit(w.random.choice(["Relu", "Tanh", "Abs", "Neg", "Sigmoid"]), w.value)


def _binary(w: _Writer) -> None:
    shape = [size if w.random.random() < 0.7 else 1 for size in w.rest]
    w.emit(w.random.choice(["Add", "Mul", "Sub", "Max"]), f"{w.value} {w.weight(*shape)}")


def _itself(w: _Writer) -> None:
    before = w.value
    _unary(w)
    w.emit("Add", f"{before} {w.value}")


def _product(w: _Writer) -> None:
    size = w.random.randint(1, 40)
    w.emit("MatMul", f"{w.value} {w.weight(w.rest[-1], size)}")
    w.rest[-1] = size


def _softmax(w: _Writer) -> None:
    w.emit("Softmax", w.value, axis=w.random.choice((-1, 0)))


def _transpose(w: _Writer) -> None:
    order = w.random.sample(range(len(w.rest)), len(w.rest))
    w.emit("Transpose", w.value, perm=[0, *(1 + dim for dim in order)])
    w.rest = [w.rest[dim] for dim in order]


def _flatten(w: _Writer) -> None:
    total = int(np.prod(w.rest))
    parts = next((part for part in (4, 3, 2) if total % part == 0), 1)
    w.rest = [parts, total // parts]
    w.emit("Reshape", f"{w.value} {w.numbers(-1, *w.rest)}")


def _lines(w: _Writer) -> None:
    """Let the last dims be alone: the first one is multiplied."""
    if len(w.rest) > 1:
        w.rest = w.rest[-1:]
        w.emit("Reshape", f"{w.value} {w.numbers(-1, *w.rest)}")


def _concat(w: _Writer) -> None:
    axis = w.random.randint(0, len(w.rest))
    before = w.value
    _unary(w)
    w.emit("Concat", f"{before} {w.value}", axis=axis)
    if axis:
        w.rest[axis - 1] *= 2


def _slice(w: _Writer) -> None:
    axis = w.random.randint(1, len(w.rest))
    size = w.rest[axis - 1]
    start = w.random.randrange(size)
    end = w.random.randint(start + 1, size)
    w.emit("Slice", " ".join([w.value, w.numbers(start), w.numbers(end), w.numbers(axis)]))
    w.rest[axis - 1] = end - start


def _reduce(w: _Writer) -> None:
    axis = w.random.randint(1, len(w.rest))
    w.emit(w.random.choice(["ReduceMax", "ReduceSum"]), f"{w.value} {w.numbers(axis)}")
    w.rest[axis - 1] = 1


def _pool(w: _Writer) -> None:
    if len(w.rest) == 3 and min(w.rest[1:]) >= 2:
        w.emit("MaxPool", w.value, kernel_shape=[2, 2])
        w.rest[1:] = [size - 1 for size in w.rest[1:]]


def _convolution(w: _Writer) -> None:
    if len(w.rest) == 3:
        channels = w.random.randint(1, 6)
        w.emit("Conv", f"{w.value} {w.weight(channels, w.rest[0], 3, 3)}", pads=[1, 1, 1, 1])
        w.rest[0] = channels


def _self_product(w: _Writer) -> None:
    """x x^T, whose two sizes are open, and back."""
    if len(w.rest) == 1:
        before = w.value
        w.emit("Transpose", before, perm=[1, 0])
        w.emit("MatMul", f"{before} {w.value}")
        w.emit("Softmax", w.value, axis=-1)
        w.emit("MatMul", f"{w.value} {before}")


def _lines_apart(w: _Writer) -> None:
    """A pool or convolution along the first dimension."""
    if len(w.rest) == 1:
        stride = w.random.choice((1, 2, 8, 16))
        kernel = w.random.choice((1, 2, stride))
        top = w.random.choice((0, kernel // 2))
        window: dict[str, Any] = {"strides": [stride, 1], "pads": [top, 0, kernel - 1 - top, 0]}
        w.emit("Unsqueeze", f"{w.value} {w.numbers(0, 1)}")
        if w.random.random() < 0.5:
            w.emit("MaxPool", w.value, kernel_shape=[kernel, 1], **window)
        else:
            w.emit("Conv", f"{w.value} {w.weight(1, 1, kernel, 1)}", **window)
        w.emit("Squeeze", f"{w.value} {w.numbers(0, 1)}")


def _look_up(w: _Writer) -> None:
    w.emit("Gather", f"{w.value} {w.numbers(*w.random.choices((0, 1, 10), k=w.random.randint(1, 2)))}", axis=0)


def _largest(w: _Writer) -> None:
    w.emit("TopK", f"{w.value} {w.numbers(w.random.choice((1, 5)))}", axis=0)


def _cut(w: _Writer) -> None:
    start, end = w.random.choice(((0, 1), (0, 10), (1, 2**62), (0, -1), (0, 2**62)))
    step = w.random.choice((1, 2, 8))
    w.emit("Slice", " ".join([w.value, *(w.numbers(number) for number in (start, end, 0, step))]))


_MOVES: list[Callable[[_Writer], None]] = [
    _unary, _binary, _itself, _product, _softmax, _transpose, _flatten, _lines, _concat, _slice, _reduce, _pool,
    _convolution, _self_product,
]  # fmt: skip


_DOUBTFUL: list[Callable[[_Writer], None]] = [_lines_apart, _look_up, _largest, _cut]


def _join(w: _Writer, other: _Writer) -> None:
    """A product of all lines of one with all of the other, and back; or the lines of both, one below the other."""
    for each in (w, other):
        if len(each.rest) > 1:
            each.rest = [int(np.prod(each.rest))]
            each.emit("Flatten", each.value, axis=1)
    other.emit("MatMul", f"{other.value} {other.weight(other.rest[0], w.rest[0])}")
    if w.random.random() < 0.5:
        w.emit("Concat", f"{w.value} {other.value}", axis=0)
        return
    before = w.value
    w.emit("Transpose", other.value, perm=[1, 0])
    w.emit("MatMul", f"{before} {w.value}")
    _unary(w)
    w.emit("Softmax", w.value, axis=-1)
    w.emit("MatMul", f"{w.value} {other.value}")


def random_bounded_model(seed: int, doubtful: bool = False, several: bool = False) -> ModelProto:
    """
    A model with the input "x", whose first dimension is "N"; a doubtful one may be right for some sizes alone. One of
    `several` sizes has the input "z", too, whose first dimension is "T".
    """
    random = Random(seed)
    writer = _Writer(random, rest=[random.randint(1, 7) for _ in range(random.choice((1, 2, 3, 3)))])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [SYMBOL, *writer.rest])]
    for _ in range(random.randint(2, 8)):
        random.choice(_MOVES)(writer)
    if several:
        sizes = [random.randint(1, 7) for _ in range(random.choice((1, 2)))]
        other = _Writer(random, "z", sizes, writer.nodes, writer.weights)
        inputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [OTHER, *sizes]))
        for _ in range(random.randint(0, 3)):
            random.choice(_MOVES)(other)
        _join(writer, other)
        for _ in range(random.randint(0, 3)):
            random.choice(_MOVES)(writer)
    if doubtful:
        random.choice(_DOUBTFUL)(writer)
        random.choice(_MOVES)(writer)
    writer.emit("Relu", writer.value)
    graph = helper.make_graph(
        writer.nodes,
        "bounded",
        inputs,
        [helper.make_tensor_value_info(writer.value, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in writer.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
