"""Random models with data-dependent `If`s, nested and with captured values, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper
from sampling import examples

from penstock.runtime import onnx_backend

SHAPE = (3, 4)
UNARY = ("Exp", "Neg", "Relu", "Tanh", "Identity", "Transposed", "Softmax", "Weighed")
BINARY = ("Add", "Mul", "Max", "Joined")
LEVELS = {
    "graph": {"backend": "interpreter", "level": "graph"},
    "loop": {"backend": "interpreter", "level": "loop"},
    "c": {"backend": "native"},
}


class Writer:
    """Writes nodes whose values all have one shape; a branch reads what is there when it begins."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def graph(self, known: list[str], depth: int, outputs: int) -> GraphProto:
        """A graph with its results, of which some may be values from around it."""
        nodes: list[NodeProto] = []
        values = list(known)
        for _ in range(self.draw(st.integers(0 if depth else 1, 3))):
            values += self.step(nodes, values, depth)
        results: list[str] = []
        for _ in range(outputs):
            # A result of a graph belongs to one of its own nodes, and is no other result.
            results.append(self.name())
            nodes.append(helper.make_node("Identity", [self.draw(st.sampled_from(values[-4:]))], [results[-1]]))
        described = [helper.make_tensor_value_info(each, TensorProto.FLOAT, SHAPE) for each in results]
        return helper.make_graph(nodes, "graph", [], described)

    def step(self, nodes: list[NodeProto], values: list[str], depth: int) -> list[str]:
        read = self.draw(st.sampled_from(values))
        kind = self.draw(st.sampled_from(["unary", "binary", "if", "if"] if depth < 2 else ["unary", "binary"]))
        if kind == "if":
            return self.choice(nodes, values, read, depth)
        out = self.name()
        if kind == "binary":
            operator, other = self.draw(st.sampled_from(BINARY)), self.draw(st.sampled_from(values))
            if operator == "Joined":
                both, halves = self.name(), [self.name(), out]
                nodes.append(helper.make_node("Concat", [read, other], [both], axis=0))
                nodes.append(helper.make_node("Split", [both], halves, axis=0, num_outputs=2))
                return halves
            nodes.append(helper.make_node(operator, [read, other], [out]))
            return [out]
        operator = self.draw(st.sampled_from(UNARY))
        if operator == "Transposed":
            turned = self.name()
            nodes.append(helper.make_node("Transpose", [read], [turned], perm=[1, 0]))
            nodes.append(helper.make_node("Reshape", [turned, "shape"], [out]))
        elif operator == "Weighed":
            nodes.append(helper.make_node("MatMul", [read, "weight"], [out]))
        else:
            nodes.append(helper.make_node(operator, [read], [out]))
        return [out]

    def choice(self, nodes: list[NodeProto], values: list[str], read: str, depth: int) -> list[str]:
        total, condition = self.name(), self.name()
        nodes.append(helper.make_node("ReduceMax", [read], [total], keepdims=self.draw(st.integers(0, 1))))
        nodes.append(helper.make_node("Greater", [total, "limit"], [condition]))
        outs = [self.name() for _ in range(self.draw(st.integers(1, 2)))]
        then, otherwise = (self.graph(values, depth + 1, len(outs)) for _ in range(2))
        node = helper.make_node("If", [condition], outs)
        node.attribute.append(helper.make_attribute("then_branch", then))
        node.attribute.append(helper.make_attribute("else_branch", otherwise))
        nodes.append(node)
        return outs


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    writer = Writer(draw)
    graph = writer.graph(["x", "z"], 0, draw(st.integers(1, 2)))
    for name in ("x", "z"):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE))
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    for name, array in (
        ("shape", np.array(SHAPE, np.int64)),
        ("limit", np.array(1, np.float32)),
        ("weight", weight),
    ):
        graph.initializer.append(numpy_helper.from_array(array, name))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    checker.check_model(model)  # pyright: ignore[reportUnknownMemberType]
    return model


def _agrees(model: ModelProto, **how: str) -> None:
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    read = [each.name for each in session.get_inputs()]
    prepared = onnx_backend.prepare(model, "CPU", **how)
    random = np.random.default_rng(0)
    for shift in (-2, 0, 2):
        inputs = {name: (random.integers(-8, 8, SHAPE) / 4 + shift).astype(np.float32) for name in ("x", "z")}
        expected = session.run(None, {name: inputs[name] for name in read})
        found = prepared.run(list(inputs.values()))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@given(model=models())
@examples(40)
def test_models_with_branches_give_what_onnxruntime_gives(level: str, model: ModelProto) -> None:
    _agrees(model, **LEVELS[level])
