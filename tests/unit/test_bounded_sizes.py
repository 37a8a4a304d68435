# SPDX-License-Identifier: Apache-2.0
"""Programs whose sizes only a run knows, up to a bound: for every size they compute what the one bound at it does."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from one_node import onnxruntime_of
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from sampling import sweep

import penstock
from penstock.dialects.alignment import ALIGNMENT
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph.dims import AtMost
from penstock.dialects.graph.sizes import Size, named_size
from penstock.dialects.remarks import Remark, listening
from penstock.lowering.bounded import Points
from penstock.lowering.to_c import emit_c
from penstock.passes.toolchain import load
from penstock.runtime.compiler import load_input
from penstock.runtime.engine import Engine, compile_program
from penstock.runtime.native import NativeModule, build

if TYPE_CHECKING:
    from tests.conftest import Command

Array = NDArray[Any]
Shape = list[Any]
WIDTH = 8


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def make_model(
    nodes: list[NodeProto], inputs: dict[str, Shape], outputs: Sequence[str], **weights: Array
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def layers() -> ModelProto:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Add", "a b", "c"),
        node("Relu", "c", "d"),
        node("MatMul", "d v", "e"),
        node("Softmax", "e", "y", axis=-1),
    ]
    return make_model(nodes, {"x": ["N", 10]}, ["y"], w=draw(10, 36), b=draw(36), v=draw(36, 5))


def convolutions() -> ModelProto:
    nodes = [
        node("Conv", "x w b", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "c"),
        node("Conv", "c v", "d", group=6, strides=[2, 2]),
        node("MaxPool", "d", "e", kernel_shape=[2, 2]),
        node("Concat", "e e", "f", axis=1),
        node("GlobalAveragePool", "f", "g"),
        node("Flatten", "g", "y"),
    ]
    return make_model(nodes, {"x": ["N", 3, 9, 8]}, ["y"], w=draw(6, 3, 3, 3), b=draw(6), v=draw(6, 1, 3, 3))


def attention(batch: int | str, sequence: int | str) -> ModelProto:
    nodes = [node("MatMul", f"x w{part}", f"{part}0") for part in "qkv"]
    for part in "qkv":
        nodes.append(node("Reshape", f"{part}0 heads", f"{part}1"))
        nodes.append(node("Transpose", f"{part}1", f"{part}2", perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]))
    nodes += [
        node("MatMul", "q2 k2", "scores"),
        node("Add", "scores mask", "masked"),
        node("Softmax", "masked", "shares", axis=-1),
        node("MatMul", "shares v2", "o0"),
        node("Transpose", "o0", "o1", perm=[0, 2, 1, 3]),
        node("Reshape", "o1 flat", "o2"),
        node("Add", "o2 x", "sum"),
        node("LayerNormalization", "sum gain shift", "y", axis=-1),
    ]
    shapes: dict[str, Shape] = {"x": [batch, sequence, WIDTH], "mask": [batch, 1, 1, sequence]}
    weights = {f"w{part}": draw(WIDTH, WIDTH) for part in "qkv"}
    targets = {"heads": np.array([0, 0, 2, WIDTH // 2]), "flat": np.array([0, 0, WIDTH])}
    return make_model(nodes, shapes, ["y"], gain=draw(WIDTH), shift=draw(WIDTH), **weights, **targets)


def recurrence(operator: str, direction: str, steps: int | str, batch: int | str) -> ModelProto:
    gates, both = {"LSTM": 4, "GRU": 3}[operator], 2 if direction == "bidirectional" else 1
    nodes = [node(operator, "x w r b", "all last", hidden_size=4, direction=direction)]
    weights = {"w": draw(both, 4 * gates, 3), "r": draw(both, 4 * gates, 4), "b": draw(both, 8 * gates)}
    return make_model(nodes, {"x": [steps, batch, 3]}, ["all", "last"], **weights)


def doubled() -> ModelProto:
    """Results of 2 * N, N * T and N + 3 lines."""
    nodes = [
        node("Concat", "x x", "twice", axis=0),
        node("Reshape", "x all", "flat"),
        node("Concat", "z head", "more", axis=0),
    ]
    shapes: dict[str, Shape] = {"x": ["N", "T", 4], "z": ["N", 4]}
    return make_model(nodes, shapes, ["twice", "flat", "more"], all=np.array([-1, 4]), head=draw(3, 4))


MODELS: dict[str, tuple[ModelProto, dict[str, int]]] = {
    "layers": (layers(), {"N": 9}),
    "convolutions": (convolutions(), {"N": 5}),
    "attention of a batch": (attention("N", 5), {"N": 3}),
    "attention of a sequence": (attention(1, "T"), {"T": 20}),
    "attention of both": (attention("N", "T"), {"N": 2, "T": 6}),
    "LSTM": (recurrence("LSTM", "forward", "T", 2), {"T": 6}),
    "LSTM of both": (recurrence("LSTM", "reverse", "T", "N"), {"T": 3, "N": 3}),
    "GRU": (recurrence("GRU", "bidirectional", "T", 1), {"T": 5}),
    "results of other sizes": (doubled(), {"N": 3, "T": 3}),
}

QUICK = ("layers", "convolutions", "attention of both", "LSTM of both", "results of other sizes")


def inputs_of(model: ModelProto, sizes: Mapping[str, int]) -> dict[str, Array]:
    shapes = {
        value.name: [
            sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in value.type.tensor_type.shape.dim
        ]
        for value in model.graph.input
    }
    return {name: draw(*shape) for name, shape in shapes.items()}


def bounded(bounds: Mapping[str, int]) -> dict[str, AtMost]:
    return {name: AtMost(most) for name, most in bounds.items()}


def every(bounds: Mapping[str, int]) -> list[dict[str, int]]:
    return [
        dict(zip(bounds, sizes, strict=True)) for sizes in product(*(range(1, most + 1) for most in bounds.values()))
    ]


def check(engine: Engine, model: ModelProto, sizes: dict[str, int], bound: Engine) -> None:
    """An engine for all sizes, at some, beside one for these and beside onnxruntime."""
    inputs = inputs_of(model, sizes)
    found, own = engine.run([], inputs), bound.run([], inputs)
    for ours, specialised, theirs in zip(found, own, onnxruntime_of(model, inputs), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_array_equal(ours, specialised, err_msg=str(sizes))
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5, err_msg=str(sizes))


@pytest.mark.parametrize("name", sweep(MODELS, QUICK))
def test_one_engine_computes_what_those_of_each_size_do(name: str) -> None:
    model, bounds = MODELS[name]
    engine = penstock.compile(model, dims=bounded(bounds))
    assert isinstance(engine, Engine)
    sizes = every(bounds)
    for each in (sizes[0], sizes[len(sizes) // 2], sizes[-1]):
        bound = penstock.compile(model, dims=each)
        assert isinstance(bound, Engine)
        check(engine, model, each, bound)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_one_engine_computes_so_at_every_size(name: str) -> None:
    model, bounds = MODELS[name]
    engine = penstock.compile(model, dims=bounded(bounds))
    assert isinstance(engine, Engine)
    for each in every(bounds):
        bound = penstock.compile(model, dims=each)
        assert isinstance(bound, Engine)
        check(engine, model, each, bound)


@pytest.mark.parametrize("level", ["tensor", "loop"])
@pytest.mark.parametrize("name", sweep(MODELS, ("layers", "LSTM")))
def test_the_interpreter_runs_it_at_every_size(name: str, level: str) -> None:
    model, bounds = MODELS[name]

    def compiled(dims: Mapping[str, Any]) -> Engine:
        return compile_program(load_input(model, dims=dims), until=level, backend="interpreter")

    if (name, level) == ("LSTM of both", "tensor"):
        # A kernel that fills a tensor has no argument that would say how large it is; at loop level it is given that.
        with pytest.raises(UserError, match='the size "N" is needed here, and no argument of @fused_0 has it'):
            compiled(bounded(bounds))
        return
    engine = compiled(bounded(bounds))
    for each in every(bounds):
        check(engine, model, each, compiled(each))


def test_an_attention_in_blocks_is_not_fused() -> None:
    """Blocks of a sequence longer than one depend on its length."""
    model = attention(1, "T")
    said: list[Remark] = []
    with listening(said.append):
        engine = penstock.compile(model, dims={"T": AtMost(100)})
    assert isinstance(engine, Engine)
    assert [each.kind for each in said if "no attention is fused" in each.message] == ["missed"]
    for size in (1, 65, 100):
        bound = penstock.compile(model, dims={"T": size}, pipeline="default, -fuse-attention")
        assert isinstance(bound, Engine)
        check(engine, model, {"T": size}, bound)


def test_a_buffer_has_the_bytes_of_the_bound_and_the_size_of_the_run() -> None:
    engine = penstock.compile(layers(), dims={"N": AtMost(9)})
    assert isinstance(engine, Engine)
    text = str(engine.module)
    assert 'graph.sizes = ["N"], graph.bounds = array<i64: 9>' in text
    assert 'graph.name = "x", graph.shape = affine_map<()[s0] -> (s0, 10)>' in text
    assert "memref<9x36xf32> to memref<?x36xf32, strided<[36, 1]>>" in text
    bound = penstock.compile(layers(), dims={"N": 9})
    assert isinstance(bound, Engine)
    assert engine.report.arena is not None
    assert bound.report.arena is not None
    assert engine.report.arena.peak == bound.report.arena.peak


# what is shown and kept


def test_a_plan_keeps_the_sizes(tmp_path: Path) -> None:
    engine = penstock.compile(doubled(), dims={"N": AtMost(3), "T": AtMost(4)})
    assert isinstance(engine, Engine)
    engine.save(tmp_path / "a.plan")
    inputs = inputs_of(doubled(), {"N": 2, "T": 3})
    expected = engine.run([], inputs)
    for other in (Engine.load(tmp_path / "a.plan"), pickle.loads(pickle.dumps(engine))):
        assert other.signature == engine.signature
        for ours, theirs in zip(other.run([], inputs), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert [array.shape for array in expected] == [(4, 3, 4), (6, 4), (5, 4)]
    assert [spec.named_shape for spec in engine.signature.outputs] == ["2*NxTx4", "T*Nx4", "N+3x4"]


def test_the_bound_at_the_largest_size_is_that_of_the_plan(tmp_path: Path, penstock: Command) -> None:
    """What alignments waste is in both."""
    path = tmp_path / "aligned.onnx"
    nodes = [node("Relu", "x", "a"), node("MatMul", "a w", "b"), node("Relu", "b", "c"), node("MatMul", "c v", "y")]
    path.write_bytes(make_model(nodes, {"x": ["N", 4]}, ["y"], w=draw(4, 3), v=draw(3, 2)).SerializeToString())
    said = penstock("plan", path, "--dim", "N<=1")
    assert said.status == 0, said.err
    above, last = (said.out.splitlines()[row].split() for row in (1, -1))
    assert last[-1] == above[4]


def test_outputs_may_be_given_of_the_size_of_the_run() -> None:
    engine = penstock.compile(layers(), dims={"N": AtMost(9)})
    out = np.empty((4, 5), np.float32)
    (found,) = engine(draw(4, 10), out=out)
    assert found is out
    with pytest.raises(UserError, match=r"has the shape \(5, 5\)"):
        engine(draw(4, 10), out=np.empty((5, 5), np.float32))


@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_a_quotient_that_is_one_number_at_every_size_is_that(backend: Any) -> None:
    model = make_model([node("MaxPool", "x", "y", kernel_shape=[1, 1], strides=[32, 1])], {"x": [1, 2, "N", 3]}, ["y"])
    engine = penstock.compile(model, dims={"N": AtMost(9)}, backend=backend)
    for size in (1, 9):
        x = draw(1, 2, size, 3)
        np.testing.assert_array_equal(engine(x)[0], x[:, :, :1])


@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_a_size_past_its_bound_is_refused(backend: Any) -> None:
    engine = penstock.compile(layers(), dims={"N": AtMost(9)}, backend=backend)
    with pytest.raises(UserError, match=r"N is at most 9, but is 10 by input x \(dimension 0 of \?x10\)"):
        engine(draw(10, 10))
    with pytest.raises(UserError, match="N must be at least 1"):
        engine(np.empty((0, 10), np.float32))


def test_sizes_that_differ_are_refused() -> None:
    engine = penstock.compile(attention("N", "T"), dims={"N": AtMost(3), "T": AtMost(4)})
    with pytest.raises(UserError, match=r"T is 3 by input x .* but input mask has 2 there"):
        engine(draw(2, 3, WIDTH), draw(2, 1, 1, 2))


@pytest.mark.parametrize("size", [0, 10, -1, 2**40])
def test_code_writes_nothing_for_a_size_past_its_bound(size: int) -> None:
    engine = penstock.compile(layers(), dims={"N": AtMost(9)})
    assert isinstance(engine, Engine)
    source = emit_c(engine.module)
    assert "sizes[0]  N: 1 to 9" in source.header
    assert "outputs[0]  y: Nx5 f32" in source.header
    module = NativeModule(source, load(build(source)))
    memory = np.full(module.context_bytes + ALIGNMENT, 7, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % ALIGNMENT
    before = memory.copy()
    x, y = draw(9, 10), np.full((9, 5), 7, np.float32)
    weights = [engine.ctx.weights[spec.name] for spec in source.weights]
    pointers = [
        (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays)) for arrays in (weights, [x], [y])
    ]
    assert module.entry(start, *pointers, (ctypes.c_int64 * 1)(size)) == 5
    assert np.all(y == 7)
    np.testing.assert_array_equal(memory, before)
    assert module.entry(start, *pointers, (ctypes.c_int64 * 1)(2)) == 0
    assert np.all(y[2:] == 7)
    assert not np.any(y[:2] == 7)


# the numbers of programs as functions of sizes


@pytest.mark.parametrize("names", ["N", "NT", "NTH"])
def test_sums_of_products_are_found(names: str) -> None:
    points = Points({name: 7 + 3 * number for number, name in enumerate(names)})
    sizes = [named_size(name) for name in names]
    everything: Size = 1
    for size in sizes:
        everything = everything * size
    found: list[Size] = [5, sizes[0] * 3 - 2, everything * 2 + sizes[-1] + 1, everything + 4]
    for expected in found:
        values = [eval(str(expected), {}, dict(each)) for each in points.all]
        assert points.fit(values) == expected


@pytest.mark.parametrize(
    "function",
    [
        "N // 2",
        "N * N",
        "-(-N // 8) * 8 + N * N",
        "(N + 1) // 2",
        "N % 3",
        "2 ** N",
        "N // 8",
        "N // 15",
        "-(-N // 16)",
    ],
)
def test_what_is_no_sum_of_products_is_not_found(function: str) -> None:
    points = Points({"N": 16})
    assert points.fit([eval(function, {}, dict(each)) for each in points.all]) is None
