"""
Random ONNX models of a few nodes that share weights and inputs, expand and then reduce, split and join again.

Inputs are small integers, so that ties are many. A value is `exact` while all that led to it is computed without
rounding; what jumps (a comparison, an arg max, a rounding) only reads such values, so that no witness may differ in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
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
