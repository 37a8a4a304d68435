# SPDX-License-Identifier: Apache-2.0
"""Random models with `If`, `Loop` and `Scan`, nested and with captured values, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, checker, helper, numpy_helper
from sampling import examples

from penstock.lowering.to_onnx import export_model
from penstock.runtime import onnx_backend
from penstock.runtime.compiler import import_program
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import main_function

onnxruntime: Any = pytest.importorskip("onnxruntime")

SHAPE = (3, 4)
UNARY = ("Exp", "Neg", "Relu", "Tanh", "Identity", "Transposed", "Softmax", "Weighed")
BINARY = ("Add", "Mul", "Max", "Joined")
CONTROL = ("If", "Loop", "Scan")
LEVELS = {
    "graph": {"backend": "interpreter", "level": "graph"},
    "loop": {"backend": "interpreter", "level": "loop"},
    "c": {"backend": "native"},
}


def _described(name: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] | None = SHAPE) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


class Writer:
    """Writes nodes whose values all have one shape; a graph inside a node reads what is there when it begins."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def node(self, nodes: list[NodeProto], operator: str, inputs: list[str], **attributes: Any) -> str:
        """The result of a new node."""
        nodes.append(helper.make_node(operator, inputs, [self.name()], **attributes))
        return nodes[-1].output[0]

    def graph(
        self,
        known: list[str],
        depth: int,
        outputs: int,
        inputs: list[ValueInfoProto] | None = None,
        before: Callable[[list[NodeProto]], list[str]] = lambda nodes: [],
    ) -> GraphProto:
        """A graph with its results, of which some may be values from around it; `before` gives what comes first."""
        nodes: list[NodeProto] = []
        first = before(nodes)
        values = [*known, *first]
        for _ in range(self.draw(st.integers(0 if depth else 1, 3))):
            values += self.step(nodes, values, depth)
        results: list[str] = []
        for _ in range(outputs):
            # A result of a graph belongs to one of its own nodes, and is no other result.
            held = self.draw(st.sampled_from(values[-4:]))
            if depth and inputs:
                held = self.node(nodes, "Tanh", [held])  # a value that goes round stays small
            results.append(self.node(nodes, "Identity", [held]))
        return helper.make_graph(nodes, "graph", inputs or [], [_described(each) for each in results])

    def step(self, nodes: list[NodeProto], values: list[str], depth: int) -> list[str]:
        read = self.draw(st.sampled_from(values))
        kind = self.draw(st.sampled_from(["unary", "binary", *(CONTROL if depth < 2 else ())]))
        if kind == "If":
            return self.choice(nodes, values, read, depth)
        if kind == "Loop":
            return self.loop(nodes, values, read, depth)
        if kind == "Scan":
            return self.scan(nodes, values, depth)
        if kind == "binary":
            operator, other = self.draw(st.sampled_from(BINARY)), self.draw(st.sampled_from(values))
            if operator == "Joined":
                both, halves = self.node(nodes, "Concat", [read, other], axis=0), [self.name(), self.name()]
                nodes.append(helper.make_node("Split", [both], halves, axis=0, num_outputs=2))
                return halves
            return [self.node(nodes, operator, [read, other])]
        operator = self.draw(st.sampled_from(UNARY))
        if operator == "Transposed":
            return [self.node(nodes, "Reshape", [self.node(nodes, "Transpose", [read], perm=[1, 0]), "shape"])]
        if operator == "Weighed":
            return [self.node(nodes, "MatMul", [read, "weight"])]
        return [self.node(nodes, operator, [read])]

    def choice(self, nodes: list[NodeProto], values: list[str], read: str, depth: int) -> list[str]:
        condition = self.is_large(nodes, read)
        outs = [self.name() for _ in range(self.draw(st.integers(1, 2)))]
        then, otherwise = (self.graph(values, depth + 1, len(outs)) for _ in range(2))
        nodes.append(helper.make_node("If", [condition], outs, then_branch=then, else_branch=otherwise))
        return outs

    def is_large(self, nodes: list[NodeProto], read: str, operator: str = "Greater") -> str:
        total = self.node(nodes, "ReduceMax", [read], keepdims=self.draw(st.integers(0, 1)))
        return self.node(nodes, operator, [total, "limit"])

    def loop(self, nodes: list[NodeProto], values: list[str], read: str, depth: int) -> list[str]:
        """A trip count that is known or data, or a condition, or both; lines where their number is known."""
        count = self.draw(st.sampled_from(["known", "data", "none"]))
        ends = count == "none" or self.draw(st.booleans())
        carried = self.draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        trips = {"known": "three", "none": "", "data": ""}[count]
        if count == "data":
            total = self.node(nodes, "ReduceMax", [read], keepdims=0)
            wanted = self.node(nodes, "Clip", [total, "none", "most"])
            trips = self.node(nodes, "Cast", [wanted], to=TensorProto.INT64)
        begins = self.is_large(nodes, read) if self.draw(st.booleans()) else "true"
        if begins != "true":
            begins = self.node(nodes, "Reshape", [begins, "scalar"])
        stacked = int(count == "known" and not ends and begins == "true" and self.draw(st.booleans()))
        number, goes_on, *state = [self.name() for _ in range(2 + len(carried))]

        def before(inner: list[NodeProto]) -> list[str]:
            return [*state, self.node(inner, "Add", [state[0], self.node(inner, "Cast", [number], to=1)])]

        inputs = [_described(number, TensorProto.INT64, ()), _described(goes_on, TensorProto.BOOL, ())]
        inputs += [_described(each) for each in state]
        body = self.graph(values, depth + 1, len(carried) + stacked, inputs, before)
        inner = list(body.node)
        more = goes_on
        if ends:
            # Without a count it has to end: after five at most.
            more = self.node(inner, "Less", [self.node(inner, "Cast", [number], to=1), "most"])
            if self.draw(st.booleans()):
                small = self.node(inner, "Reshape", [self.is_large(inner, body.output[0].name, "Less"), "scalar"])
                more = self.node(inner, "And", [more, small])
        last = self.node(inner, "Identity", [more])
        outputs = [_described(last, TensorProto.BOOL, None), *body.output]
        outs = [self.name() for _ in range(len(carried) + stacked)]
        nodes.append(
            helper.make_node(
                "Loop", [trips, begins, *carried], outs, body=helper.make_graph(inner, "body", inputs, outputs)
            )
        )
        if stacked:
            outs[-1] = self.node(nodes, "ReduceMax", [outs[-1], "first"], keepdims=0)
        return outs

    def scan(self, nodes: list[NodeProto], values: list[str], depth: int) -> list[str]:
        """Over the lines of two or three values that are put together."""
        parts = self.draw(st.lists(st.sampled_from(values), min_size=2, max_size=3))
        carried = self.draw(st.lists(st.sampled_from(values), min_size=0, max_size=2))
        axis, axis_out = (self.draw(st.integers(0, 2)) for _ in range(2))
        sides = [self.draw(st.integers(0, 1)) for _ in range(2)]
        apart = [self.node(nodes, "Unsqueeze", [each, f"axis{axis}"]) for each in parts]
        scanned = self.node(nodes, "Concat", apart, axis=axis)
        state, line = [self.name() for _ in carried], self.name()
        inputs = [_described(each) for each in (*state, line)]
        body = self.graph(values, depth + 1, len(carried) + 1, inputs, lambda _: [*state, line])
        outs = [self.name() for _ in range(len(carried) + 1)]
        nodes.append(
            helper.make_node(
                "Scan",
                [*carried, scanned],
                outs,
                body=body,
                num_scan_inputs=1,
                scan_input_axes=[axis],
                scan_output_axes=[axis_out],
                scan_input_directions=sides[:1],
                scan_output_directions=sides[1:],
            )
        )
        # Two numbers of each line, so that it shows which stands where.
        lines = [self.node(nodes, "Gather", [outs[-1], each], axis=axis_out) for each in ("zero", "one")]
        return [*outs[:-1], *lines]


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    writer = Writer(draw)
    graph = writer.graph(["x", "z"], 0, draw(st.integers(1, 2)))
    for name in ("x", "z"):
        graph.input.append(_described(name))
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    for name, array in (
        ("shape", np.array(SHAPE, np.int64)),
        ("scalar", np.array([], np.int64)),
        ("limit", np.array(1, np.float32)),
        ("none", np.array(0, np.float32)),
        ("most", np.array(4, np.float32)),
        ("three", np.array(3, np.int64)),
        ("true", np.array(True)),
        ("first", np.array([0], np.int64)),
        ("zero", np.array(0, np.int64)),
        ("one", np.array(1, np.int64)),
        *((f"axis{axis}", np.array([axis], np.int64)) for axis in range(3)),
        ("weight", weight),
    ):
        graph.initializer.append(numpy_helper.from_array(array, name))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    checker.check_model(model)  # pyright: ignore[reportUnknownMemberType]
    return model


def _session(model: ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _agrees(model: ModelProto, **how: str) -> None:
    session = _session(model)
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
def test_models_with_branches_and_loops_give_what_onnxruntime_gives(level: str, model: ModelProto) -> None:
    _agrees(model, **LEVELS[level])


@given(model=models())
@examples(12)
def test_they_compute_the_same_when_they_are_exported(model: ModelProto) -> None:
    program = import_program(model, {})
    run_passes(program.ctx, program.module, read_pipeline(",".join(pipeline("graph", None))))
    exported = export_model(main_function(program.module), program.ctx.weights)
    checker.check_model(exported)  # pyright: ignore[reportUnknownMemberType]
    random = np.random.default_rng(0)
    inputs = {name: (random.integers(-8, 8, SHAPE) / 4).astype(np.float32) for name in ("x", "z")}
    found, expected = (
        session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()})
        for session in map(_session, (exported, model))
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)
