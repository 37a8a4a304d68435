# SPDX-License-Identifier: Apache-2.0
"""
Random ONNX models of a few nodes that share weights and inputs, expand and then reduce, split and join again.

Inputs are small integers, so that ties are many. A value is `exact` while all that led to it is computed without
rounding; what jumps (a comparison, an arg max, a rounding) only reads such values, so that no witness may differ in it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from penstock.tools.fuzz.onnx_moves import (
    binary,
    blocks,
    chosen,
    clip,
    concat,
    cut,
    exact_unary,
    expand,
    gather,
    integers,
    pad,
    positive,
    prelu,
    quantized,
    reshape,
    resize,
    scaled,
    scatter,
    smooth,
    split,
    tile,
    transpose,
    triangle,
)
from penstock.tools.fuzz.onnx_writer import LARGEST, Value, Writer

Array = NDArray[Any]

# Reductions.

REDUCTIONS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL1", "ReduceSumSquare", "ReduceLogSumExp")


def reduce(writer: Writer, x: Value) -> None:
    axes = sorted(int(axis) for axis in writer.rng.choice(x.rank, writer.integer(1, x.rank), replace=False))
    keep = writer.flip()
    shape = [1 if dim in axes else size for dim, size in enumerate(x.shape) if keep or dim not in axes]
    operator = writer.one_of(REDUCTIONS)
    count = prod(x.shape[axis] for axis in axes)
    bound = count * (x.bound**2 if operator == "ReduceSumSquare" else x.bound)
    exact = x.exact and operator not in ("ReduceMean", "ReduceLogSumExp")
    if shape:
        operands = [x.name, writer.numbers(*axes)]
        writer.emit(operator, operands, shape, exact, bound, keepdims=int(keep))


def arg(writer: Writer, x: Value) -> None:
    if not x.exact:
        return
    axis = writer.axis(x)
    shape = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
    operator = writer.one_of(["ArgMax", "ArgMin"])
    (found,) = writer.node(operator, x.name, axis=axis, select_last_index=writer.integer(0, 1))
    writer.emit("Cast", [found], shape, True, float(x.shape[axis]), to=TensorProto.FLOAT)


def top(writer: Writer, x: Value) -> None:
    axis = writer.axis(x)
    count = writer.integer(1, x.shape[axis])
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    values, _ = writer.node("TopK", x.name, writer.numbers(count), outputs=2, axis=axis)
    writer.values.append(Value(values, shape, x.exact, x.bound))


def running(writer: Writer, x: Value) -> None:
    axis = writer.axis(x)
    place = writer.constant(np.array(axis, np.int64))
    writer.emit("CumSum", [x.name, place], x.shape, x.exact, x.bound * x.shape[axis], reverse=writer.integer(0, 1))


def normalised(writer: Writer, x: Value) -> None:
    axis = writer.axis(x)
    operator = writer.one_of(["Softmax", "LogSoftmax", "LayerNormalization", "LpNormalization"])
    if operator == "LayerNormalization":
        parts = [writer.weight(x.shape[-1]) for _ in range(2)]
        writer.emit(operator, [x.name, *parts], x.shape, False, 2.0 * x.shape[-1] + 2, epsilon=0.1)
    elif operator == "LpNormalization":
        (away,) = writer.node("Add", x.name, writer.constant_number(40))
        writer.emit(operator, [away], x.shape, False, 1.0, axis=axis, p=2)
    else:
        writer.emit(operator, [x.name], x.shape, False, 2 * x.bound + 5, axis=axis)


# Products.


def product(writer: Writer, x: Value) -> None:
    """With a weight, rather one that has been a factor before; often several of one value."""
    if x.rank < 2:
        return
    k = x.shape[-1]
    for _ in range(writer.integer(1, 2)):
        n = writer.one_of([4, 4, 3])
        if writer.flip(0.3) and x.rank == 2:
            bias = [writer.weight(n)] if writer.flip() else []
            transposed = writer.integer(0, 1)
            w = writer.weight(n, k) if transposed else writer.weight(k, n)
            writer.emit("Gemm", [x.name, w, *bias], [x.shape[0], n], x.exact, 2 * k * x.bound + 2, transB=transposed)
        else:
            shape = [*x.shape[:-1], n]
            y = writer.emit("MatMul", [x.name, writer.weight(k, n)], shape, x.exact, 2 * k * x.bound)
            if writer.flip():
                writer.emit("Add", [y.name, writer.weight(n)], shape, y.exact, y.bound + 2)


def product_of_values(writer: Writer, x: Value) -> None:
    """A value with itself or another one, transposed: the scores of an attention, and maybe all of it."""
    if x.rank < 2:
        return
    others = [v for v in writer.values if v.rank == x.rank and v.shape[:-2] == x.shape[:-2]]
    y = writer.one_of([v for v in others if v.shape[-1] == x.shape[-1]])
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    (turned,) = writer.node("Transpose", y.name, perm=perm)
    shape = [*x.shape[:-1], y.shape[-2]]
    scores = writer.emit("MatMul", [x.name, turned], shape, x.exact and y.exact, x.shape[-1] * x.bound * y.bound)
    if writer.flip():
        small = writer.emit("Mul", [scores.name, writer.constant_number(0.5)], shape, False, scores.bound)
        shares = writer.emit("Softmax", [small.name], shape, False, 1.0, axis=x.rank - 1)
        writer.emit("MatMul", [shares.name, y.name], [*shape[:-1], y.shape[-1]], False, y.bound * shape[-1])


def einsum(writer: Writer, x: Value) -> None:
    if x.rank == 3:
        equation, shape = writer.one_of(
            [
                ("abc,cd->abd", (*x.shape[:2], 3)),
                ("abc,cd->db", (3, x.shape[1])),
                ("abc,cd->bad", (x.shape[1], x.shape[0], 3)),
            ]
        )
        bound = 2 * x.bound * prod(x.shape)
        writer.emit("Einsum", [x.name, writer.weight(x.shape[2], 3)], shape, x.exact, bound, equation=equation)


# Images.


def conv(writer: Writer, x: Value) -> None:
    if x.rank != 4:
        return
    n, c, h, w = x.shape
    group = writer.one_of([each for each in (1, 1, 2, c) if c % each == 0])
    kernel = [min(writer.integer(1, 3), size) for size in (h, w)]
    stride, dilation = writer.integer(1, 2), writer.one_of([1, 1, 2])
    pads = [writer.integer(0, 1) for _ in range(4)]
    outputs = 2 * group
    filters = writer.weight(outputs, c // group, *kernel)
    bias = [writer.weight(outputs)] if writer.flip() else []
    reach = [dilation * (each - 1) + 1 for each in kernel]
    sizes = [(size + pads[d] + pads[d + 2] - reach[d]) // stride + 1 for d, size in enumerate((h, w))]
    if min(sizes) < 1 or n * outputs * prod(sizes) > LARGEST:
        return
    bound = 2 * x.bound * prod(kernel) * c + 2
    attributes = {"group": group, "strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads}
    writer.emit("Conv", [x.name, filters, *bias], [n, outputs, *sizes], x.exact, bound, **attributes)


def conv_transpose(writer: Writer, x: Value) -> None:
    if x.rank != 4:
        return
    n, c, h, w = x.shape
    group = writer.one_of([each for each in (1, 1, 2) if c % each == 0])
    kernel, stride = [writer.integer(1, 3), writer.integer(1, 3)], writer.integer(1, 2)
    extra = writer.integer(0, stride - 1)
    sizes = [stride * (size - 1) + extra + kernel[d] for d, size in enumerate((h, w))]
    if n * 2 * group * prod(sizes) > LARGEST:
        return
    filters = writer.weight(c, 2, *kernel)
    attributes = {"group": group, "strides": [stride] * 2, "output_padding": [extra] * 2}
    bound = 2 * x.bound * prod(kernel) * c
    writer.emit("ConvTranspose", [x.name, filters], [n, 2 * group, *sizes], x.exact, bound, **attributes)


def pool(writer: Writer, x: Value) -> None:
    if x.rank != 4:
        return
    n, c, h, w = x.shape
    if writer.flip(0.3):
        operator = writer.one_of(["GlobalMaxPool", "GlobalAveragePool"])
        writer.emit(operator, [x.name], [n, c, 1, 1], x.exact and operator == "GlobalMaxPool", x.bound)
        return
    operator = writer.one_of(["MaxPool", "AveragePool", "LpPool"])
    kernel, stride = [min(writer.integer(1, 3), size) for size in (h, w)], writer.integer(1, 2)
    sizes = [(size - kernel[d]) // stride + 1 for d, size in enumerate((h, w))]
    attributes = {"kernel_shape": kernel, "strides": [stride] * 2}
    writer.emit(operator, [x.name], [n, c, *sizes], x.exact and operator == "MaxPool", 9 * x.bound, **attributes)


def image_norm(writer: Writer, x: Value) -> None:
    if x.rank != 4:
        return
    c = x.shape[1]
    operator = writer.one_of(["BatchNormalization", "InstanceNormalization", "LRN"])
    if operator == "BatchNormalization":
        variance = writer.constant(np.full(c, 3, np.float32))
        if writer.weights[variance].min() > -0.5:
            parts = [*(writer.weight(c) for _ in range(3)), variance]
            writer.emit(operator, [x.name, *parts], x.shape, False, 2 * x.bound + 6, epsilon=1.0)
    elif operator == "InstanceNormalization":
        parts = [writer.weight(c) for _ in range(2)]
        writer.emit(operator, [x.name, *parts], x.shape, False, 2.0 * prod(x.shape[2:]) + 2, epsilon=0.1)
    else:
        writer.emit(operator, [x.name], x.shape, False, x.bound, size=3)


def recurrent(writer: Writer, x: Value) -> None:
    if x.rank != 3:
        return
    steps, batch, size = x.shape
    operator, gates = writer.one_of([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    parts = [writer.weight(1, gates * 3, size), writer.weight(1, gates * 3, 3)]
    (name,) = writer.node(operator, x.name, *parts, hidden_size=3)
    writer.values.append(Value(name, (steps, 1, batch, 3), False, 1.0))


Step = Callable[[Writer, Value], None]
STEPS: tuple[Step, ...] = (
    *(smooth, positive, exact_unary, clip, binary, binary, prelu, scaled, chosen, integers, quantized),
    *(transpose, reshape, reshape, expand, expand, tile, cut, pad, concat, split, gather, scatter, triangle),
    *(reduce, reduce, reduce, arg, top, running, normalised),
    *(product, product, product_of_values, einsum, recurrent),
)
IMAGE_STEPS: tuple[Step, ...] = (conv, conv, conv_transpose, pool, image_norm, resize, blocks)


def random_model(seed: int) -> tuple[ModelProto, dict[str, Array]]:
    """A model and its inputs."""
    writer = Writer(np.random.default_rng(seed))
    rank = writer.one_of([1, 2, 2, 3, 4, 4])
    for _ in range(writer.integer(1, 2)):
        sizes = [writer.integer(1, 2 if rank > 2 and dim == 0 else 5) for dim in range(rank)]
        writer.input(*sizes)
    wanted = writer.integer(2, 8)
    while len(writer.nodes) < wanted:
        x = writer.pick()
        assert x is not None
        steps = IMAGE_STEPS if x.rank == 4 and writer.flip() else STEPS
        writer.one_of(steps)(writer, x)
    return writer.model(), writer.inputs
