# SPDX-License-Identifier: Apache-2.0
"""Random nodes that work on each element, or move elements: steps of `onnx_models`."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto

from penstock.tools.fuzz.onnx_writer import LARGEST, Shape, Value, Writer

# Elementwise.

SMOOTH = (
    *("Sigmoid", "Tanh", "Erf", "Softplus", "Softsign", "Elu", "Selu", "Celu", "Gelu", "Mish", "HardSigmoid"),
    *("HardSwish", "Sin", "Cos", "Atan", "Asinh"),
)
JUMPING = ("Sign", "Floor", "Ceil", "Round")


def smooth(writer: Writer, x: Value) -> None:
    writer.emit(writer.one_of(SMOOTH), [x.name], x.shape, False, 1.8 * x.bound + 1)


def positive(writer: Writer, x: Value) -> None:
    """A root, a logarithm, a reciprocal or an exponential, of what it takes."""
    one = writer.constant_number(1)
    above = writer.emit("Abs", [x.name], x.shape, x.exact, x.bound)
    above = writer.emit("Add", [above.name, one], x.shape, x.exact, x.bound + 1)
    operator = writer.one_of(["Sqrt", "Log", "Reciprocal", "Exp"])
    if operator == "Exp":
        above = writer.emit("Neg", [above.name], x.shape, x.exact, above.bound)
    writer.emit(operator, [above.name], x.shape, False, above.bound)


def exact_unary(writer: Writer, x: Value) -> None:
    kinds = ["Relu", "Neg", "Abs", "Identity", "LeakyRelu", *(JUMPING if x.exact else ())]
    operator = writer.one_of(kinds)
    attributes = {"alpha": 0.5} if operator == "LeakyRelu" else {}
    writer.emit(operator, [x.name], x.shape, x.exact, x.bound, **attributes)


def clip(writer: Writer, x: Value) -> None:
    low, high = (writer.constant_number(writer.integer(-3, 0)), writer.constant_number(writer.integer(1, 4)))
    writer.emit("Clip", [x.name, low if writer.flip() else "", high], x.shape, x.exact, x.bound)


def binary(writer: Writer, x: Value) -> None:
    alike = [value for value in writer.values if _broadcasts(value.shape, x.shape)]
    if writer.flip():
        other = writer.one_of(alike)
        name, exact, bound = other.name, other.exact, other.bound
    else:
        kept = [size if writer.flip() else 1 for size in x.shape]
        name, exact, bound = writer.weight(*kept[writer.integer(0, x.rank) :]), True, 2.0
    operator = writer.one_of(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"])
    total = x.bound * bound if operator == "Mul" else x.bound + bound
    operands = [x.name, name] if writer.flip() else [name, x.name]
    writer.emit(operator, operands, x.shape, x.exact and exact and operator != "Mean", total)


def _broadcasts(shape: Shape, to: Shape) -> bool:
    return len(shape) <= len(to) and all(
        size in (1, wanted) for size, wanted in zip(shape[::-1], to[::-1], strict=False)
    )


def prelu(writer: Writer, x: Value) -> None:
    writer.emit("PRelu", [x.name, writer.weight(x.shape[-1])], x.shape, x.exact, 2 * x.bound)


def scaled(writer: Writer, x: Value) -> None:
    operator = writer.one_of(["Mul", "Div", "Pow"])
    bound = x.bound**2 if operator == "Pow" else 2 * x.bound
    writer.emit(operator, [x.name, writer.constant_number(2)], x.shape, x.exact, bound)


def chosen(writer: Writer, x: Value) -> None:
    """A comparison, maybe with another one, and a choice by it."""
    if not x.exact:
        return
    operator = writer.one_of(["Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"])
    (condition,) = writer.node(operator, x.name, writer.weight(*x.shape[writer.integer(0, x.rank) :]))
    if writer.flip(0.3):
        (other,) = writer.node("Not", condition)
        (condition,) = writer.node(writer.one_of(["And", "Or", "Xor"]), condition, other)
    other = writer.constant_number(writer.integer(-1, 2))
    operands = [x.name, other] if writer.flip() else [other, x.name]
    writer.emit("Where", [condition, *operands], x.shape, True, x.bound + 2)


def integers(writer: Writer, x: Value) -> None:
    """There and back through integers."""
    if not x.exact:
        return
    (cast,) = writer.node("Cast", x.name, to=writer.one_of([TensorProto.INT32, TensorProto.INT64]))
    writer.emit("Cast", [cast], x.shape, True, x.bound, to=TensorProto.FLOAT)


def quantized(writer: Writer, x: Value) -> None:
    if not x.exact:
        return
    scale, zero = writer.constant_number(0.5), writer.constant(np.array(3, np.int8))
    (number,) = writer.node("QuantizeLinear", x.name, scale, zero)
    writer.emit("DequantizeLinear", [number, scale, zero], x.shape, True, 66.0)


# Movement.


def transpose(writer: Writer, x: Value) -> None:
    perm = [int(axis) for axis in writer.rng.permutation(x.rank)]
    writer.emit("Transpose", [x.name], [x.shape[axis] for axis in perm], x.exact, x.bound, perm=perm)


def reshape(writer: Writer, x: Value) -> None:
    match writer.integer(0, 3):
        case 0 if x.rank > 1:
            at = writer.integer(0, x.rank - 2)
            shape = [*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :]]
            writer.emit("Reshape", [x.name, writer.numbers(*shape)], shape, x.exact, x.bound)
        case 1:
            at = writer.axis(x)
            factor = writer.one_of([each for each in (1, 2, 3) if x.shape[at] % each == 0])
            shape = [*x.shape[:at], factor, x.shape[at] // factor, *x.shape[at + 1 :]]
            writer.emit("Reshape", [x.name, writer.numbers(*shape)], shape, x.exact, x.bound)
        case 2:
            at = writer.integer(0, x.rank)
            shape = [*x.shape[:at], 1, *x.shape[at:]]
            writer.emit("Unsqueeze", [x.name, writer.numbers(at)], shape, x.exact, x.bound)
        case _:
            axis = writer.integer(0, x.rank)
            shape = [prod(x.shape[:axis]), prod(x.shape[axis:])]
            writer.emit("Flatten", [x.name], shape, x.exact, x.bound, axis=axis)


def expand(writer: Writer, x: Value) -> None:
    """Repeat dims of size one; where there is none, a new one."""
    if 1 not in x.shape:
        at = writer.integer(0, x.rank)
        shape = [*x.shape[:at], 1, *x.shape[at:]]
        x = writer.emit("Unsqueeze", [x.name, writer.numbers(at)], shape, x.exact, x.bound)
    shape = [writer.integer(2, 4) if size == 1 and writer.flip(0.7) else size for size in x.shape]
    if writer.flip(0.2):
        shape.insert(0, 2)
    if prod(shape) <= LARGEST:
        writer.emit("Expand", [x.name, writer.numbers(*shape)], shape, x.exact, x.bound)


def tile(writer: Writer, x: Value) -> None:
    repeats = [writer.integer(1, 3) if writer.flip(0.4) else 1 for _ in x.shape]
    shape = [size * times for size, times in zip(x.shape, repeats, strict=True)]
    if prod(shape) <= LARGEST:
        writer.emit("Tile", [x.name, writer.numbers(*repeats)], shape, x.exact, x.bound)


def cut(writer: Writer, x: Value) -> None:
    axis, step = writer.axis(x), writer.one_of([1, 1, 2, -1])
    size = x.shape[axis]
    start = writer.integer(0, size - 1)
    end = writer.integer(start + 1, size) if step > 0 else -size - 1
    count = len(range(size)[start : end if step > 0 else None : step])
    shape = [*x.shape[:axis], count, *x.shape[axis + 1 :]]
    places = [writer.numbers(number) for number in (start, end, axis, step)]
    writer.emit("Slice", [x.name, *places], shape, x.exact, x.bound)


def pad(writer: Writer, x: Value) -> None:
    mode = writer.one_of(["constant", "constant", "edge", "reflect"])
    most = 1 if mode != "reflect" else min(1, *(size - 1 for size in x.shape))
    widths = [writer.integer(0, most) for _ in range(2 * x.rank)]
    shape = [size + widths[dim] + widths[dim + x.rank] for dim, size in enumerate(x.shape)]
    if prod(shape) <= LARGEST:
        number = [writer.constant_number(writer.integer(-1, 1))] if mode == "constant" else []
        writer.emit("Pad", [x.name, writer.numbers(*widths), *number], shape, x.exact, x.bound + 1, mode=mode)


def concat(writer: Writer, x: Value) -> None:
    axis = writer.axis(x)
    fitting = [
        value
        for value in writer.values
        if value.rank == x.rank and all(dim == axis or value.shape[dim] == x.shape[dim] for dim in range(x.rank))
    ]
    parts = [x, *(writer.one_of(fitting) for _ in range(writer.integer(1, 2)))]
    shape = [*x.shape[:axis], sum(part.shape[axis] for part in parts), *x.shape[axis + 1 :]]
    if prod(shape) <= LARGEST:
        exact, bound = all(part.exact for part in parts), max(part.bound for part in parts)
        writer.emit("Concat", [part.name for part in parts], shape, exact, bound, axis=axis)


def split(writer: Writer, x: Value) -> None:
    axis = writer.axis(x)
    if x.shape[axis] < 2:
        return
    first = writer.integer(1, x.shape[axis] - 1)
    sizes = (first, x.shape[axis] - first)
    for name, size in zip(
        writer.node("Split", x.name, writer.numbers(*sizes), outputs=2, axis=axis), sizes, strict=True
    ):
        writer.values.append(Value(name, (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.exact, x.bound))


def gather(writer: Writer, x: Value) -> None:
    axis = writer.axis(x)
    if writer.flip(0.3):
        indices = writer.rng.integers(0, x.shape[axis], x.shape)
        writer.emit("GatherElements", [x.name, writer.constant(indices)], x.shape, x.exact, x.bound, axis=axis)
        return
    indices = writer.rng.integers(-x.shape[axis], x.shape[axis], [writer.integer(1, 4)][: writer.integer(0, 1)])
    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    if shape:
        writer.emit("Gather", [x.name, writer.constant(np.asarray(indices))], shape, x.exact, x.bound, axis=axis)


def scatter(writer: Writer, x: Value) -> None:
    axis = writer.axis(x)
    count = writer.integer(1, x.shape[axis])
    shape = [*x.shape[:axis], count, *x.shape[axis + 1 :]]
    places = np.argsort(writer.rng.random(x.shape), axis=axis).take(range(count), axis=axis)
    operands = [x.name, writer.constant(places.astype(np.int64)), writer.weight(*shape)]
    writer.emit("ScatterElements", operands, x.shape, x.exact, x.bound + 2, axis=axis)


def triangle(writer: Writer, x: Value) -> None:
    if x.rank >= 2:
        writer.emit("Trilu", [x.name], x.shape, x.exact, x.bound, upper=writer.integer(0, 1))


def resize(writer: Writer, x: Value) -> None:
    if x.rank != 4 or 4 * prod(x.shape) > LARGEST:
        return
    linear = writer.flip(0.3)
    scales = writer.constant(np.array([1, 1, 2, writer.one_of([1, 2])], np.float32))
    if writer.weights[scales].tolist()[:2] != [1, 1]:
        return
    shape = [int(size * scale) for size, scale in zip(x.shape, writer.weights[scales], strict=True)]
    attributes = {"mode": "linear"} if linear else {"mode": "nearest", "nearest_mode": "floor"}
    if prod(shape) <= LARGEST and min(shape) > 0:
        writer.emit("Resize", [x.name, "", scales], shape, x.exact and not linear, x.bound, **attributes)


def blocks(writer: Writer, x: Value) -> None:
    if x.rank == 4 and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
        n, c, h, w = x.shape
        writer.emit("SpaceToDepth", [x.name], [n, 4 * c, h // 2, w // 2], x.exact, x.bound, blocksize=2)
    elif x.rank == 4 and x.shape[1] % 4 == 0:
        n, c, h, w = x.shape
        mode = writer.one_of(["DCR", "CRD"])
        shape = [n, c // 4, 2 * h, 2 * w]
        writer.emit("DepthToSpace", [x.name], shape, x.exact, x.bound, blocksize=2, mode=mode)
