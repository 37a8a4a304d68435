# SPDX-License-Identifier: Apache-2.0
"""
Random ONNX models of every element type: operators as their schemas have them, with broadcasts, branches and several
outputs.

An operator is drawn whose schema has one variable of types for all tensors that it takes, and so are a type that the
schema allows, and attributes of its kinds; the numbers are small. What rounds is marked, and what jumps reads nothing
of it. A branch (`If`) reads values from outside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

Array = NDArray[Any]
Shape = tuple[int, ...]

OPSET = 20
TYPES: dict[str, tuple[int, Any]] = {
    "float": (TensorProto.FLOAT, np.float32),
    "double": (TensorProto.DOUBLE, np.float64),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, bfloat16),
    "int8": (TensorProto.INT8, np.int8),
    "int16": (TensorProto.INT16, np.int16),
    "int32": (TensorProto.INT32, np.int32),
    "int64": (TensorProto.INT64, np.int64),
    "uint8": (TensorProto.UINT8, np.uint8),
    "uint16": (TensorProto.UINT16, np.uint16),
    "uint32": (TensorProto.UINT32, np.uint32),
    "uint64": (TensorProto.UINT64, np.uint64),
    "bool": (TensorProto.BOOL, np.bool_),
}
"""The number and the NumPy type of each element type, by its name in schemas."""
FLOATS = frozenset(("float", "double", "float16", "bfloat16"))

EXACT = """
    Abs Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Clip Concat Equal Expand Flatten Floor Greater
    GreaterOrEqual Identity IsNaN Less LessOrEqual Max Min Mul Neg Not Or Relu Reshape Round Sign Slice Squeeze Sub Sum
    Tile Transpose Unsqueeze Where Xor ReduceMax ReduceMin ReduceSum CumSum Trilu GatherND Mod Size Shape IsInf
    LeakyRelu ThresholdedRelu PRelu MatMul Gemm
""".split()
"""Operators whose results are exact where their operands are small integers."""
ROUNDED = """
    Celu Cos Elu Erf Exp Gelu HardSigmoid HardSwish LogSoftmax Mean Mish ReduceL2 ReduceMean ReduceLogSumExp Selu
    Sigmoid Sin Softmax Softplus Softsign Tanh
""".split()
JUMPS = frozenset(
    "Ceil Equal Floor Greater GreaterOrEqual IsInf Less LessOrEqual Round Sign Mod ThresholdedRelu".split()
)
"""What gives something else altogether for a number that is a little different."""


@dataclass(frozen=True)
class Value:
    """A tensor: its name, shape, element type by its name in schemas, and whether it is exact."""

    name: str
    shape: Shape
    type: str
    exact: bool = True
    bound: float = 3.0


@dataclass
class TypedWriter:
    """Writes a random model of all types, node by node."""

    rng: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    values: list[Value] = field(default_factory=list[Value])
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    inputs: dict[str, Array] = field(default_factory=dict[str, Array])
    counter: list[int] = field(default_factory=lambda: [0])

    def flip(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one_of(self, found: Sequence[Any]) -> Any:
        return found[int(self.rng.integers(len(found)))]

    def fresh(self) -> str:
        self.counter[0] += 1
        return f"v{self.counter[0]}"

    def numbers(self, shape: Shape, type: str) -> Array:
        low = 0 if type.startswith(("uint", "bool")) else -3
        return self.rng.integers(low, 2 if type == "bool" else 4, shape).astype(TYPES[type][1])

    def weight(self, array: Array) -> str:
        same = [name for name, each in self.weights.items() if each.dtype == array.dtype and each.shape == array.shape]
        if same and self.flip(0.5) and array.size > 1:
            return self.one_of(same)
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def sizes(self, *numbers: int) -> str:
        name = f"i{len(self.weights)}"
        self.weights[name] = np.array(numbers, np.int64)
        return name

    def input(self, shape: Shape, type: str) -> Value:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.numbers(shape, type)
        value = Value(name, shape, type)
        self.values.append(value)
        return value

    def partner(self, x: Value) -> Value:
        """A value, or a weight, of the type of `x` that broadcasts with it."""
        found = [v for v in self.values if v.type == x.type and broadcasts(v.shape, x.shape) and v.bound < 60]
        if found and self.flip(0.6):
            return self.one_of(found)
        shape = tuple(size if self.flip(0.6) else 1 for size in x.shape[self.integer(0, len(x.shape)) :])
        return Value(self.weight(self.numbers(shape, x.type)), shape, x.type)

    def add(
        self,
        operator: str,
        operands: Sequence[str],
        shape: Shape,
        type: str,
        exact: bool,
        bound: float,
        **attributes: Any,
    ) -> Value:
        name = self.fresh()
        self.nodes.append(helper.make_node(operator, list(operands), [name], **attributes))
        value = Value(name, shape, type, exact, bound)
        self.values.append(value)
        return value


def broadcasts(a: Shape, b: Shape) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False))


def _allowed(operator: str) -> list[str]:
    """The types that the first operand may have."""
    schema = defs.get_schema(operator, OPSET)
    said = schema.inputs[0].type_str
    found = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}.get(said, [said])
    return [name for name in TYPES if f"tensor({name})" in found]


ALLOWED = {operator: _allowed(operator) for operator in (*EXACT, *ROUNDED)}
# Schemas take integers too, and what evaluates ONNX does not.
ALLOWED["ReduceLogSumExp"] = [each for each in ALLOWED["ReduceLogSumExp"] if each in FLOATS]

_MOVES = "Concat Expand Flatten Reshape Slice Squeeze Tile Transpose Unsqueeze Trilu GatherND Size Shape".split()
_REDUCTIONS = "ReduceMax ReduceMin ReduceSum ReduceL2 ReduceMean ReduceLogSumExp".split()


def step(writer: TypedWriter) -> None:
    """A node on a value that is there."""
    x = writer.values[-1] if writer.flip(0.6) else writer.one_of(writer.values)
    if writer.flip(0.15):
        _cast(writer, x)
        return
    fitting = [operator for operator, types in ALLOWED.items() if x.type in types]
    operator = writer.one_of(fitting)
    if operator in JUMPS and not x.exact:
        return
    if x.bound > 60:
        _cast(writer, x, clipped=True)
        return
    if operator in _MOVES:
        _move(writer, operator, x)
    elif operator in _REDUCTIONS or operator == "CumSum":
        _reduce(writer, operator, x)
    elif operator in ("MatMul", "Gemm"):
        _product(writer, operator, x)
    else:
        _elementwise(writer, operator, x)


def _cast(writer: TypedWriter, x: Value, *, clipped: bool = False) -> None:
    """To another type, of numbers that it has; of what is large the remainder of a sign stays."""
    if clipped:
        if x.exact and x.type in ALLOWED["Sign"]:
            writer.add("Sign", [x.name], x.shape, x.type, True, 1.0)
        return
    wanted = writer.one_of(list(TYPES))
    if not x.exact or (wanted.startswith("uint") and not x.type.startswith(("uint", "bool"))):
        return
    writer.add("Cast", [x.name], x.shape, wanted, True, x.bound, to=TYPES[wanted][0])


def _elementwise(writer: TypedWriter, operator: str, x: Value) -> None:
    schema = defs.get_schema(operator, OPSET)
    result = "bool" if schema.outputs[0].type_str in ("T1", "tensor(bool)") and operator not in ("And",) else x.type
    if operator in ("IsNaN", "IsInf"):
        result = "bool"
    operands, shape, bound, exact = [x.name], x.shape, x.bound, x.exact
    attributes: dict[str, Any] = {}
    if operator == "Clip":
        low, high = (np.array(each, TYPES[x.type][1]) for each in (0, 2))
        operands += [writer.weight(low), writer.weight(high)]
    elif operator == "Where":
        y, condition = writer.partner(x), writer.weight(writer.numbers(x.shape, "bool"))
        operands, shape = [condition, x.name, y.name], np.broadcast_shapes(x.shape, y.shape)
        bound, exact = max(x.bound, y.bound), x.exact and y.exact
    elif operator == "Mod":
        y = writer.weight(np.array(3, TYPES[x.type][1]))
        operands.append(y)
        attributes["fmod"] = int(x.type in FLOATS)
    elif operator == "PRelu":
        operands.append(writer.weight(writer.numbers(x.shape[-1:], x.type)))
        bound *= 3
    elif len(schema.inputs) == 2 or operator in ("Max", "Min", "Sum", "Mean"):
        y = writer.partner(x)
        if operator in JUMPS and not y.exact:
            return
        operands.append(y.name)
        shape = np.broadcast_shapes(x.shape, y.shape)
        bound = x.bound * y.bound if operator == "Mul" else x.bound + y.bound
        exact = x.exact and y.exact
    for name, attribute in schema.attributes.items():
        if name not in attributes and attribute.type == defs.OpSchema.AttrType.FLOAT and writer.flip():
            attributes[name] = writer.one_of([0.25, 0.5, 1.0])
    if operator in ("Softmax", "LogSoftmax"):
        if not shape:
            return
        attributes["axis"] = writer.integer(-len(shape), len(shape) - 1)
    if operator == "Sub" and x.type.startswith("uint"):
        return
    if operator in ("Exp", "Elu", "Celu", "Selu", "Gelu") and bound > 8:
        return
    exact = exact and operator in EXACT and operator not in ("LeakyRelu",)
    bound = float(np.exp(bound)) if operator == "Exp" else max(bound, 3.0)
    writer.add(operator, operands, tuple(shape), result, exact, 1.0 if result == "bool" else bound, **attributes)


def _move(writer: TypedWriter, operator: str, x: Value) -> None:
    rank, shape = len(x.shape), x.shape
    said: dict[str, Any] = {}
    operands, result, bound, exact = [x.name], x.type, x.bound, x.exact
    if operator in ("Size", "Shape"):
        result, bound, exact = "int64", float(max(1, int(np.prod(shape)))), True
        shape = () if operator == "Size" else (rank,)
        if rank == 0 and operator == "Shape":
            return
    elif operator == "Concat":
        if rank == 0:
            return
        axis = writer.integer(0, rank - 1)
        operands, said = [x.name, x.name], {"axis": axis}
        shape = tuple(2 * size if dim == axis else size for dim, size in enumerate(shape))
    elif operator == "Expand":
        wanted = (*([2] if writer.flip(0.3) else []), *(3 if size == 1 and writer.flip() else size for size in shape))
        operands.append(writer.sizes(*wanted))
        shape = tuple(wanted)
    elif operator == "Flatten":
        axis = writer.integer(0, rank)
        said, shape = {"axis": axis}, (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
    elif operator == "Reshape":
        operands.append(writer.sizes(-1))
        shape = (int(np.prod(shape)),)
    elif operator == "Squeeze":
        ones = [dim for dim, size in enumerate(shape) if size == 1]
        if not ones:
            return
        operands.append(writer.sizes(*ones))
        shape = tuple(size for size in shape if size != 1)
    elif operator == "Unsqueeze":
        axis = writer.integer(0, rank)
        operands.append(writer.sizes(axis))
        shape = (*shape[:axis], 1, *shape[axis:])
    elif rank == 0:
        return
    elif operator == "Slice":
        axis, step_ = writer.integer(0, rank - 1), writer.one_of([1, 1, 2, -1])
        start, end = (0, 1 << 30) if step_ > 0 else (-1, -(1 << 30))
        operands += [writer.sizes(each) for each in (start, end, axis, step_)]
        shape = tuple(-(-size // abs(step_)) if dim == axis else size for dim, size in enumerate(shape))
    elif operator == "Tile":
        times = [writer.integer(1, 2) for _ in shape]
        operands.append(writer.sizes(*times))
        shape = tuple(a * b for a, b in zip(shape, times, strict=True))
    elif operator == "Transpose":
        perm = [int(each) for each in writer.rng.permutation(rank)]
        said, shape = {"perm": perm}, tuple(shape[dim] for dim in perm)
    elif operator == "Trilu":
        if rank < 2:
            return
        said = {"upper": writer.integer(0, 1)}
    else:
        count = writer.integer(1, 3)
        rows = np.array([[writer.integer(-size, size - 1) for size in shape[:1]] for _ in range(count)], np.int64)
        name = f"i{len(writer.weights)}"
        writer.weights[name] = rows
        operands.append(name)
        shape = (count, *shape[1:])
    if np.prod(shape) <= 200:
        writer.add(operator, operands, tuple(shape), result, exact, bound, **said)


def _reduce(writer: TypedWriter, operator: str, x: Value) -> None:
    rank = len(x.shape)
    if rank == 0 or (operator in ("ReduceMax", "ReduceMin") and x.type == "bool"):
        return
    bound = x.bound * float(np.prod(x.shape))
    exact = x.exact and operator in EXACT
    if operator == "CumSum":
        place = writer.weight(np.array(writer.integer(0, rank - 1), np.int64))
        writer.add(operator, [x.name, place], x.shape, x.type, exact, bound, exclusive=writer.integer(0, 1))
        return
    axes = sorted(int(each) for each in writer.rng.choice(rank, writer.integer(1, rank), replace=False))
    keep = writer.flip()
    shape = tuple(1 if dim in axes else size for dim, size in enumerate(x.shape) if keep or dim not in axes)
    writer.add(operator, [x.name, writer.sizes(*axes)], shape, x.type, exact, bound, keepdims=int(keep))


def _product(writer: TypedWriter, operator: str, x: Value) -> None:
    if len(x.shape) < 2 or (operator == "Gemm" and len(x.shape) != 2):
        return
    n = writer.integer(1, 4)
    w = writer.weight(writer.numbers((x.shape[-1], n), x.type))
    bound = 3.0 * x.shape[-1] * x.bound + 3
    operands, said = [x.name, w], {}
    if operator == "Gemm":
        said = {"alpha": writer.one_of([1.0, 2.0]), "beta": writer.one_of([1.0, 2.0])}
        if x.type not in FLOATS:
            said = {}
        operands.append(writer.weight(writer.numbers((n,), x.type)))
        bound *= 2
    writer.add(operator, operands, (*x.shape[:-1], n), x.type, x.exact, bound, **said)


def branch(writer: TypedWriter) -> None:
    """An `If` on a value that only a run knows, whose branches read values from outside and give one of one type."""
    fitting = [v for v in writer.values if v.exact and v.shape and v.type in ALLOWED["ReduceSum"]]
    if not fitting:
        return
    x = writer.one_of(fitting)
    total = writer.add("ReduceSum", [x.name], (), x.type, True, x.bound * 200, keepdims=0)
    zero = writer.weight(np.array(0, TYPES[x.type][1]))
    condition = writer.add("Greater", [total.name, zero], (), "bool", True, 1.0)
    chosen = writer.one_of(writer.values)
    graphs: list[GraphProto] = []
    for name in ("then_branch", "else_branch"):
        inner = TypedWriter(writer.rng, values=[chosen], weights=writer.weights, counter=writer.counter)
        wanted = writer.integer(1, 2)
        for _ in range(30):
            if len(inner.nodes) >= wanted:
                break
            step(inner)
        last = [v for v in inner.values if (v.shape, v.type) == (chosen.shape, chosen.type)][-1]
        out = inner.fresh()
        inner.nodes.append(helper.make_node("Identity", [last.name], [out]))
        made = helper.make_tensor_value_info(out, TYPES[chosen.type][0], chosen.shape)
        graphs.append(helper.make_graph(inner.nodes, name, [], [made]))
    writer.add(
        "If",
        [condition.name],
        chosen.shape,
        chosen.type,
        False,
        1e9,
        then_branch=graphs[0],
        else_branch=graphs[1],
    )


def typed_model(seed: int) -> tuple[ModelProto, dict[str, Array]]:
    """A model and its inputs."""
    writer = TypedWriter(np.random.default_rng(seed))
    for _ in range(writer.integer(1, 2)):
        rank = writer.one_of([0, 1, 2, 2, 3])
        writer.input(tuple(writer.integer(1, 4) for _ in range(rank)), writer.one_of(list(TYPES)))
    wanted = writer.integer(2, 7)
    for _ in range(200):
        if len(writer.nodes) >= wanted:
            break
        step(writer)
        if writer.flip(0.2):
            branch(writer)
    computed = [v for v in writer.values if v.name not in writer.inputs]
    outputs = [computed[-1], *(v for v in computed[:-1] if writer.flip(0.3))]
    graph = helper.make_graph(
        writer.nodes,
        "typed",
        [helper.make_tensor_value_info(name, _number(x), x.shape) for name, x in writer.inputs.items()],
        [helper.make_tensor_value_info(v.name, TYPES[v.type][0], v.shape) for v in outputs],
        [numpy_helper.from_array(array, name) for name, array in writer.weights.items()],
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9), writer.inputs


def _number(array: Array) -> int:
    return next(number for number, dtype in TYPES.values() if array.dtype == dtype)
