# SPDX-License-Identifier: Apache-2.0
"""
Random sizes: what they print is what they are. Random models with symbolic dimensions: imported as they are and bound
later, they become the text that importing them with the sizes gives, and compute what onnxruntime computes, for
several sizes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from sampling import examples
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.graph.sizes import Dim, Size, named_size
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_onnx import import_model
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.passes.graph.bind_dims import bind_dims
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import verify

Array = NDArray[Any]
Sizes = dict[str, int]

SAMPLES: tuple[Sizes, ...] = ({"N": 3, "T": 4}, {"N": 2, "T": 6}, {"N": 1, "T": 2})


Computed = tuple[Size, Callable[[Sizes], int]]
"""A size, and what it is for sizes of its names, computed without it."""


@st.composite
def computed_sizes(draw: st.DrawFn, depth: int = 4) -> Computed:
    """What strides, dilations, pads and reshapes make of sizes: sums, multiples, products and quotients."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        name = draw(st.sampled_from(["N", "T"]))
        return named_size(name), lambda sizes: sizes[name]
    size, number = draw(computed_sizes(depth - 1))
    by = draw(st.integers(1, 6))
    match draw(st.sampled_from(["+", "-", "*", "//", "//", "both", "product"])):
        case "+":
            return size + by, lambda sizes: number(sizes) + by
        case "-":
            return size - by, lambda sizes: number(sizes) - by
        case "*":
            return size * by, lambda sizes: number(sizes) * by
        case "//":
            return size // by, lambda sizes: number(sizes) // by
        case which:
            other, its = draw(computed_sizes(depth - 1))
            if which == "both":
                return size + other * -by, lambda sizes: number(sizes) - its(sizes) * by
            return size * other, lambda sizes: number(sizes) * its(sizes)


@examples(150)
@given(drawn=computed_sizes(), sizes=st.fixed_dictionaries({"N": st.integers(1, 30), "T": st.integers(1, 30)}))
def test_a_size_prints_as_what_it_is_with_the_fewest_parentheses(drawn: Computed, sizes: Sizes) -> None:
    size, number = drawn
    text = str(size)
    assert eval(text, {}, dict(sizes)) == number(sizes)
    if isinstance(size, Dim):
        assert size.least is None or size.least <= number(sizes)
    tree = ast.dump(ast.parse(text))
    opened: list[int] = []
    for at, letter in enumerate(text):
        if letter == "(":
            opened.append(at)
        elif letter == ")":
            start = opened.pop()
            without = text[:start] + text[start + 1 : at] + text[at + 1 :]
            assert ast.dump(ast.parse(without)) != tree, text


@dataclass
class Value:
    """A tensor of the model: what it is called, and its shape, with names for symbolic sizes."""

    name: str
    shape: tuple[int | str, ...]


@dataclass
class Writer:
    """Writes a random model, node by node; every node takes values of rank 3, [N, T, channels]."""

    draw: st.DrawFn
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    weights: list[TensorProto] = field(default_factory=list[TensorProto])

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def weight(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def numbers(self, *numbers: int) -> str:
        return self.weight(np.array(numbers, np.int64))

    def floats(self, *shape: int) -> str:
        rng = np.random.default_rng(self.draw(st.integers(0, 99)))
        return self.weight(rng.integers(-2, 3, shape).astype(np.float32))

    def size(self, value: Value, axis: int) -> str:
        """A dimension as exporters ask for it: a vector of one element."""
        at = self.node("Gather", self.node("Shape", value.name), self.weight(np.array(axis, np.int64)))
        return self.node("Unsqueeze", at, self.numbers(0))

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))


def channels(value: Value) -> int:
    return cast(int, value.shape[-1])


def with_channels(value: Value, name: str, count: int) -> Value:
    return Value(name, (*value.shape[:-1], count))


def pointwise(writer: Writer, x: Value) -> Value:
    operator = writer.draw(st.sampled_from(["Relu", "Abs", "Neg", "Sign"]))
    return with_channels(x, writer.node(operator, x.name), channels(x))


def bias(writer: Writer, x: Value) -> Value:
    return with_channels(x, writer.node("Add", x.name, writer.floats(channels(x))), channels(x))


def linear(writer: Writer, x: Value) -> Value:
    count = writer.integer(1, 5)
    return with_channels(x, writer.node("MatMul", x.name, writer.floats(channels(x), count)), count)


def residual(writer: Writer, x: Value) -> Value:
    return with_channels(x, writer.node("Add", x.name, pointwise(writer, x).name), channels(x))


def joined(writer: Writer, x: Value) -> Value:
    return with_channels(x, writer.node("Concat", x.name, bias(writer, x).name, axis=2), 2 * channels(x))


def heads(writer: Writer, x: Value) -> Value:
    """[N, T, 2c] to [N, T, 2, c], scores of all pairs, and back: attention, as PyTorch writes it."""
    doubled = joined(writer, x)
    n, t = writer.size(doubled, 0), writer.size(doubled, 1)
    apart = writer.node("Concat", n, t, writer.numbers(2), writer.numbers(channels(x)), axis=0)
    split = writer.node("Reshape", doubled.name, apart)
    query = writer.node("Transpose", split, perm=[0, 2, 1, 3])
    key = writer.node("Transpose", split, perm=[0, 2, 3, 1])
    scores = writer.node("MatMul", query, key)
    mixed = writer.node("MatMul", writer.node("Clip", scores, writer.weight(np.array(-2, np.float32))), query)
    back = writer.node("Transpose", mixed, perm=[0, 2, 1, 3])
    together = writer.node("Concat", n, t, writer.numbers(-1), axis=0)
    return with_channels(x, writer.node("Reshape", back, together), 2 * channels(x))


def rows(writer: Writer, x: Value) -> Value:
    """All rows at once, [N * T, c], and back."""
    flat = writer.node("Reshape", x.name, writer.numbers(-1, channels(x)))
    product = writer.node("MatMul", flat, writer.floats(channels(x), channels(x)))
    shape = writer.node("Concat", writer.size(x, 0), writer.size(x, 1), writer.numbers(channels(x)), axis=0)
    return with_channels(x, writer.node("Reshape", product, shape), channels(x))


def copied(writer: Writer, x: Value) -> Value:
    """Sizes of 0 and -1 in a Reshape."""
    return with_channels(x, writer.node("Reshape", x.name, writer.numbers(0, 0, -1)), channels(x))


def token(writer: Writer, x: Value) -> Value:
    """A learned row, repeated for every image of the batch, added to all rows."""
    shape = writer.node("Concat", writer.size(x, 0), writer.numbers(1, channels(x)), axis=0)
    repeated = writer.node("Expand", writer.floats(1, 1, channels(x)), shape)
    return with_channels(x, writer.node("Add", x.name, repeated), channels(x))


def as_large_as(writer: Writer, x: Value) -> Value:
    """Repeated to the whole shape of another value."""
    repeated = writer.node("Expand", writer.floats(channels(x)), writer.node("Shape", x.name))
    return with_channels(x, writer.node("Mul", x.name, repeated), channels(x))


def part(writer: Writer, x: Value) -> Value:
    """Some channels."""
    start = writer.integer(0, channels(x) - 1)
    words = (writer.numbers(start), writer.numbers(2**62), writer.numbers(2))
    return with_channels(x, writer.node("Slice", x.name, *words), channels(x) - start)


def halves(writer: Writer, x: Value) -> Value:
    doubled = joined(writer, x)
    name = f"split{len(writer.nodes)}"
    writer.nodes.append(helper.make_node("Split", [doubled.name], [name, f"{name}b"], name, axis=2, num_outputs=2))
    return with_channels(x, writer.node("Sub", name, f"{name}b"), channels(x))


def later(writer: Writer, x: Value) -> Value:
    """All rows but the first, with a row of zeros in front."""
    rest = writer.node("Slice", x.name, writer.numbers(1), writer.numbers(2**31 - 1), writer.numbers(1))
    return with_channels(x, writer.node("Pad", rest, writer.numbers(0, 1, 0, 0, 0, 0)), channels(x))


def convolved(writer: Writer, x: Value) -> Value:
    """Along T, with padding."""
    turned = writer.node("Transpose", x.name, perm=[0, 2, 1])
    count = writer.integer(1, 3)
    filters = writer.floats(count, channels(x), 3)
    result = writer.node("Conv", turned, filters, pads=[1, 1])
    pooled = writer.node("MaxPool", result, kernel_shape=[3], strides=[1], auto_pad="SAME_UPPER")
    return with_channels(x, writer.node("Transpose", pooled, perm=[0, 2, 1]), count)


def normalised(writer: Writer, x: Value) -> Value:
    mean = writer.node("ReduceMax", x.name, writer.numbers(1), keepdims=1)
    return with_channels(x, writer.node("Sub", x.name, mean), channels(x))


def mixed_batch(writer: Writer, x: Value) -> Value:
    """Squeezed, unsqueezed and flattened on the way."""
    up = writer.node("Unsqueeze", x.name, writer.numbers(1))
    down = writer.node("Squeeze", up, writer.numbers(1))
    flat = writer.node("Flatten", down, axis=2)
    shape = writer.node("Shape", x.name)
    return with_channels(x, writer.node("Reshape", flat, shape), channels(x))


STEPS: list[Callable[[Writer, Value], Value]] = [
    pointwise,
    bias,
    linear,
    residual,
    joined,
    heads,
    rows,
    copied,
    token,
    as_large_as,
    part,
    halves,
    later,
    convolved,
    normalised,
    mixed_batch,
]


def last(writer: Writer, x: Value) -> Value:
    """How a network ends: nothing, the first row, the mean over T, or all of an image in a row."""
    match writer.integer(0, 3):
        case 0:
            return x
        case 1:
            row = writer.node("Gather", x.name, writer.weight(np.array(0, np.int64)), axis=1)
            return Value(row, (x.shape[0], channels(x)))
        case 2:
            return Value(writer.node("ReduceSum", x.name, writer.numbers(1), keepdims=0), (x.shape[0], channels(x)))
        case _:
            shape = writer.node("Concat", writer.size(x, 0), writer.numbers(-1), axis=0)
            return Value(writer.node("Reshape", x.name, shape), (x.shape[0], "flat"))


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    writer = Writer(draw)
    count = draw(st.integers(1, 4))
    x = Value("x", ("N", "T", count))
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=5)):
        x = step(writer, x)
    x = last(writer, x)
    graph = helper.make_graph(
        writer.nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "T", count])],
        [helper.make_tensor_value_info(x.name, TensorProto.FLOAT, x.shape)],
        writer.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def text(module: ModuleOp) -> str:
    return module_text(make_context(), module)


def same_weights(left: WeightStore, right: WeightStore) -> bool:
    return left.names() == right.names() and all(np.array_equal(left[name], right[name]) for name in left)


@given(models(), st.sampled_from(SAMPLES))
@examples(60)
def test_binding_an_imported_model_is_importing_it_bound(model: ModelProto, sizes: Sizes) -> None:
    open_module, open_weights = import_model(model)
    verify(open_module)
    module, weights = import_model(model, dims=sizes)
    bind_dims(open_module, sizes)
    verify(open_module)
    assert text(open_module) == text(module)
    assert same_weights(open_weights, weights)


@given(models(), st.sampled_from(SAMPLES))
@examples(30)
def test_dimensions_may_be_bound_one_by_one_and_between_readings_of_the_text(model: ModelProto, sizes: Sizes) -> None:
    module, _ = import_model(model)
    for name in sorted(sizes, reverse=sizes["N"] > 2):
        printed = text(module)
        module = parse_text(make_context(), SourceText("open.mlir", printed)).module
        assert text(module) == printed
        verify(module)
        bind_dims(module, {name: sizes[name]})
    assert text(module) == text(import_model(model, dims=sizes)[0])


@given(models())
@examples(30)
def test_one_import_agrees_with_onnxruntime_for_several_sizes(model: ModelProto) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module, weights = import_model(model)
    for sizes in SAMPLES:
        bound = module.clone()
        bind_dims(bound, sizes)
        count = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
        rng = np.random.default_rng(sizes["N"])
        x = rng.integers(-3, 4, (sizes["N"], sizes["T"], count)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        (found,) = run_module(bound, [x], weights)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
